"""`rules/explain` and `rules/diff` say what really happens: against brute force."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from flask import Flask

from app import db, rules
from app.collections import definitions
from tests.builders import Caller, Cast, make_collection, make_record, make_user
from tests.conftest import WHOLE
from tests.rules_enforcement.stored import put_back, rows

# What tries the statements themselves out runs on both.
pytestmark = pytest.mark.one_database
OPERATIONS = ("list", "view", "update", "delete")
TEAMS = [{"name": n, "type": "text"} for n in ("name", "lead")]
POSTS = [
    {"name": "title", "type": "text"},
    {"name": "views", "type": "number"},
    {"name": "team", "type": "reference", "collection": "teams"},
    {"name": "loud", "type": "computed", "expression": "upper(title)", "return_type": "text"},
]
ROLES = {"alice": "admin", "bob": "viewer", "charlie": "admin", "eve": "editor", "vera": "viewer"}
GROUPS = {"bob": {"staff"}, "alice": {"pii_access"}}
# What rules are put together of.
CLAUSES = [
    "title = 'a'",
    "title != 'a'",
    "views > 3",
    "views IS NULL",
    "views / 0 = 1",
    "loud IN ['A', 'B']",
    "@owns_record()",
    "created_by != @request.auth.id",
    "@has_role(viewer)",
    "@has_any_role([admin, editor])",
    "@has_group('staff')",
    "@is_superadmin()",
    "@request.auth.id != ''",
    "@request.auth.role = title",
    "@request.auth.email ~ '%@acme.example'",
    "@request.auth.account_id = account_id",
    "concat(@request.auth.role, '') = 'viewer'",
    "team.lead = @request.auth.id",
    "team.name != 'red'",
    "@request.data.title = null",
]


def some_rule(chance: random.Random) -> str | None:
    """A rule of any form."""
    kind = chance.random()
    if kind < 0.2:
        return chance.choice([None, "", "true", "false"])
    parts = [chance.choice(CLAUSES) for _ in range(chance.randint(1, 3))]
    text = chance.choice([" && ", " || "]).join(parts)
    return f"!({text})" if chance.random() < 0.25 else text


@dataclass
class World:
    """Users of several roles, groups and accounts, and records of all of them."""

    app: Flask
    root: Caller
    users: list[Caller]
    anonymous: dict[str, Caller]
    records: list[dict[str, Any]]

    def set_rules(self, **changes: str | None) -> None:
        answer = self.root.put("collections/posts/rules", changes)
        assert answer.status_code == 200, answer.json


@pytest.fixture
def world(app: Flask, cast: Cast, anyone: Caller) -> World:
    acme, globex = cast.alice.account_id, cast.charlie.account_id
    eve = Caller(app, make_user(app, acme, "eve@acme.example", "editor"))
    vera = Caller(app, make_user(app, globex, "vera@globex.example", "viewer"))
    gone = Caller(app, make_user(app, acme, "gone@acme.example", "viewer"))
    staff = cast.alice.post("groups", {"name": "staff"}).json["id"]
    assert cast.alice.post(f"groups/{staff}/users", {"user_id": cast.bob.id}).status_code == 200
    users = [cast.alice, cast.bob, cast.charlie, eve, vera, cast.root]
    make_collection(cast.root, "teams", TEAMS)
    make_collection(cast.root, schema=POSTS)
    records = []
    for i, maker in enumerate([cast.alice, cast.bob, gone, cast.charlie, cast.root]):
        team = make_record(maker, "teams", name=("red", "blue")[i % 2], lead=maker.id)["id"]
        fields = {"title": ("a", "viewer", None)[i % 3], "views": (None, 5, 1)[i % 3]}
        records.append(make_record(maker, **fields, team=team if i != 1 else None))
    records.append(make_record(cast.bob, title="a", views=9))
    assert cast.root.patch(f"users/{gone.id}", {"is_active": False}).status_code == 200
    anonymous = {acme: anyone.acting_in("acme"), globex: anyone.acting_in("globex")}
    return World(app, cast.root, users, anonymous, records)


def really(
    caller: Caller, operation: str, record: dict[str, Any], listed: dict[Caller, set[str]]
) -> bool:
    """Whether a caller gets at a record, through the API; a list is asked for once."""
    url = f"records/posts/{record['id']}"
    if operation == "list":
        if caller not in listed:
            items = caller.get("records/posts?limit=100").json.get("items") or ()
            listed[caller] = {one["id"] for one in items}
        return record["id"] in listed[caller]
    answer = (
        {"view": caller.get, "delete": caller.delete}.get(operation, caller.get)(url)
        if (operation != "update")
        else caller.patch(url, {})
    )
    assert answer.status_code in (200, 204, 401, 403, 404), answer.json
    return answer.status_code < 300


def chances(seeds: range, database: str, whole: bool) -> Iterator[random.Random]:
    """Every seed, or one for each database: chance for three rules, one after another."""
    for seed in seeds if whole else [seeds[database == "postgresql"]]:
        yield from [random.Random(seed)] * 3


@pytest.mark.long
@pytest.mark.both_databases
@WHOLE
def test_rules_explain_equals_real_outcome(world: World, database: str, whole: bool) -> None:
    kept = rows(world.app)
    for turn, chance in enumerate(chances(range(3), database, whole)):
        operation = chance.choice(OPERATIONS)
        closed = dict.fromkeys((f"{one}_rule" for one in OPERATIONS), None)
        rule = some_rule(chance)
        world.set_rules(**closed | {f"{operation}_rule": rule})
        for number, user in enumerate([*world.users, None]):
            listed: dict[Caller, set[str]] = {}
            for record in world.records if whole else world.records[(turn + number) % 2 :: 2]:
                account = record["account_id"]
                asked: dict[str, Any] = {"operation": operation, "record_id": record["id"]}
                if operation == "update":
                    asked["data"] = {}
                if user is None:
                    if account not in world.anonymous:
                        continue
                    caller = world.anonymous[account]
                elif user is world.root:
                    caller, asked["user_id"] = world.root.acting_in(account), user.id
                else:
                    caller, asked["user_id"] = user, user.id
                told = world.root.post("collections/posts/rules/explain", asked)
                if user and user is not world.root and user.account_id != account:
                    assert told.status_code == 404
                    assert not really(caller, operation, record, listed)
                    continue
                assert told.status_code == 200, told.json
                happened = really(caller, operation, record, listed)
                if operation == "delete" and happened:
                    put_back(world.app, kept)
                case = (rule, operation, user and user.email, record)
                assert told.json["allowed"] is happened, (case, told.json)
                check_clause(told.json, rule)
                check_statement(world.app, told.json, record)


def check_clause(told: dict[str, Any], rule: str | None) -> None:
    clause = told["clause"]
    if clause is not None:
        assert rule is not None
        end = clause["position"] + len(clause["text"])
        assert rule[clause["position"] : end] == clause["text"] != ""
        assert told["sql"]


def check_statement(app: Flask, told: dict[str, Any], record: dict[str, Any]) -> None:
    """The statement, run as it stands with its parameters, finds the record or does not."""
    assert (told["sql"] is None) is (told["parameters"] is None)
    if told["sql"]:
        with app.app_context():
            found = db.connection().exec_driver_sql(told["sql"], told["parameters"]).all()
        assert found == ([(record["id"],)] if told["allowed"] else []), told


# The rule, what is sent (None: nothing is said of it), whether it is allowed, and the part that
# decides or is left. bob asks; of a record that he has made with the title "viewer" and 5 views.
Written = tuple[str | None, dict[str, Any] | None, bool | None, str | None]
EITHER: list[Written] = [
    ("@request.data.title = 'a'", None, None, "@request.data.title = 'a'"),
    ("@request.data.title = 'a'", {"title": "a"}, True, "@request.data.title = 'a'"),
    ("@request.data.title = 'a'", {"title": "b"}, False, "@request.data.title = 'a'"),
    ("@request.data.title = null", {}, True, "@request.data.title = null"),
    ("@has_role(viewer) || @request.data.views > 3", None, True, "@has_role(viewer)"),
    ("loud = 'VIEWER' && views < 9", {"title": "viewer", "views": 8}, True, None),
    ("views = 7 && @owns_record()", {"title": "x"}, False, "views = 7"),
    ("", {"title": "x"}, True, None),
    (None, {"title": "x"}, False, None),
    ("", {"secret": "x"}, False, None),
]
CREATED: list[Written] = [
    ("title = 'b' || @has_role(admin)", None, None, "title = 'b'"),
    ("@owns_record()", {}, True, "@owns_record()"),
    ("team.name = 'red'", {"team": "red"}, True, "team.name = 'red'"),
    ("team.name = 'red'", {"team": "blue"}, False, "team.name = 'red'"),
]
UPDATED: list[Written] = [
    ("@owns_record() || @request.data.views > 3", None, True, "@owns_record()"),
    ("title = 'b' && @request.data.views > 3", None, False, "title = 'b'"),
    ("views < 9", {"views": 20}, False, "views < 9"),
    ("views < 3", {"views": 1}, False, "views < 3"),
    ("team.name != 'red'", {"team": "blue"}, True, "team.name != 'red'"),
    ("team.name != 'red'", {"team": "red"}, False, "team.name != 'red'"),
]


@pytest.mark.parametrize(
    ("operation", "cases"), [("create", EITHER + CREATED), ("update", EITHER + UPDATED)]
)
def test_rules_explain_judges_sent_data_like_a_write(
    world: World, operation: str, cases: list[Written]
) -> None:
    bob, own, kept = world.users[1], world.records[1], rows(world.app)
    schema = [*POSTS, {"name": "secret", "type": "text"}]
    lists = {key: ["title", "views", "team"] for key in ("create_fields", "update_fields")}
    id = world.root.get("collections/posts").json["id"]
    assert world.root.put(f"collections/{id}", {"schema": schema, **lists}).status_code == 200
    mine = [one for one in rows(world.app, "col_teams") if one["account_id"] == own["account_id"]]
    teams = {one["name"]: one["id"] for one in mine}
    for rule, data, allowed, part in cases:
        world.set_rules(view_rule="", **{f"{operation}_rule": rule})
        asked: dict[str, Any] = {"operation": operation, "user_id": bob.id}
        if operation == "update":
            asked["record_id"] = own["id"]
        if data is not None:
            data = asked["data"] = {n: teams.get(value, value) for n, value in data.items()}
        told = world.root.post("collections/posts/rules/explain", asked).json
        assert told["allowed"] is allowed, (rule, data, told)
        named = told["clause"]["text"] if told["clause"] else told.get("depends_on")
        assert part in (None, named), (rule, data, told)
        assert [row["id"] for row in rows(world.app)] == [row["id"] for row in kept]
        if data is not None:
            url = f"records/posts/{own['id']}" if operation == "update" else "records/posts"
            answer = (bob.patch if operation == "update" else bob.post)(url, data)
            assert (answer.status_code < 300) is allowed, (rule, data, answer.json)
            put_back(world.app, kept)


def test_rules_explain_statement_binds_sent_values(world: World) -> None:
    world.set_rules(update_rule="@request.data.views > views && title = @request.auth.role")
    asked = {"operation": "update", "user_id": world.users[1].id}
    for more, sent in (({}, None), ({"data": {"views": 12}}, 12)):
        told = world.root.post("collections/posts/rules/explain", asked | more).json
        values = told["parameters"]
        assert told["sql"].startswith("SELECT ")
        assert (values["_sent_views"], values["_caller_role"]) == (sent, "viewer")
        assert set(values) == {"_sent_views", "_caller_role", "account_id_1"}


def test_rules_explain_with_invalid_data_is_400(world: World) -> None:
    world.set_rules(create_rule="title = 'a'", update_rule="title = 'viewer'")
    url, own = "collections/posts/rules/explain", world.records[1]["id"]
    asked = {"auth": {"id": "x", "account_id": world.records[1]["account_id"]}}
    for operation, more in (("create", {}), ("update", {"record_id": own})):
        data = {"views": "many", "hue": 1, "id": "x"}
        answer = world.root.post(url, asked | more | {"operation": operation, "data": data})
        assert answer.status_code == 400
        assert {(one["field"], one["code"]) for one in answer.json["details"]} == {
            ("data.views", "invalid_type"),
            ("data.hue", "unknown_field"),
            ("data.id", "field_read_only"),
        }
    for wrong in (
        {"operation": "view", "data": {}},
        {"operation": "create", "data": {}, "record_id": own},
        {"operation": "create", "data": [1]},
    ):
        answer = world.root.post(url, wrong)
        assert (answer.status_code, answer.json["detail"][0]["loc"][:2]) == (422, ["body", "data"])


def test_rules_explain_without_record_reports_dependencies(world: World) -> None:
    bob = world.users[1]
    for rule, allowed in (
        ("@has_role(viewer)", True),
        ("@has_role(admin) && title = 'a'", False),
        ("@has_role(admin) || title = 'a'", None),
        ("", True),
        ("true", True),
        (None, False),
    ):
        world.set_rules(view_rule=rule)
        asked = {"operation": "view", "user_id": bob.id}
        told = world.root.post("collections/posts/rules/explain", asked).json
        assert (told["allowed"], told["rule"]) == (allowed, rule)
        if allowed is None:
            assert "title" in told["depends_on"]
            assert "admin" not in told["sql"]


def test_rules_explain_clause_reports_used_values(world: World) -> None:
    bob, record = world.users[1], world.records[0]
    world.set_rules(view_rule="views > 3 || @owns_record() || loud = 'B' || team.name = 'x'")
    asked = {"operation": "view", "user_id": bob.id, "record_id": record["id"]}
    told = world.root.post("collections/posts/rules/explain", asked).json
    assert told["allowed"] is False
    assert told["clause"]["values"] | {"loud": 0} == {
        "views": None,
        "created_by": record["created_by"],
        "@request.auth.id": bob.id,
        "loud": 0,
        "team.name": "red",
    }
    mine = asked | {"record_id": world.records[5]["id"]}
    world.set_rules(view_rule="title = 'b' || @owns_record()")
    clause = world.root.post("collections/posts/rules/explain", mine).json["clause"]
    assert (clause["text"], clause["position"], clause["holds"]) == ("@owns_record()", 15, True)
    assert clause["values"] == {"created_by": bob.id, "@request.auth.id": bob.id}


@pytest.mark.both_databases
@WHOLE
def test_rules_diff_equals_brute_force(world: World, database: str, whole: bool) -> None:
    for chance in chances(range(100, 104), database, whole):
        world.set_rules(**{f"{one}_rule": some_rule(chance) for one in OPERATIONS})
        proposed = {f"{one}_rule": some_rule(chance) for one in OPERATIONS}
        before = world.root.get("collections/posts/rules").json
        for account_id in (None, world.users[0].account_id):
            body = {"rules": proposed} | ({"account_id": account_id} if account_id else {})
            answer = world.root.post("collections/posts/rules/diff", body)
            assert answer.status_code == 200, answer.json
            wanted = by_hand(world, before, proposed, account_id)
            told = {
                (one["role"], one["operation"], way): (one[way]["count"], set(one[way]["sample"]))
                for one in answer.json["items"]
                for way in ("gained", "lost")
            }
            assert told == wanted, (before, proposed)
        assert world.root.get("collections/posts/rules").json == before


@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("before", "after", "gained", "lost"),
    [
        ("false", "@request.auth.mfa", 1, 0),
        ("@request.auth.mfa", "true", 1, 0),
        ("@request.auth.mfa", "!(@request.auth.mfa)", 1, 1),
        ("false", "@request.auth.mfa = secret", 1, 0),
        ("@request.auth.mfa", "@request.auth.mfa = true", 0, 0),
    ],
)
def test_rules_diff_covers_sessions_with_and_without_second_factor(
    cast: Cast, before: str, after: str, gained: int, lost: int
) -> None:
    fields = [{"name": "secret", "type": "boolean"}]
    make_collection(cast.root, "papers", fields, create_rule="true", list_rule=before)
    cast.alice.post("records/papers", {"secret": True})
    body = {"rules": {"list_rule": after}}
    items = cast.root.post("collections/papers/rules/diff", body).json["items"]
    (found,) = (one for one in items if (one["role"], one["operation"]) == ("viewer", "list"))
    assert (found["gained"]["count"], found["lost"]["count"]) == (gained, lost)


def by_hand(
    world: World, before: dict[str, Any], after: dict[str, Any], account_id: str | None
) -> dict[tuple[str, str, str], tuple[int, set[str]]]:
    """Every active user and every record, one by one, by the evaluator."""
    found: dict[tuple[str, str, str], set[str]] = {
        (role, operation, way): set()
        for role in ("admin", "editor", "viewer", "anonymous")
        for operation in OPERATIONS
        for way in ("gained", "lost")
    }
    nodes = conditions(world.app, before, after)
    for record, subject in product(whole_records(world), subjects(world)):
        if account_id not in (None, record["account_id"]):
            continue
        if subject.id and subject.account_id != record["account_id"]:
            continue
        for operation in OPERATIONS:
            texts = (side[f"{operation}_rule"] for side in (before, after))
            was, will = (passes(text, record, subject, nodes) for text in texts)
            if was != will:
                way = "gained" if will else "lost"
                found[subject.role or "anonymous", operation, way].add(record["id"])
    return {key: (len(ids), ids) for key, ids in found.items()}


def subjects(world: World) -> list[rules.Subject]:
    """Everybody as rules see them, and nobody; superadmins neither gain nor lose."""
    found = [rules.Subject()]
    for user in world.users[:-1]:
        name = user.email.partition("@")[0]
        groups = frozenset(GROUPS.get(name, ()))
        found.append(rules.Subject(user.id, user.email, ROLES[name], user.account_id, groups))
    return found


def conditions(app: Flask, *sides: dict[str, Any]) -> dict[str, rules.Node]:
    """What stands for the rules that are expressions."""
    texts = {side[f"{operation}_rule"] for side in sides for operation in OPERATIONS}
    with app.app_context():
        scope = definitions.get("posts").scope
        return {text: rules.condition(text, scope) for text in texts - {None, "", "true"}}


def whole_records(world: World) -> list[dict[str, Any]]:
    """The records, each with its team instead of the team's id."""
    teams = {row["id"]: row for row in rows(world.app, "col_teams")}
    assert {one["team"] for one in world.records} - {None} <= teams.keys()
    return [{**one, "team": teams.get(one["team"])} for one in world.records]


def passes(
    text: str | None, record: dict[str, Any], subject: rules.Subject, nodes: dict[str, rules.Node]
) -> bool:
    if text in (None, "", "true"):
        return text == "" or (text == "true" and subject.id is not None)
    return rules.holds(nodes[str(text)], rules.Context(record, subject))


MOMENT = "2026-01-01T00:00:00.000000Z"
OF_MOMENTS = {
    "created_at > '2026-01-01'": False,
    "created_at >= '2026-01-01'": True,
    "created_at = '2026-01-01T01:00:00+01:00'": True,
    "updated_at > created_at": True,
    "date_diff(updated_at, created_at, 'seconds') = 0.5": True,
    "created_at IN ['2026-01-01']": True,
    "created_at < @now": True,
    "created_at = other": True,
    "author.created_at = '2026-01-01T01:00:00+01:00'": True,
    "author.created_at < updated_at": True,
    "date_diff(author.team.created_at, created_at, 'days') = 0": True,
    "author.created_at = '2026-01-01' && author.team.created_at != null": True,
}


@pytest.mark.parametrize("rule", OF_MOMENTS)
def test_rules_test_treats_datetimes_as_datetimes(root: Caller, rule: str) -> None:
    author = {"created_at": MOMENT, "team": {"created_at": MOMENT}}
    record = {"created_at": MOMENT, "updated_at": "2026-01-01T00:00:00.5Z", "other": MOMENT}
    record |= {"author": author}
    tried = root.post("rules/test", {"rule": rule, "record": record})
    assert tried.json["result"] == OF_MOMENTS[rule]


def test_rules_test_refuses_rule_with_type_error(root: Caller) -> None:
    for rule in ("created_at = 5", "created_by > 1 || title = 'x'", "author.created_at = 5"):
        refused = root.post("rules/test", {"rule": rule, "record": {}})
        assert (refused.status_code, refused.json["details"][0]["code"]) == (400, "rule_invalid")
        assert root.post("rules/validate", {"rule": rule}).json["valid"] is False


ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("rules/validate", {"rule": "true"}),
    ("rules/test", {"rule": "true", "record": {}}),
    ("collections/posts/rules/explain", {"operation": "view"}),
    ("collections/posts/rules/diff", {"rules": {"view_rule": ""}}),
]


def test_rule_tool_routes_require_superadmin(world: World, anyone: Caller) -> None:
    for path, body in ROUTES:
        assert world.root.post(path, body).status_code == 200, path
        for user in world.users[:-1]:
            refused = user.post(path, body)
            assert (refused.status_code, refused.json["error"]) == (403, "superadmin_required")
        assert anyone.post(path, body).status_code == 401
        assert world.anonymous[world.users[0].account_id].post(path, body).status_code == 401


def test_rule_denial_names_no_clause(world: World) -> None:
    bob, record = world.users[1], world.records[0]
    rule = "title = 'sesame' && views > 41"
    closed = {f"{one}_rule": rule for one in (*OPERATIONS, "create")}
    world.set_rules(**closed | {"view_rule": ""})
    url = f"records/posts/{record['id']}"
    answers = [
        bob.patch(url, {"title": "x"}),
        bob.delete(url),
        bob.post("records/posts", {"title": "x"}),
        bob.get("records/posts"),
    ]
    assert [answer.status_code for answer in answers] == [403, 403, 403, 200]
    told = [str({**answer.json, "explain_id": None}) for answer in answers]
    assert not any(word in text for text in told for word in ("sesame", "41", "clause", "rule ="))


def test_rules_explain_with_invalid_body_is_refused(world: World) -> None:
    for body, status in (
        ({"operation": "fly"}, 422),
        ({}, 422),
        ({"operation": "view", "user_id": "x", "auth": {}}, 422),
        ({"operation": "view", "user_id": "nobody"}, 400),
        ({"operation": "view", "record_id": "nothing"}, 404),
        ({"operation": "view", "auth": {"id": "x", "powers": 1}}, 422),
    ):
        assert world.root.post("collections/posts/rules/explain", body).status_code == status, body
    for rules_, status in (
        ({"view_rule": "nope"}, 400),
        ({"list_fields": ["no"]}, 400),
        ({"x": 1}, 422),
    ):
        answer = world.root.post("collections/posts/rules/diff", {"rules": rules_})
        assert answer.status_code == status
    assert (
        world.root.post("collections/nope/rules/explain", {"operation": "view"}).status_code == 404
    )


def test_rule_denial_can_be_explained_by_superadmin(world: World) -> None:
    bob, record = world.users[1], world.records[0]
    world.set_rules(update_rule="@has_role(admin)", create_rule=None, view_rule="")
    url = f"records/posts/{record['id']}"
    refused = bob.patch(url, {"title": "x"})
    path = f"rules/denials/{refused.json['explain_id']}"
    found = world.root.get(path).json
    told = {name: found[name] for name in ("collection", "operation", "allowed", "user_id")}
    assert told == {
        "collection": "posts",
        "operation": "update",
        "allowed": False,
        "user_id": bob.id,
    }
    assert (found["record_id"], found["clause"]["text"]) == (record["id"], "@has_role(admin)")
    assert found["occurred_at"]
    assert bob.get(path).json["error"] == "superadmin_required"
    assert world.root.get(f"{path[:-3]}xyz").status_code == 404
    closed = bob.post("records/posts", {"title": "x"}).json
    created = world.root.get(f"rules/denials/{closed['explain_id']}").json
    assert (created["operation"], created["rule"], created["allowed"]) == ("create", None, False)


def test_rule_denial_of_deleted_record_can_be_explained(world: World) -> None:
    bob, record = world.users[1], world.records[0]
    world.set_rules(update_rule="@has_role(admin)", view_rule="")
    refused = bob.patch(f"records/posts/{record['id']}", {"title": "x"}).json
    assert (
        world.root.acting_in(bob.account_id).delete(f"records/posts/{record['id']}").status_code
        == 204
    )
    found = world.root.get(f"rules/denials/{refused['explain_id']}").json
    assert found["allowed"] is False
