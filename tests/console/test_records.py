"""The records browser: found, filtered, sorted, made, changed and deleted, as the rules let one."""

from __future__ import annotations

import html
import io
import re
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from flask import Flask

from app.console.shell import lists
from app.records.transfer import imports
from tests import sql
from tests.builders import PASSWORD, Cast, change_user, make_collection, make_record, make_user
from tests.console.browser import (
    HOSTILE,
    Browser,
    alert,
    asks_to_sign_in,
    beside,
    token,
    without_console,
)
from tests.console.test_collections import rows
from tests.console.test_schemas import inputs
from tests.parallel import at_once

NONE = "019a9f00-0000-7000-8000-00000000dead"
PEOPLE = [{"name": "name", "type": "text", "options": {"max_length": 50}}]
POSTS: list[dict[str, Any]] = [
    {"name": "title", "type": "text", "required": True},
    {"name": "kind", "type": "text", "options": {"choices": ["news", "note"]}, "default": "note"},
    {"name": "views", "type": "number", "options": {"integer": True}, "unique": True},
    {"name": "open", "type": "boolean"},
    {"name": "at", "type": "datetime"},
    {"name": "day", "type": "date"},
    {"name": "mail", "type": "email", "pii": True, "mask_type": "email"},
    {"name": "link", "type": "url"},
    {"name": "more", "type": "json"},
    {"name": "state", "type": "select", "options": {"choices": ["open", "<done>"]}},
    {"name": "tags", "type": "multi_select", "options": {"choices": ["a", "<b>", "c"]}},
    {"name": "author", "type": "reference", "collection": "people"},
    {"name": "loud", "type": "computed", "return_type": "text", "expression": "upper(title)"},
]
TYPED = {
    "f_title": " one\r\ntwo ",
    "f_kind": "news",
    "f_views": " 9007199254740993 ",
    "f_open": "false",
    "f_at": "2026-11-20T12:00",
    "f_day": "2026-11-20",
    "f_mail": "a@example.org",
    "f_link": "https://example.org/?a=b",
    "f_more": '{"b": [1.0, "é"], "a": null}',
    "f_state": "<done>",
    "f_tags": ["<b>", "a"],
}
STORED = {
    "title": " one\ntwo ",
    "kind": "news",
    "views": 9007199254740993,
    "open": False,
    "at": "2026-11-20T12:00:00.000000Z",
    "day": "2026-11-20",
    "mail": "a@example.org",
    "link": "https://example.org/?a=b",
    "more": {"b": [1.0, "é"], "a": None},
    "state": "<done>",
    "tags": ["<b>", "a"],
    "author": None,
}


@pytest.fixture
def made(cast: Cast) -> dict[str, str]:
    """Two collections: people, and posts by them; the id of the latter."""
    make_collection(cast.root, "people", PEOPLE)
    return {"posts": make_collection(cast.root, "posts", POSTS)["id"]}


def place(cast: Cast, rest: str = "/posts") -> str:
    """The path of records of acme."""
    return f"records/{cast.alice.account_id}{rest}"


def form_of(page: str) -> dict[str, Any]:
    """What a browser would send of a record's form."""
    marked = page.partition("<main")[2].replace('<form method="post"', '<form id="r"', 1)
    return inputs(marked, "r")


def titles(page: str) -> list[str]:
    """The titles that a list shows, in order."""
    return [row[1] for row in rows(page, "Records")]


def closed_rules(cast: Cast, **rules: Any) -> None:
    assert cast.root.put("collections/posts/rules", rules).status_code == 200


def test_console_record_access_per_account(app: Flask, cast: Cast, made: dict[str, str]) -> None:
    record = make_record(cast.alice, title="of acme")["id"]
    paths = ["", "/posts", "/posts/new", f"/posts/{record}", "/posts/import", "/posts/export/csv"]
    sent = ["/posts/new", f"/posts/{record}", f"/posts/{record}/delete", "/posts/import"]
    form = {"do": "save", "f_title": "taken over"}
    for browser, status in ((without_console(app, cast), 403), (Browser(app, cast.charlie), 404)):
        for rest in paths:
            answer = browser.get(place(cast, rest))
            assert (answer.status_code, "of acme" in answer.text) == (status, False), rest
        for rest in sent:
            assert browser.send(place(cast, rest), **form).status_code == status, rest
    own = f"records/{cast.charlie.account_id}/posts/{record}"
    charlie = Browser(app, cast.charlie)
    assert charlie.get(own).status_code == 404
    assert charlie.send(own, **form).status_code == 404
    assert charlie.send(f"{own}/delete").status_code == 404
    nobody, admin = Browser(app), Browser(app, cast.alice)
    for rest in sent:
        assert asks_to_sign_in(nobody.send(place(cast, rest), **form))
        answer = admin.client.post(f"/console/{place(cast, rest)}", data=form)
        assert (answer.status_code, "has expired" in answer.text) == (400, True)
    found = cast.alice.get("records/posts").json
    assert [one["title"] for one in found["items"]] == ["of acme"]
    for rest in ("/nope", f"/posts/{NONE}", "/posts/1"):
        assert admin.get(place(cast, rest)).status_code == 404
    assert admin.get(f"records/{NONE}").status_code == 404


def test_console_collection_record_counts_need_list_right_to_all(app: Flask, cast: Cast) -> None:
    for name, rule in (("posts", "true"), ("mine", "@owns_record()"), ("closed", None)):
        make_collection(cast.root, name, list_rule=rule)
        for title in ("a", "b"):
            make_record(cast.alice, name, title=title)
    make_record(cast.charlie, title="elsewhere")
    page = Browser(app, cast.alice).get(f"records/{cast.alice.account_id}").text
    dash = "\u2013"
    shown = re.findall(
        r'/(\w+)">\w+</a></th>\s*<td data-label="Records" class="number">(\d*|\u2013)</td>', page
    )
    assert sorted(shown) == [("closed", dash), ("mine", dash), ("posts", "2")]
    assert re.search(r"because the rules hide some.*: (?:closed, mine|mine, closed)\.", page)
    assert page.count('data-label="Newest record"><time') == 1


def test_console_records_of_superadmin_are_per_chosen_account(
    cast: Cast, superadmin: Browser, admin: Browser, made: dict[str, str]
) -> None:
    make_record(cast.alice, title="of acme")
    chosen = superadmin.get("records").text
    assert f"/console/{place(cast, '')}" in chosen
    for rest in ("", "/posts", "/posts/new"):
        assert "Account: Acme. Switch" in superadmin.get(place(cast, rest)).text
        assert "Switch" not in admin.get(place(cast, rest)).text
    page = superadmin.done(place(cast, "/posts/new"), do="save", f_title="by root")
    assert "The record is created." in page
    assert {one["title"] for one in cast.alice.get("records/posts").json["items"]} == {
        "of acme",
        "by root",
    }
    moved = admin.client.get("/console/records")
    assert moved.headers["Location"] == f"/console/{place(cast, '')}"


def test_console_record_form_round_trip_of_every_type(
    cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    page = admin.get(place(cast, "/posts/new")).text
    assert form_of(page)["f_kind"] == "note"
    page = admin.done(place(cast, "/posts/new"), **form_of(page) | TYPED, do="save")
    record = cast.alice.get("records/posts").json["items"][0]
    assert {name: record[name] for name in STORED} == STORED
    path = place(cast, f"/posts/{record['id']}")
    sent = form_of(page)
    assert sent["f_at"] == "2026-11-20T12:00:00"
    assert sent["f_tags"] == ["a", "<b>"]
    assert "No changes." in admin.done(path, **sent, do="save")
    again = cast.alice.get(f"records/posts/{record['id']}").json
    assert {name: again[name] for name in STORED} == STORED
    emptied = {name: "" for name in sent if name.startswith("f_")}
    emptied |= {"f_title": "left", "f_tags": []}
    sent = form_of(admin.get(path).text) | emptied
    assert "The record is saved." in admin.done(path, **sent, do="save")
    again = cast.alice.get(f"records/posts/{record['id']}").json
    assert {name: again[name] for name in STORED} == dict.fromkeys(STORED) | {"title": "left"}


def test_console_record_form_keeps_newlines_and_microseconds(
    cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    kept = {"title": "one\rtwo\r\nthree", "at": "2026-11-20T12:00:00.120456Z"}
    record = cast.alice.post("records/posts", {**kept, "views": 1}).json
    path = place(cast, f"/posts/{record['id']}")
    sent = form_of(admin.get(path).text)
    assert sent["f_at"] == "2026-11-20T12:00:00.120"
    sent |= {"f_at": "2026-11-20T12:00:00.12", "f_title": "one\r\ntwo\r\nthree"}
    assert "No changes." in admin.done(path, **sent, do="save")
    assert "The record is saved." in admin.done(path, **sent | {"f_views": "2"}, do="save")
    again = cast.alice.get(f"records/posts/{record['id']}").json
    assert {name: again[name] for name in (*kept, "views")} == {**kept, "views": 2}


def test_console_record_form_keeps_removed_choice(
    cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    record = make_record(cast.alice, title="first", kind="note")["id"]
    fewer = [one | {"options": {"choices": ["news"]}, "default": None} for one in POSTS[1:2]]
    changed = {"schema": [POSTS[0], *fewer, *POSTS[2:]]}
    assert cast.root.put(f"collections/{made['posts']}", changed).status_code == 200
    path = place(cast, f"/posts/{record}")
    sent = form_of(admin.get(path).text)
    assert sent["f_kind"] == "note"
    admin.done(path, **sent | {"f_title": "second"}, do="save")
    found = cast.alice.get(f"records/posts/{record}").json
    assert (found["title"], found["kind"]) == ("second", "note")


def test_console_record_form_errors_keep_input(
    cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    first = make_record(cast.alice, title="first", views=7)["id"]
    wrong = {"f_title": HOSTILE, "f_views": "many", "f_more": "{", "f_author": "", "f_open": "?"}
    answer = admin.send(place(cast, "/posts/new"), **wrong, do="save")
    assert (answer.status_code, HOSTILE in answer.text) == (400, False)
    assert beside(answer, "f_views") == "Must be a number."
    assert "not valid JSON" in beside(answer, "f_more")
    assert form_of(answer.text)["f_title"] == HOSTILE
    assert form_of(answer.text)["f_views"] == "many"
    wrong = {"f_kind": "poem", "f_at": "now", "f_mail": "a", "f_link": "ftp://a", "f_author": NONE}
    answer = admin.send(place(cast, "/posts/new"), **wrong, do="save")
    for name in (*wrong, "f_title"):
        assert beside(answer, name), name
    answer = admin.send(place(cast, "/posts/new"), f_title="second", f_views="7", do="save")
    assert answer.status_code == 409
    assert "already" in beside(answer, "f_views")
    assert cast.alice.get("records/posts").json["total"] == 1
    # What is no number and no JSON hides nothing of what else is wrong.
    wrong |= {"f_title": "", "f_views": "many", "f_more": "{", "f_open": "?"}
    for path in ("/posts/new", f"/posts/{first}"):
        answer = admin.send(place(cast, path), **wrong, do="save")
        assert answer.status_code == 400
        for name in wrong:
            assert beside(answer, name), (path, name)
        assert "line 1 column 2" in beside(answer, "f_more")
    assert cast.alice.get(f"records/posts/{first}").json["title"] == "first"


def test_console_record_form_after_concurrent_change_is_409(
    cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    record = make_record(cast.alice, title="first", views=1, open=True)["id"]
    path = place(cast, f"/posts/{record}")
    sent = form_of(admin.get(path).text) | {"f_title": "mine"}
    change = {"views": 2, "open": None, "at": "2026-11-20T12:00:00Z"}
    assert cast.alice.patch(f"records/posts/{record}", change).status_code == 200
    late = admin.send(path, **sent, do="save")
    assert (late.status_code, "Somebody else" in alert(late)) == (409, True)
    assert form_of(late.text)["f_title"] == "mine"
    stored = re.findall(r"Stored: ([^<]*)<", late.text)
    assert stored == ["first", "2", "empty", "2026-11-20T12:00:00 UTC"]
    admin.done(path, **form_of(late.text) | {"f_views": "2"}, do="save")
    found = cast.alice.get(f"records/posts/{record}").json
    assert (found["title"], found["views"]) == ("mine", 2)


def test_console_record_form_of_deleted_record_keeps_input(
    app: Flask, cast: Cast, made: dict[str, str]
) -> None:
    carol = make_user(app, cast.alice.account_id, "carol@acme.example", "admin")
    browser = Browser(app, type(cast.alice)(app, carol))
    record = make_record(cast.alice, title="first", mail="alice@example.org")["id"]
    path = place(cast, f"/posts/{record}")
    sent = form_of(browser.get(path).text) | {"f_title": "a long text", "f_day": "2026-11-20"}
    assert cast.alice.delete(f"records/posts/{record}").status_code == 204
    late = browser.send(path, **sent, do="save")
    assert (late.status_code, "has deleted this record" in alert(late)) == (404, True)
    kept = form_of(late.text)
    assert (kept["f_title"], kept["f_day"], kept["f_mail"]) == ("a long text", "2026-11-20", "")
    browser.done(place(cast, "/posts/new"), **kept, do="save")
    assert cast.alice.get("records/posts").json["items"][0]["title"] == "a long text"
    closed_rules(cast, create_rule=None)
    late = browser.send(path, **sent, do="save")
    assert (late.status_code, "a long text" in late.text) == (404, False)


def test_console_record_form_keeps_masked_values(
    app: Flask, cast: Cast, made: dict[str, str]
) -> None:
    record = make_record(cast.alice, title="a", mail="alice@example.org")["id"]
    carol = make_user(app, cast.alice.account_id, "carol@acme.example", "admin")
    caller = type(cast.alice)(app, carol)
    browser, path = Browser(app, caller), place(cast, f"/posts/{record}")
    page = browser.get(path).text
    assert (form_of(page)["f_mail"], "alice@example.org" in page) == ("a***@example.org", False)
    assert "alice@example.org" not in browser.get(place(cast)).text
    browser.done(path, **form_of(page) | {"f_title": "b"}, do="save")
    stored = cast.alice.get(f"records/posts/{record}").json
    assert (stored["title"], stored["mail"]) == ("b", "alice@example.org")
    answer = browser.get(f"{place(cast)}?field_0=mail&op_0=%3D&value_0=alice@example.org")
    assert "Choose one of the options." in beside(answer, "field_0")


@pytest.mark.long
def test_console_record_list_filters_sorting_and_paging(
    cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    hostile = "it's 100% \\ <b>"
    for n, title in enumerate(["b", "a", hostile]):
        make_record(cast.alice, title=title, views=n, open=n == 1)
    path = place(cast)
    assert titles(admin.get(path).text) == [hostile, "a", "b"]
    assert titles(admin.get(f"{path}?sort=title").text) == ["a", "b", hostile]
    assert titles(admin.get(f"{path}?sort=-views").text) == [hostile, "a", "b"]
    head = re.search(
        r'aria-sort="ascending"><a href="([^"]*)"', admin.get(f"{path}?sort=views").text
    )
    assert head
    assert "sort=-views" in head[1]

    def found(**query: str) -> list[str]:
        answer = admin.client.get(f"/console/{path}", query_string=query)
        assert answer.status_code == 200, query
        return titles(answer.text)

    assert found(field_0="title", op_0="=", value_0=hostile) == [hostile]
    assert found(field_0="title", op_0="contains", value_0="100%") == [hostile]
    assert found(
        field_0="views", op_0=">=", value_0="1", field_1="open", op_1="=", value_1="true"
    ) == ["a"]
    assert found(field_0="author", op_0="filled") == []
    assert found(filter="views = 0 || views = 1", field_0="title", op_0="starts", value_0="a") == [
        "a"
    ]
    assert found(field_0="day", op_0="empty", filter="loud = 'B'") == ["b"]
    # Whoever filters sends the boxes of the columns along: they stay in their order.
    usual = re.findall(r'name="column" value="(\w+)" checked', admin.get(path).text)
    assert ["title", *usual] == heads(admin.get(path).text)
    page = admin.get(f"{path}?column=views&column=loud&sort=views").text
    assert [row[2:4] for row in rows(page, "Records")] == [
        ["0", "B"],
        ["1", "A"],
        ["2", hostile.upper()],
    ]
    wrong = admin.client.get(
        f"/console/{path}", query_string={"field_0": "views", "op_0": "<", "value_0": HOSTILE}
    )
    assert (wrong.status_code, beside(wrong, "value_0")) == (400, "Must be a number.")
    assert HOSTILE not in wrong.text
    wrong = admin.client.get(f"/console/{path}", query_string={"filter": "views = 1 || nope"})
    assert (wrong.status_code, beside(wrong, "filter")) == (400, "There is no field nope.")
    assert "<mark>nope</mark>" in wrong.text
    assert admin.get(f"{path}?sort=nope").status_code == 400
    assert "No matches." in admin.get(f"{path}?field_0=views&op_0=%3D&value_0=9").text
    many = {"records": [{"title": f"m{n:02}"} for n in range(30)]}
    for one in many["records"]:
        make_record(cast.alice, **one)
    first = admin.get(f"{path}?field_0=title&op_0=starts&value_0=m&sort=title").text
    following = re.search(r'rel="next" href="([^"]*)"', first)
    assert following
    second = admin.client.get(html.unescape(following[1])).text
    assert titles(first) + titles(second) == [f"m{n:02}" for n in range(30)]


def heads(page: str) -> list[str]:
    """The heads of the columns of a list."""
    return re.findall(r'<th scope="col"[^>]*>(?:<a[^>]*>)?(\w+)', page)


def test_console_record_table_begins_with_name_and_shows_what_fits(
    cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    person = make_record(cast.alice, "people", name=" Ada\n Lovelace ")["id"]
    record = make_record(cast.alice, title="first", author=person, views=7)["id"]
    untitled = make_record(cast.alice, title=" ", link="https://example.org/a/b")["id"]
    page = admin.get(place(cast)).text
    shown = ["title", "kind", "views", "open", "at", "day", "state", "author", "created_at"]
    assert heads(page) == shown
    assert titles(page) == ["https://example.org/a/b", "first"]
    assert f'/posts/{record}">first</a>' in page
    assert f'/people/{person}">Ada Lovelace</a>' in page
    assert '<td data-label="views" class="number">7</td>' in page
    page = admin.get(f"{place(cast)}?column=link").text
    assert '<td data-label="link" class="whole">https://example.org/a/b</td>' in page
    for id, name in ((person, "Ada Lovelace"), (record, "first"), (untitled, "https://")):
        page = admin.get(place(cast, f"/{'people' if id == person else 'posts'}/{id}")).text
        assert f"<title>{name}" in page
        assert f"<h1>{name}" in page
    # What nobody may change is shown by name, too.
    closed_rules(cast, update_rule=None)
    assert f'/people/{person}">Ada Lovelace</a>' in admin.get(place(cast, f"/posts/{record}")).text


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ([("note", "text"), ("total", "number")], ["note", "total"]),
        ([("total", "number"), ("paid", "boolean")], ["Record", "total", "paid"]),
        # A choice is no name while there is another text.
        ([("state", "text", {"choices": ["a"]}), ("code", "text")], ["code", "state"]),
        ([("more", "json"), ("tags", "url"), ("sum", "number")], ["tags", "sum", "more"]),
        ([(f"t{n}", "text") for n in range(9)], ["t0", "t1", "t2"]),
        ([(one * 50, "number") for one in "abc"] + [("d", "date")], ["Record", "a" * 50, "d"]),
    ],
)
@pytest.mark.parametrize("database", ["sqlite"])
def test_console_record_table_default_columns_by_type_and_width(
    cast: Cast, admin: Browser, fields: list[Any], shown: list[str], database: str
) -> None:
    properties = ("name", "type", "options")
    schema = [dict(zip(properties, one, strict=False)) for one in fields]
    make_collection(cast.root, "things", schema)
    make_record(cast.alice, "things")
    assert heads(admin.get(place(cast, "/things")).text) == [*shown, "created_at"]


def test_console_reference_picker_works_without_scripts(
    cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    people = {name: make_record(cast.alice, "people", name=name)["id"] for name in ("Ada", "Bea")}
    make_record(cast.charlie, "people", name="Adam of globex")
    path = place(cast, "/posts/new")
    sent = form_of(admin.get(path).text) | {"f_title": "typed", "find_author": "ad"}
    for how in ("find:author", ""):  # the button, and the Enter key
        page = admin.send(path, **sent, do=how).text
        picks = re.findall(r'value="(pick:author:[^"]*)">([^<]*)<', page)
        assert picks == [(f"pick:author:{people['Ada']}", "Ada")]
    page = admin.send(path, **form_of(page), do=picks[0][0]).text
    assert (form_of(page)["f_author"], form_of(page)["f_title"]) == (people["Ada"], "typed")
    assert "<strong>Ada</strong>" in page
    admin.done(path, **form_of(page), do="save")
    assert cast.alice.get("records/posts").json["items"][0]["author"] == people["Ada"]
    listed = admin.get(f"{place(cast)}?column=author").text
    assert f"posts/{people['Ada']}" not in listed
    assert f'people/{people["Ada"]}">Ada</a>' in listed
    held = admin.send(place(cast, f"/people/{people['Ada']}/delete"))
    assert (held.status_code, alert(held) != "") == (409, True)
    for text in (people["Bea"], HOSTILE, "x" * 5000, "%", "\\"):
        answer = admin.send(path, **sent | {"find_author": text}, do="find:author")
        assert (answer.status_code, HOSTILE in answer.text) == (200, False)
        if text != "\\":  # which ends no pattern, and so looks for nothing
            assert (f"pick:author:{people['Bea']}" in answer.text) == (text == people["Bea"])


def test_console_record_pages_follow_rules_and_field_lists(
    cast: Cast, admin: Browser, superadmin: Browser, made: dict[str, str]
) -> None:
    record = make_record(cast.alice, title="seen", views=1)["id"]
    path = place(cast, f"/posts/{record}")
    closed_rules(cast, update_fields=["views"], view_fields=["title"], delete_rule=None)
    page = admin.get(path).text
    assert {name for name in form_of(page) if name.startswith("f_")} == {"f_views"}
    assert ("You may write this field but not see it" in page, "Delete" in page) == (True, False)
    admin.done(path, **form_of(page), do="save")
    admin.done(path, **form_of(page) | {"f_views": "5"}, do="save")
    assert cast.root.acting_in("acme").get(f"records/posts/{record}").json["views"] == 5
    forbidden = admin.send(f"{path}/delete")
    assert (forbidden.status_code, "rules do not allow" in alert(forbidden)) == (403, True)
    closed_rules(cast, update_rule=None, list_rule="title = 'other'")
    page = admin.get(path).text
    assert ("You may not change this record" in page, "Ask them for access" in page) == (True, True)
    page = admin.get(place(cast)).text
    assert "There are no records of posts" in page
    closed_rules(cast, list_rule=None, create_rule=None)
    page = admin.get(place(cast)).text
    assert ("You may not list the records" in page, "New record" in page) == (True, False)
    answer = admin.send(place(cast, "/posts/new"), f_title="x", do="save")
    assert "You may not create records" in answer.text
    assert admin.send(path, f_views="9", do="save").status_code == 403
    assert cast.root.acting_in("acme").get("records/posts").json["total"] == 1
    assert titles(superadmin.get(place(cast)).text) == ["seen"]
    assert "posts" in admin.get(place(cast, "")).text
    closed_rules(cast, view_rule=None)
    assert "posts" not in admin.get(place(cast, "")).text.partition("<main")[2]


def test_console_record_deletion(
    app: Flask, cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    assert "No records yet." in admin.get(place(cast)).text
    record = make_record(cast.alice, title="gone")["id"]
    for _ in range(2):  # as a button pressed twice: the undo is offered all the same
        page = admin.done(place(cast, f"/posts/{record}/delete"))
        assert "The record is deleted." in page
        assert f"/posts/{record}/revive" in page
    assert cast.alice.get(f"records/posts/{record}").status_code == 404
    assert (
        Browser(app, cast.charlie).send(place(cast, f"/posts/{record}/delete")).status_code == 404
    )
    assert admin.send(place(cast, f"/posts/{NONE}/delete")).status_code == 404


def test_console_record_form_sent_twice_makes_one_record(
    app: Flask, cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    new = place(cast, "/posts/new")
    (drawn,) = re.findall(r'name="as" value="([^"]*)"', admin.get(new).text)
    sent = {"as": drawn, "f_title": "once", "f_views": "7", "do": "save"}
    others = [Browser(app, cast.alice) for _ in range(2)]
    answers = at_once(2, lambda n: others[n].send(new, **sent))
    assert [one.status_code for one in answers] == [303, 303]
    (record,) = cast.alice.get("records/posts").json["items"]
    assert {one.headers["Location"].rpartition("/")[2] for one in answers} == {record["id"]}
    # Who goes back and sends something else makes another record.
    assert admin.send(new, **sent | {"f_title": "other", "f_views": "8"}).status_code == 303
    titles = [one["title"] for one in cast.alice.get("records/posts").json["items"]]
    assert titles == ["other", "once"]
    # Another form clashes; an id of somebody's own making is none.
    assert admin.send(new, **sent | {"as": NONE}).status_code == 409
    admin.done(new, **sent | {"as": NONE, "f_views": ""})
    assert NONE not in {one["id"] for one in cast.alice.get("records/posts").json["items"]}


def test_console_record_pages_lead_back_to_filtered_list(
    cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    record = make_record(cast.alice, title="first", views=1)["id"]
    kept = "filter=title+%21%3D+%27%25%26%27&field_0=views&op_0=%3D&value_0=1"
    kept += "&sort=-day&column=views&column=day"
    listed = admin.get(f"{place(cast)}?{kept}").text

    def link(page: str, rest: str) -> str:
        found = re.search(rf'(?:href|action)="(/console/{place(cast)}{rest}[^"]*)"', page)
        assert found, rest
        return html.unescape(found[1]).removeprefix("/console/")

    listed_at = f"{place(cast)}?{kept}"
    page = admin.get(link(listed, f"/{record}")).text
    assert link(page, r"\?") == listed_at
    assert link(admin.get(link(page, f"/{record}/history")).text, f"/{record}").endswith(
        link(page, f"/{record}/history").partition("?")[2]
    )
    saved = admin.done(link(page, rf"/{record}\?"), **form_of(page) | {"f_day": "2026-11-20"})
    assert link(saved, r"\?") == listed_at
    assert link(admin.get(link(listed, "/import")).text, r"\?") == listed_at
    new = admin.get(link(listed, "/new")).text
    assert link(new, r"\?") == listed_at
    created = admin.done(link(new, "/new"), **form_of(new) | {"f_title": "x", "f_views": "2"})
    assert link(created, r"\?") == listed_at
    deleted = admin.send(link(saved, f"/{record}/delete"))
    assert deleted.headers["Location"] == f"/console/{listed_at}&deleted={record}"
    page = admin.client.get(deleted.headers["Location"]).text
    assert "The record is deleted." in page
    restored = admin.done(link(page, f"/{record}/revive"))
    assert link(restored, r"\?") == listed_at


@pytest.mark.long
@pytest.mark.parametrize(
    ("query", "order"),
    [
        ("", "76543210"),
        ("sort=title", "01234567"),
        ("sort=-title&field_0=open&op_0=%3D&value_0=true", "7531"),
        ("sort=title&filter=views+%3E+1", "234567"),
    ],
)
def test_console_record_page_links_to_neighbours_in_list(
    cast: Cast,
    admin: Browser,
    made: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    query: str,
    order: str,
) -> None:
    monkeypatch.setattr(lists, "PAGE_SIZE", 3)
    ids = {
        make_record(cast.alice, title=f"t{n}", views=n, open=bool(n % 2), mail="a@b.example")[
            "id"
        ]: n
        for n in range(8)
    }
    target = f"{place(cast)}/{next(id for id, n in ids.items() if n == int(order[0]))}"
    target += f"?back={quote(query)}" if query else ""
    for rel, expected in (("next", order), ("prev", order[::-1])):
        seen = list[str]()
        while target:
            page = admin.get(target).text
            seen.append(str(ids[target.partition("?")[0].rpartition("/")[2]]))
            # The way back leads to the page of the list with this record.
            number = order.index(seen[-1]) // 3 + 1
            way_back = re.findall(rf'<a href="(/console/{place(cast)}[^"/]*)"', page)[0]
            assert ("page=" in way_back, f"page={number}" in way_back) == (number > 1, number > 1)
            found = re.findall(rf'rel="{rel}" href="/console/([^"]*)"', page)
            target, last = (html.unescape(found[0]) if found else ""), target
        assert "".join(seen) == expected
        target = last


def test_console_record_neighbour_links_log_no_reads(
    cast: Cast, admin: Browser, superadmin: Browser, made: dict[str, str]
) -> None:
    ids = [make_record(cast.alice, title=str(n), mail="a@b.example")["id"] for n in range(3)]
    security_log = "account/security-log?target_type=col_posts&limit=500"
    for browser in (admin, superadmin):
        before = len(cast.alice.get(security_log).json["items"])
        assert 'rel="next"' in browser.get(f"{place(cast)}/{ids[1]}").text
        events = cast.alice.get(security_log).json["items"]
        named = [event["details"]["records"] for event in events[: len(events) - before]]
        assert {id for one in named for id in one} <= {ids[1]}
    assert 'rel="next"' not in admin.get(f"{place(cast)}/{ids[1]}?back=filter%3Dtitle+%3D+1").text
    assert 'rel="next"' not in admin.get(f"{place(cast)}/{ids[1]}?back=filter%3D%21").text


@pytest.mark.parametrize(
    "back", ["https://evil.example", "//evil.example", "a=1&" * 900, "%00", "&"]
)
@pytest.mark.parametrize("database", ["sqlite"])
def test_console_record_back_parameter_cannot_leave_the_list(
    cast: Cast, admin: Browser, made: dict[str, str], back: str, database: str
) -> None:
    record = make_record(cast.alice, title="first")["id"]
    path = f"/console/{place(cast)}"
    answer = admin.client.get(f"{path}/{record}", query_string={"back": back})
    assert f'<a href="{path}' in answer.text
    assert 'href="https://evil' not in answer.text
    assert 'href="//evil' not in answer.text
    found = re.search(rf'href="({path}[^"/]*)"', answer.text)
    assert found
    assert admin.client.get(html.unescape(found[1])).status_code == 200


def values(cast: Cast, name: str) -> list[Any]:
    """The values of a field of all posts of acme, in the order of titles."""
    return [one[name] for one in cast.alice.get("records/posts?sort=title").json["items"]]


def test_console_record_bulk_edit(cast: Cast, admin: Browser, made: dict[str, str]) -> None:
    person = make_record(cast.alice, "people", name="Ada")["id"]
    made_ids = [
        make_record(cast.alice, title=title, views=n)["id"] for n, title in enumerate("abc")
    ]
    chosen, path = made_ids[:2], f"{place(cast)}/selection"
    listed = admin.get(f"{place(cast)}?sort=title").text
    assert re.findall(r'form="selection" name="id" value="([^"]*)"', listed) == made_ids
    offered = re.findall(r"<option>(\w+)</option>", listed.partition('id="selection"')[2])
    assert "kind" in offered
    assert not {"views", "loud", "id"} & set(offered)  # which no two records share
    page = admin.send(f"{path}?back=sort%3Dtitle", id=chosen, field="kind", do="edit").text
    assert ("Edit 2 records" in page, form_of(page)["f_kind"]) == (True, "")
    assert re.findall(r'name="id" value="([^"]*)"', page) == chosen
    answer = admin.send(f"{path}/edit?back=sort%3Dtitle", id=chosen, field="kind", f_kind="news")
    assert answer.headers["Location"] == f"/console/{place(cast)}?sort=title"
    assert "2 records are changed." in admin.client.get(answer.headers["Location"]).text
    assert values(cast, "kind") == ["news", "news", "note"]
    # No value is one, too; a reference is found by name.
    admin.done(f"{path}/edit", id=chosen, field="kind", f_kind="")
    assert values(cast, "kind") == [None, None, "note"]
    page = admin.send(f"{path}/edit", id=chosen, field="author", find_author="ad").text
    picks = re.findall(r'value="(pick:author:[^"]*)"', page)
    page = admin.send(f"{path}/edit", **form_of(page) | {"id": chosen}, do=picks[0]).text
    admin.done(f"{path}/edit", **form_of(page) | {"id": chosen}, do="save")
    assert values(cast, "author") == [person, person, None]
    history = cast.alice.get(f"records/posts/{chosen[0]}/history").json["items"]
    assert len(history) == 4
    wrong = admin.send(f"{path}/edit", id=chosen, field="at", f_at="now")
    assert (wrong.status_code, beside(wrong, "f_at") != "") == (400, True)
    assert admin.send(f"{path}/edit", id=chosen, field="views", f_views="3").status_code == 403
    assert "Select records first." in admin.done(path, do="edit", field="kind")


def test_console_record_bulk_edit_error_is_shown_beside_record(
    cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    ids = [make_record(cast.alice, title=title, open=title == "b")["id"] for title in "abc"]
    closed_rules(cast, update_rule="open != true", delete_rule="open != true")
    path = f"{place(cast)}/selection"
    for action, sent in (("edit", {"field": "kind", "f_kind": "news"}), ("delete", {})):
        answer = admin.send(f"{path}/{action}", id=ids, **sent)
        assert answer.status_code == 403
        told = re.findall(r'/([0-9a-f-]{36})">(\w)</a>( <strong class="error">)?', answer.text)
        assert told == [(ids[0], "a", ""), (ids[1], "b", told[1][2]), (ids[2], "c", "")]
        assert told[1][2]
        assert f"Nothing is {'changed' if action == 'edit' else 'deleted'}." in answer.text
    assert values(cast, "kind") == ["note"] * 3
    closed_rules(cast, update_rule=None)
    assert admin.send(f"{path}/edit", id=ids, field="kind", f_kind="news").status_code == 403
    assert 'value="edit"' not in admin.get(place(cast)).text


def test_console_record_bulk_deletion_asks_first(
    app: Flask, cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    ids = [make_record(cast.alice, title=title)["id"] for title in "abc"]
    foreign = make_record(cast.charlie, title="of globex")["id"]
    path = f"{place(cast)}/selection"
    page = admin.send(path, id=[*ids[:2], foreign, NONE, "1", ids[0]], do="delete").text
    assert ("Delete 2 records?" in page, "of globex" in page) == (True, False)
    assert cast.alice.get("records/posts").json["total"] == 3
    for browser, status in ((without_console(app, cast), 403), (Browser(app, cast.charlie), 404)):
        for rest in ("", "/delete", "/edit"):
            sent = {"field": "kind", "f_kind": "news", "do": "delete"}
            assert browser.send(path + rest, id=ids, **sent).status_code == status
    asked = admin.send(f"{path}/delete", id=[*ids[:2], foreign])
    assert "2 records are deleted." in admin.client.get(asked.headers["Location"]).text
    assert values(cast, "title") == ["c"]
    assert "already deleted" in admin.done(f"{path}/delete", id=ids[:2])
    assert cast.charlie.get("records/posts").json["total"] == 1
    person = make_record(cast.alice, "people", name="Ada")["id"]
    make_record(cast.alice, title="d", author=person)
    held = admin.send(place(cast, "/people/selection/delete"), id=[person])
    assert (held.status_code, alert(held) != "") == (409, True)


def test_console_record_bulk_deletion_can_be_undone(
    app: Flask, cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    fields = [
        {"name": "code", "type": "text", "unique": True},
        {"name": "after", "type": "reference", "collection": "parts"},
    ]
    make_collection(cast.root, "parts", fields)
    ids = [make_record(cast.alice, "parts", code=code)["id"] for code in "abc"]
    assert cast.alice.patch(f"records/parts/{ids[0]}", {"after": ids[2]}).status_code == 200
    path = place(cast, "/parts")
    foreign = make_record(cast.charlie, "parts", code="of globex")["id"]

    def delete(*ids: str) -> list[str]:
        page = admin.done(f"{path}/selection/delete?back=sort%3Dcode", id=list(ids))
        undo = re.search(r'action="/console/([^"]*restore[^"]*)">(.*?)</form>', page, re.DOTALL)
        assert undo
        assert "back=sort" in undo[1]
        return re.findall('name="id" value="(.*?)"', undo[2])

    deleted = delete(*ids)
    assert deleted == ids
    assert "restore?" not in admin.get(path).text  # it was offered
    for browser, status in ((without_console(app, cast), 403), (Browser(app, cast.charlie), 404)):
        assert browser.send(f"{path}/selection/restore", id=ids).status_code == status
    for _ in range(2):  # as a button pressed twice
        page = admin.done(f"{path}/selection/restore", id=[*deleted, "1"])
        assert ("3 records are restored." in page, "could not" in page) == (True, False)
    found = cast.alice.get("records/parts?sort=code").json["items"]
    assert [(one["id"], one["after"]) for one in found] == [
        *((ids[0], ids[2]), (ids[1], None), (ids[2], None))
    ]
    # What cannot be restored is counted, with the reason; another account's records are unknown.
    delete(*ids[:2])
    make_record(cast.alice, "parts", code="b")
    page = admin.done(f"{path}/selection/restore", id=[*ids[:2], foreign])
    assert "1 record is restored. 2 records could not be restored: " in page
    assert ("code: " in page, "There is no such record." in page) == (True, True)
    assert cast.charlie.get(f"records/parts/{foreign}").status_code == 200


def test_console_record_bulk_export(cast: Cast, admin: Browser, made: dict[str, str]) -> None:
    ids = [make_record(cast.alice, title=title)["id"] for title in "abc"]
    foreign = make_record(cast.charlie, title="of globex")["id"]
    path = f"{place(cast)}/selection?sort=-title"
    answer = admin.send(path, id=[ids[0], ids[2], foreign], do="export", format="json")
    assert [one["title"] for one in answer.json] == ["c", "a"]
    assert answer.headers["Content-Disposition"] == "attachment; filename=posts.json"
    assert admin.send(path, id=ids, do="export", format="csv").text.count("\n") == 4


@pytest.mark.parametrize("database", ["sqlite"])
def test_console_record_bulk_changes_ask_for_signature(
    cast: Cast, admin: Browser, made: dict[str, str], database: str
) -> None:
    record = make_record(cast.alice, title="a")["id"]
    options = {"options": {"require_signature": True}}
    assert cast.root.patch(f"collections/{made['posts']}", options).status_code == 200
    path = f"{place(cast)}/selection"
    sent = {"id": record, "field": "kind", "f_kind": "news"}
    page = admin.send(path, id=record, field="kind", do="edit").text
    assert form_of(page)["es_username"] == cast.alice.email
    assert admin.send(f"{path}/edit", **sent).status_code == 400
    signed = {"es_username": cast.alice.email, "es_password": PASSWORD, "es_reason": "Tidy up"}
    admin.done(f"{path}/edit", **sent, **signed)
    page = admin.done(f"{path}/delete", id=record, **signed)
    assert 'name="es_reason"' in page.partition("Undo…")[2].partition("</details>")[0]
    page = admin.done(f"{path}/restore", id=record, **{**signed, "es_password": "wrong"})
    assert "Undo…" in page  # again
    assert "1 record is restored." in admin.done(f"{path}/restore", id=record, **signed)
    entry = cast.root.get(f"audit-logs?record_id={record}&operation=DELETE").json["items"][0]
    assert (entry["es_username"], entry["es_reason"]) == (cast.alice.email, "Tidy up")


def conditions(page: str) -> str:
    """The inputs of the first condition of a list."""
    return page.partition('aria-label="Condition 1"')[2].partition("</div>")[0]


def test_console_record_filter_inputs_follow_field_type(
    cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    path = place(cast)
    expected = {
        "kind": ('<option value="news">news</option>', "=", "!=", "empty", "filled"),
        "tags": ('<option value="&lt;b&gt;">&lt;b&gt;</option>', "contains", "empty", "filled"),
        "open": ('<option value="true">yes</option>', "=", "!=", "empty", "filled"),
        "day": ('type="date"', "=", "!=", "<", "<=", ">", ">=", "empty", "filled"),
        "at": ('type="datetime-local"', "=", "!=", "<", "<=", ">", ">=", "empty", "filled"),
        "views": ('inputmode="decimal"', "=", "!=", "<", "<=", ">", ">=", "empty", "filled"),
        "author": ('placeholder="Name or id"', "=", "!=", "contains", "starts", "empty", "filled"),
    }
    for name, (control, *operators) in expected.items():
        answer = admin.get(f"{path}?field_0={name}")
        assert (answer.status_code, beside(answer, "value_0")) == (400, "Enter a value."), name
        for page in (answer.text, admin.get(f"{path}/condition?field_0={name}").text):
            assert control in conditions(page), name
            offered = conditions(page).partition('name="op_0"')[2].partition("</select>")[0]
            assert re.findall(r'<option value="([^"]*)"', html.unescape(offered)) == operators
    page = admin.get(f"{path}/condition?field_3=kind&n=3").text
    assert 'name="value_3"' in page
    assert 'name="value_0"' in admin.get(f"{path}/condition?field_0={'x' * 999}&n=99").text
    # A choice that is gone stays in the filter.
    page = admin.get(f"{path}?field_0=kind&op_0=%3D&value_0=gone").text
    assert "<option selected>gone</option>" in conditions(page)
    record = make_record(cast.alice, title="a", tags=["<b>"])["id"]
    assert f"/posts/{record}" in admin.get(f"{path}?field_0=tags&op_0=%3D&value_0=<b>").text


def test_console_record_filter_without_field_searches_visible_texts(
    app: Flask, cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    make_record(cast.alice, title="an oak", mail="ash@example.org", views=1, open=True)
    make_record(cast.alice, title="50% elm", kind="news", views=2)
    path = place(cast)

    def found(browser: Browser, text: str, operator: str = "") -> list[str]:
        query = {"op_0": operator, "value_0": text}
        answer = browser.client.get(f"/console/{path}", query_string=query)
        assert answer.status_code == 200, query
        return titles(answer.text)

    assert found(admin, "OAK") == found(admin, "an o", "starts") == ["an oak"]
    assert found(admin, "an oak", "=") == ["an oak"]
    assert found(admin, "oak", "=") == found(admin, "elm", "starts") == found(admin, "3") == []
    assert found(admin, "0%") == ["50% elm"]
    assert found(admin, "ash@") == ["an oak"]
    carol = make_user(app, cast.alice.account_id, "carol@acme.example", "admin")
    masked = Browser(app, type(cast.alice)(app, carol))
    assert (found(masked, "ash@"), found(masked, "oak")) == ([], ["an oak"])
    both = admin.get(f"{path}?value_0=elm&field_1=views&op_1=%3D&value_1=1").text
    assert titles(both) == []
    # It says nothing about numbers, and nothing by order.
    for operator in ("<", "!="):
        wrong = admin.get(f"{path}?op_0={operator}&value_0=x")
        assert (wrong.status_code, beside(wrong, "field_0")) == (400, "Choose a field.")


def test_console_record_filter_finds_references_by_name(
    cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    people = {name: make_record(cast.alice, "people", name=name)["id"] for name in ("Ada", "Bea")}
    for title, author in (("by ada", people["Ada"]), ("by bea", people["Bea"]), ("by none", None)):
        make_record(cast.alice, title=title, author=author)

    def found(operator: str, text: str) -> list[str]:
        query = {"field_0": "author", "op_0": operator, "value_0": text, "sort": "title"}
        answer = admin.client.get(f"/console/{place(cast)}", query_string=query)
        assert answer.status_code == 200, query
        return titles(answer.text)

    assert found("=", "ada") == ["by ada"]
    assert found("=", people["Bea"]) == ["by bea"]
    assert found("!=", "Ada") == ["by bea", "by none"]
    assert found("contains", "e") == ["by bea"]
    assert found("starts", "b") == ["by bea"]
    assert found("=", "%") == []
    assert cast.root.put("collections/people/rules", {"view_rule": None}).status_code == 200
    query = {"field_0": "author", "op_0": "=", "value_0": "ada"}
    answer = admin.client.get(f"/console/{place(cast)}", query_string=query)
    assert (answer.status_code, "by name" in beside(answer, "value_0")) == (400, True)
    assert found("=", people["Bea"]) == ["by bea"]


def test_console_record_filter_shows_name_of_reference(
    cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    person = make_record(cast.alice, "people", name="Ada")["id"]
    make_record(cast.alice, title="a", author=person)
    make_record(cast.alice, title="b")

    def label(value: str) -> str:
        page = admin.get(f"{place(cast)}?field_0=author&op_0=%3D&value_0={value}").text
        assert titles(page) == (["a"] if value == person else [])
        assert f'value="{value}"' in page
        found = re.search(r'data-options="[^"]*field=author" data-label="(.*?)" data-any', page)
        assert found
        return found[1]

    assert [label(value) for value in (person, NONE, "nobody")] == ["Ada", "", ""]
    part = admin.get(f"{place(cast, '/posts/condition')}?field_0=author&n=0").text
    assert "/options?field=author" in part


def test_console_record_table_columns_are_chosen_and_moved(
    cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    make_record(cast.alice, title="a")
    # The name of a record always comes first.
    path, asked = place(cast), "column=views&column=day&column=title&column=open&column=views"
    asked += "&column=nope"
    assert heads(admin.get(f"{path}?{asked}").text) == ["title", "views", "day", "open"]
    page = admin.get(f"{path}?{asked}&up=open").text
    assert heads(page) == ["title", "views", "open", "day"]
    chosen = re.findall(r'name="column" value="(\w+)" checked', page)
    assert chosen == ["views", "open", "day"]
    assert 'name="column" value="title"' not in page
    assert "up%3D" not in page  # else the way back would move it again
    assert heads(admin.get(f"{path}?{asked}&down=views").text)[1:] == ["day", "views", "open"]
    for way in ("up=views", "down=open", "up=title"):
        assert heads(admin.get(f"{path}?{asked}&{way}").text)[1:] == ["views", "day", "open"]


@pytest.mark.parametrize("database", ["sqlite"])
def test_console_record_table_column_widths_are_bounded_and_kept(
    cast: Cast, admin: Browser, made: dict[str, str], database: str
) -> None:
    make_record(cast.alice, title="a", views=1)
    given = ["views:200", "title:9", "kind:9999", "day:x", "at:-5", "no:90", "open", "state:1e3"]
    query = "&".join(f"width={one}" for one in given)
    page = admin.get(f"{place(cast)}?column=views&column=kind&{query}").text
    assert re.findall(r"<col width=\"(\d+)\">", page) == ["64", "200", "1200"]
    assert re.findall(r'name="width" value="(.*?)"', page) == ["kind:1200", "title:64", "views:200"]
    widths = "width=kind:1200&amp;width=title:64&amp;width=views:200"
    sort = re.search(r'<a href="([^"]*)">views', page)
    assert sort
    assert widths in sort[1]
    # The way back from a record leads to the same widths.
    record = re.search(r'<th scope="row"><a href="/console/([^"]*)">a</a>', page)
    assert record
    assert widths in admin.get(html.unescape(record[1])).text.replace("%3A", ":")


def row_form(page: str) -> dict[str, Any]:
    """What a browser would send of the row that is a form."""
    return inputs(page.replace('<form class="editing"', '<form id="r"', 1), "r")


def test_console_record_table_edits_rows(cast: Cast, admin: Browser, made: dict[str, str]) -> None:
    person = make_record(cast.alice, "people", name="Ada")["id"]
    ids = [make_record(cast.alice, title=title, views=n)["id"] for n, title in enumerate("ab")]
    path = f"{place(cast)}?column=views&column=kind&column=author&column=loud&sort=title"
    links = re.findall(r'<a href="([^"]*)" data-edit', admin.get(path).text)
    assert len(links) == 2
    opened = html.unescape(links[0]).removeprefix("/console/")
    page = admin.get(opened).text
    assert {name for name in row_form(page) if name.startswith("f_")} == {
        *("f_title", "f_views", "f_kind", "f_author")
    }
    assert "data-stream" not in page  # nothing changes below who types
    saved = admin.send(opened, **row_form(page) | {"f_views": "7", "f_kind": "news"}, do="save")
    assert saved.headers["Location"].startswith(f"/console/{place(cast)}?")
    assert "edit" not in saved.headers["Location"]
    page = admin.client.get(saved.headers["Location"]).text
    assert "The record is saved." in page
    assert [row[1:4] for row in rows(page, "Records")] == [["a", "7", "news"], ["b", "1", "note"]]
    # What is wrong stands beside its input; a reference is found by name.
    page = admin.get(opened).text
    answer = admin.send(opened, **row_form(page) | {"f_views": "many"}, do="save")
    assert (answer.status_code, beside(answer, "f_views")) == (400, "Must be a number.")
    page = admin.send(opened, **row_form(page) | {"find_author": "ad"}, do="find:author").text
    picks = re.findall(r'value="(pick:author:[^"]*)"', page)
    page = admin.send(opened, **row_form(page), do=picks[0]).text
    admin.done(opened, **row_form(page), do="save")
    assert values(cast, "author") == [person, None]
    # A row that is gone, or that nobody may change, is none.
    assert admin.get(f"{place(cast)}?edit={NONE}").status_code == 200
    for edit in (NONE, "x", ""):
        assert admin.send(f"{place(cast)}?edit={edit}", do="save").status_code == 404
    closed_rules(cast, update_rule="title = 'a'")
    other = f"{place(cast)}?edit={ids[1]}&column=views"
    refused = admin.send(other, **row_form(admin.get(other).text) | {"f_views": "9"}, do="save")
    assert (refused.status_code, "rules do not allow" in alert(refused)) == (403, True)
    closed_rules(cast, update_rule=None)
    assert "data-edit " not in admin.get(path).text


def test_console_record_row_edit_after_concurrent_change_is_409(
    app: Flask, cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    record = make_record(cast.alice, title="first", views=1)["id"]
    path = f"{place(cast)}?column=views&filter=views+%3C+5&edit={record}"
    sent = row_form(admin.get(path).text) | {"f_views": "2"}
    assert cast.alice.patch(f"records/posts/{record}", {"views": 9}).status_code == 200
    late = admin.send(path, **sent, do="save")
    assert (late.status_code, "Somebody else" in alert(late)) == (409, True)
    assert (row_form(late.text)["f_views"], "Stored: 9" in late.text) == ("2", True)
    admin.done(path, **row_form(late.text), do="save")
    assert values(cast, "views") == [2]
    del sent["csrf_token"]
    for browser, status in ((without_console(app, cast), 403), (Browser(app, cast.charlie), 404)):
        assert browser.send(path, **sent, do="save").status_code == status


def test_console_reference_options_are_found_by_name(
    app: Flask, cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    people = {name: make_record(cast.alice, "people", name=name)["id"] for name in ("Ada", "Bea")}
    make_record(cast.charlie, "people", name="Adam of globex")
    path = place(cast, "/posts/options")

    def offered(text: str) -> list[Any]:
        answer = admin.client.get(
            f"/console/{path}", query_string={"field": "author", "text": text}
        )
        assert answer.status_code == 200
        return [(one["id"], one["label"]) for one in answer.json["options"]]

    assert offered("ad") == [(people["Ada"], "Ada")]
    assert [label for _, label in offered("")] == ["Bea", "Ada"]
    assert offered(people["Bea"]) == [(people["Bea"], "Bea")]
    assert offered("x" * 5000) == offered("%") == []
    for field in ("title", "nope", "", "id"):
        assert admin.get(f"{path}?field={field}").json == {"options": []}
    for browser, status in ((without_console(app, cast), 403), (Browser(app, cast.charlie), 404)):
        assert browser.get(f"{path}?field=author").status_code == status
    assert cast.root.put("collections/people/rules", {"list_rule": None}).status_code == 200
    assert offered("ad") == []


def test_console_record_page_shows_referring_records_and_changes(
    cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    person = make_record(cast.alice, "people", name="Ada")["id"]
    other = make_record(cast.alice, "people", name="Bea")["id"]
    for n in range(7):
        make_record(cast.alice, title=f"t{n}", author=person)
    cast.alice.patch(f"records/people/{person}", {"name": "Ada L."})
    page = admin.get(place(cast, f"/people/{person}")).text
    aside = page.partition("<aside>")[2].partition("</aside>")[0]
    assert re.findall(r">(t\d)</a>", aside) == ["t6", "t5", "t4", "t3", "t2"]
    rest = re.search(r'href="([^"]*)">Show all', aside)
    assert rest
    assert len(titles(admin.client.get(html.unescape(rest[1])).text)) == 7
    assert re.findall(r"(Created|Changed) <time", aside) == ["Changed", "Created"]
    assert f"by {cast.alice.email}: name" in aside
    assert f"/{cast.alice.account_id}/deliveries?record={person}" in aside
    assert "by author" not in admin.get(place(cast, f"/people/{other}")).text
    closed_rules(cast, list_rule=None)
    assert "by author" not in admin.get(place(cast, f"/people/{person}")).text


def test_console_record_page_names_creator_and_editor(
    app: Flask, cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    carol = make_user(app, cast.alice.account_id, "carol@acme.example", "admin")
    dave = make_user(app, cast.alice.account_id, "dave@acme.example", "admin")
    assert cast.root.patch(f"users/{carol.id}", {"name": "Carol"}).status_code == 200
    by_carol, by_dave = (type(cast.alice)(app, user) for user in (carol, dave))
    record = make_record(by_carol, title="a")["id"]
    make_record(by_dave, title="b")
    acting = cast.root.acting_in(cast.alice.account_id)
    assert acting.patch(f"records/posts/{record}", {"title": "c"}).status_code == 200
    path = f"{place(cast)}?column=created_by&column=updated_by&sort=created_at"

    def people() -> list[str]:
        return re.findall('data-label="(?:created|updated)_by">(.*?)<', admin.get(path).text)

    dave_twice = ["dave@acme.example"] * 2
    assert people() == ["Carol", cast.root.email, *dave_twice]
    page = admin.get(place(cast, f"/posts/{record}")).text
    facts = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page))
    assert (facts["created_by"], facts["updated_by"]) == ("Carol", cast.root.email)
    for rest in ("", "/history"):
        assert "by Carol" in admin.get(place(cast, f"/posts/{record}{rest}")).text
    # Of deleted users, the audit log has the last name.
    for user in (carol, dave):
        assert cast.root.delete(f"users/{user.id}").status_code == 204
    dave_twice = ["dave@acme.example (deleted)"] * 2
    assert people() == ["Carol (deleted)", cast.root.email, *dave_twice]


def test_console_record_history_shows_names_of_references(
    cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    ada, bea = (make_record(cast.alice, "people", name=name)["id"] for name in ("Ada", "Bea"))
    record = make_record(cast.alice, title="first", author=ada)["id"]
    cast.alice.patch(f"records/posts/{record}", {"author": bea})
    page = admin.get(place(cast, f"/posts/{record}/history")).text
    assert "<title>History of first" in page
    changed = page.partition('data-label="Was"')[2].partition("</tr>")[0]
    assert re.findall(r'/people/([^"]*)">(\w+)<', changed) == [(ada, "Ada"), (bea, "Bea")]


def test_console_record_list_statements_do_not_grow_with_rows(
    app: Flask, cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    path, counts = f"{place(cast)}?column=author&column=views", []
    for n in range(2):
        for row in range(1 + 9 * n):
            person = make_record(cast.alice, "people", name=f"p{n}{row}")["id"]
            make_record(cast.alice, title=f"t{row}", author=person)
        admin.get(path)
        with sql.statements(app) as noted:
            assert len(titles(admin.get(path).text)) == 1 + 10 * n
        counts.append(len(noted))
    assert counts[0] == counts[1] > 0


def test_console_record_pages_escape_values(
    cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    record = make_record(cast.alice, title=HOSTILE, more={"a": HOSTILE})["id"]
    person = make_record(cast.alice, "people", name=HOSTILE[:50])["id"]
    make_record(cast.alice, title="b", author=person)
    for rest in ("/posts", "/posts?column=more&column=author", f"/posts/{record}", "/people"):
        page = admin.get(place(cast, rest)).text
        assert "<script>alert" not in page
        assert "1111113" not in page


def test_console_record_import_of_exported_file(
    cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    for n in range(2):
        make_record(cast.alice, title=f"=t{n}", more={"n": n})
    path = f"{place(cast)}/import"

    def send(content: bytes, name: str = "a.csv", do: str = "try") -> Any:
        return admin.send(path, file=(io.BytesIO(content), name), do=do)

    listed = admin.get(f"{place(cast)}?field_0=title&op_0=ends&filter=title+%3D+%27%3Dt1%27").text
    assert "Choose one of the options." in listed
    listed = admin.get(f"{place(cast)}?filter=title+%3D+%27%3Dt1%27").text
    link = re.search(r'href="([^"]*/export/csv[^"]*)"', listed)
    assert link
    exported = admin.client.get(html.unescape(link[1]))
    assert (exported.status_code, exported.mimetype) == (200, "text/csv")
    assert len(exported.data.splitlines()) == 2
    answer = send(exported.data)
    assert (answer.status_code, "The record is valid" in answer.text) == (200, True)
    shown = dict(re.findall('<td data-label="(.*?)">(.*?)</td>', answer.text))
    assert (shown["title"], shown["more"], shown["loud"]) == ("=t1", "{&#34;n&#34;:1}", "=T1")
    assert cast.alice.get("records/posts").json["total"] == 2
    wrong = send(b"title,views\n<b>,1\n,x\n", do="import")
    assert (wrong.status_code, "Line 3, <strong>views</strong>: Must be a" in wrong.text) == (
        400,
        True,
    )
    assert send(b"", "a.exe").status_code == 400
    assert admin.send(path, do="import").status_code == 400
    assert send(b"[{", "a.json").status_code in (400, 422)
    assert cast.alice.get("records/posts").json["total"] == 2
    moved = send(exported.data, do="import")
    assert moved.status_code == 303
    listed = admin.client.get(moved.headers["Location"]).text
    assert "1 record is imported." in listed
    assert "Times are in UTC" in listed
    found = cast.alice.get("records/posts?sort=title").json["items"]
    assert [one["title"] for one in found] == ["=t0", "=t1", "=t1"]


def test_console_record_import_reuses_checked_upload(
    app: Flask, cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    path = f"{place(cast)}/import"

    def check(content: bytes, name: str = "a.csv") -> str:
        page = admin.send(path, file=(io.BytesIO(content), name), do="try").text
        stored = re.findall('name="upload_id" value="(.*?)"', page)
        assert ("</strong> is stored for you" in page) == bool(stored)
        return stored[0] if stored else ""

    stored = check(b"title\na\nb\n")
    # Of nobody else, nor in another account.
    carol = make_user(app, cast.alice.account_id, "carol@acme.example", "admin")
    answer = Browser(app, type(cast.alice)(app, carol)).send(path, upload_id=stored, do="import")
    assert (answer.status_code, "no longer stored" in answer.text) == (400, True)
    theirs = path.replace(cast.alice.account_id, cast.charlie.account_id)
    assert Browser(app, cast.charlie).send(theirs, upload_id=stored, do="import").status_code == 400
    again = admin.send(path, upload_id=stored, do="try").text
    assert re.findall('name="upload_id" value="(.*?)"', again) == [stored]
    assert values(cast, "title") == []
    # Another chosen file is taken instead.
    other = {"file": (io.BytesIO(b"title\nc\n"), "b.csv")}
    assert "1 record is imported." in admin.done(path, upload_id=NONE, do="import", **other)
    assert "2 records are imported." in admin.done(path, upload_id=stored, do="import")
    assert sorted(values(cast, "title")) == ["a", "b", "c"]
    answer = admin.send(path, upload_id=stored, do="import")
    assert (answer.status_code, "no longer stored" in answer.text) == (400, True)
    assert check(b"title,views\na,x\n") == ""
    stored = check(admin.get(f"{place(cast)}/export/zip").data, "a.zip")
    assert "3 records are imported." in admin.done(path, upload_id=stored, do="import")


def test_console_record_import_updates_by_key_and_tells_what_it_read(
    cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    fields = [{"name": "code", "type": "text", "unique": True}, {"name": "name", "type": "text"}]
    make_collection(cast.root, "coded", fields)
    make_record(cast.alice, "coded", code="a", name="old")
    path = f"{place(cast, '/coded')}/import"
    assert "Find records to update by" in admin.get(path).text
    file, form = "code;name\na;Müller\nb;c\n".encode("cp1252"), {"upsert": "code"}
    tried = admin.send(path, file=(io.BytesIO(file), "a.csv"), do="try", **form).text
    assert "New: 1. Changed: 1. The same as before: 0." in tried
    assert "Encoding: windows-1252. Separator: Semicolon." in tried
    assert '<option value="code" selected>' in tried
    done = admin.done(path, file=(io.BytesIO(file), "a.csv"), do="import", **form)
    assert "2 records are imported. New: 1. Changed: 1. The same as before: 0." in done
    stored = cast.alice.get("records/coded?sort=code").json["items"]
    assert [one["name"] for one in stored] == ["Müller", "c"]
    wrong = {"upsert": "name", "encoding": "utf-7"}
    for name, text in wrong.items():
        answer = admin.send(path, file=(io.BytesIO(file), "a.csv"), do="try", **{name: text})
        assert answer.status_code in (400, 415)
    given = {"encoding": "iso-8859-1", "separator": "comma", "do": "try"}
    answer = admin.send(path, file=(io.BytesIO(file), "a.csv"), **given).text
    assert "code;name" in answer


@pytest.mark.parametrize("database", ["sqlite"])
def test_console_record_import_groups_equal_problems_by_line(
    cast: Cast, admin: Browser, made: dict[str, str], database: str
) -> None:
    lines = [b"title;views;nope", b"a;1;x", b"b;2;y", b"c;x;z", b"d;4;", b"e;z;"]

    def problems(content: bytes) -> list[str]:
        sent = {"file": (io.BytesIO(content), "a.csv"), "do": "try"}
        page = admin.send(f"{place(cast)}/import", **sent).text
        return re.findall("<li>(Lines? .*?)</li>", page)

    first, second = problems(b"\n".join(lines))
    assert first.startswith("Lines 2-6, <strong>nope</strong>: ")
    assert second.startswith("Lines 4, 6, <strong>views</strong>: ")
    assert problems(b"title\n\na;b\nb,c\n") == ["Line 4: Has 2 cells; the first line names 1."]
    (many,) = problems(b"title\tviews\n" + b"a\tx\n" * 120)
    assert many.startswith("Lines 2-101, ")


def test_console_record_import_of_long_file_streams_progress(
    cast: Cast, admin: Browser, made: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "BATCH_SIZE", 3)
    path, lines = f"{place(cast)}/import", [b"title", *(b"t%d" % n for n in range(8))]

    def sent(content: bytes, do: str) -> str:
        answer = admin.send(path, file=(io.BytesIO(content), "a.csv"), do=do)
        assert (answer.status_code, answer.headers["X-Accel-Buffering"]) == (200, "no")
        assert re.findall('max="8" value="([0-9]+)"', answer.text) == ["3", "6", "8"]
        return answer.text

    assert "records are imported" not in admin.get(path).text
    tried = sent(b"\n".join(lines), "try")
    assert "All 8 records are valid" in tried
    assert re.findall('"title">(.*?)</td>', tried) == ["t0", "t1", "t2", "t3", "t4"]
    refused = sent(b"\n".join([*lines[:-1], b'""']), "import")
    assert "Line 9, <strong>title</strong>: This field is required" in refused
    assert cast.alice.get("records/posts").json["total"] == 0
    assert "8 records are imported" in sent(b"\n".join(lines), "import")
    assert cast.alice.get("records/posts").json["total"] == 8


def test_console_record_import_aborted_by_client_is_rolled_back(
    app: Flask, cast: Cast, admin: Browser, made: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "BATCH_SIZE", 1)
    form = {"csrf_token": token(admin.client), "do": "import"}
    form |= {"file": (io.BytesIO(b"title\na\nb\nc"), "a.csv")}
    answer = admin.client.post(f"/console/{place(cast)}/import", data=form, buffered=False)
    text = b""
    while b"progress" not in text:
        text += next(answer.response)
    answer.close()
    assert b"records are imported" not in text
    assert cast.alice.get("records/posts").json["total"] == 0


def test_console_record_deletion_undo_requires_delete_right(
    app: Flask, cast: Cast, admin: Browser, made: dict[str, str]
) -> None:
    record = make_record(cast.alice, title="kept", more={"a": [1]})["id"]
    one = place(cast, f"/posts/{record}")
    undo = f"{one}/revive"
    assert "The record is already restored." in admin.done(undo)
    admin.done(f"{one}/delete")
    assert "Restore" in admin.get(f"{one}/history").text
    assert Browser(app, cast.charlie).send(undo).status_code == 404
    assert "The record is restored." in admin.done(undo)
    assert "The record is already restored." in admin.done(undo)
    (again,) = cast.alice.get("records/posts").json["items"]
    assert (again["title"], again["more"], again["id"]) == ("kept", {"a": [1]}, record)
    admin.done(f"{one}/delete")
    # As a button pressed twice: both find it deleted.
    others = [Browser(app, cast.alice) for _ in range(2)]
    assert [a.status_code for a in at_once(2, lambda n: others[n].send(undo))] == [303, 303]
    assert cast.alice.get("records/posts").json["total"] == 1
    closed_rules(cast, create_rule=None)
    admin.done(f"{one}/delete")
    assert admin.send(undo).status_code == 403


def test_console_person_is_picked_shown_and_filtered_by_name(
    cast: Cast, app: Flask, admin: Browser
) -> None:
    change_user(app, cast.bob.id, name="Bob Acme")
    change_user(app, cast.charlie.id, name="Bob Globex")
    fields = [{"name": "title", "type": "text"}, {"name": "owner", "type": "user"}]
    make_collection(cast.root, "tasks", fields)
    path = place(cast, "/tasks/new")
    sent = form_of(admin.get(path).text) | {"f_title": "typed", "find_owner": "BOB"}
    page = admin.send(path, **sent, do="find:owner").text
    picks = re.findall(r'value="(pick:owner:[^"]*)">([^<]*)<', page)
    assert picks == [(f"pick:owner:{cast.bob.id}", "Bob Acme")]
    page = admin.send(path, **form_of(page), do=picks[0][0]).text
    assert "<strong>Bob Acme</strong>" in page
    admin.done(path, **form_of(page), do="save")
    make_record(cast.alice, "tasks", title="hers", owner=cast.alice.id)
    (made, *_) = cast.alice.get("records/tasks?title=typed").json["items"]
    assert made["owner"] == cast.bob.id
    listed = admin.get(place(cast, "/tasks")).text
    assert ("Bob Acme" in listed, cast.alice.email in listed) == (True, True)
    by_name = {"field_0": "owner", "op_0": "contains", "value_0": "acme"}
    found = admin.get(place(cast, f"/tasks?{urlencode(by_name)}")).text
    assert ("typed" in found, ">hers<" in found) == (True, False)
    one = admin.get(place(cast, f"/tasks/{made['id']}")).text
    assert "Bob Acme" in one
    options = admin.get(place(cast, "/tasks/options?field=owner&text=acme")).json
    assert {"id": cast.bob.id, "label": "Bob Acme"} in options["options"]
    assert cast.charlie.id not in str(options)


def test_console_list_of_people_is_edited_and_shown_by_name(
    cast: Cast, app: Flask, admin: Browser
) -> None:
    change_user(app, cast.alice.id, name="Ann")
    change_user(app, cast.bob.id, name="Bob")
    members = {"name": "members", "type": "user", "multiple": True}
    make_collection(cast.root, "projects", [{"name": "title", "type": "text"}, members])
    path = place(cast, "/projects/new")
    page = admin.get(path).text
    for name, person in (("bo", cast.bob), ("an", cast.alice)):
        sent = form_of(page) | {"f_title": "typed", "find_members": name}
        sent["f_members"] = re.findall(r'name="f_members" value="([^"]*)" checked', page)
        page = admin.send(path, **sent, do="find:members").text
        sent["f_members"] = re.findall(r'name="f_members" value="([^"]*)" checked', page)
        page = admin.send(path, **sent, do=f"pick:members:{person.id}").text
    assert re.findall(r'value="([^"]*)" checked> (\w+)<', page) == [
        (cast.bob.id, "Bob"),
        (cast.alice.id, "Ann"),
    ]
    both = [cast.bob.id, cast.alice.id]
    admin.done(path, **form_of(page) | {"f_members": both}, do="save")
    (made,) = cast.alice.get("records/projects").json["items"]
    assert made["members"] == both
    one = place(cast, f"/projects/{made['id']}")
    assert re.findall(r'value="[^"]*" checked> (\w+)<', admin.get(one).text) == ["Bob", "Ann"]
    assert "Bob, Ann" in admin.get(place(cast, "/projects?column=members")).text
    for value, count in ((cast.bob.id, 1), ("bo", 1), ("nobody", 0)):
        args = {"field_0": "members", "op_0": "contains", "value_0": value}
        found = admin.get(place(cast, f"/projects?{urlencode(args)}")).text
        assert found.count(">typed<") == count, value
    admin.done(one, **form_of(admin.get(one).text) | {"f_members": [cast.alice.id]}, do="save")
    assert cast.alice.get(f"records/projects/{made['id']}").json["members"] == [cast.alice.id]
    for page, people in (
        (admin.get(f"{one}/history").text, "Bob, Ann"),
        (admin.get(f"audit?record_id={made['id']}").text, f"{cast.bob.email}, {cast.alice.email}"),
    ):
        shown = re.sub(r"<[^>]*>", "", page)
        assert people in shown
        assert cast.bob.id[-8:] not in shown


def test_console_record_form_takes_decimals_and_texts_in_lines(cast: Cast, admin: Browser) -> None:
    amount = {"name": "amount", "type": "decimal", "options": {"min": "-99"}}
    labels = {"name": "labels", "type": "text_list", "options": {"max_length": 9}}
    make_collection(cast.root, schema=[{"name": "title", "type": "text"}, amount, labels])
    new = place(cast, "/posts/new")
    wrong = {"f_title": "a", "f_amount": "1,5", "add_labels": "0123456789\r\nok", "do": "save"}
    page = admin.send(new, **form_of(admin.get(new).text) | wrong).text
    assert "such as &#34;12.50&#34;" in page
    assert "at most 9 characters" in page
    typed = {
        "f_title": "a",
        "f_amount": "-12.5",
        "add_labels": "hot\r\n <b> \r\n\r\nhot",
        "do": "save",
    }
    page = admin.done(new, **form_of(admin.get(new).text) | typed)
    (record,) = cast.alice.get("records/posts").json["items"]
    assert (record["amount"], record["labels"]) == ("-12.50", ["hot", "<b>"])
    path = place(cast, f"/posts/{record['id']}")
    sent = form_of(page)
    assert (sent["f_amount"], sent["f_labels"]) == ("-12.50", ["hot", "<b>"])
    assert "No changes." in admin.done(path, **sent, do="save")
    sent = form_of(admin.get(path).text) | {"f_labels": ["<b>"], "add_labels": "new", "do": "save"}
    assert "The record is saved." in admin.done(path, **sent)
    (record,) = cast.alice.get("records/posts").json["items"]
    assert record["labels"] == ["<b>", "new"]
    make_record(cast.alice, title="b", amount="3", labels=["other"])
    for query, expected in (
        ({"field_0": "labels", "op_0": "contains", "value_0": "new"}, ["a"]),
        ({"field_0": "amount", "op_0": ">", "value_0": "2.999"}, ["b"]),
        ({"field_0": "amount", "op_0": "=", "value_0": "-12.5"}, ["a"]),
        ({"sort": "-amount"}, ["b", "a"]),
    ):
        assert titles(admin.get(place(cast, f"/posts?{urlencode(query)}")).text) == expected
