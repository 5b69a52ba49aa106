"""`expand`: what references lead to, as the caller may view it."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from tests import sharded_sql
from tests.builders import OPEN, Caller, make_collection, make_record
from tests.sql import statements

NAME = {"name": "name", "type": "text"}


def to(collection: str, name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "reference", "collection": collection, **more}


@pytest.fixture
def posts(root: Caller) -> None:
    """posts → authors → teams → cities."""
    make_collection(root, "cities", [NAME])
    make_collection(root, "teams", [NAME, to("cities", "city")])
    phone = {"name": "phone", "type": "text", "pii": True, "mask_type": "phone"}
    secret = {"name": "secret", "type": "text"}
    make_collection(root, "authors", [NAME, phone, secret, to("teams", "team")])
    make_collection(root, schema=[NAME, to("authors", "author"), to("authors", "editor")])


def world(alice: Caller, name: str = "x") -> dict[str, Any]:
    city = make_record(alice, "cities", name=name)
    team = make_record(alice, "teams", name=name, city=city["id"])
    author = make_record(alice, "authors", name=name, phone="5551234567", team=team["id"])
    post = make_record(alice, name=name, author=author["id"])
    return {"city": city, "team": team, "author": author, "post": post}


def problems(answer: TestResponse) -> list[tuple[str, str]]:
    assert answer.status_code == 400, answer.json
    return [(one["field"], one["code"]) for one in answer.json["details"]]


def listed(caller: Caller, expand: str, **query: Any) -> list[dict[str, Any]]:
    answer = caller.get("records/posts", query_string={"expand": expand, **query})
    assert answer.status_code == 200, answer.json
    items: list[dict[str, Any]] = answer.json["items"]
    return items


def test_expand_shows_referenced_records(alice: Caller, posts: None) -> None:
    one = world(alice)
    (item,) = listed(alice, "author")
    assert item == {**one["post"], "expand": {"author": one["author"]}}
    team = {**one["team"], "expand": {"city": one["city"]}}
    deep = {**one["post"], "expand": {"author": {**one["author"], "expand": {"team": team}}}}
    for text in ("author.team.city", "author,author.team,author.team.city", " author.team.city "):
        assert listed(alice, text) == [deep]
    url = f"records/posts/{one['post']['id']}"
    assert alice.get(f"{url}?expand=author.team.city").json == deep
    named = alice.get(f"{url}?expand=author&fields=name").json
    assert named == {"id": one["post"]["id"], "name": "x", "expand": {"author": one["author"]}}
    assert listed(alice, "author", cursor="") == [item]
    assert listed(alice, "") == [one["post"]]


def test_expand_of_null_reference_is_omitted(alice: Caller, posts: None) -> None:
    author = make_record(alice, "authors", name="alone")
    make_record(alice, author=author["id"])
    make_record(alice)
    empty, lonely = listed(alice, "author.team,editor")
    assert empty["expand"] == {}
    assert lonely["expand"] == {"author": {**author, "expand": {}}}


def test_expand_of_two_references_to_one_record(alice: Caller, posts: None) -> None:
    one = world(alice)
    both = make_record(alice, author=one["author"]["id"], editor=one["author"]["id"])
    item = next(x for x in listed(alice, "author.team,editor") if x["id"] == both["id"])
    assert item["expand"]["editor"] == one["author"]
    assert item["expand"]["author"] == {**one["author"], "expand": {"team": one["team"]}}


def test_expand_needs_one_statement_per_level_and_collection(
    app: Flask, alice: Caller, posts: None
) -> None:
    worlds = [world(alice, str(i)) for i in range(4)]
    make_record(alice, author=worlds[0]["author"]["id"], editor=worlds[1]["author"]["id"])
    url = f"records/posts/{worlds[0]['post']['id']}"
    for path, most in [
        ("records/posts?expand=author", 2),
        ("records/posts?expand=author,editor", 2),
        ("records/posts?expand=author.team.city,editor.team", 4),
        ("records/posts?expand=author.team.city&cursor=&limit=2", 4),
        ("records/posts?expand=author&filter=name='none'&cursor=", 1),
        (f"{url}?expand=author.team", 3),
    ]:
        alice.get(path)
        with statements(app) as sent:
            assert alice.get(path).status_code == 200
        # Alice sees personal fields unmasked, which the security log gets at once.
        recorded = [one for one in sent if one.startswith("INSERT INTO security_pending")]
        assert len(recorded) <= 1
        assert len(sent) - len(recorded) == most, sent


def test_expand_applies_view_rule_fields_and_masks_of_target(
    root: Caller, alice: Caller, bob: Caller, posts: None
) -> None:
    one = world(alice)
    (item,) = listed(bob, "author")
    assert item["expand"]["author"]["phone"] == "***-***-4567"
    change(root, "authors", view_fields=["name", "team"])
    (item,) = listed(alice, "author.team")
    assert "secret" not in item["expand"]["author"]
    assert item["expand"]["author"]["expand"]["team"] == one["team"]
    change(root, "authors", view_rule="name = 'nobody'", view_fields="*")
    assert [x["expand"] for x in listed(alice, "author.team")] == [{}]
    change(root, "authors", view_rule=None)
    for caller in (alice, bob):
        assert [x["expand"] for x in listed(caller, "author,author.anything")] == [{}]
    assert listed(root.acting_in("acme"), "author")[0]["expand"]["author"] == one["author"]
    change(root, "authors", view_rule="@owns_record()")
    assert [x["expand"] for x in listed(bob, "author")] == [{}]
    assert listed(alice, "author")[0]["expand"]["author"] == one["author"]
    change(root, "teams", view_rule=None)
    assert listed(alice, "author.team")[0]["expand"]["author"] == {**one["author"], "expand": {}}
    change(root, "posts", list_rule="")
    anybody = Caller(alice.app).acting_in("acme")
    assert [x["expand"] for x in listed(anybody, "author")] == [{}]


def change(root: Caller, collection: str, **rules: Any) -> None:
    answer = root.put(f"collections/{collection}/rules", {**OPEN, **rules})
    assert answer.status_code == 200, answer.json


@pytest.mark.one_database
def test_expand_with_unknown_name_is_400(
    root: Caller, alice: Caller, bob: Caller, posts: None
) -> None:
    one = world(alice)
    hidden = [to("authors", "boss"), to("authors", "aide", pii=True), NAME]
    make_collection(root, "teams2", hidden, view_fields=["name", "aide"], list_fields=["name"])
    make_collection(root, "books", [to("teams2", "team")])
    url = f"records/posts/{one['post']['id']}"
    for path, expected in [
        ("records/posts?expand=nope", [("expand", "unknown_field")]),
        ("records/posts?expand=name", [("expand", "invalid_option")]),
        ("records/posts?expand=created_at", [("expand", "invalid_option")]),
        ("records/posts?expand=Author", [("expand", "unknown_field")]),
        ("records/posts?expand=author.", [("expand", "unknown_field")]),
        ("records/posts?expand=author.team.city.name", [("expand", "invalid_option")]),
        (f"{url}?expand=author.nope", [("expand", "unknown_field")]),
        ("records/teams2?expand=aide", [("expand", "unknown_field")]),
        ("records/books?expand=team.boss", [("expand", "unknown_field")]),
        ("records/books?expand=team.aide", [("expand", "invalid_option")]),
        ("records/posts?expand=a,b&sort=c", [*[("expand", "unknown_field")] * 2, SORT]),
        ("records/posts?expand=" + ",".join(f"f{i}" for i in range(51)), [OPTION]),
    ]:
        assert sorted(problems(bob.get(path))) == sorted(expected), path
    assert alice.get("records/books?expand=team.aide").status_code == 200


SORT, OPTION = ("sort", "unknown_field"), ("expand", "invalid_option")


def test_expand_on_collection_with_field_expand_is_invalid_option(
    root: Caller, alice: Caller
) -> None:
    text = {"name": "expand", "type": "text"}
    make_collection(root, schema=[text, NAME, to("posts", "parent")])
    first = make_record(alice, expand="a")
    second = make_record(alice, expand="b", parent=first["id"])
    assert problems(alice.get("records/posts?expand=parent")) == [OPTION]
    (item,) = listed(alice, "parent", fields="name", filter="expand = 'b'")
    assert item == {"id": second["id"], "name": None, "expand": {"parent": first}}
    deep = alice.get("records/posts?expand=parent.parent&fields=name")
    assert problems(deep) == [OPTION]


def test_expand_never_crosses_accounts(
    root: Caller, alice: Caller, charlie: Caller, posts: None
) -> None:
    mine, theirs = world(alice, "acme"), world(charlie, "globex")
    found = listed(root.acting_in("*"), "author", sort="name")
    assert [x["expand"]["author"] for x in found] == [mine["author"], theirs["author"]]
    assert [x["name"] for x in listed(charlie, "author")] == ["globex"]


def test_expand_follows_rule_changes_at_once(root: Caller, alice: Caller, posts: None) -> None:
    one = world(alice)
    for _ in range(3):
        change(root, "authors", view_rule=None)
        assert listed(alice, "author")[0]["expand"] == {}
        change(root, "authors", view_rule="name = 'y'")
        assert listed(alice, "author")[0]["expand"] == {}
        change(root, "authors")
        assert listed(alice, "author")[0]["expand"] == {"author": one["author"]}


def related(caller: Caller, expand: str, collection: str = "authors", **query: Any) -> Any:
    answer = caller.get(f"records/{collection}", query_string={"expand": expand, **query})
    assert answer.status_code == 200, answer.json
    return {one["name"]: one["expand"] for one in answer.json["items"]}


def test_expand_shows_newest_records_that_refer_here(
    app: Flask, root: Caller, alice: Caller, posts: None
) -> None:
    one = world(alice)
    other = make_record(alice, "authors", name="y")
    made = [
        make_record(alice, name=str(n), author=one["author"]["id"], editor=other["id"])
        for n in range(102)
    ]
    found = related(alice, "posts_via_author,posts_via_editor.author")
    assert found["x"]["posts_via_author"] == {"items": made[:1:-1], "has_more": True}
    assert found["x"]["posts_via_editor"] == {"items": [], "has_more": False}
    assert found["y"]["posts_via_author"] == {"items": [], "has_more": False}
    nested = found["y"]["posts_via_editor"]["items"]
    assert nested[0] == {**made[-1], "expand": {"author": one["author"]}}
    assert len(nested) == 100
    for gone in made[:2]:
        assert alice.delete(f"records/posts/{gone['id']}").status_code == 204
    url = f"records/authors/{one['author']['id']}?expand=posts_via_author"
    both = alice.get(url).json["expand"]["posts_via_author"]
    assert both == {"items": [*made[:1:-1], one["post"]][:100], "has_more": True}
    assert alice.delete(f"records/posts/{one['post']['id']}").status_code == 204
    assert alice.get(url).json["expand"]["posts_via_author"]["has_more"] is False


def test_expand_of_referring_records_is_one_statement_per_level(
    app: Flask, alice: Caller, posts: None, database: str
) -> None:
    for name in "abcd":
        world(alice, name)
    for path, most in [
        ("records/authors?expand=posts_via_author", 2),
        ("records/authors?expand=posts_via_author,posts_via_editor&cursor=", 3),
        ("records/cities?expand=teams_via_city.authors_via_team&limit=1", 3),
        ("records/posts?expand=author.posts_via_editor,author.team.authors_via_team", 5),
        ("records/teams?expand=authors_via_team,authors_via_team.posts_via_author&limit=1", 3),
    ]:
        alice.get(path)
        with statements(app) as sent:
            assert alice.get(path).status_code == 200, path
        recorded = [one for one in sent if one.startswith("INSERT INTO security_pending")]
        assert len(sent) - len(recorded) == most, sent
        if database == "postgresql":
            assert [one for text in sent for one in sharded_sql.problems(text)] == []


def test_expand_of_referring_records_follows_list_rule_and_field_rights(
    root: Caller, alice: Caller, bob: Caller, charlie: Caller, posts: None
) -> None:
    one = world(alice)
    hidden = make_record(alice, name="hidden", author=one["author"]["id"])
    theirs = world(charlie)
    change(root, "posts", list_rule="name != 'hidden'", list_fields=["name", "author"])
    (item,) = related(bob, "posts_via_author")["x"]["posts_via_author"]["items"]
    assert (item["id"], "editor" in item) == (one["post"]["id"], False)
    everywhere = root.acting_in("*").get("records/authors?expand=posts_via_author").json["items"]
    found = {one["account_id"]: one["expand"]["posts_via_author"]["items"] for one in everywhere}
    assert [one["id"] for one in found[alice.account_id]] == [hidden["id"], one["post"]["id"]]
    assert [one["id"] for one in found[charlie.account_id]] == [theirs["post"]["id"]]
    unknown = [("expand", "unknown_field")]
    for name in ("posts_via_editor", "posts_via_name", "posts_via_x", "none_via_author", "_via_"):
        assert problems(bob.get(f"records/authors?expand={name}")) == unknown, name
    assert problems(bob.get("records/teams?expand=posts_via_author")) == unknown
    change(root, "posts", list_rule=None)
    assert problems(bob.get("records/authors?expand=posts_via_author")) == unknown
    messages = [
        bob.get(f"records/authors?expand={name}").json["details"][0]["message"].replace(name, "")
        for name in ("posts_via_author", "posts_via_x", "nothing_via_author")
    ]
    assert len({*messages}) == 1


def test_expand_of_referring_records_by_lists_names_and_circles(
    root: Caller, alice: Caller
) -> None:
    make_collection(root, "tags", [NAME, to("tags", "up")])
    make_collection(
        root, "aaa_via_bbb", [NAME, to("tags", "ccc"), to("tags", "via_ccc", multiple=True)]
    )
    make_collection(root, "aaa", [NAME, to("tags", "bbb_via_ccc")])
    make_collection(root, "Notes", [NAME, to("tags", "tags", multiple=True)])
    one = make_record(alice, "tags", name="one")
    two = make_record(alice, "tags", name="two", up=one["id"])
    both = make_record(alice, "Notes", name="both", tags=[two["id"], one["id"]])
    only = make_record(alice, "Notes", name="only", tags=[two["id"]])
    late = make_record(alice, "aaa_via_bbb", name="late", via_ccc=[one["id"]])
    found = related(alice, "notes_via_tags.tags,tags_via_up,aaa_via_bbb_via_via_ccc", "tags")
    assert found["one"]["aaa_via_bbb_via_via_ccc"]["items"] == [late]
    assert found["one"]["tags_via_up"]["items"] == [two]
    items = found["two"]["notes_via_tags"]["items"]
    assert [one["id"] for one in items] == [only["id"], both["id"]]
    assert [one["name"] for one in items[1]["expand"]["tags"]] == ["two", "one"]
    assert found["one"]["notes_via_tags"]["items"] == [items[1]]
    assert problems(alice.get("records/tags?expand=aaa_via_bbb_via_ccc")) == [
        ("expand", "invalid_option")
    ]
    schema = [NAME, to("tags", "up"), {**NAME, "name": "tags_via_up"}]
    id = root.get("collections/tags").json["id"]
    assert root.put(f"collections/{id}", {"schema": schema}).status_code == 200
    refused = alice.get("records/tags?expand=tags_via_up")
    assert problems(refused) == [("expand", "invalid_option")]


def test_expand_of_referring_records_is_bounded(alice: Caller, posts: None) -> None:
    world(alice)
    two = "teams_via_city.authors_via_team"
    for path, is_allowed in [
        (f"records/cities?expand={two}&limit=2", True),
        (f"records/cities?expand={two}&limit=3", False),
        (f"records/cities?expand={two}.posts_via_author", False),
        ("records/authors?expand=posts_via_author,posts_via_editor&limit=100", True),
        ("records/teams?expand=authors_via_team.posts_via_author&limit=2", True),
        ("records/teams?expand=authors_via_team.posts_via_author", False),
    ]:
        answer = alice.get(path)
        if is_allowed:
            assert answer.status_code == 200, path
        else:
            assert problems(answer) == [("expand", "invalid_option")], path


def test_expand_of_referring_records_needs_scope_of_key(
    app: Flask, alice: Caller, posts: None
) -> None:
    world(alice)
    made = alice.post("api-keys", {"name": "k", "scopes": {"authors": ["list"]}}).json
    by_key = Caller(app, **{"X-API-Key": made["key"]})
    refused = by_key.get("records/authors?expand=posts_via_author")
    assert (refused.status_code, refused.json["error"]) == (403, "scope_denied")
    assert problems(by_key.get("records/authors?expand=nothing_via_author")) == [
        ("expand", "unknown_field")
    ]
