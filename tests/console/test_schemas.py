"""The editor of a collection's fields: nothing happens before its plan was looked at."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from flask import Flask

from app.collections import fields
from app.collections import service as collections
from app.collections.models import Collection
from app.console.shell import names
from tests.builders import Caller, Cast, make_collection, make_record
from tests.console.browser import HOSTILE, Browser, alert, asks_to_sign_in, beside
from tests.console.test_collections import rows
from tests.sql import statements

NONE = "019a9f00-0000-7000-8000-00000000dead"
FULL = [
    {
        "name": "title",
        "type": "text",
        "required": True,
        "default": " as is ",
        "options": {"min_length": 1, "max_length": 9, "pattern": "a", "choices": [" as is ", "b"]},
    },
    {"name": "n", "type": "number", "default": 0, "options": {"min": -1.5, "integer": True}},
    {"name": "on", "type": "boolean", "default": False, "options": {"index": True}},
    {"name": "email", "type": "email", "unique": True, "pii": True, "mask_type": "email"},
    {"name": "card", "type": "text", "pii": True, "mask_type": "custom", "options": {"mask": "*"}},
    {"name": "more", "type": "json", "default": {"a": ["é"]}},
    {"name": "state", "type": "select", "options": {"choices": ["a", "b"], "index": True}},
    {
        "name": "tags",
        "type": "multi_select",
        "default": ["b"],
        "options": {"choices": ["a", "b"]},
    },
    {"name": "up", "type": "reference", "collection": "posts", "on_delete": "set_null"},
    {"name": "loud", "type": "computed", "return_type": "text", "expression": "upper(title)"},
]


def inputs(page: str, form: str = "schema") -> dict[str, Any]:
    """What a browser would send of a form as the page shows it."""
    found = re.search(rf'<form[^>]*id="{form}".*?</form>', page, re.DOTALL)
    assert found
    sent: dict[str, Any] = {}
    boxes = re.findall(r'<input[^>]* type="checkbox" name="([^"]*)"', found[0])
    several = {name for name in boxes if boxes.count(name) > 1}
    sent |= {name: [] for name in several}
    for tag in re.findall(r"<input[^>]*>", found[0]):
        name, value = re.search(r'name="([^"]*)"', tag), re.search(r'value="([^"]*)"', tag)
        if name and ("checkbox" not in tag or " checked" in tag):
            text = html.unescape(value[1]) if value else ""
            sent[name[1]] = [*sent[name[1]], text] if name[1] in several else text
    areas = r'<textarea[^>]*name="([^"]*)"[^>]*>\n(.*?)</textarea>'
    sent |= {name: html.unescape(text) for name, text in re.findall(areas, found[0], re.DOTALL)}
    for name, body in re.findall(r'<select[^>]*name="([^"]*)"(.*?)</select>', found[0], re.DOTALL):
        options = re.findall(r'<option value="([^"]*)"( selected)?', body)
        chosen = [value for value, selected in options if selected] or [options[0][0]]
        sent[name] = html.unescape(chosen[0])
    return sent


def new_form(superadmin: Browser, rows: int = 3) -> str:
    """The page of a new collection with so many rows of fields; it begins with one."""
    page = superadmin.get("collections/new").text
    assert inputs(page)["rows"] == "1"
    for _ in range(rows - 1):
        page = superadmin.send("collections/new", **inputs(page), do="add").text
    return page


def schema_of(root: Caller, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = root.get(f"collections/{name}").json["schema"]
    return found


@pytest.fixture
def posts(cast: Cast) -> str:
    """The id of a collection with a field of almost every type."""
    return str(make_collection(cast.root, "posts", FULL)["id"])


def test_console_schema_editor_requires_superadmin(app: Flask, cast: Cast, posts: str) -> None:
    before = schema_of(cast.root, "posts")
    paths = ["collections/new", f"collections/{posts}/schema", f"collections/{posts}/delete"]
    form = {"name": "posts", "collection_name": "taken", "do": "apply"}
    for caller, status in ((cast.bob, 403), (cast.alice, 403), (cast.root, 200)):
        browser = Browser(app, caller)
        assert [browser.get(path).status_code for path in paths] == [status] * 3
        if status == 403:
            assert [browser.send(path, **form).status_code for path in paths] == [403] * 3
    browser, nobody = Browser(app, cast.root), Browser(app)
    for path in paths:
        assert asks_to_sign_in(nobody.send(path, **form))
        answer = browser.client.post(f"/console/{path}", data=form)
        assert (answer.status_code, "has expired" in answer.text) == (400, True)
    assert schema_of(cast.root, "posts") == before
    for path in (f"collections/{NONE}/schema", f"collections/{NONE}/delete"):
        assert (browser.get(path).status_code, browser.send(path).status_code) == (404, 404)


def test_console_schema_editor_shows_type_names(superadmin: Browser) -> None:
    page = superadmin.get("collections/new").text
    for name, expected in (("type_0", fields.TYPES), ("return_type_0", fields.RETURN_TYPES)):
        (body,) = re.findall(rf'<select[^>]*name="{name}".*?</select>', page, re.DOTALL)
        options = re.findall('<option value="([^"]*)"[^>]*>([^<]*)</option>', body)
        assert options == [(type_, names.of_type(type_)) for type_ in expected]
        assert [name for type_, name in options if name == type_] == []


def test_console_collection_is_planned_then_created(cast: Cast, superadmin: Browser) -> None:
    page = new_form(superadmin)
    sent = inputs(page) | {"collection_name": "books", "name_0": "title", "required_0": "true"}
    sent |= {
        "name_1": "n",
        "type_1": "number",
        "min_1": "-1.5",
        "default_1": "3",
        "index_1": "true",
    }
    sent |= {"name_2": "sequel", "type_2": "reference", "collection_2": "books"}
    sent |= {"indexes": "unique: title, sequel"}
    page = superadmin.send("collections/new", **sent, do="add").text
    assert inputs(page)["rows"] == "4"
    sent = inputs(page) | {"name_3": "name", "type_3": "computed", "return_type_3": "text"}
    sent |= {"expression_3": "upper(title)"}
    planned = superadmin.send("collections/new", **sent, do="plan")
    assert (planned.status_code, "CREATE TABLE col_books" in planned.text) == (200, True)
    assert cast.root.get("collections/books").status_code == 404
    again = superadmin.send("collections/new", **sent, do="apply")
    assert "Plan<" in again.text  # nobody had looked at it
    assert cast.root.get("collections/books").status_code == 404
    page = superadmin.done("collections/new", **inputs(planned.text), do="apply")
    assert "books is created. Only superadmins" in page
    made = schema_of(cast.root, "books")
    assert [one["name"] for one in made] == ["title", "n", "sequel", "name"]
    assert made[0]["required"]
    assert (made[1]["default"], made[1]["options"]) == (3, {"min": -1.5, "index": True})
    assert (made[2]["collection"], made[2]["on_delete"]) == ("books", "restrict")
    assert made[3]["expression"] == "upper(title)"
    (made_index,) = cast.root.get("collections/books").json["indexes"]
    assert made_index == {"fields": ["title", "sequel"], "unique": True}
    assert cast.root.get("collections/books/rules").json["list_rule"] is None


def test_console_schema_form_unchanged_changes_nothing(
    cast: Cast, superadmin: Browser, posts: str
) -> None:
    before = schema_of(cast.root, "posts")
    path = f"collections/{posts}/schema"
    answer = superadmin.send(path, **inputs(superadmin.get(path).text), do="plan")
    assert "Nothing changes: fields and indexes are the same." in answer.text
    assert schema_of(cast.root, "posts") == before


def test_console_schema_change_is_planned_then_applied(
    cast: Cast, superadmin: Browser, posts: str
) -> None:
    path = f"collections/{posts}/schema"
    sent = inputs(superadmin.get(path).text) | {"name_10": "code", "unique_10": "true", "min_1": ""}
    sent |= {"choices_0": " as is \nb\nc"}
    planned = superadmin.send(path, **sent, do="plan")
    assert planned.status_code == 200
    statements = re.findall(r'class="sql">(.*?)</code>', planned.text, re.DOTALL)
    assert any("code" in one for one in statements)
    assert len(schema_of(cast.root, "posts")) == 10
    changed = inputs(planned.text) | {"name_10": "other"}
    assert "Plan<" in superadmin.send(path, **changed, do="apply").text
    assert len(schema_of(cast.root, "posts")) == 10
    assert "are saved" in superadmin.done(path, **inputs(planned.text), do="apply")
    after = schema_of(cast.root, "posts")
    assert (after[10]["name"], after[10]["unique"]) == ("code", True)
    assert after[1]["options"] == {"integer": True}
    assert after[2:10] == schema_of(cast.root, "posts")[2:10]


def test_console_field_is_removed_by_plan(cast: Cast, superadmin: Browser, posts: str) -> None:
    record = make_record(cast.alice, "posts", title=" as is ", n=5)["id"]
    path = f"collections/{posts}/schema"
    sent = inputs(superadmin.get(path).text) | {"remove_1": "true", "remove_7": "true"}
    planned = superadmin.send(path, **sent, do="plan")
    assert planned.text.count("removed field") == 2
    assert "1 record loses its value for good" in planned.text
    # What is shown is what is applied.
    other = inputs(planned.text) | {"remove_2": "true"}
    assert "Plan<" in superadmin.send(path, **other, do="apply").text
    assert "are saved" in superadmin.done(path, **inputs(planned.text), do="apply")
    names = [field["name"] for field in FULL if field["name"] not in ("n", "tags")]
    assert [field["name"] for field in schema_of(cast.root, "posts")] == names
    assert "n" not in cast.alice.get(f"records/posts/{record}").json
    sent = inputs(superadmin.get(path).text) | {"remove_0": "true"}
    refused = superadmin.send(path, **sent, do="plan")
    assert (refused.status_code, "There is no field title" in refused.text) == (400, True)


def test_console_field_rename_updates_indexes_and_rules(
    cast: Cast, superadmin: Browser, posts: str
) -> None:
    indexes = [{"fields": ["title", "-n"]}]
    assert cast.root.patch(f"collections/{posts}", {"indexes": indexes}).status_code == 200
    record = make_record(cast.alice, "posts", title=" as is ", n=5)["id"]
    path = f"collections/{posts}/schema"
    sent = inputs(superadmin.get(path).text) | {"rename_0": "headline", "rename_1": "id"}
    refused = superadmin.send(path, **sent, do="plan")
    assert "reserved" in beside(refused, "rename_1")
    planned = superadmin.send(path, **sent | {"rename_1": "Count"}, do="plan")
    assert planned.text.count(">renamed<") == 2
    assert "are saved" in superadmin.done(path, **inputs(planned.text), do="apply")
    after = cast.root.get("collections/posts").json
    assert [one["name"] for one in after["schema"]][:2] == ["headline", "Count"]
    assert after["schema"][9]["expression"] == "upper(headline)"
    assert after["indexes"] == [{"fields": ["headline", "-Count"], "unique": False}]
    found = cast.alice.get(f"records/posts/{record}").json
    assert (found["headline"], found["Count"]) == (" as is ", 5)


def test_console_collection_rename(cast: Cast, superadmin: Browser, posts: str) -> None:
    make_collection(cast.root, "taken")
    path = f"collections/{posts}/schema"
    sent = inputs(superadmin.get(path).text)
    assert sent["collection_name"] == "posts"
    for name, message in (("a b", "letters"), ("Taken", "taken")):
        refused = superadmin.send(path, **sent | {"collection_name": name}, do="plan")
        assert message in beside(refused, "collection_name")
    planned = superadmin.send(path, **sent | {"collection_name": "Articles"}, do="plan")
    assert ">renamed<" in planned.text
    assert "ALTER TABLE col_posts RENAME TO col_articles" in html.unescape(planned.text)
    assert "Articles are saved" in superadmin.done(path, **inputs(planned.text), do="apply")
    assert cast.root.get("collections/Articles").json["id"] == posts


def test_console_index_input_has_one_index_per_line(
    cast: Cast, superadmin: Browser, posts: str
) -> None:
    path = f"collections/{posts}/schema"
    sent = inputs(superadmin.get(path).text) | {"indexes": "nope\n\nmore, n\nunique:"}
    refused = superadmin.send(path, **sent, do="plan")
    assert refused.status_code == 400
    problems = beside(refused, "indexes")
    assert "Index 1: There is no field nope." in problems
    assert "Index 2: more cannot be indexed, as its type is json." in problems
    assert "Index 3: An index has 1 to 8 fields." in problems
    sent["indexes"] = "\n".join(["n, title"] * 21)
    assert "At most 20 indexes." in beside(superadmin.send(path, **sent, do="plan"), "indexes")
    sent["indexes"] = " n ,-created_at \nunique: title,n"
    planned = superadmin.send(path, **sent, do="plan")
    assert "new index" in planned.text
    assert "CREATE UNIQUE INDEX" in html.unescape(planned.text)
    assert "are saved" in superadmin.done(path, **inputs(planned.text), do="apply")
    assert cast.root.get("collections/posts").json["indexes"] == [
        {"fields": ["n", "-created_at"], "unique": False},
        {"fields": ["title", "n"], "unique": True},
    ]
    assert "n, -created_at" in superadmin.get(f"collections/{posts}").text
    sent = inputs(superadmin.get(path).text)
    assert sent["indexes"] == "n, -created_at\nunique: title, n"
    planned = superadmin.send(path, **sent | {"indexes": ""}, do="plan")
    assert "removed index" in planned.text
    assert "are saved" in superadmin.done(path, **inputs(planned.text), do="apply")
    assert cast.root.get("collections/posts").json["indexes"] == []


def test_console_schema_preview_counts_conflicting_rows(cast: Cast, superadmin: Browser) -> None:
    made = make_collection(cast.root, "notes", [{"name": "a", "type": "text"}])
    for _ in range(2):
        make_record(cast.alice, "notes", a="same")
    make_record(cast.alice, "notes")
    path = f"collections/{made['id']}/schema"
    sent = inputs(superadmin.get(path).text) | {"required_0": "true", "unique_0": "true"}
    planned = superadmin.send(path, **sent, do="plan")
    assert "1 records have no value" in planned.text
    assert "1 values occur more than once" in planned.text
    assert 'value="apply"' not in planned.text
    forced = superadmin.send(path, **inputs(planned.text), do="apply")
    assert forced.status_code == 400
    assert "1 records have no value" in beside(forced, "name_0")
    assert not schema_of(cast.root, "notes")[0]["required"]


def test_console_schema_form_errors_are_shown_beside_inputs(
    superadmin: Browser, posts: str
) -> None:
    page = new_form(superadmin)
    sent = inputs(page) | {"collection_name": HOSTILE, "name_0": "1x", "min_length_0": "many"}
    answer = superadmin.send("collections/new", **sent, do="plan")
    assert (answer.status_code, beside(answer, "min_length_0")) == (400, "Must be a number.")
    # What is no number hides nothing of what else is wrong.
    assert "3 to 56 letters" in beside(answer, "collection_name")
    assert "starting with a letter" in beside(answer, "name_0")
    present = inputs(superadmin.get(f"collections/{posts}/schema").text)
    present |= {"default_1": "many", "pattern_0": "([", "name_10": "1x"}
    answer = superadmin.send(f"collections/{posts}/schema", **present, do="plan")
    assert "Not a valid value" in beside(answer, "default_1")
    assert beside(answer, "name_0")
    assert "starting with a letter" in beside(answer, "name_10")
    sent |= {"min_length_0": "", "name_1": "name", "type_1": "reference"}
    sent |= {"name_2": "name", "type_2": "computed", "expression_2": HOSTILE}
    answer = superadmin.send("collections/new", **sent, do="plan")
    assert "3 to 56 letters" in beside(answer, "collection_name")
    assert "starting with a letter" in beside(answer, "name_0")
    assert "Choose the collection" in beside(answer, "collection_1")
    assert "Another field has this name" in beside(answer, "name_2")
    assert HOSTILE not in answer.text
    assert inputs(answer.text)["expression_2"] == HOSTILE
    sent = inputs(page) | {"collection_name": "posts", "name_0": "a"}
    planned = superadmin.send("collections/new", **sent, do="plan")
    taken = superadmin.send("collections/new", **inputs(planned.text), do="apply")
    assert (taken.status_code, beside(taken, "collection_name")) == (409, "This name is taken.")
    empty = superadmin.send("collections/new", collection_name="empty", do="plan", rows="²")
    assert (empty.status_code, "Add at least one field." in empty.text) == (400, True)


def test_console_schema_form_after_concurrent_change_is_409(
    cast: Cast, superadmin: Browser, posts: str
) -> None:
    path = f"collections/{posts}/schema"
    sent = inputs(superadmin.get(path).text) | {"unique_0": "true"}
    planned = inputs(superadmin.send(path, **sent, do="plan").text)
    assert cast.root.put("collections/posts/rules", {"list_rule": None}).status_code == 200
    late = superadmin.send(path, **planned, do="apply")
    assert (late.status_code, "was changed meanwhile" in alert(late)) == (409, True)
    assert not schema_of(cast.root, "posts")[0]["unique"]


def test_console_collection_deletion_requires_its_name(
    cast: Cast, superadmin: Browser, posts: str
) -> None:
    make_record(cast.alice)
    path = f"collections/{posts}/delete"
    assert "1 record in all accounts" in superadmin.get(path).text
    for wrong in ("", "POSTS", HOSTILE):
        answer = superadmin.send(path, name=wrong)
        assert (answer.status_code, HOSTILE in answer.text) == (400, False)
        assert "Type posts" in beside(answer, "name")
    to = [{"name": "to", "type": "reference", "collection": "posts"}]
    other = make_collection(cast.root, "links", to)["id"]
    answer = superadmin.send(path, name="posts")
    assert (answer.status_code, "links" in alert(answer)) == (409, True)
    assert f'value="{other}"> links, with 0 records' in superadmin.get(path).text
    notice = "posts, links are deleted, with 1 record."
    assert notice in superadmin.done(path, name="posts", along=other)
    assert cast.root.get("collections/names").json["total"] == 0


def test_console_collection_deletion_lists_dependent_collections(
    app: Flask, cast: Cast, superadmin: Browser, posts: str
) -> None:
    for name, target in (("links", "posts"), ("notes", "links"), ("marks", "notes")):
        to = [{"name": "to", "type": "reference", "collection": target}]
        make_collection(cast.root, name, [*to, {**to[0], "name": "also"}])
    with statements(app) as sent:
        page = superadmin.get(f"collections/{posts}/delete").text
    assert re.findall(r"> (\w+), with 0 records", page) == ["links", "notes", "marks"]
    assert len([one for one in sent if "ORDER BY collections.name_key" in one]) == 1


def test_collection_record_counts_of_501_collections(app: Flask, cast: Cast, posts: str) -> None:
    make_record(cast.alice)
    with app.app_context():
        rows = [Collection(id=str(n), table_name="col_posts") for n in range(501)]
        assert collections.record_counts(rows) == {row.id: 1 for row in rows}


def test_console_collection_page_links_to_records_and_describes_fields(
    app: Flask, cast: Cast
) -> None:
    schema = [
        {"name": "title", "type": "text", "options": {"max_length": 9, "choices": ["a", "b"]}},
        {"name": "n", "type": "number", "options": {"min": 0, "max": 5}, "default": 0},
    ]
    id = make_collection(cast.root, "books", schema)["id"]
    browser, path = Browser(app, cast.root), f"collections/{id}"
    first = browser.get(path).text
    assert f"/console/records/{cast.root.account_id}/books/new" in first
    assert "at most 9 characters" in first
    assert "at least 0, at most 5, default 0" in first
    assert "<li>a</li><li>b</li>" in first
    cast.alice.post("records/books", {"title": "a"})
    assert f'href="/console/records/{cast.alice.account_id}/books">' in browser.get(path).text
    for do, page in (("", ""), ("new", "/new")):
        answer = browser.get(f"{path}/records?account=acme&do={do}")
        place = f"/console/records/{cast.alice.account_id}/books{page}"
        assert (answer.status_code, answer.headers["Location"]) == (303, place)
    for account in ("nowhere", "", "%20", "x" * 500):
        answer = browser.get(f"{path}/records?account={account}")
        assert (answer.status_code, "no active account" in answer.text) == (400, True)
    assert Browser(app, cast.alice).get(f"{path}/records?account=acme").status_code == 403


def shown_order(page: str) -> list[str]:
    """The names of the rows of the editor, as they are shown."""
    return re.findall(r"<summary><strong>(.*?)</strong>", page)


@pytest.mark.long
def test_console_fields_are_moved_then_planned(cast: Cast, superadmin: Browser, posts: str) -> None:
    names = [field["name"] for field in FULL]
    path = f"collections/{posts}/schema"
    page = superadmin.get(path).text
    assert shown_order(page) == [*names, "New field"]
    page = superadmin.send(path, **inputs(page), do="down-0").text
    assert shown_order(page)[:2] == ["n", "title"]
    assert re.search(r'id="down-0" formaction="[^"]*#down-0"', page)  # which keeps the focus
    for act in ("up-0", "up-0", "up-0", "down-9", "down-9", "up-999", "up-x", "down-²"):
        page = superadmin.send(path, **inputs(page), do=act if "x" not in act else "plan").text
    assert shown_order(page)[:2] == ["title", "n"]
    assert shown_order(page)[-2:] == ["New field", "loud"]
    page = superadmin.send(path, **inputs(page) | {"name_10": "last"}, do="up-9").text
    assert shown_order(page)[-2:] == ["loud", "last"]
    page = superadmin.send(path, **inputs(page), do="up-10").text
    planned = superadmin.send(path, **inputs(page), do="plan")
    assert "order" in planned.text
    # What is shown is what is applied.
    moved = inputs(planned.text) | {"order": "3"}
    assert "Plan<" in superadmin.send(path, **moved, do="apply").text
    assert "are saved" in superadmin.done(path, **inputs(planned.text), do="apply")
    assert [one["name"] for one in schema_of(cast.root, "posts")] == [*names[:-1], "last", "loud"]


def moves(page: str) -> list[tuple[str, bool]]:
    """The buttons that move rows, and whether they are disabled."""
    found = re.findall(r'<button class="btn btn-icon"[^>]*id="((?:up|down)-\d+)"([^>]*)>', page)
    return [(id, " disabled" in rest) for id, rest in found]


def test_console_field_move_buttons_at_ends_are_disabled(superadmin: Browser, posts: str) -> None:
    page = superadmin.get(f"collections/{posts}/schema").text
    ends = {"up-0", f"down-{len(FULL) - 1}"}
    assert {id for id, is_disabled in moves(page) if is_disabled} == ends
    assert len(moves(page)) == 2 * len(FULL)
    page = superadmin.get("collections/new").text
    assert (moves(page), ">Clear<" in page) == ([], False)  # a lone field


def test_console_field_is_added_in_spare_row(superadmin: Browser, posts: str) -> None:
    path, spare = f"collections/{posts}/schema", len(FULL)
    page = superadmin.get(path).text
    assert f'<div class="field-row spare" data-row="{spare}">' in page
    page = superadmin.send(path, **inputs(page), do="add").text
    assert "field-row spare" not in page
    assert inputs(page)["rows"] == str(spare + 1)
    page = superadmin.send(path, **inputs(page) | {f"name_{spare}": "more"}, do="add").text
    assert inputs(page)["rows"] == str(spare + 2)


def test_console_new_collection_keeps_field_order_of_form(cast: Cast, superadmin: Browser) -> None:
    assert superadmin.get("collections/new").text.count(" open>") == 1
    page = new_form(superadmin)
    sent = inputs(page) | {"collection_name": "books", "name_0": "a", "name_1": "b", "name_2": "c"}
    page = superadmin.send("collections/new", **sent, do="up-2").text
    page = superadmin.send("collections/new", **inputs(page), do="clear-1").text
    assert shown_order(page) == ["a", "c", "New field"]
    planned = superadmin.send("collections/new", **inputs(page), do="up-2")
    planned = superadmin.send("collections/new", **inputs(planned.text), do="plan")
    superadmin.done("collections/new", **inputs(planned.text), do="apply")
    assert [one["name"] for one in schema_of(cast.root, "books")] == ["c", "a"]


def test_console_schema_form_refusal_links_to_errors(superadmin: Browser, posts: str) -> None:
    path = f"collections/{posts}/schema"
    page = superadmin.get(path).text
    assert " open>" not in page  # compact
    sent = inputs(page) | {"default_1": "many", "pattern_0": "([", "name_10": "1x"}
    sent |= {"type_10": "reference", "order": "1,0", "indexes": "nope"}
    refused = superadmin.send(path, **sent, do="plan").text
    (summary,) = re.findall(r'<div class="alert alert-danger">(.*?)</div>', refused, re.DOTALL)
    links = re.findall(r'<a href="#(.*?)">(.*?)</a>', summary)
    assert [name for name, _ in links] == [
        *("default_1", "name_0", "name_10", "collection_10", "indexes")
    ]
    assert "n, default: Not a valid value for a field of type Number." in summary
    assert "1x, refers to: Choose the collection that the field refers to." in summary
    for name, _ in links:
        assert f' id="{name}"' in refused or name == "name_0"
    assert re.findall(r'id="(\w+)"[^>]* autofocus', refused) == ["default_1"]
    opened = re.findall(r'id="field-(\d+)"[^>]* open>', refused)
    assert opened == ["1", "0", "10"]
    assert re.search(r"in (collection|name|return_type)\b", summary) is None


def test_console_schema_plan_is_in_words(cast: Cast, superadmin: Browser, posts: str) -> None:
    path = f"collections/{posts}/schema"
    sent = inputs(superadmin.get(path).text)
    sent |= {"required_1": "true", "min_1": "0", "on_delete_8": "cascade", "mask_type_4": "email"}
    sent |= {"name_10": "code", "type_10": "computed", "return_type_10": "number"}
    sent |= {"expression_10": "n + 1", "require_signature": "true"}
    planned = superadmin.send(path, **sent, do="plan")
    assert planned.status_code == 200, alert(planned)
    shown = rows(planned.text, "What changes")
    assert ["n", "required", "no", "yes"] in shown
    assert ["n", "minimum", "-1.5", "0"] in shown
    on_delete = ["Empty this field", "Delete this record, too"]
    assert ["up", "when its target is deleted", *on_delete] in shown
    assert ["code", "new field", "", "Number, computed"] in shown
    assert ["posts", "electronic signature", "no", "yes"] in shown


def test_console_default_by_expression_and_sequence(cast: Cast, superadmin: Browser) -> None:
    sent = inputs(new_form(superadmin)) | {"collection_name": "cases"}
    sent |= {"name_0": "owner", "type_0": "user", "default_expression_0": "@request.auth.nobody"}
    sent |= {"name_1": "number", "type_1": "sequence", "prefix_1": "INC-", "digits_1": "5"}
    sent["rows"] = "2"
    refused = superadmin.send("collections/new", **sent, do="plan")
    assert refused.status_code == 400
    assert "default_expression_0-error" in refused.text
    sent["default_expression_0"] = "@request.auth.id"
    planned = superadmin.send("collections/new", **sent, do="plan")
    assert planned.status_code == 200, alert(planned)
    superadmin.done("collections/new", **inputs(planned.text), do="apply")
    owner, number = schema_of(cast.root, "cases")
    assert owner["default"] == {"expression": "@request.auth.id"}
    assert (number["type"], number["options"]) == ("sequence", {"prefix": "INC-", "digits": 5})
    made = cast.root.get("collections/cases").json["id"]
    path = f"collections/{made}/schema"
    answer = superadmin.send(path, **inputs(superadmin.get(path).text), do="plan")
    assert "Nothing changes: fields and indexes are the same." in answer.text
    page = superadmin.get(f"collections/{made}").text
    assert "default @request.auth.id" in page
    assert "prefix INC-" in page
    form = superadmin.get(f"records/{cast.alice.account_id}/cases/new").text
    assert "Filled in if left empty" in form
    assert "f_number" not in form
    changed = inputs(superadmin.get(path).text) | {"default_expression_0": ""}
    planned = superadmin.send(path, **changed, do="plan")
    assert "@request.auth.id" in planned.text  # the plan says what ends
    superadmin.done(path, **inputs(planned.text), do="apply")
    assert schema_of(cast.root, "cases")[0]["default"] is None


def test_console_decimal_and_text_list_take_their_options(cast: Cast, superadmin: Browser) -> None:
    sent = inputs(new_form(superadmin)) | {"collection_name": "sales", "rows": "2"}
    sent |= {"name_0": "amount", "type_0": "decimal", "precision_0": "12", "scale_0": "13"}
    sent |= {"min_0": "0.01", "default_0": "1.5"}
    sent |= {"name_1": "tags", "type_1": "text_list", "max_items_1": "5", "max_length_1": "40"}
    refused = superadmin.send("collections/new", **sent, do="plan")
    assert (refused.status_code, "scale must be" in refused.text) == (400, True)
    planned = superadmin.send("collections/new", **sent | {"scale_0": "2"}, do="plan")
    assert planned.status_code == 200, alert(planned)
    superadmin.done("collections/new", **inputs(planned.text), do="apply")
    amount, tags = schema_of(cast.root, "sales")
    assert amount["options"] == {"precision": 12, "scale": 2, "min": "0.01"}
    assert (amount["default"], tags["options"]) == ("1.5", {"max_items": 5, "max_length": 40})
    path = f"collections/{cast.root.get('collections/sales').json['id']}/schema"
    answer = superadmin.send(path, **inputs(superadmin.get(path).text), do="plan")
    assert "Nothing changes: fields and indexes are the same." in answer.text
