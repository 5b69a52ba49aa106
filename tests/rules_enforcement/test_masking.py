"""Personal data is masked in every answer, and a mask that is sent back changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from tests.builders import Caller, Cast, make_collection, make_record, make_user
from tests.rules_enforcement.stored import rows

FULL = "*" * 8


@dataclass(frozen=True)
class Case:
    """A field, a stored value, and what callers see of it who may not see personal data."""

    field: dict[str, Any]
    stored: Any
    masked: Any = FULL


def personal(name: str, type: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, "type": type, "pii": True, **properties}


def computed(name: str, expression: str, return_type: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "computed",
        "expression": expression,
        "return_type": return_type,
    }


def custom(mask: str) -> dict[str, Any]:
    return {"mask_type": "custom", "options": {"mask": mask}}


CASES = [
    Case({"name": "title", "type": "text"}, "t", masked="t"),
    Case(
        personal("mail", "email", mask_type="email"),
        "Ann.B@mail.example.com",
        "A***@mail.example.com",
    ),
    Case(personal("not_mail", "text", mask_type="email"), "nobody"),
    Case(personal("ssn", "text", mask_type="ssn"), "123-45-6789", "***-**-6789"),
    Case(personal("short", "text", mask_type="ssn"), "6789"),
    Case(personal("phone", "text", mask_type="phone"), "+43 1 555 4567", "***-***-4567"),
    Case(personal("name", "text", mask_type="name"), "Élise von Bar", "É*** v*** B***"),
    Case(personal("blank", "text", mask_type="name"), " "),
    Case(personal("full", "text", mask_type="full"), "x"),
    Case(personal("usual", "text"), "a longer text than eight"),
    Case(personal("empty", "text"), ""),
    Case(
        personal("custom", "text", **custom("{first:2}-***-{last:3}")), "AT61190430", "AT-***-430"
    ),
    Case(personal("tiny", "text", **custom("{first:2}*{last:3}")), "abc"),
    Case(personal("number", "number", mask_type="phone"), 5551234567),
    Case(personal("zero", "number"), 0),
    Case(personal("flag", "boolean"), False),
    Case(personal("at", "datetime"), "2026-11-20T12:00:00.000000Z"),
    Case(personal("day", "date"), "2026-11-20"),
    Case(personal("site", "url"), "https://example.com/"),
    Case(personal("data", "json"), {"a": [1]}),
    Case(personal("friend", "reference", collection="posts"), None, masked=None),
    Case(personal("none", "text", mask_type="ssn"), None, masked=None),
    # Computed of fields that are masked, and so masked, but the last.
    Case(computed("mail_size", "length(mail)", "number"), 22),
    Case(computed("greeting", "concat('Hi ', name)", "text"), "Hi Élise von Bar"),
    Case(computed("adult", "flag = false", "boolean"), True),
    Case(computed("later", "date_add(at, 1, 'days')", "datetime"), "2026-11-21T12:00:00.000000Z"),
    Case(computed("open", "concat(title, '!')", "text"), "t!", masked="t!"),
]
PLAIN = {case.field["name"]: case.stored for case in CASES}
MASKED = {case.field["name"]: case.masked for case in CASES}
SENT = {case.field["name"]: case.stored for case in CASES if case.field["type"] != "computed"}


def fields(record: Any) -> dict[str, Any]:
    return {name: record[name] for name in PLAIN}


@pytest.fixture
def record(cast: Cast) -> dict[str, Any]:
    """Return a record of alice, who is in pii_access; bob is not."""
    make_collection(cast.root, schema=[case.field for case in CASES])
    return make_record(cast.alice, **SENT)


def read_everywhere(caller: Caller, record: dict[str, Any]) -> dict[str, Any]:
    """Return the record as every operation answers it."""
    url = f"records/posts/{record['id']}"
    answers: dict[str, TestResponse] = {
        "list": caller.get("records/posts"),
        "picked": caller.get(f"records/posts?fields={','.join(PLAIN)}"),
        "filtered": caller.get("records/posts?filter=title='t'&sort=open"),
        "view": caller.get(url),
        "view picked": caller.get(f"{url}?fields={','.join(PLAIN)}"),
        "patch": caller.patch(url, {"title": "t"}),
        "patch nothing": caller.patch(url, {}),
    }
    assert all(answer.status_code == 200 for answer in answers.values()), answers
    return {
        way: fields(answer.json["items"][0] if "items" in answer.json else answer.json)
        for way, answer in answers.items()
    }


def test_masking_applies_to_every_output_except_with_pii_access(
    cast: Cast, record: dict[str, Any]
) -> None:
    for caller, shown in (
        (cast.bob, MASKED),
        (cast.alice, PLAIN),
        (cast.root.acting_in("acme"), PLAIN),
    ):
        for way, seen in read_everywhere(caller, record).items():
            assert seen == shown, way
    assert fields(make_record(cast.bob, **SENT)) == MASKED
    assert fields(record) == PLAIN
    body = cast.bob.get("records/posts").text
    assert not any(
        text in body for text in ("123-45", "Ann.B", " 555 ", "5551234", "lise", "611904")
    )


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_masked_values_sent_back_leave_stored_values(
    app: Flask, cast: Cast, record: dict[str, Any], method: str
) -> None:
    url = f"records/posts/{record['id']}"
    seen = cast.bob.get(url).json
    answer = cast.bob(method, url, {n: seen[n] for n in SENT} | {"title": "new"})
    assert answer.status_code == 200, answer.json
    assert fields(answer.json) == MASKED | {"title": "new", "open": "new!"}
    assert fields(cast.alice.get(url).json) == PLAIN | {"title": "new", "open": "new!"}
    whole = cast.bob(
        method,
        url,
        seen | {name: answer.json[name] for name in ("updated_at", "updated_by", "open")},
    )
    assert whole.status_code == 200, whole.json
    assert fields(cast.alice.get(url).json) == PLAIN


def test_masked_field_accepts_new_values_from_caller_without_access(
    app: Flask, cast: Cast, record: dict[str, Any]
) -> None:
    editor = Caller(app, make_user(app, cast.alice.account_id, "e@acme.example", "editor"))
    url = f"records/posts/{record['id']}"
    new = {"ssn": "***-**-1111", "mail": "new@example.com", "number": 5, "data": [2], "full": "y"}
    answer = editor.patch(url, new)
    assert answer.status_code == 200, answer.json
    assert (answer.json["ssn"], answer.json["mail"]) == (FULL, "n***@example.com")
    assert fields(cast.alice.get(url).json) == PLAIN | new | {"mail_size": 15}
    # One asterisk short of the mask, so it is checked as a new value.
    refused = editor.patch(url, {"number": "*******"})
    assert [(d["field"], d["code"]) for d in refused.json["details"]] == [
        ("number", "invalid_type")
    ]
    # Who sees the value stores a mask as any other text.
    assert cast.alice.patch(url, {"ssn": "***-**-6789"}).json["ssn"] == "***-**-6789"
    assert editor.patch(url, {"none": FULL, "ssn": None}).status_code == 200
    kept = cast.alice.get(url).json
    assert (kept["none"], kept["ssn"]) == (FULL, None)


@pytest.mark.parametrize(
    "hidden",
    [
        {"view_fields": ["title"], "list_fields": ["title"]},
        {"view_rule": "title = 'other'", "list_rule": None},
    ],
    ids=["by field list", "by rule"],
)
def test_masked_value_guess_does_not_reveal_hidden_field(
    cast: Cast, hidden: dict[str, Any]
) -> None:
    ssn = {"name": "ssn", "type": "text", "pii": True, "mask_type": "ssn"}
    pattern = {"options": {"pattern": r"^\d{3}-\d{2}-\d{4}$"}}
    make_collection(cast.root, schema=[{"name": "title", "type": "text"}, {**ssn, **pattern}])
    record_id = make_record(cast.alice, title="t", ssn="123-45-6789")["id"]
    url, mask = f"records/posts/{record_id}", {"ssn": "***-**-6789"}
    batch = {"records": [{"id": record_id, "data": mask}]}
    update = {"operation": "update", "record_id": record_id, "data": mask, "user_id": cast.bob.id}
    seen = {"view_rule": "true", "list_rule": "true", "view_fields": "*", "list_fields": "*"}
    for rules, status in ((hidden, 400), (seen, 200)):
        cast.root.put("collections/posts/rules", {"update_rule": "title = 't'", **rules})
        assert cast.bob.patch(url, mask).status_code == status, rules
        assert cast.bob.patch("records/posts/batch", batch).status_code == status, rules
        explanation = cast.root.post("collections/posts/rules/explain", update)
        assert explanation.status_code == status, (rules, explanation.json)
    assert cast.alice.get(url).json["ssn"] == "123-45-6789"


def test_masking_follows_group_membership_at_next_request(
    cast: Cast, record: dict[str, Any]
) -> None:
    group = next(
        g["id"] for g in cast.alice.get("groups").json["items"] if g["name"] == "pii_access"
    )
    url, ask = f"records/posts/{record['id']}", {"filter": "ssn ~ '123%'"}
    for _ in range(2):
        assert fields(cast.bob.get(url).json) == MASKED
        assert cast.bob.get("records/posts", query_string=ask).status_code == 400
        assert cast.alice.post(f"groups/{group}/users", {"user_id": cast.bob.id}).status_code == 200
        assert fields(cast.bob.get(url).json) == PLAIN
        assert cast.bob.get("records/posts", query_string=ask).json["total"] == 1
        assert cast.alice.delete(f"groups/{group}/users/{cast.bob.id}").status_code == 204


def test_masking_ignores_pii_access_of_other_account(cast: Cast, record: dict[str, Any]) -> None:
    # charlie is in globex's pii_access.
    assert cast.charlie.get(f"records/posts/{record['id']}").status_code == 404
    assert cast.charlie.get("records/posts").json["total"] == 0


def test_masking_applies_to_anonymous_callers(
    cast: Cast, anyone: Caller, record: dict[str, Any]
) -> None:
    cast.root.put("collections/posts/rules", {"view_rule": "", "update_rule": ""})
    seen = anyone.acting_in("acme").get(f"records/posts/{record['id']}").json
    assert fields(seen) == MASKED


def test_rules_compare_stored_values_not_masks(
    app: Flask, cast: Cast, record: dict[str, Any]
) -> None:
    cast.root.put(
        "collections/posts/rules", {"list_rule": "ssn ~ '123%'", "view_rule": "mail_size = 22"}
    )
    assert cast.bob.get("records/posts").json["total"] == 1
    assert cast.bob.get(f"records/posts/{record['id']}").status_code == 200
    assert rows(app)[0]["ssn"] == "123-45-6789"
