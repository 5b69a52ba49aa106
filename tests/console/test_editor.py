"""What the editor of expressions and JSON gets from the server: completions and checks."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from flask import Flask

from app.console.shell import completions
from tests.builders import Cast, make_collection
from tests.console.browser import HOSTILE, Browser, without_console

SETTINGS = re.compile(r'<script type="application/json" id="editor-settings">(.*?)</script>')
AUTHORS = [{"name": "name", "type": "text"}, {"name": "pay", "type": "number"}]
POSTS = [
    {"name": "state", "type": "select", "options": {"choices": ["open", HOSTILE]}},
    {"name": "email", "type": "email", "pii": True, "mask_type": "email"},
    {"name": "author", "type": "reference", "collection": "authors"},
    {"name": "before", "type": "reference", "collection": "posts"},
    {"name": "doc", "type": "file"},
    {"name": "more", "type": "json"},
    {"name": "loud", "type": "computed", "return_type": "text", "expression": "upper(state)"},
]


@pytest.fixture
def posts(cast: Cast) -> str:
    """The id of a collection that refers to another one, of which callers see only names."""
    make_collection(cast.root, "authors", AUTHORS, view_fields=["name"])
    return str(make_collection(cast.root, "posts", POSTS)["id"])


def completed(page: str) -> Any:
    """What the editor of a page completes."""
    (found,) = SETTINGS.findall(page)
    return orjson.loads(found)["completions"]


def test_rule_completions_include_fields_references_and_functions(
    superadmin: Browser, posts: str
) -> None:
    found = completed(superadmin.get(f"collections/{posts}/rules").text)
    fields, authors = found["collections"]["posts"], found["collections"]["authors"]
    assert (found["start"], found["caller"]) == ("posts", True)
    assert fields["state"] == {"type": "select", "choices": ["open", HOSTILE]}
    assert (fields["author"]["to"], fields["before"]["to"]) == ("authors", "posts")
    assert fields["doc"]["parts"]["size"] == {"type": "number"}
    assert (fields["loud"]["type"], fields["created_at"]["type"]) == ("text", "datetime")
    assert authors["pay"] == {"type": "number"}
    assert {"@owns_record()", "upper(text)", "now()"} <= found["calls"].keys()


def test_filter_completions_include_only_comparable_fields(
    cast: Cast, admin: Browser, posts: str
) -> None:
    at = f"records/{cast.alice.account_id}/posts"
    cast.root.put("collections/posts/rules", {"list_fields": ["state", "author"]})
    found = completed(admin.get(at).text)["collections"]
    assert found["posts"].keys() & {"state", "author", "email"} == {"state", "author"}
    assert {"name", "pay"} & found["authors"].keys() == {"name"}
    cast.root.put("collections/authors/rules", {"view_rule": None})
    found = completed(admin.get(at).text)["collections"]
    assert (found.keys(), "to" in found["posts"]["author"]) == ({"posts"}, False)


def test_computed_field_completions_use_fields_of_the_form(superadmin: Browser, posts: str) -> None:
    page = superadmin.send(
        "collections/new", rows="2", name_0="state", type_0="select", choices_0="a\r\nb", do="add"
    )
    found = completed(page.text)
    assert found["collections"][""]["state"] == {"type": "select", "choices": ["a", "b"]}
    assert (found["caller"], "@owns_record()" in found["calls"]) == (False, False)
    page = superadmin.get(f"collections/{posts}/schema")
    assert {"state", "id"} <= completed(page.text)["collections"][""].keys()


def test_completions_are_bounded(
    superadmin: Browser, posts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completions, "MAX_FIELDS", 8)
    monkeypatch.setattr(completions, "MAX_CHOICE_CHARACTERS", 10)
    found = completed(superadmin.get(f"collections/{posts}/rules").text)["collections"]
    assert (len(found["posts"]), "authors" in found) == (8, False)
    assert found["posts"]["state"]["choices"] == ["open"]


CHECKS = [
    ("json", "[1]", "Valid JSON.", None),
    ("json", "", "", None),
    ("json", '{"é": 1,\n "b": what}', "Line 2, column 7: expected a JSON value.", 15),
    ("json", "[" * 5000, "Line 1, column 1026: depth limit exceeded.", None),
    ("filter", "state = 'open'", "Valid filter.", None),
    ("filter", "", "", None),
    ("filter", "state = 'é' && nope = 1", "There is no field nope.", 15),
    ("filter", "author.pay = 1", "There is no field pay.", 0),
    ("webhook", "state = 1 && a.b = 2", "Filters cannot follow references.", 13),
    ("webhook", "state = 1", "Valid filter.", None),
]


@pytest.mark.parametrize(("kind", "text", "message", "position"), CHECKS)
def test_expression_and_json_checks_report_message_and_position(
    cast: Cast, admin: Browser, posts: str, kind: str, text: str, message: str, position: int | None
) -> None:
    path = {
        "json": "json/check",
        "filter": f"records/{cast.alice.account_id}/posts/filter/check",
        "webhook": "webhook/filter/check",
    }[kind]
    answer = admin.send(path, text=text)
    found = re.search(r"<small class=\"(?:error|fine)\"([^>]*)>([^<]*)<", answer.text)
    attributes, said = found.groups() if found else ("", "")
    assert (answer.status_code, said) == (200, message)
    assert position is None or f'data-at="{position}"' in attributes
    assert "<html" not in answer.text


def test_expression_checks_require_admin_of_the_account(app: Flask, cast: Cast, posts: str) -> None:
    viewer, customer = Browser(app, cast.bob), without_console(app, cast)
    assert viewer.send("webhook/filter/check", text="1").status_code == 403
    for path in ("json/check", "webhook/filter/check"):
        assert customer.send(path, text="1").status_code == 403
    theirs = f"records/{cast.charlie.account_id}/posts/filter/check"
    assert Browser(app, cast.alice).send(theirs, text="nope = 1").status_code == 404


def test_form_error_shows_position_in_text(cast: Cast, admin: Browser, posts: str) -> None:
    at = cast.alice.account_id
    sent = [
        (f"workflows/{at}/workflow/new", {"name": "a", "trigger": "{}", "steps": "[1,]"}, 2),
        (f"workflows/{at}/hook/new", {"name": "a", "trigger": "{", "steps": "[]"}, 1),
        (f"records/{at}/posts/new", {"f_more": ' {"a" 1}', "do": "save"}, 5),
        (
            f"webhooks/{at}/new",
            {"url": "http://a.b", "collection": "posts", "events": "create", "filter": "a ="},
            3,
        ),
    ]
    for path, form, position in sent:
        answer = admin.send(path, **form)
        assert (answer.status_code, path) == (400, path)
        assert f'data-at="{position}"' in answer.text, path
