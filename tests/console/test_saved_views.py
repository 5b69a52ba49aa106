"""Saved views of lists: of a user or shared, one opened by default, bounded, followed, erased."""

from __future__ import annotations

import html
import re
from urllib.parse import urlencode

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.console.records import saved_views
from app.console.records.saved_views import SavedView
from app.context import tenancy
from tests.builders import Cast, make_collection, make_record, make_user
from tests.console.browser import Browser, beside
from tests.console.test_records import NONE, heads, place, titles

POSTS = [
    {"name": "title", "type": "text"},
    {"name": "views", "type": "number"},
    {"name": "day", "type": "date"},
]
LIST = "field_0=views&op_0=%3E&value_0=1&sort=-views&column=views&width=views:99"


@pytest.fixture
def posts(cast: Cast) -> str:
    """The id of a collection with three records of acme."""
    made = make_collection(cast.root, "posts", POSTS)["id"]
    for n, title in enumerate("abc"):
        make_record(cast.alice, title=title, views=n)
    return str(made)


def shown(page: str) -> dict[str, str]:
    """The addresses of the views that a page shows, by name."""
    nav = page.partition('aria-label="Saved views"')[2].partition("</nav>")[0]
    return {
        name.strip(): html.unescape(target).removeprefix("/console/")
        for target, name in re.findall(r'<a href="([^"]*)"[^>]*>([^<]*)', nav)
    }


def stored(app: Flask) -> list[SavedView]:
    """The views of all accounts, by name."""
    with app.app_context(), tenancy.across_accounts():
        views = db.db.session.scalars(sa.select(SavedView).order_by(SavedView.name)).all()
        db.db.session.expunge_all()
        return list(views)


def test_saved_view_create_open_replace_delete(
    app: Flask, cast: Cast, admin: Browser, posts: str
) -> None:
    path = place(cast)
    page = admin.done(f"{path}/views?{LIST}", name="Many views")
    assert "The view is saved." in page
    assert titles(page) == ["c"]
    found = shown(admin.get(path).text)
    assert list(found) == ["All records", "Many views"]
    page = admin.get(found["Many views"]).text
    assert (titles(page), heads(page)) == (["c"], ["title", "views"])
    assert re.search('aria-current="page">Many views', page)
    assert len(titles(admin.get(found["All records"]).text)) == 3
    # Another list under the same name replaces it; the default one is opened at once.
    admin.done(f"{path}/views?sort=title", name="Many views", is_default="true")
    (view,) = stored(app)
    assert (view.name, view.is_default, view.is_shared) == ("Many views", True, False)
    opened = admin.get(path)
    assert opened.headers["Location"] == f"/console/{path}?sort=title"
    assert admin.get(found["All records"]).status_code == 200
    admin.done(f"{path}/views?sort=views", name="Another", is_default="true")
    assert [one.is_default for one in stored(app)] == [True, False]
    for view in stored(app):
        assert "The view is deleted." in admin.done(f"{path}/views/{view.id}/delete")
    assert stored(app) == []


def test_saved_views_are_private_or_shared_within_account(
    app: Flask, cast: Cast, admin: Browser, superadmin: Browser, posts: str
) -> None:
    path = place(cast)
    carol = make_user(app, cast.alice.account_id, "carol@acme.example", "admin")
    colleague, charlie = Browser(app, type(cast.alice)(app, carol)), Browser(app, cast.charlie)
    admin.done(f"{path}/views?sort=title", name="Mine", is_default="true")
    admin.done(f"{path}/views?sort=views", name="Ours", is_shared="true")
    theirs = place(cast).replace(cast.alice.account_id, cast.charlie.account_id)
    charlie.done(f"{theirs}/views?sort=views", name="Of globex", is_shared="true")
    superadmin.done(f"{path}/views?sort=views", name="Of roots", is_shared="true")
    expected = {"All records", "Ours"}
    assert set(shown(colleague.get(path).text)) == expected
    assert set(shown(admin.get(f"{path}?view=all").text)) == expected | {"Mine"}
    assert set(shown(charlie.get(theirs).text)) == {"All records", "Of globex"}
    assert set(shown(superadmin.get(path).text)) == {"All records", "Of roots"}
    for view in stored(app):
        if view.name in ("Mine", "Ours"):
            for other in (colleague, superadmin):
                assert other.send(f"{path}/views/{view.id}/delete").status_code == 404
            assert charlie.send(f"{theirs}/views/{view.id}/delete").status_code == 404
    assert charlie.send(f"{path}/views?sort=title", name="x").status_code == 404
    member = Browser(app, cast.bob)
    assert "Ours" not in member.get(path).text
    assert member.send(f"{path}/views", name="x", is_shared="true").status_code == 403
    assert admin.send(f"{path}/views/{NONE}/delete").status_code == 404
    assert len(stored(app)) == 4


@pytest.mark.parametrize("database", ["sqlite"])
def test_saved_views_are_bounded(
    app: Flask,
    cast: Cast,
    admin: Browser,
    posts: str,
    monkeypatch: pytest.MonkeyPatch,
    database: str,
) -> None:
    path = f"{place(cast)}/views"
    for name in ("", " ", "x" * 81):
        answer = admin.send(f"{path}?sort=title", name=name)
        assert (answer.status_code, "80 characters" in beside(answer, "name")) == (400, True)
    assert admin.send(f"{path}?filter={'x' * 9_990}", name="x").status_code == 400
    monkeypatch.setattr(saved_views, "MAX_VIEWS", 2)
    for name in ("a", "b", "b"):
        admin.done(f"{path}?sort=title", name=name)
    assert admin.send(f"{path}?sort=title", name="c").status_code == 400
    assert [one.name for one in stored(app)] == ["a", "b"]


def test_saved_views_follow_renames_and_forget_removed_fields(
    app: Flask, cast: Cast, admin: Browser, posts: str
) -> None:
    path = f"{place(cast)}/views"
    admin.done(f"{path}?{LIST}&column=day&filter=views+%3C+9", name="a")
    of_day = "field_0=day&op_0=filled&sort=day&width=day:80&filter=day+!%3D+null"
    admin.done(f"{path}?{of_day}", name="b")
    make_collection(
        cast.root, "notes", [{"name": "post", "type": "reference", "collection": "posts"}]
    )
    admin.done(f"{place(cast, '/notes')}/views?filter=post.views+%3E+1", name="c")
    renamed = [POSTS[0], {**POSTS[1], "name": "reads", "rename_from": "views"}]
    body = {"name": "articles", "schema": renamed, "remove_fields": ["day"]}
    plan = cast.root.post(f"collections/{posts}/plan", body).json
    answer = cast.root.put(f"collections/{posts}", {**body, "plan_hash": plan["plan_hash"]})
    assert answer.status_code == 200, answer.json
    first, second, third = stored(app)
    assert (first.filter, second.filter, third.filter) == ("reads < 9", None, "post.reads > 1")
    assert first.state == {
        "conditions": [["reads", ">", "1"]],
        "sort": "-reads",
        "columns": ["reads"],
        "widths": {"reads": 99},
    }
    assert second.state == {"conditions": [], "sort": "", "columns": [], "widths": {}}
    found = shown(admin.get(place(cast, "/articles")).text)
    assert titles(admin.get(found["a"]).text) == ["c"]
    assert len(titles(admin.get(found["b"]).text)) == 3


def test_saved_views_that_name_what_is_removed_say_so(cast: Cast, admin: Browser) -> None:
    choices = {"options": {"choices": ["red", "blue"]}}
    attributes = [{"name": "unit", "type": "text"}, {"name": "team", "type": "text", **choices}]
    attributes = [{**one, "visible_to": "members"} for one in attributes]
    assert cast.root.put("attributes/users", {"fields": attributes}).status_code == 200
    shown_of_people = {"fields": ["name", "attributes.team", "attributes.unit"]}
    assert cast.root.put("directory/settings", shown_of_people).status_code == 200
    owner = {"name": "owner", "type": "user"}
    tags = {"name": "tags", "type": "multi_select", **choices}
    kind = {"name": "kind", "type": "text", **choices}
    made = make_collection(cast.root, "posts", [owner, kind, tags])["id"]
    path = place(cast)
    texts = {
        "own unit": '@request.auth.attributes.unit = "x"',
        "own team": '@request.auth.attributes.team = "red"',
        "unit": 'owner.attributes.unit = "x"',
        "team": 'owner.attributes.team = "red"',
        "kind": 'kind = "red"',
        "tags": '@contains(tags, "red")',
    }
    for name, text in texts.items():
        page = admin.done(f"{path}/views?{urlencode({'filter': text})}", name=name)
        assert "is not applied" not in page, name
    admin.done(f"{path}/views?field_0=kind&op_0=%3D&value_0=red", name="kinds")
    admin.done(f"{path}/views?field_0=tags&op_0=contains&value_0=red", name="tagged")
    fewer = {"options": {"choices": ["blue"]}}
    shown_of_people = {"fields": ["name", "attributes.team"]}
    assert cast.root.put("directory/settings", shown_of_people).status_code == 200
    body = {"remove_fields": ["unit"], "fields": [{"name": "team", **fewer}]}
    plan = cast.root.post("attributes/users/plan", body).json
    done = cast.root.put("attributes/users", body | {"plan_hash": plan["plan_hash"]})
    assert done.status_code == 200, done.json
    schema = {"schema": [owner, {**kind, **fewer}, {**tags, **fewer}]}
    done = cast.root.put(f"collections/{made}", schema)
    assert done.status_code == 200, done.json
    found = shown(admin.get(path).text)
    assert found.keys() == {"All records", *texts, "kinds", "tagged"}
    wrong = {
        "own unit": "There is no attribute unit: @request.auth.attributes.unit.",
        "unit": "There is no field unit.",
    }
    for name, target in found.items():
        answer, message = admin.get(target), wrong.get(name, "")
        told = (answer.status_code, beside(answer, "filter"))
        assert told == (400 if message else 200, message), name
        assert shown(answer.text).keys() == found.keys()
    for name, message in wrong.items():
        answer = cast.alice.get("records/posts", query_string={"filter": texts[name]})
        assert answer.status_code == 400
        assert [one["message"] for one in answer.json["details"]] == [message]


def test_saved_views_are_deleted_with_user_collection_or_account(
    app: Flask, cast: Cast, admin: Browser, posts: str
) -> None:
    carol = make_user(app, cast.alice.account_id, "carol@acme.example", "admin")
    other = Browser(app, type(cast.alice)(app, carol))
    make_collection(cast.root, "notes", POSTS)
    for browser, collection in ((other, "/posts"), (admin, "/notes"), (admin, "/posts")):
        browser.done(f"{place(cast, collection)}/views?sort=title", name="x")
    assert cast.root.delete(f"users/{carol.id}").status_code == 204
    assert len(stored(app)) == 2
    notes = cast.root.get("collections/notes").json["id"]
    assert cast.root.delete(f"collections/{notes}").status_code == 200
    assert [one.collection_id for one in stored(app)] == [posts]
    theirs = place(cast).replace(cast.alice.account_id, cast.charlie.account_id)
    Browser(app, cast.charlie).done(f"{theirs}/views?sort=title", name="y")
    assert cast.root.delete(f"accounts/{cast.alice.account_id}").status_code == 204
    assert [one.name for one in stored(app)] == ["y"]


def test_order_behind_a_reference_follows_renames(app: Flask, cast: Cast) -> None:
    name = {"name": "name", "type": "text"}
    target = make_collection(cast.root, "customers", [name])
    refers = {"name": "customer", "type": "reference", "collection": "customers"}
    made = make_collection(cast.root, "orders", [{"name": "title", "type": "text"}, refers])
    make_record(cast.alice, "orders", title="x")
    browser = Browser(app, cast.alice)
    path = f"records/{cast.alice.account_id}/orders"
    page = browser.get(path).text
    assert f"/console/{path}?sort=customer.name" in page.replace("&amp;", "&")
    assert 'aria-sort="descending"' in browser.get(f"{path}?sort=-customer.name").text
    browser.done(f"{path}/views?sort=-customer.name", name="x")
    for id, schema in (
        (target["id"], [{**name, "name": "label", "rename_from": "name"}]),
        (made["id"], [made["schema"][0], {**refers, "name": "buyer", "rename_from": "customer"}]),
    ):
        changed = cast.root.put(f"collections/{id}", {"schema": schema})
        assert changed.status_code == 200, changed.json
    with app.app_context():
        (view,) = db.db.session.scalars(sa.select(SavedView)).all()
        assert view.state["sort"] == "-buyer.label"
