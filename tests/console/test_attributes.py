"""Attributes at the console: their values in forms, and their definitions with a plan."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from flask import Flask

from tests.builders import Cast, make_collection
from tests.console.browser import Browser, alert, beside

FIELDS = [
    {"name": "department", "type": "text", "visible_to": "members", "label": "Department"},
    {"name": "phone", "type": "text", "writable_by": "self"},
    {"name": "team", "type": "select", "options": {"choices": ["red", "blue"]}},
    {"name": "level", "type": "number", "options": {"min": 1}, "visible_to": "self"},
    {"name": "since", "type": "date"},
    {"name": "seen", "type": "datetime"},
    {"name": "remote", "type": "boolean"},
    {"name": "mail", "type": "email", "required": True},
    {"name": "tags", "type": "multi_select", "options": {"choices": ["a", "b"]}},
    {"name": "risk", "type": "text", "writable_by": "superadmin", "visible_to": "superadmin"},
    {"name": "plan", "type": "text", "writable_by": "superadmin", "visible_to": "self"},
]
SENT = {
    "f_department": "Sales",
    "f_phone": "+49 1",
    "f_team": "red",
    "f_level": "2",
    "f_since": "2026-01-02",
    "f_seen": "2026-01-02T03:04",
    "f_remote": "true",
    "f_mail": "bob@private.example",
    "f_tags": ["b", "a"],
}
STORED = {
    "department": "Sales",
    "phone": "+49 1",
    "team": "red",
    "level": 2,
    "since": "2026-01-02",
    "seen": "2026-01-02T03:04:00.000000Z",
    "remote": True,
    "mail": "bob@private.example",
    "tags": ["b", "a"],
}


@pytest.fixture
def defined(cast: Cast) -> Cast:
    assert cast.root.put("attributes/users", {"fields": FIELDS}).status_code == 200
    fields = [
        {"name": "industry", "type": "text", "label": "Industry"},
        {"name": "plan_code", "type": "text", "writable_by": "superadmin"},
        {
            "name": "score",
            "type": "number",
            "writable_by": "superadmin",
            "visible_to": "superadmin",
        },
    ]
    assert cast.root.put("attributes/accounts", {"fields": fields}).status_code == 200
    values = {"risk": "high", "plan": "gold"}
    assert cast.root.patch(f"users/{cast.bob.id}", {"attributes": values}).status_code == 200
    return cast


def inputs(page: str) -> set[str]:
    """The attributes that a page has inputs for."""
    return set(re.findall(r'name="f_(\w+)"', page))


def facts(page: str) -> dict[str, str]:
    found = re.findall(r"<dt>(\w+)</dt><dd>(?:<code>)?([\w ]*)", page)
    return dict(found)


def test_admin_sets_what_admins_write_of_a_user(defined: Cast, admin: Browser) -> None:
    path = f"team/users/{defined.bob.id}"
    page = admin.get(path).text
    assert inputs(page) == STORED.keys()
    assert "high" not in page
    assert facts(page)["plan"] == "gold"
    assert ">Department<" in page
    assert admin.send(f"{path}/attributes", **SENT).status_code == 303
    stored = defined.root.get(f"users/{defined.bob.id}").json["attributes"]
    assert stored == STORED | {"risk": "high", "plan": "gold"}
    changed = SENT | {"f_department": "", "f_tags": [], "f_risk": "low", "f_plan": "free"}
    assert admin.send(f"{path}/attributes", **changed).status_code == 303
    kept = {name: value for name, value in stored.items() if name not in ("department", "tags")}
    assert defined.root.get(f"users/{defined.bob.id}").json["attributes"] == kept


def test_wrong_values_of_attributes_are_told_beside_their_inputs(
    defined: Cast, admin: Browser
) -> None:
    path = f"team/users/{defined.bob.id}"
    wrong = {"f_level": "0", "f_team": "green", "f_since": "soon", "f_mail": "x", "f_phone": "1"}
    answer = admin.send(f"{path}/attributes", **SENT | wrong)
    assert answer.status_code == 400
    assert [name for name in SENT if f'id="{name}-error"' in answer.text] == [
        "f_team",
        "f_level",
        "f_since",
        "f_mail",
    ]
    assert 'value="soon"' in answer.text
    assert defined.root.get(f"users/{defined.bob.id}").json["attributes"].keys() == {"risk", "plan"}
    assert admin.send(f"{path}/attributes", **SENT).status_code == 303
    answer = admin.send(f"{path}/attributes", **SENT | {"f_mail": ""})
    assert beside(answer, "f_mail") == "This attribute needs a value."


def test_own_profile_has_inputs_for_what_oneself_writes(app: Flask, defined: Cast) -> None:
    viewer = Browser(app, defined.bob)
    page = viewer.get("profile").text
    assert inputs(page) == {"phone"}
    assert facts(page) == {"plan": "gold"}
    form = {"name": "Bob", "email": defined.bob.email, "f_level": "9"}
    viewer.done("profile", **form, f_phone="+49 2")
    assert defined.bob.get("auth/me").json["attributes"] == {"phone": "+49 2", "plan": "gold"}
    answer = viewer.send("profile", **form, f_phone="1" * 2001)
    assert "2,000" in beside(answer, "f_phone")


def test_account_form_has_inputs_for_what_its_admins_write(
    defined: Cast, admin: Browser, superadmin: Browser
) -> None:
    path = f"settings/{defined.alice.account_id}/general"
    assert inputs(admin.get(path).text) == {"industry"}
    assert inputs(superadmin.get(path).text) == {"industry", "plan_code", "score"}
    answer = superadmin.send(path, name="Acme", f_plan_code="pro", f_score="x", f_industry="")
    assert "f_score-error" in answer.text
    superadmin.done(path, name="Acme", f_plan_code="pro", f_score="3", f_industry="")
    page = admin.done(path, name="Acme", f_industry="Tools")
    assert facts(page)["plan_code"] == "pro"
    assert ">3<" not in page
    account = defined.root.get(f"accounts/{defined.alice.account_id}").json
    assert account["attributes"] == {"plan_code": "pro", "score": 3, "industry": "Tools"}


def test_new_user_and_account_need_required_attributes(defined: Cast, superadmin: Browser) -> None:
    form = {"account": "acme", "email": "dora@acme.example", "role": "viewer"}
    answer = superadmin.send("users/new", **form, f_department="Sales")
    assert beside(answer, "f_mail") == "This attribute needs a value."
    assert "Sales</textarea>" in answer.text
    assert superadmin.send("users/new", **form, f_mail="d@x.example").status_code == 303
    (dora,) = defined.root.get("users?search=dora").json["items"]
    assert dora["attributes"] == {"mail": "d@x.example"}
    assert superadmin.send("accounts/new", name="Initech", f_plan_code="pro").status_code == 303
    found = defined.root.get("accounts?search=Initech").json["items"]
    assert [one["attributes"] for one in found] == [{"plan_code": "pro"}]


def planned(page: str) -> str:
    """The hash of the plan that a page offers to apply."""
    (found,) = re.findall(r'name="planned" value="(\w+)"', page)
    return str(found)


def test_console_attributes_are_defined_by_superadmins(superadmin: Browser, admin: Browser) -> None:
    assert admin.get("attributes").status_code == 403
    fields = '[{"name": "department", "type": "text", "writable_by": "self"}]'
    answer = superadmin.send("attributes", kind="users", users=fields)
    assert (answer.status_code, "new field" in answer.text) == (200, True)
    assert "department" not in superadmin.get("attributes").text
    applied = {"users": fields, "planned": planned(answer.text)}
    assert superadmin.send("attributes", kind="users", **applied).status_code == 303
    assert "department" in superadmin.get("attributes").text
    for wrong, message in (("[", "not valid JSON"), ('[{"name": "1", "type": "x"}]', "A type is")):
        answer = superadmin.send("attributes", kind="users", users=wrong)
        assert answer.status_code == 400
        assert message in beside(answer, "users")


def test_attributes_are_renamed_and_removed_by_a_plan(defined: Cast, superadmin: Browser) -> None:
    def plan(fields: Any, known: str, **more: str) -> Any:
        sent = {"kind": "users", "users": json.dumps(fields), "known_users": known}
        return superadmin.send("attributes", **sent, **more)

    make_collection(defined.root, list_rule="@request.auth.attributes.department = 'x'")
    known = " ".join(one["name"] for one in FIELDS)
    assert f'name="known_users" value="{known}"' in superadmin.get("attributes").text
    fewer = [one for one in FIELDS if one["name"] not in ("plan", "phone", "department")]
    answer = plan([*fewer, {"name": "unit", "rename_from": "department"}], known)
    assert answer.status_code == 200
    assert "<strong>plan</strong>: 1 value is lost for good." in answer.text
    assert "collections.posts.list_rule" in answer.text
    assert "Follows the new name" in answer.text
    stale = plan([*fewer, {"name": "unit", "rename_from": "department"}], known, planned="0" * 64)
    assert stale.status_code == 200
    fields = [*fewer, {"name": "unit", "rename_from": "department"}]
    assert plan(fields, known, planned=planned(answer.text)).status_code == 303
    names = [one["name"] for one in defined.root.get("attributes/users").json["fields"]]
    assert names == ["unit", *(one["name"] for one in fewer)]
    rule = defined.root.get("collections/posts/rules").json["list_rule"]
    assert rule == "@request.auth.attributes.unit = 'x'"
    answer = plan(fewer, f"{known} unit")
    assert "Change this first" in answer.text
    assert "Apply plan" not in answer.text
    assert "The plan cannot be applied" in alert(answer)
    # What was added since the page was opened is not removed.
    assert "Nothing changes" in plan(fewer, " ".join(one["name"] for one in fewer)).text
