"""Attributes of users and accounts: their schemas, who sees and writes which values."""

from __future__ import annotations

from typing import Any

import jwt
import pytest
from flask import Flask

from tests.builders import PASSWORD, Caller, Cast, make_collection

pytestmark = pytest.mark.both_databases
USERS = [
    {"name": "department", "type": "text", "visible_to": "members", "label": "Department"},
    {"name": "phone", "type": "text", "writable_by": "self"},
    {"name": "team", "type": "select", "options": {"choices": ["red", "blue"]}},
    {"name": "level", "type": "number", "options": {"min": 1}, "visible_to": "self"},
    {"name": "since", "type": "date"},
    {"name": "tags", "type": "multi_select", "options": {"choices": ["a", "b"]}},
    {"name": "risk", "type": "text", "writable_by": "superadmin", "visible_to": "superadmin"},
    {"name": "plan", "type": "text", "writable_by": "superadmin", "visible_to": "self"},
]
STEP = {"name": "wait", "type": "wait_delay", "duration": "1h"}
ACCOUNTS = [
    {"name": "plan_code", "type": "text", "writable_by": "superadmin"},
    {"name": "industry", "type": "text"},
    {"name": "score", "type": "number", "writable_by": "superadmin", "visible_to": "superadmin"},
]


def define(cast: Cast, fields: Any, kind: str = "users", **more: Any) -> list[dict[str, Any]]:
    response = cast.root.put(f"attributes/{kind}", {"fields": fields, **more})
    assert response.status_code == 200, response.json
    return list(response.json["fields"])


@pytest.fixture
def defined(cast: Cast) -> Cast:
    define(cast, USERS)
    define(cast, ACCOUNTS, "accounts")
    return cast


def codes(response: Any) -> list[tuple[str, str]]:
    return [(one["field"], one["code"]) for one in response.json["details"]]


def write(caller: Caller, path: str, **values: Any) -> Any:
    return caller.patch(path, {"attributes": values})


def test_values_are_cleaned_and_merge(defined: Cast) -> None:
    one = f"account/users/{defined.bob.id}"
    values = {"department": "Sales", "team": "red", "level": 2.0, "since": "2026-01-02"}
    response = write(defined.alice, one, **values, tags=["b", "a"])
    assert response.status_code == 200, response.json
    assert response.json["attributes"] == values | {"level": 2, "tags": ["b", "a"]}
    response = write(defined.alice, one, team=None, department="Care", since=None, tags=None)
    assert response.json["attributes"] == {"department": "Care", "level": 2}
    wrong = {"team": "green", "level": 0, "since": "today", "tags": ["a", "a"], "x": 1, "phone": 1}
    assert codes(write(defined.alice, one, **wrong)) == [
        ("attributes.team", "invalid_option"),
        ("attributes.level", "number_out_of_range"),
        ("attributes.since", "invalid_date"),
        ("attributes.tags", "invalid_option"),
        ("attributes.x", "unknown_field"),
        ("attributes.phone", "invalid_type"),
    ]
    assert write(defined.alice, one, phone="1" * 2001).status_code == 400
    assert defined.alice.get(one).json["attributes"] == {"department": "Care", "level": 2}


def test_each_sees_what_is_theirs_to_see(defined: Cast) -> None:
    values = dict.fromkeys(("department", "phone", "risk", "plan"), "x") | {"team": "red"}
    assert write(defined.root, f"users/{defined.bob.id}", **values).status_code == 200
    one = f"account/users/{defined.bob.id}"
    seen = defined.alice.get(one).json["attributes"]
    assert seen == {name: value for name, value in values.items() if name != "risk"}
    own = defined.bob.get("auth/me").json["attributes"]
    assert own == {"department": "x", "phone": "x", "plan": "x"}
    assert defined.root.get(f"users/{defined.bob.id}").json["attributes"] == values
    visible = [
        {one["name"] for one in caller.get("attributes/users").json["fields"]}
        for caller in (defined.bob, defined.alice, defined.root)
    ]
    names = {one["name"] for one in USERS}
    assert visible == [{"department", "phone", "level", "plan"}, names - {"risk"}, names]
    assert "claim" not in defined.alice.get("attributes/users").json["fields"][0]


@pytest.mark.parametrize(
    ("who", "path", "values", "expected"),
    [
        ("bob", "auth/me", {"phone": "1"}, 200),
        ("bob", "auth/me", {"department": "x"}, (403, "field_denied")),
        ("bob", "auth/me", {"team": "red"}, (400, "unknown_field")),
        ("bob", "auth/me", {"risk": "x"}, (400, "unknown_field")),
        ("bob", "auth/me", {"plan": "x"}, (403, "field_denied")),
        ("alice", "auth/me", {"team": "red"}, 200),
        ("alice", "auth/me", {"plan": "x"}, (403, "field_denied")),
        ("alice", "account", {"industry": "x"}, 200),
        ("alice", "account", {"plan_code": "pro"}, (403, "field_denied")),
        ("alice", "account", {"score": 1}, (400, "unknown_field")),
        ("bob", "account", {"industry": "x"}, 403),
        ("root", "auth/me", {"risk": "x"}, 200),
    ],
)
def test_each_writes_what_is_theirs_to_write(
    defined: Cast, who: str, path: str, values: Any, expected: Any
) -> None:
    response = write(getattr(defined, who), path, **values)
    if isinstance(expected, int):
        assert response.status_code == expected, response.json
    else:
        assert (response.status_code, response.json["details"][0]["code"]) == expected
    if expected == 200:
        assert response.json["attributes"] == values


def test_accounts_have_attributes(defined: Cast) -> None:
    made = defined.root.post("accounts", {"name": "X", "attributes": {"plan_code": "pro"}})
    assert made.json["attributes"] == {"plan_code": "pro"}
    path = f"accounts/{defined.alice.account_id}"
    values = {"plan_code": "pro", "score": 3}
    assert write(defined.root, path, **values).json["attributes"] == values
    assert defined.alice.get("account").json["attributes"] == {"plan_code": "pro"}
    key = defined.alice.post("api-keys", {"name": "sync"}).json["key"]
    by_key = Caller(defined.alice.app, Authorization=f"Bearer {key}")
    assert write(by_key, "account", industry="y").status_code == 200


def test_required_values_are_given_and_kept(cast: Cast) -> None:
    define(cast, [{"name": "desk", "type": "text", "required": True}])
    body = {"email": "dora@acme.example"}
    assert codes(cast.alice.post("account/users", body)) == [
        ("attributes.desk", "required_missing")
    ]
    made = cast.alice.post("account/users", body | {"attributes": {"desk": "1a"}})
    assert made.json["attributes"] == {"desk": "1a"}
    one = f"account/users/{made.json['id']}"
    assert codes(write(cast.alice, one, desk=None)) == [("attributes.desk", "required_null")]


def test_audit_log_has_an_entry_for_each_attribute(defined: Cast) -> None:
    one = f"users/{defined.bob.id}"
    assert write(defined.root, one, department="Sales", risk="high").status_code == 200
    assert write(defined.root, one, department="Care").status_code == 200
    path = f"account/audit-logs?table_name=users&record_id={defined.bob.id}&sort_order=desc"
    entries = [
        (one["column_name"], one["old_value"], one["new_value"])
        for one in defined.alice.get(path).json["items"]
        if one["column_name"].startswith("attributes")
    ]
    assert sorted(entries, key=str) == [
        ("attributes.department", "Sales", "Care"),
        ("attributes.department", None, "Sales"),
        ("attributes.risk", None, "***"),
    ]


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ({"name": "1x", "type": "text"}, "name_invalid"),
        ({"name": "and", "type": "text"}, "name_reserved"),
        ({"name": "x", "type": "file"}, "type_invalid"),
        ({"name": "x"}, "type_invalid"),
        ({"name": "DEPARTMENT", "type": "text"}, "name_duplicate"),
        ({"name": "department", "type": "number"}, "type_change_not_allowed"),
        ({"name": "x", "type": "select"}, "invalid_option"),
        ({"name": "x", "type": "text", "options": {"index": True}}, "invalid_option"),
        ({"name": "x", "type": "text", "options": {"nonsense": 1}}, "invalid_option"),
        ({"name": "plan", "sso": "plan"}, "invalid_option"),
        ({"name": "plan", "scim": "plan"}, "invalid_option"),
        ({"name": "team", "claim": "team"}, "invalid_option"),
    ],
)
def test_definitions_are_checked(defined: Cast, field: Any, expected: str) -> None:
    before = defined.root.get("attributes/users").json
    response = defined.root.put("attributes/users", {"fields": [field]})
    assert response.status_code == 400, response.json
    assert expected in [code for _, code in codes(response)]
    assert defined.root.get("attributes/users").json == before
    planned = defined.root.post("attributes/users/plan", {"fields": [field]}).json["problems"]
    assert expected in [one["code"] for one in planned]


def test_what_is_left_out_stays_and_renames_keep_values(defined: Cast) -> None:
    one = f"account/users/{defined.bob.id}"
    assert write(defined.alice, one, department="Sales", team="red").status_code == 200
    fields = define(defined, [{"name": "unit", "rename_from": "department", "required": True}])
    assert fields[0]["name"] == "unit"
    assert (fields[0]["label"], fields[0]["visible_to"]) == ("Department", "members")
    assert len(fields) == len(USERS)
    assert defined.alice.get(one).json["attributes"] == {"unit": "Sales", "team": "red"}
    again = define(defined, [{"name": "unit", "rename_from": "department", "required": True}])
    assert again == fields
    shorter = {"name": "team", "options": {"choices": ["blue"]}}
    response = defined.root.put("attributes/users", {"fields": [shorter]})
    assert codes(response) == [("team", "in_use")]
    assert write(defined.alice, one, team="blue").status_code == 200
    define(defined, [shorter])


def test_removals_need_a_plan_and_lose_values(defined: Cast) -> None:
    one = f"account/users/{defined.bob.id}"
    assert write(defined.alice, one, department="Sales").status_code == 200
    body = {"remove_fields": ["department", "gone"]}
    assert codes(defined.root.put("attributes/users", body)) == [("plan_hash", "plan_required")]
    plan = defined.root.post("attributes/users/plan", body).json
    assert plan["lost"] == [{"field": "department", "count": 1}]
    stale = {**body, "plan_hash": plan["plan_hash"]}
    define(defined, [{"name": "desk", "type": "text"}])
    assert defined.root.put("attributes/users", stale).json["error"] == "plan_stale"
    plan = defined.root.post("attributes/users/plan", body).json
    define(defined, [], remove_fields=["department"], plan_hash=plan["plan_hash"])
    define(defined, [{"name": "department", "type": "number"}])
    assert defined.alice.get(one).json["attributes"] == {}


@pytest.mark.parametrize("kind", ["users", "accounts"])
def test_only_superadmins_define_attributes(cast: Cast, app: Flask, kind: str) -> None:
    for caller in (cast.alice, cast.bob):
        assert caller.put(f"attributes/{kind}", {}).status_code == 403
        assert caller.post(f"attributes/{kind}/plan", {}).status_code == 403
        assert caller.get(f"attributes/{kind}").json == {"fields": []}
    assert Caller(app).get(f"attributes/{kind}").status_code == 401


OWN = "@request.auth.attributes"
RULES = {
    "department": ("@request.auth.attributes.department = title", "Sales", "Care"),
    "level": ("@request.auth.attributes.level >= 3", 3, 2),
    "since": ("@request.auth.attributes.since < '2026-02-01'", "2026-01-31", "2026-02-01"),
    "tags": ("@contains(@request.auth.attributes.tags, title)", ["Sales"], ["Care"]),
    "team": ("@request.auth.attributes.team IN ['red', 'pink']", "red", "blue"),
    "seen": (
        "@request.auth.attributes.seen < @now",
        "2020-01-01T00:00:00Z",
        "2999-01-01T00:00:00Z",
    ),
    "trusted": ("@request.auth.attributes.trusted", True, False),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_read_attributes_of_callers(cast: Cast, name: str) -> None:
    types = {"level": "number", "since": "date", "seen": "datetime", "trusted": "boolean"}
    lists = {"team": ["red", "blue", "pink"], "tags": ["Sales", "Care"]}
    kind = types.get(name, "multi_select" if name == "tags" else "select")
    field: dict[str, Any] = {"name": name, "type": kind if name != "department" else "text"}
    define(cast, [field | ({"options": {"choices": lists[name]}} if name in lists else {})])
    rule, letting, refusing = RULES[name]
    make_collection(cast.root, list_rule=rule, view_rule=rule, create_rule=rule)
    id = cast.root.acting_in("acme").post("records/posts", {"title": "Sales"}).json["id"]
    one = f"account/users/{cast.bob.id}"
    for value, expected in ((None, False), (letting, True), (refusing, False), (letting, True)):
        assert write(cast.alice, one, **{name: value}).status_code == 200
        listed = cast.bob.get("records/posts")
        shown = bool(listed.json["items"]) if listed.status_code == 200 else False
        viewed = cast.bob.get(f"records/posts/{id}").status_code == 200
        assert (shown, viewed) == (expected, expected), (value, listed.json)
        created = cast.bob.post("records/posts", {"title": "Sales"}).status_code
        assert created == (201 if expected else 403)


def test_rules_read_attributes_of_the_account(defined: Cast) -> None:
    rule = "@account.attributes.plan_code = 'pro'"
    make_collection(defined.root, list_rule=rule, create_rule=rule)
    path = f"accounts/{defined.alice.account_id}"
    for plan, status in ((None, 403), ("pro", 201), ("basic", 403), ("pro", 201)):
        assert write(defined.root, path, plan_code=plan).status_code == 200
        assert defined.bob.post("records/posts", {"title": "x"}).status_code == status
        shown = defined.bob.get("records/posts").json["items"]
        assert bool(shown) is (status == 201)
    assert defined.charlie.post("records/posts", {"title": "x"}).status_code == 403


@pytest.mark.parametrize(
    ("rule", "code", "position"),
    [
        ("1 = 1 && @request.auth.attributes.x = 'y'", "rule_invalid", 9),
        ("@account.attributes.x = 'y'", "rule_invalid", 0),
        ("@request.auth.attributes = 'y'", "rule_invalid", 0),
        ("@request.auth.attributes.level = 'y'", "rule_invalid", 0),
        ("@request.auth.attributes.team = 'green'", "unknown_choice", 32),
        ("@contains(@request.auth.attributes.tags, 'c')", "unknown_choice", 41),
    ],
)
def test_names_of_attributes_in_rules_are_checked(
    defined: Cast, rule: str, code: str, position: int
) -> None:
    make_collection(defined.root)
    [detail] = defined.root.put("collections/posts/rules", {"list_rule": rule}).json["details"]
    assert (detail["code"], detail["field"]) == (code, "list_rule")
    assert detail["position"] == position or code == "rule_invalid"


def test_expressions_follow_attributes_or_keep_them(defined: Cast) -> None:
    rule = "@request.auth.attributes.department = 'x' || @request.auth.attributes.team = 'red'"
    make_collection(defined.root, list_rule=rule, view_rule="@account.attributes.industry = 'x'")
    body = {"rule": "@request.auth.attributes.department = 'x'"}
    shown = {"fields": ["name", "attributes.department"]}
    assert defined.root.put("directory/settings", {**body, **shown}).status_code == 200
    renamed = {"fields": [{"name": "unit", "rename_from": "department"}]}
    renamed["fields"].append({"name": "team", "writable_by": "self"})
    effect = defined.root.post("attributes/users/plan", renamed).json["effect"]
    assert sorted((one["field"], one["place"], one["refused"]) for one in effect) == [
        ("department", "collections.posts.list_rule", False),
        ("department", "directory.fields", False),
        ("department", "directory.rule", False),
        ("team", "collections.posts.list_rule", False),
    ]
    define(defined, renamed["fields"])
    rules = defined.root.get("collections/posts/rules").json
    assert rules["list_rule"] == rule.replace("department", "unit")
    settings = defined.root.get("directory/settings").json
    assert settings["rule"] == body["rule"].replace("department", "unit")
    assert settings["fields"] == ["name", "attributes.unit"]
    for kind, name, places in (
        ("users", "unit", ["collections.posts.list_rule", "directory.fields", "directory.rule"]),
        ("users", "team", ["collections.posts.list_rule"]),
        ("accounts", "industry", ["collections.posts.view_rule"]),
    ):
        removal = {"remove_fields": [name]}
        plan = defined.root.post(f"attributes/{kind}/plan", removal).json
        assert sorted(one["place"] for one in plan["effect"] if one["refused"]) == places
        removal["plan_hash"] = plan["plan_hash"]
        response = defined.root.put(f"attributes/{kind}", removal)
        assert response.status_code == 409, response.json
        assert sorted(one["field"] for one in response.json["details"]) == places
    fewer = {"fields": [{"name": "team", "options": {"choices": ["blue"]}}]}
    response = defined.root.put("attributes/users", fewer)
    assert response.status_code == 409
    assert [one["field"] for one in response.json["details"]] == ["collections.posts.list_rule"]


def test_access_previews_know_attributes(defined: Cast) -> None:
    make_collection(defined.root)
    defined.root.acting_in("acme").post("records/posts", {"title": "Sales"})
    one = f"account/users/{defined.bob.id}"
    assert write(defined.alice, one, department="Sales").status_code == 200
    rule = "title = @request.auth.attributes.department && @account.attributes.industry = null"
    text = f"version: 1\ncollections:\n- {{name: posts, rules: {{list_rule: {rule!r}}}}}\n"
    for industry, lost in ((None, 0), ("x", 1)):
        assert write(defined.alice, "account", industry=industry).status_code == 200
        access = defined.root.post("manifest/plan", {"yaml": text}).json["access"]
        assert sum(one["lost"] for one in access if one["role"] == "viewer") == lost


def claims_of(pair: Any) -> dict[str, Any]:
    """The claims of the access token of a sign-in, but those that every token has."""
    claims = jwt.decode(pair["access_token"], options={"verify_signature": False})
    standard = ("sub", "account_id", "email", "role", "exp", "iat", "iss", "jti", "type")
    others = ("sid", "auth_time", "fresh", "csrf")
    assert claims.keys() >= {*standard, "sid", "auth_time"}
    return {name: value for name, value in claims.items() if name not in (*standard, *others)}


def sign_in(app: Flask, caller: Caller) -> Any:
    body = {"account": "acme", "email": caller.email, "password": PASSWORD}
    response = Caller(app).post("auth/login", body)
    assert response.status_code == 200, response.json
    return response.json


def refreshed(app: Flask, pair: Any) -> Any:
    response = Caller(app).post("auth/refresh", {"refresh_token": pair["refresh_token"]})
    assert response.status_code == 200, response.json
    return response.json


def test_access_tokens_have_attributes_with_a_claim(app: Flask, defined: Cast) -> None:
    claimed = [
        {"name": "department", "claim": "dept"},
        {"name": "level", "claim": "https://acme.example/level"},
        {"name": "tags", "visible_to": "members", "claim": "tags"},
    ]
    define(defined, claimed)
    pair = sign_in(app, defined.bob)
    assert claims_of(pair) == {}
    one = f"account/users/{defined.bob.id}"
    values = {"department": "Sales", "level": 2, "tags": ["a"], "phone": "1"}
    assert write(defined.alice, one, **values).status_code == 200
    pair = refreshed(app, pair)
    expected = {"dept": "Sales", "https://acme.example/level": 2, "tags": ["a"]}
    assert claims_of(pair) == expected
    assert claims_of(sign_in(app, defined.bob)) == expected
    bearer = {"Authorization": f"Bearer {pair['access_token']}"}
    me = Caller(app, **bearer).get("auth/me").json
    assert (me["id"], me["role"]) == (defined.bob.id, "viewer")
    assert write(defined.alice, one, department="Café" * 500, tags=None).status_code == 200
    pair = refreshed(app, pair)
    assert claims_of(pair) == {"https://acme.example/level": 2, "attributes_truncated": True}
    define(defined, [{"name": "level", "claim": None}])
    assert claims_of(refreshed(app, pair)) == {"attributes_truncated": True}


def test_claims_of_attributes_are_no_other_claims(defined: Cast) -> None:
    def refused(*fields: Any) -> list[tuple[str, str]]:
        response = defined.root.put("attributes/users", {"fields": fields})
        assert response.status_code == 400, response.json
        return codes(response)

    for name in ("sub", "role", "account_id", "exp", "aud", "groups", "plan", "mfa", "type"):
        assert refused({"name": "department", "claim": name}) == [("department", "name_reserved")]
    assert refused({"name": "since", "claim": "since"}) == [("since", "invalid_option")]
    twice = [{"name": name, "claim": "x"} for name in ("department", "level")]
    assert refused(*twice) == [("department", "name_duplicate"), ("level", "name_duplicate")]


def test_nobody_filters_by_attributes_that_they_do_not_see(defined: Cast) -> None:
    make_collection(defined.root, list_rule="1 = 1", create_rule="1 = 1")
    assert defined.bob.post("records/posts", {"title": "x"}).status_code == 201
    write(defined.root, f"users/{defined.bob.id}", risk="high", department="Sales", plan="pro")
    write(defined.root, f"accounts/{defined.bob.account_id}", score=3, plan_code="pro")
    own, account = "@request.auth.attributes", "@account.attributes"
    seen = {f"{own}.plan = 'pro'": "bob alice", f"{account}.plan_code = 'pro'": "alice"}
    hidden = {f"{own}.risk = 'high'": "", f"{account}.score = 3": ""}
    for text, callers in {**seen, **hidden}.items():
        for name in ("bob", "alice", "root"):
            caller: Caller = getattr(defined, name)
            caller = caller.acting_in("acme") if name == "root" else caller
            answer = caller.get("records/posts", query_string={"filter": text})
            expected = 200 if name == "root" or name in callers else 400
            assert answer.status_code == expected, (name, text, answer.json)
    body = {"url": "https://hooks.example.com/w", "collection": "posts", "events": ["create"]}
    for text in (*seen, *hidden):
        made = defined.alice.post("webhooks", {**body, "filter": text})
        trigger = {"type": "event", "collection": "posts", "event": "create", "condition": text}
        flow = {"name": "flow", "trigger": trigger, "steps": [STEP]}
        started = defined.alice.post("workflows", flow)
        if text in seen:
            assert (made.status_code, started.status_code) == (201, 201), started.json
        else:
            assert codes(made) == [("filter", "filter_invalid")]
            assert codes(started) == [("trigger.condition", "expression_invalid")]


def test_stored_filters_do_not_read_attributes_that_became_hidden(defined: Cast) -> None:
    make_collection(defined.root, create_rule="1 = 1", list_rule="1 = 1")
    text, others = f"{OWN}.team = 'red'", f"{OWN}.team != 'red'"
    body = {"url": "https://hooks.example.com/w", "collection": "posts", "events": ["create"]}
    hooks = [defined.alice.post("webhooks", {**body, "filter": one}).json for one in (text, others)]
    flows = dict[str, int]()
    for number, one in enumerate((text, others)):
        trigger = {"type": "event", "collection": "posts", "event": "create", "condition": one}
        flow = {"name": f"flow {number}", "trigger": trigger, "steps": [STEP]}
        flows[defined.alice.post("workflows", flow).json["id"]] = number

    def told(team: str | None) -> tuple[list[int], list[int]]:
        """The numbers of deliveries, and the workflows that ran, for what a member creates."""
        assert write(defined.root, f"users/{defined.bob.id}", team=team).status_code == 200
        before = [deliveries(hook) for hook in hooks]
        ran = {one["id"] for one in instances()}
        assert defined.bob.post("records/posts", {"title": "x"}).status_code == 201
        after = [deliveries(hook) - count for hook, count in zip(hooks, before, strict=True)]
        return after, [flows[one["workflow_id"]] for one in instances() if one["id"] not in ran]

    def deliveries(hook: Any) -> int:
        return len(defined.alice.get(f"webhooks/{hook['id']}/deliveries").json["items"])

    def instances() -> list[Any]:
        return list(defined.alice.get("workflow-instances").json["items"])

    assert (told("red"), told("blue")) == (([1, 0], [0]), ([0, 1], [1]))
    hidden = {"name": "team", "visible_to": "superadmin", "writable_by": "superadmin"}
    define(defined, [hidden])
    assert told("red") == told("blue") == told(None)
    listed = defined.alice.get("records/posts", query_string={"filter": text})
    assert listed.status_code == 400
