"""Rules and field lists: who may do what with the records of a collection."""

from __future__ import annotations

from json import dumps, loads
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from werkzeug.test import TestResponse

from app import db
from app.collections import definitions
from app.collections.models import Collection
from app.db import versioned_cache
from app.records.store import reads
from tests.builders import Caller, Cast, make_collection, make_record
from tests.sql import statements

CLOSED = dict.fromkeys(("list_rule", "view_rule", "create_rule", "update_rule", "delete_rule"))
SYSTEM = {"id", "account_id", "created_at", "updated_at", "created_by", "updated_by"}
LISTS = ("list_fields", "view_fields", "create_fields", "update_fields")
SCHEMA = [
    {"name": "title", "type": "text"},
    {"name": "secret", "type": "text"},
    {"name": "views", "type": "number", "default": 0},
]


def callers(cast: Cast, anyone: Caller) -> dict[str, Caller]:
    return {
        "anonymous": anyone.acting_in("acme"),
        "bob": cast.bob,
        "alice": cast.alice,
        "charlie": cast.charlie,
        "root": cast.root.acting_in("acme"),
    }


def attempt(caller: Caller, operation: str, record_id: str) -> TestResponse:
    one = f"records/posts/{record_id}"
    if operation == "list":
        return caller.get("records/posts")
    if operation == "view":
        return caller.get(one)
    if operation == "create":
        return caller.post("records/posts", {"title": "x"})
    if operation == "update":
        return caller.patch(one, {"title": "x"})
    return caller.delete(one)


def rules(root: Caller, **changes: Any) -> dict[str, Any]:
    answer = root.put("collections/posts/rules", changes)
    assert answer.status_code == 200, answer.json
    kept: dict[str, Any] = answer.json
    return kept


def problems(answer: TestResponse) -> list[tuple[str, str]]:
    assert answer.status_code == 400, answer.json
    return [(one["field"], one["code"]) for one in answer.json["details"]]


OK = {"list": 200, "view": 200, "create": 201, "update": 200, "delete": 204}
# The record that is tried on is acme's: to charlie, of globex, there is none.
ELSEWHERE = OK | dict.fromkeys(("view", "update", "delete"), 404)
OPERATIONS = tuple(OK)
TABLE: list[tuple[str | None, str, dict[str, int]]] = [
    (None, "anonymous", dict.fromkeys(OPERATIONS, 401)),
    (None, "bob", dict.fromkeys(OPERATIONS, 403)),
    (None, "alice", dict.fromkeys(OPERATIONS, 403)),
    (None, "charlie", dict.fromkeys(OPERATIONS, 403)),
    (None, "root", OK),
    ("", "anonymous", OK),
    ("", "bob", OK),
    ("", "alice", OK),
    ("", "charlie", ELSEWHERE),
    ("", "root", OK),
    ("true", "anonymous", dict.fromkeys(OPERATIONS, 401)),
    ("true", "bob", OK),
    ("true", "alice", OK),
    ("true", "charlie", ELSEWHERE),
    ("true", "root", OK),
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_collection_rule_opens_only_its_operation(
    cast: Cast, anyone: Caller, operation: str
) -> None:
    who = callers(cast, anyone)
    other = "view" if operation == "list" else "list"
    make_collection(cast.root, schema=SCHEMA, **CLOSED)
    for rule, name, expected in TABLE:
        record = make_record(who["root"], title="kept")
        rules(cast.root, **(CLOSED | {f"{operation}_rule": rule}))
        answers = {tried: attempt(who[name], tried, record["id"]) for tried in (other, operation)}
        # The other operations are nobody but superadmins.
        refused = OK[other] if name == "root" else 401 if name == "anonymous" else 403
        wanted = {other: refused, operation: expected[operation]}
        assert {o: a.status_code for o, a in answers.items()} == wanted, (rule, name)
        for answer in answers.values():
            if answer.status_code == 403:
                assert answer.json["error"] == "rule_denied"
            if answer.status_code == 401:
                assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_collection_rule_refusal_changes_nothing(cast: Cast, anyone: Caller) -> None:
    make_collection(cast.root, schema=SCHEMA, **CLOSED)
    root = cast.root.acting_in("acme")
    record = make_record(root, title="kept")
    for caller in callers(cast, anyone).values():
        if caller.headers != root.headers:
            for operation in ("create", "update", "delete"):
                attempt(caller, operation, record["id"])
    assert root.get("records/posts").json["items"] == [record]


def test_empty_rule_shows_each_account_its_own_records(cast: Cast, anyone: Caller) -> None:
    make_collection(cast.root, schema=SCHEMA, **dict.fromkeys(CLOSED, ""))
    mine, theirs = make_record(cast.alice), make_record(cast.charlie)
    for account, record in (("acme", mine), ("globex", theirs)):
        listed = anyone.acting_in(account).get("records/posts").json["items"]
        assert [r["id"] for r in listed] == [record["id"]]
    made = make_record(anyone.acting_in("acme"), title="x")
    assert (made["account_id"], made["created_by"]) == (cast.alice.account_id, None)
    assert anyone.get("records/posts").status_code == 401
    assert anyone.acting_in("nowhere").get("records/posts").status_code == 404
    assert anyone.acting_in("*").get("records/posts").status_code in (401, 404)


def test_invalid_credential_on_open_rules_is_401(cast: Cast, anyone: Caller) -> None:
    make_collection(cast.root, schema=SCHEMA, **dict.fromkeys(CLOSED, ""))
    bad = {"Authorization": "Bearer nonsense", "X-Account-ID": "acme"}
    assert anyone.get("records/posts", headers=bad).status_code == 401


# --- The rules' own form --------------------------------------------------------------------------


def test_new_collection_rules_are_closed_and_fields_open(root: Caller) -> None:
    root.post("collections", {"name": "posts", "schema": SCHEMA})
    part = {"rule": None, "fields": "*"}
    expected = {
        "collection": "posts",
        **CLOSED,
        **dict.fromkeys(LISTS, "*"),
        **dict.fromkeys(("create", "read", "update", "delete"), part),
    }
    assert root.get("collections/posts/rules").json == expected
    assert rules(root) == expected


def test_collection_rules_put_changes_only_sent_keys(root: Caller) -> None:
    made = make_collection(root, schema=SCHEMA, **CLOSED)
    first = rules(root, list_rule="true", list_fields=["title"])
    second = rules(root, view_rule="", update_fields=["views", "title", "views"])
    changed = {"view_rule": "", "update_fields": ["views", "title"]}
    assert flat(second) == flat(first) | changed
    assert second["read"] == {"rule": "", "fields": "*"}
    assert second["update"] == {"rule": None, "fields": ["views", "title"]}
    by_id = root.get(f"collections/{made['id']}/rules")
    assert by_id.json == second == root.get("collections/POSTS/rules").json
    assert rules(root, view_rule=None)["view_rule"] is None


def flat(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: answer[key] for key in (*CLOSED, *LISTS)}


def test_collection_rules_by_permission_structure(root: Caller) -> None:
    make_collection(root, schema=SCHEMA, **CLOSED)
    structure = {
        "create": {"rule": "true", "fields": ["title"]},
        "read": {"rule": "", "fields": ["title", "views"]},
        "update": {"rule": "true", "fields": "*"},
        "delete": {"rule": None, "fields": "*"},
    }
    answer = rules(root, **structure)
    assert flat(answer) == {
        "list_rule": "",
        "view_rule": "",
        "create_rule": "true",
        "update_rule": "true",
        "delete_rule": None,
        "list_fields": ["title", "views"],
        "view_fields": ["title", "views"],
        "create_fields": ["title"],
        "update_fields": "*",
    }
    assert {part: answer[part] for part in structure} == structure
    kept = rules(root, read={"rule": None})
    assert (kept["list_rule"], kept["view_rule"], kept["list_fields"]) == (
        None,
        None,
        ["title", "views"],
    )


def test_collection_rules_flat_keys_win_over_structure(root: Caller) -> None:
    make_collection(root, schema=SCHEMA, **CLOSED)
    answer = rules(
        root, read={"rule": "", "fields": "*"}, list_rule="true", view_fields='["title"]'
    )
    assert (answer["list_rule"], answer["view_rule"]) == ("true", "")
    assert (answer["list_fields"], answer["view_fields"]) == ("*", ["title"])


def test_collection_rules_response_can_be_sent_back(root: Caller) -> None:
    make_collection(root, schema=SCHEMA, **CLOSED)
    answer = rules(root, list_rule="true", view_rule="", view_fields=["title"])
    assert rules(root, **answer) == answer
    assert rules(root, **answer | {"list_rule": None}) == answer | {"list_rule": None}
    for name in ("Posts", "POSTS"):
        assert rules(root, collection=name)["collection"] == "posts"
    other = root.put("collections/posts/rules", {"collection": "others", "list_rule": ""})
    assert problems(other) == [("collection", "name_invalid")]
    assert rules(root)["list_rule"] is None


def test_field_list_is_star_or_array(root: Caller) -> None:
    make_collection(root, schema=SCHEMA)
    for sent, kept in [
        ("*", "*"),
        ([], []),
        (["title"], ["title"]),
        ('["title", "views"]', ["title", "views"]),
        (' ["title"] ', ["title"]),
        ("[]", []),
        (["title", "title"], ["title"]),
        (["id", "title"], ["id", "title"]),
    ]:
        for key in LISTS:
            assert rules(root, **{key: sent})[key] == kept


def test_field_list_with_invalid_value_is_400(root: Caller) -> None:
    make_collection(root, schema=SCHEMA)
    before = root.get("collections/posts/rules").json
    for sent, code in [
        (["nope"], "unknown_field"),
        (["Title"], "unknown_field"),
        ('["nope"]', "unknown_field"),
        (["title.x"], "unknown_field"),
        ("title", "invalid_type"),
        ("", "invalid_type"),
        ("[title]", "invalid_type"),
        ('["title"', "invalid_type"),
        ("[" * 5000, "invalid_type"),
        ('["\\ud800"]', "invalid_type"),
        ('["\\u0000"]', "invalid_type"),
        ("[NaN]", "invalid_type"),
    ]:
        answer = root.put("collections/posts/rules", {"view_fields": sent, "list_rule": ""})
        assert problems(answer) == [("view_fields", code)]
        assert root.get("collections/posts/rules").json == before
        new = root.post("collections", {"name": "others", "schema": SCHEMA, "create_fields": sent})
        assert problems(new) == [("create_fields", code)]


GOOD_RULES = [
    "false",
    " true ",
    "(true)",
    "true || true",
    "1 = 1",
    '"1" = "1"',
    "created_by = @request.auth.id",
    "@owns_record()",
    "@has_role(admin)",
    "@has_any_role([admin, 'editor'])",
    '@has_group("pii_access") AND NOT @is_superadmin()',
    "title ~ 'a%' && views > 3 || secret IS NULL",
    "@request.data.title != null",
    "created_at < @now",
]


@pytest.mark.parametrize("sent", [5, 1.5, True, None, {}, {"title": True}, [5], [["title"]]])
def test_field_list_with_wrong_json_type_is_422(root: Caller, sent: Any) -> None:
    make_collection(root)
    for body, loc in (
        ({"list_fields": sent}, ["body", "list_fields"]),
        ({"create": {"rule": "true", "fields": sent}}, ["body", "create", "fields"]),
        ({"read": {"fields": sent}}, ["body", "read", "fields"]),
    ):
        answer = root.put("collections/posts/rules", body)
        assert (answer.status_code, answer.json["error"]) == (422, "validation_error")
        assert [one["loc"] for one in answer.json["detail"]] == [loc]
    new = {"name": "others", "schema": [{"name": "a", "type": "text"}], "view_fields": sent}
    assert root.post("collections", new).status_code == 422


def test_collection_rule_is_returned_as_sent(root: Caller) -> None:
    make_collection(root, schema=SCHEMA)
    for rule in GOOD_RULES:
        for key in CLOSED:
            assert rules(root, **{key: rule})[key] == rule
    new = {"name": "others", "schema": SCHEMA, **dict.fromkeys(CLOSED, GOOD_RULES[-3])}
    assert root.post("collections", new).status_code == 201
    assert flat(root.get("collections/others/rules").json)["view_rule"] == GOOD_RULES[-3]


BAD_RULES = [
    ("True", 0),
    ("TRUE", 0),
    (" ", 1),
    ("*", 0),
    ("null || title", 8),
    ("title", 0),
    ("views", 0),
    ("views + 1", 0),
    ("nobody = 1", 0),
    ("title = nobody", 8),
    ('"1" = 1', 6),
    ("title = 1", 8),
    ("views ~ 'a'", 0),
    ("title > true", 8),
    ("created_by == @request.auth.id", 12),
    ("@request.auth.password = ''", 0),
    ("@request.data.nobody = 1", 0),
    ("@owns_record(1)", 0),
    ("@has_role(1)", 10),
    ("@has_role(admin", 15),
    ("exec('x')", 0),
    ("title.id = 'x'", 0),
    ("true; DROP TABLE users", 4),
    ("title = 'x", 8),
    ("x" * 2000, 0),
    ("x" * 2001, 2000),
    ("trᵤe", 2),
    ("views > 1 && ", 13),
]


def test_collection_rule_that_is_invalid_is_400_with_position(root: Caller) -> None:
    make_collection(root, schema=SCHEMA)
    before = root.get("collections/posts/rules").json
    for rule, position in BAD_RULES:
        bodies = [{key: rule} for key in CLOSED]
        bodies += [{"create": {"rule": rule}}, {"delete": {"rule": rule}}]
        for body in bodies:
            answer = root.put("collections/posts/rules", body)
            [[key, _]] = body.items()
            assert problems(answer) == [(key if key in CLOSED else f"{key}_rule", "rule_invalid")]
            assert answer.json["details"][0]["position"] == position, rule
        assert root.get("collections/posts/rules").json == before
        new = root.post("collections", {"name": "others", "schema": SCHEMA, "view_rule": rule})
        assert problems(new) == [("view_rule", "rule_invalid")]


def test_collection_rule_problems_are_reported_at_once(root: Caller) -> None:
    make_collection(root, schema=SCHEMA)
    body = {
        "list_rule": "nope",
        "read": {"rule": "never", "fields": ["title", "gone"]},
        "delete": {"fields": ["title"]},
        "create_fields": "title",
        "update_fields": ["a", "title", "b"],
    }
    assert sorted(problems(root.put("collections/posts/rules", body))) == [
        ("create_fields", "invalid_type"),
        ("delete.fields", "invalid_option"),
        ("list_fields", "unknown_field"),
        ("list_rule", "rule_invalid"),
        ("update_fields", "unknown_field"),
        ("update_fields", "unknown_field"),
        ("view_fields", "unknown_field"),
        ("view_rule", "rule_invalid"),
    ]


def test_collection_rules_with_wrong_shape_are_422(root: Caller) -> None:
    make_collection(root, schema=SCHEMA)
    for body in [
        {"list_rule": True},
        {"list_rule": 1},
        {"list_rule": ["true"]},
        {"list_fields": None},
        {"delete_fields": "*"},
        {"export_rule": None},
        {"read": "true"},
        {"read": {"rule": True}},
        {"read": {"rules": None}},
        {"view": {"rule": None}},
        [],
    ]:
        assert root.put("collections/posts/rules", body).status_code == 422


# --- Field lists at work --------------------------------------------------------------------------


def test_list_and_view_fields_limit_responses(cast: Cast) -> None:
    make_collection(
        cast.root, schema=SCHEMA, list_fields=["title"], view_fields=["title", "secret"]
    )
    record = make_record(cast.root.acting_in("acme"), title="t", secret="s", views=3)
    [listed] = cast.bob.get("records/posts").json["items"]
    viewed = cast.bob.get(f"records/posts/{record['id']}").json
    assert listed.keys() == SYSTEM | {"title"}
    assert viewed.keys() == SYSTEM | {"title", "secret"}
    # What is written is answered as it may be viewed.
    assert make_record(cast.bob, title="t", views=1).keys() == viewed.keys()
    patched = cast.bob.patch(f"records/posts/{record['id']}", {"views": 4})
    assert patched.json.keys() == viewed.keys()
    root = cast.root.acting_in("acme")
    assert root.get("records/posts").json["items"][-1].keys() == SYSTEM | {
        f["name"] for f in SCHEMA
    }


def test_field_list_that_is_empty_leaves_system_fields(cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA, list_fields=[], view_fields=[])
    record = make_record(cast.alice, title="t")
    assert record.keys() == SYSTEM
    assert cast.alice.get("records/posts").json["items"] == [record]


def test_write_response_without_view_right_has_system_fields_only(cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA, view_rule=None)
    record = make_record(cast.alice, title="t")
    assert record.keys() == SYSTEM
    url = f"records/posts/{record['id']}"
    assert cast.alice.patch(url, {"title": "u"}).json.keys() == SYSTEM
    assert cast.alice.put(url, {"title": "u"}).json.keys() == SYSTEM


HIDDEN = [
    ("{}=x", "{}"),
    ("{}=x&{}=y", "{}"),
    ("sort={}", "sort"),
    ("sort=-title,%2B{}", "sort"),
    ("fields=title,{}", "fields"),
]


def test_hidden_field_in_query_is_unknown_field(cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA, list_fields=["title"])
    root = cast.root.acting_in("acme")
    make_record(root, title="t", secret="s")
    for query, place in HIDDEN:
        answers = {}
        for name in ("secret", "absent"):
            answer = cast.bob.get(f"records/posts?{query.replace('{}', name)}")
            assert problems(answer) == [(place.replace("{}", name), "unknown_field")]
            answers[name] = dumps(answer.json).replace(name, "#")
        assert answers["secret"] == answers["absent"]
        assert root.get(f"records/posts?{query.replace('{}', 'secret')}").status_code == 200


def test_hidden_field_in_fields_parameter_is_unknown_field(cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA, view_fields=["title"])
    record = make_record(cast.root.acting_in("acme"), title="t", secret="s")
    url = f"records/posts/{record['id']}"
    refused = cast.bob.get(f"{url}?fields=title,secret")
    unknown = cast.bob.get(f"{url}?fields=title,absent")
    assert problems(refused) == problems(unknown) == [("fields", "unknown_field")]
    assert refused.get_data(as_text=True).replace("secret", "absent") == unknown.text
    assert cast.bob.get(f"{url}?fields=title").json == {"id": record["id"], "title": "t"}


def test_list_total_is_independent_of_hidden_fields(cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA, list_fields=["title"])
    for secret in ("a", "b"):
        make_record(cast.root.acting_in("acme"), title="t", secret=secret)
    assert cast.bob.get("records/posts?title=t").json["total"] == 2
    assert cast.bob.get("records/posts?secret=a").status_code == 400


def test_write_of_field_outside_list_is_field_denied(cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA, create_fields=["title"], update_fields=["views"])
    created = cast.bob.post("records/posts", {"title": "t", "secret": "s", "views": 1})
    assert (created.status_code, created.json["error"]) == (403, "field_denied")
    assert [(d["field"], d["code"]) for d in created.json["details"]] == [
        ("secret", "field_denied"),
        ("views", "field_denied"),
    ]
    assert "secret, views" in created.json["message"]
    record = make_record(cast.bob, title="t")
    url = f"records/posts/{record['id']}"
    for method in ("PATCH", "PUT"):
        changed = cast.bob(method, url, {"title": "u", "views": 1})
        assert (changed.status_code, changed.json["error"]) == (403, "field_denied")
        assert [d["field"] for d in changed.json["details"]] == ["title"]
    assert cast.bob.get(url).json == record
    assert cast.bob.get("records/posts").json["total"] == 1
    root = cast.root.acting_in("acme")
    assert root.patch(url, {"title": "u", "secret": "s"}).status_code == 200


def test_record_put_keeps_fields_outside_update_list(cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA, update_fields=["title"])
    record = make_record(cast.bob, title="t", secret="s", views=7)
    replaced = cast.bob.put(f"records/posts/{record['id']}", {})
    assert replaced.status_code == 200
    assert [replaced.json[n] for n in ("title", "secret", "views")] == [None, "s", 7]


# --- At once, on every process --------------------------------------------------------------------


def warm(caller: Caller, record_id: str) -> None:
    for operation in OPERATIONS[:-1]:
        attempt(caller, operation, record_id)


@pytest.mark.parametrize("by_sql", [False, True], ids=["by the API", "by another process"])
def test_collection_rules_change_applies_to_next_request(
    app: Flask, cast: Cast, anyone: Caller, by_sql: bool
) -> None:
    make_collection(cast.root, schema=SCHEMA)
    record = make_record(cast.bob, title="t", secret="s")
    who = {"bob": cast.bob, "anonymous": anyone.acting_in("acme")}

    def change(**changes: Any) -> None:
        if by_sql:
            write_rules(app, changes)
        else:
            rules(cast.root, **changes)

    for operation in OPERATIONS:
        for rule, statuses in ((None, (403, 401)), ("", None), ("true", (None, 401))):
            for caller in who.values():
                warm(caller, record["id"])
            change(**{f"{operation}_rule": rule})
            for caller, refused in zip(who.values(), statuses or (None, None), strict=True):
                tried = (
                    make_record(cast.root.acting_in("acme")) if operation == "delete" else record
                )
                answer = attempt(caller, operation, tried["id"])
                assert answer.status_code == (refused or OK[operation]), (operation, rule)
    warm(cast.bob, record["id"])
    change(list_fields=["views"], view_fields=["title"], update_fields=[], create_fields=[])
    assert cast.bob.get("records/posts").json["items"][0].keys() == SYSTEM | {"views"}
    assert cast.bob.get("records/posts?secret=s").status_code == 400
    assert cast.bob.get(f"records/posts/{record['id']}").json.keys() == SYSTEM | {"title"}
    assert cast.bob.patch(f"records/posts/{record['id']}", {"title": "u"}).status_code == 403
    assert cast.bob.post("records/posts", {"title": "u"}).status_code == 403
    change(list_fields="*", update_fields="*")
    assert cast.bob.get("records/posts?secret=s").json["total"] == 1
    assert cast.bob.patch(f"records/posts/{record['id']}", {"secret": "z"}).status_code == 200


def write_rules(app: Flask, changes: dict[str, Any]) -> None:
    """As another process would: nothing here touches this application's caches."""
    with app.app_context(), db.transaction():
        table = Collection.__table__
        stored = db.connection().execute(sa.text("SELECT rules FROM collections")).scalar_one()
        kept = loads(stored) if isinstance(stored, str) else stored
        values = {"rules": kept | changes, "version": table.c.version + 1}
        db.connection().execute(sa.update(table).values(values))


def test_versioned_cache_reloading_block_loads_each_definition_once(
    app: Flask, root: Caller
) -> None:
    make_collection(root)
    with app.app_context(), statements(app) as sent, versioned_cache.reloading():
        first = definitions.get("posts")
        with versioned_cache.reloading():
            second = definitions.get("posts")
            assert definitions.get("POSTS") is second is not first
        assert definitions.get("posts") is first
    assert len(sent) == 2


def test_block_that_verifies_keeps_what_is_current(app: Flask, root: Caller) -> None:
    make_collection(root)
    with app.app_context():
        kept = definitions.get("posts")
        with versioned_cache.reloading(unless_current=True):
            assert definitions.get("posts") is definitions.get("posts") is kept
    write_rules(app, {"list_rule": ""})
    with app.app_context(), versioned_cache.reloading(unless_current=True):
        assert definitions.get("posts").rule("list") == ""
        with versioned_cache.reloading():
            assert definitions.get("posts") is not kept


def test_versioned_cache_reloads_on_every_retry(
    app: Flask, root: Caller, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(root)
    assert alice.get("records/posts").status_code == 200
    tries, read = [], reads.read_page

    def stale(selection: reads.Selection, *args: Any, **options: Any) -> Any:
        tries.append(selection.definition)
        if len(tries) < 4:
            raise versioned_cache.Stale
        return read(selection, *args, **options)

    monkeypatch.setattr(reads, "read_page", stale)
    with statements(app) as sent:
        assert alice.get("records/posts").status_code == 200
    assert len({id(one) for one in tries}) == len(tries) == 4
    assert len([one for one in sent if "FROM collections" in one and "schema" in one]) == 3
