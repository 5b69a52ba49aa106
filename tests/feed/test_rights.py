"""Readers of changes whose rights change: what they are told to list again, or to drop."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask

from app import clock
from app.realtime.feed.changes import purge
from tests.builders import Caller, Cast, make_collection, make_record
from tests.feed.test_changes import audit, feed, now
from tests.sql import statements

Change = Callable[[Cast], Any]
TITLE = {"name": "title", "type": "text"}


def resets(caller: Caller, since: int, **query: Any) -> list[str]:
    """The collections that a reader has to list again."""
    items = feed(caller, since=since, **query)["items"]
    found = [one for one in items if one["event"] == "records.reset"]
    assert all(one.keys() == {"change", "event", "collection"} for one in found)
    assert len(found) == len(items)
    return [one["collection"] for one in found]


def rules(name: str, **changed: Any) -> Change:
    """Change rules of a collection."""
    return lambda cast: cast.root.put(f"collections/{name}/rules", changed)


def role(name: str) -> Change:
    """Give bob another role."""

    def change(cast: Cast) -> Any:
        ids = {one["name"]: one["id"] for one in cast.root.get("roles").json["items"]}
        return cast.alice.patch(f"account/users/{cast.bob.id}", {"role_id": ids[name]})

    return change


def group(name: str, *, joins: bool) -> Change:
    """Let bob join a group or leave it."""

    def change(cast: Cast) -> Any:
        ids = {one["name"]: one["id"] for one in cast.alice.get("groups").json["items"]}
        path = f"groups/{ids[name]}/members"
        if joins:
            return cast.alice.post(path, {"user_id": cast.bob.id})
        return cast.alice.delete(f"{path}/{cast.bob.id}")

    return change


def attributes(of: str, **values: str) -> Change:
    """Change attributes of bob or alice, or of the account."""

    def change(cast: Cast) -> Any:
        if of == "account":
            return cast.alice.patch("account", {"attributes": values})
        user_id = getattr(cast, of).id
        return cast.alice.patch(f"account/users/{user_id}", {"attributes": values})

    return change


def terms(**changed: Any) -> Change:
    """Give the account a plan or overrides."""
    return lambda cast: cast.root.patch(f"accounts/{cast.alice.account_id}", changed)


def schema(**title: Any) -> Change:
    """Change a field of `posts`."""

    def change(cast: Cast) -> Any:
        found = cast.root.get("collections/posts").json["id"]
        return cast.root.patch(f"collections/{found}", {"schema": [{**TITLE, **title}]})

    return change


def delete(cast: Cast) -> Any:
    """Delete `posts`."""
    found = cast.root.get("collections/posts").json["id"]
    return cast.root.delete(f"collections/{found}")


def rename(cast: Cast) -> Any:
    """Give `posts` another name."""
    found = cast.root.get("collections/posts").json["id"]
    return cast.root.patch(f"collections/{found}", {"name": "articles"})


def both(*changes: Change) -> Change:
    """Change one thing after the other."""
    return lambda cast: [change(cast) for change in changes][-1]


@pytest.fixture
def known(app: Flask, cast: Cast) -> Cast:
    """Groups, attributes and fragments that rules may name."""
    for name in ("staff", "others"):
        assert cast.alice.post("groups", {"name": name}).status_code == 201
    for kind in ("users", "accounts"):
        wanted = {"fields": [{"name": "team", "type": "text"}, {"name": "floor", "type": "text"}]}
        answer = cast.root.put(f"attributes/{kind}", wanted)
        assert answer.status_code == 200, answer.text
    fragments = {"staff": '@has_group("staff")', "other": '@has_role("editor")'}
    assert cast.root.put("rules/fragments", fragments).status_code == 200
    plans: dict[str, Any] = {"free": {}, "pro": {"flags": ["sla"]}}
    assert cast.root.put("plans", plans).status_code == 200
    make_collection(cast.root, "notes")
    return cast


STAFF = {"staff": '@has_role("editor")', "other": '@has_role("editor")'}
OTHER = {"staff": '@has_group("staff")', "other": '@has_role("viewer")'}
TABLE: list[tuple[str, dict[str, Any], Change, list[str]]] = [
    ("view rule", {}, rules("posts", view_rule='title = "a"'), ["posts"]),
    ("list rule", {}, rules("posts", list_rule='title = "a"'), ["posts"]),
    ("closed", {}, rules("posts", view_rule=None, list_rule=None), ["posts"]),
    ("opened", {"view_rule": None}, rules("posts", view_rule="true"), ["posts"]),
    ("field list", {}, rules("posts", view_fields=["id"]), ["posts"]),
    ("update rule", {}, rules("posts", update_rule='title = "a"'), []),
    (
        "two rules",
        {},
        both(rules("posts", view_rule=None), rules("notes", view_rule=None)),
        ["notes", "posts"],
    ),
    ("right to a field", {}, schema(readable_if='@has_role("admin")'), ["posts"]),
    ("mask", {}, schema(pii=True, mask_type="full"), ["posts"]),
    ("deleted", {}, delete, ["posts"]),
    ("renamed", {}, rename, ["articles", "posts"]),
    (
        "fragment",
        {"view_rule": "@rule(staff)"},
        lambda cast: cast.root.put("rules/fragments", STAFF),
        ["posts"],
    ),
    (
        "unused fragment",
        {"view_rule": "@rule(staff)"},
        lambda cast: cast.root.put("rules/fragments", OTHER),
        [],
    ),
    ("role", {"view_rule": '@has_role("viewer")'}, role("editor"), ["posts"]),
    ("role by name", {"view_rule": "title = @request.auth.role"}, role("editor"), ["posts"]),
    ("role unnamed", {"view_rule": "created_by = @request.auth.id"}, role("editor"), []),
    ("group", {"view_rule": '@has_group("staff")'}, group("staff", joins=True), ["posts"]),
    ("group in fragment", {"view_rule": "@rule(staff)"}, group("staff", joins=True), ["posts"]),
    ("group unnamed", {"view_rule": '@has_role("viewer")'}, group("staff", joins=True), []),
    (
        "masks",
        {"schema": [{**TITLE, "pii": True, "mask_type": "full"}]},
        group("pii_access", joins=True),
        ["posts"],
    ),
    (
        "attribute",
        {"view_rule": "title = @request.auth.attributes.team"},
        attributes("bob", team="a"),
        ["posts"],
    ),
    (
        "other attribute",
        {"view_rule": "title = @request.auth.attributes.team"},
        attributes("bob", floor="a"),
        [],
    ),
    (
        "attribute of another",
        {"view_rule": "title = @request.auth.attributes.team"},
        attributes("alice", team="a"),
        [],
    ),
    (
        "attribute of the account",
        {"view_rule": "title = @account.attributes.team"},
        attributes("account", team="a"),
        ["posts"],
    ),
    ("plan", {"view_rule": "title = @account.plan"}, terms(plan="pro"), ["posts"]),
    ("flag by plan", {"view_rule": "@flag(sla)"}, terms(plan="pro"), ["posts"]),
    (
        "flag beside the plan",
        {"view_rule": "@flag(sla)"},
        terms(overrides={"flags": {"sla": True}}),
        ["posts"],
    ),
    ("plan unnamed", {"view_rule": '@has_role("viewer")'}, terms(plan="pro"), []),
    (
        "quotas beside the plan",
        {"view_rule": "@flag(sla)"},
        terms(overrides={"quotas": {"records": {"hard": 9}}}),
        [],
    ),
    (
        "flag of a plan",
        {"view_rule": "@flag(sla)"},
        lambda cast: cast.root.patch("plans", {"free": {"flags": ["sla"]}}),
        ["posts"],
    ),
    (
        "flag of a plan unnamed",
        {"view_rule": '@has_role("viewer")'},
        lambda cast: cast.root.patch("plans", {"free": {"flags": ["sla"]}}),
        [],
    ),
    (
        "person in records",
        {
            "schema": [TITLE, {"name": "assignee", "type": "user"}],
            "view_rule": 'assignee.name = "Ann"',
        },
        lambda cast: cast.alice.patch(f"account/users/{cast.alice.id}", {"name": "Ann"}),
        ["posts"],
    ),
    (
        "right to a field by group",
        {
            "schema": [
                TITLE,
                {"name": "pay", "type": "number", "readable_if": '@has_group("staff")'},
            ]
        },
        group("staff", joins=True),
        ["posts"],
    ),
]


@pytest.mark.parametrize("audited", [True, False], ids=["audited", "unaudited"])
@pytest.mark.parametrize(
    ("made", "change", "told"), [one[1:] for one in TABLE], ids=[one[0] for one in TABLE]
)
def test_change_of_rights_resets_collections_that_depend_on_it(
    app: Flask,
    known: Cast,
    monkeypatch: pytest.MonkeyPatch,
    made: dict[str, Any],
    change: Change,
    told: list[str],
    audited: bool,
) -> None:
    audit(app, monkeypatch, audited)
    make_collection(known.root, **made)
    operator = known.root.acting_in("acme")
    make_record(operator, title="a")
    since, seen = now(known.bob), now(operator)
    answer = change(known)
    assert answer.status_code < 300, answer.text
    assert resets(known.bob, since) == told
    assert resets(known.bob, now(known.bob)) == []
    assert set(resets(operator, seen)) <= set(told)  # what roles and groups decide is not theirs


@pytest.mark.parametrize(
    "rule", ["@any(levels, c > 1)", "@any(levels, id = @record.level && c > 1)", "level.c > 1"]
)
def test_change_of_what_computes_values_resets_collections_whose_rules_read_them(
    cast: Cast, rule: str
) -> None:
    def computed(expression: str) -> list[dict[str, Any]]:
        field = {"name": "c", "type": "computed", "return_type": "number"}
        return [{"name": "a", "type": "number"}, {**field, "expression": expression}]

    make_collection(cast.root, "levels", computed("a + 1"), view_rule=None)
    make_collection(cast.root, "notes")
    level = {"name": "level", "type": "reference", "collection": "levels"}
    make_collection(cast.root, schema=[level], view_rule=rule, list_rule=rule)
    operator = cast.root.acting_in("acme")
    make_record(operator, level=make_record(operator, "levels", a=1)["id"])
    assert cast.bob.get("records/posts").json["items"]
    since = now(cast.bob)
    found = cast.root.get("collections/levels").json["id"]
    answer = cast.root.patch(f"collections/{found}", {"schema": computed("a - 5")})
    assert answer.status_code == 200, answer.text
    assert not cast.bob.get("records/posts").json["items"]
    assert resets(cast.bob, since, collections="posts") == ["posts"]
    assert "notes" not in resets(cast.bob, since)


def test_change_of_rights_while_nobody_reads_the_feed_is_told_from_the_start(cast: Cast) -> None:
    make_collection(cast.root)
    make_record(cast.alice, title="a")
    assert cast.bob.get("records/posts").json["items"]
    assert rules("posts", view_rule="false", list_rule='title = "b"')(cast).status_code == 200
    assert resets(cast.bob, 0) == ["posts"]
    assert resets(cast.bob, 0, limit=1) == ["posts"]


def test_change_of_rights_of_named_collections_only(cast: Cast) -> None:
    make_collection(cast.root)
    make_collection(cast.root, "notes")
    since = now(cast.bob)
    assert rules("posts", view_rule='title = "b"')(cast).status_code == 200
    assert resets(cast.bob, since, collections="notes") == []
    assert resets(cast.bob, since, collections="posts,notes") == ["posts"]


def test_change_of_rights_of_account_is_not_told_to_others(cast: Cast) -> None:
    make_collection(cast.root, view_rule='@has_group("staff")')
    assert cast.alice.post("groups", {"name": "staff"}).status_code == 201
    since = now(cast.charlie)
    assert group("staff", joins=True)(cast).status_code < 300
    assert resets(cast.charlie, since) == []


def test_console_of_a_role_resets_nothing_and_its_name_does(cast: Cast) -> None:
    path = f"roles/{cast.root.post('roles', {'name': 'guest'}).json['id']}"
    make_collection(cast.root, view_rule='@request.auth.role != "guest"')
    since = now(cast.bob)
    assert cast.root.patch(path, {"console": True}).status_code == 200
    assert now(cast.bob) == since
    assert cast.root.patch(path, {"name": "visitor"}).status_code == 200
    assert resets(cast.bob, since) == ["posts"]


def test_page_does_not_split_what_comes_of_one_change(cast: Cast) -> None:
    names = ["letters", "notes", "posts"]
    for name in names:
        make_collection(cast.root, name, view_rule='@has_role("viewer")')
    since = now(cast.bob)
    assert role("editor")(cast).status_code < 300
    page = feed(cast.bob, since=since, limit=1)
    assert [one["collection"] for one in page["items"]] == names
    assert not page["has_more"]


def test_page_costs_no_statement_more_where_rights_stay(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, view_rule='@has_role("viewer")')
    make_record(cast.alice, title="a")
    since = now(cast.bob)
    with statements(app) as sent:
        feed(cast.bob, since=since, collections="posts")
    assert len(sent) <= 5, sent


def test_marks_of_rights_stay_as_long_as_audited_changes(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root, view_rule='@has_role("viewer")')
    make_record(cast.alice, title="a")
    since = now(cast.bob)
    assert role("editor")(cast).status_code < 300
    later = clock.now() + timedelta(days=60)
    with app.app_context(), monkeypatch.context() as patch:
        patch.setattr(clock, "now", lambda: later)
        purge({})
    assert resets(cast.bob, since) == ["posts"]
