"""Plans: quotas and flags of accounts, in rules and everywhere that names them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from tests.builders import Cast, make_collection, make_record
from tests.sql import statements

pytestmark = pytest.mark.both_databases
PLANS: dict[str, Any] = {
    "free": {"quotas": {"records": {"hard": 2}}, "flags": []},
    "pro": {"quotas": {"records": {"soft": 5, "hard": 10}}, "flags": ["exports", "sla"]},
}
PRO, SLA = "@account.plan = 'pro'", "@flag(sla)"


@pytest.fixture
def planned(cast: Cast) -> Cast:
    assert cast.root.put("plans", PLANS).json == PLANS
    return cast


def give(cast: Cast, slug: str = "acme", **terms: Any) -> Any:
    """Give an account a plan or overrides."""
    ids = {"acme": cast.alice.account_id, "globex": cast.charlie.account_id}
    return cast.root.patch(f"accounts/{ids[slug]}", terms)


def codes(response: Any) -> list[tuple[str, str]]:
    assert response.status_code == 400, response.json
    return [(one["field"], one["code"]) for one in response.json["details"]]


def places(response: Any) -> list[str]:
    assert response.status_code == 409, response.json
    return sorted(one["field"] for one in response.json["details"])


def test_plans_are_replaced_merged_and_removed(planned: Cast) -> None:
    root = planned.root
    assert root.get("plans").json == PLANS
    changed = root.patch("plans", {"free": {"flags": ["trial"]}, "big": {}})
    assert changed.json == {
        "big": {"quotas": {}, "flags": []},
        "free": {**PLANS["free"], "flags": ["trial"]},
        "pro": PLANS["pro"],
    }
    assert root.patch("plans", {"big": {"removed": True}}).json.keys() == {"free", "pro"}
    assert root.put("plans", {"pro": {"flags": ["sla"]}}).json == {
        "pro": {"quotas": {}, "flags": ["sla"]}
    }
    assert root.put("plans", {}).json == {}


def test_plans_are_for_superadmins(planned: Cast) -> None:
    for caller in (planned.alice, planned.bob):
        for response in (caller.get("plans"), caller.put("plans", {}), caller.patch("plans", {})):
            assert response.status_code == 403
    own = f"accounts/{planned.alice.account_id}"
    assert planned.alice.patch(own, {"plan": "pro"}).status_code == 403
    assert planned.alice.patch("account", {"plan": "pro"}).status_code == 422


def test_plans_that_are_wrong_are_refused_with_all_problems(planned: Cast) -> None:
    wrong = {
        "2": {},
        "removed": {},
        "x": {"flags": ["a b", "ok"], "quotas": {"records": {"soft": 3, "hard": 2}}},
    }
    assert codes(planned.root.put("plans", wrong)) == [
        ("2", "name_invalid"),
        ("removed", "name_invalid"),
        ("x.quotas.records", "invalid_quota"),
        ("x.flags[0]", "name_invalid"),
    ]
    fields = [one for one, _ in codes(planned.root.put("plans", {"x": {"flag": 1}, "y": []}))]
    assert fields == ["x.flag", "y"]
    assert planned.root.get("plans").json == PLANS


def test_account_has_terms_by_plan_and_overrides(planned: Cast) -> None:
    shown = give(planned, plan="pro").json
    assert (shown["plan"], shown["flags"]) == ("pro", ["exports", "sla"])
    assert shown["quotas"]["records"] == {"soft": 5, "hard": 10}
    assert shown["overrides"] == {"quotas": {}, "flags": {}}
    overrides = {"quotas": {"records": {"hard": 7}}, "flags": {"sla": False}}
    shown = give(planned, overrides=overrides).json
    assert (shown["flags"], shown["overrides"]) == (["exports"], overrides)
    assert shown["quotas"]["records"] == {"soft": None, "hard": 7}
    own = planned.alice.get("account").json
    for_operators = {"overrides", "template", "template_version"}
    assert own == own | {name: shown[name] for name in shown if name not in for_operators}
    assert not for_operators & own.keys()
    assert own["plan"] == "pro"
    assert own["flags"] == ["exports"]
    shown = give(planned, plan=None, overrides={"flags": {"sla": True}}).json
    assert (shown["plan"], shown["flags"]) == (None, ["sla"])
    none: dict[str, Any] = {"quotas": {"records": None}, "flags": {"sla": None}}
    shown = give(planned, overrides=none).json
    assert (shown["flags"], shown["quotas"]) == ([], {})
    assert shown["overrides"] == {"quotas": {}, "flags": {}}


def test_unknown_plans_and_flags_of_accounts_are_refused(planned: Cast) -> None:
    limits = {"records": {"soft": 2, "hard": 1}}
    wrong = give(planned, plan="x", overrides={"flags": {"y": True}, "quotas": limits})
    assert codes(wrong) == [
        ("plan", "unknown_plan"),
        ("overrides.flags.y", "unknown_flag"),
        ("overrides.quotas.records", "invalid_quota"),
    ]
    system = "accounts/00000000-0000-0000-0000-000000000000"
    assert planned.root.patch(system, {"plan": "pro"}).status_code == 409


@pytest.mark.parametrize("rule", [PRO, SLA, f"{SLA} && title != ''"])
def test_rules_know_plan_and_flags_on_the_next_request(planned: Cast, rule: str) -> None:
    planned.root.patch("plans", {"free": {"quotas": {}}})
    make_collection(planned.root, list_rule=rule, view_rule=rule, create_rule=rule)
    id = make_record(planned.root.acting_in("acme"))["id"]
    passing = {"plan": "pro", "overrides": {"flags": {"sla": None}}}
    no_flag = {"overrides": {"flags": {"sla": False}}}
    for terms, by_plan, by_flag in (
        ({"plan": None}, False, False),
        (passing, True, True),
        (no_flag, True, False),
        (passing, True, True),
        ({"plan": "free"}, False, False),
        ({"overrides": {"flags": {"sla": True}}}, False, True),
        ({"overrides": {"flags": {"sla": None}}}, False, False),
    ):
        assert give(planned, **terms).status_code == 200
        expected = by_plan if rule == PRO else by_flag
        listed = planned.bob.get("records/posts")
        assert bool(listed.status_code == 200 and listed.json["items"]) is expected, terms
        assert (planned.bob.get(f"records/posts/{id}").status_code == 200) is expected
        made = planned.bob.post("records/posts", {"title": "x"}).status_code
        assert made == (201 if expected else 403)
        assert planned.charlie.post("records/posts", {"title": "x"}).status_code == 403


def test_changed_plan_holds_on_the_next_request_of_its_accounts(planned: Cast) -> None:
    make_collection(planned.root, create_rule=SLA)
    give(planned, plan="free")
    body = {"title": "x"}
    for flags, status in ((["sla"], 201), ([], 403), (["sla"], 201)):
        assert planned.root.patch("plans", {"free": {"flags": flags}}).status_code == 200
        assert planned.bob.post("records/posts", body).status_code == status
    assert planned.bob.post("records/posts", body).status_code == 429
    planned.root.patch("plans", {"free": {"quotas": {"records": {"hard": 3}}}})
    assert planned.bob.post("records/posts", body).status_code == 201
    assert planned.bob.post("records/posts", body).status_code == 429


def test_process_with_a_warm_cache_obeys_what_another_stores(app: Flask, planned: Cast) -> None:
    make_collection(planned.root, create_rule=SLA)
    give(planned, plan="free")
    assert planned.bob.post("records/posts", {"title": "x"}).status_code == 403
    stored = {"free": {"quotas": {}, "flags": ["sla"]}}
    with app.app_context(), db.transaction() as session:
        text = sa.text("UPDATE instance_settings SET value = :value WHERE id = 'plans'")
        typed = text.bindparams(sa.bindparam("value", type_=sa.JSON))
        session.execute(typed, {"value": stored})
        session.execute(
            sa.text("UPDATE accounts SET version = version + 1 WHERE id = :id"),
            {"id": planned.bob.account_id},
        )
    assert planned.bob.post("records/posts", {"title": "x"}).status_code == 201


def test_downgrade_under_load_lets_nothing_beyond_the_new_limit(planned: Cast) -> None:
    make_collection(planned.root)
    give(planned, plan="pro")
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(planned.bob.post, "records/posts", {"title": "x"}) for _ in range(12)]
        assert give(planned, plan="free").status_code == 200
        # Asked for after the answer: none of them is beyond the limit of the plan that holds now.
        later = [pool.submit(planned.bob.post, "records/posts", {"title": "y"}) for _ in range(12)]
        before = sum(one.result().status_code == 201 for one in made)
        after = sum(one.result().status_code == 201 for one in later)
    assert after <= max(0, 2 - before) + 4, "each process lets as many more as run at once"
    total = planned.root.acting_in("acme").get("records/posts").json["total"]
    assert total == before + after <= 10 + 4
    assert planned.bob.post("records/posts", {"title": "z"}).status_code == 429


@pytest.mark.parametrize(
    ("rule", "code", "position"),
    [
        ("title = 'a' || @account.plan = 'gold'", "unknown_plan", 31),
        ("@account.plan IN ['pro', 'gold']", "unknown_plan", 25),
        ("1 = 1 && @flag(nothing)", "unknown_flag", 15),
        ("@flag('no such')", "unknown_flag", 6),
        ("@account.plans = 'pro'", "rule_invalid", 0),
        ("@flag(sla, exports)", "rule_invalid", 0),
        ("@request.auth.plan = 'pro'", "rule_invalid", 0),
    ],
)
def test_names_of_plans_and_flags_are_checked_wherever_they_stand(
    planned: Cast, rule: str, code: str, position: int
) -> None:
    make_collection(planned.root)
    expected = (code, position)
    [one] = planned.root.put("collections/posts/rules", {"list_rule": rule}).json["details"]
    assert (one["code"], one["position"], one["field"]) == (*expected, "list_rule")
    if code == "rule_invalid":
        return
    fragment = planned.root.put("rules/fragments", {"paid": rule.replace("title", "id")})
    where = planned.root.put("directory/settings", {"rule": rule.replace("title = 'a'", "1 = 2")})
    event = {"type": "event", "event": "records.create", "collection": "posts"}
    hook: dict[str, Any] = {"name": "h", "trigger": event}
    hook |= {"condition": rule, "actions": []}
    webhook = {"url": "http://127.0.0.1:9/", "collection": "posts", "events": ["create"]}
    made = planned.alice.post("webhooks", {**webhook, "filter": rule})
    for response in (fragment, where, planned.alice.post("hooks", hook), made):
        assert code in [detail["code"] for detail in response.json["details"]], response.json
    schema = [{"name": "title", "type": "text"}, {"name": "fee", "type": "text"}]
    schema[1]["readable_if"] = rule.replace("title = 'a'", "1 = 2")
    answer = planned.root.post("collections", {"name": "more", "schema": schema})
    assert code in [detail["code"] for detail in answer.json["details"]]


def test_named_plans_and_flags_are_kept_and_renames_are_followed(planned: Cast) -> None:
    root, alice = planned.root, planned.alice
    assert root.put("rules/fragments", {"paid": f"{PRO} || {SLA}"}).status_code == 200
    make_collection(root, list_rule=PRO, view_rule="@rule(paid)")
    webhook = {"url": "http://127.0.0.1:9/", "collection": "posts", "events": ["create"]}
    made = alice.post("webhooks", {**webhook, "filter": f"{PRO} && {SLA}"}).json["id"]
    give(planned, plan="pro", overrides={"flags": {"exports": True}})
    named = ["accounts.acme.plan", "collections.posts.list_rule", "fragments.paid"]
    assert places(root.patch("plans", {"pro": {"removed": True}})) == sorted(
        [*named, f"webhooks[{made}].filter"]
    )
    assert places(root.put("plans", {"free": {}})) == sorted([*named, f"webhooks[{made}].filter"])
    assert places(root.patch("plans", {"pro": {"flags": ["exports"]}})) == sorted(
        ["fragments.paid", f"webhooks[{made}].filter"]
    )
    assert places(root.patch("plans", {"pro": {"flags": ["sla"]}})) == [
        "accounts.acme.overrides.flags.exports"
    ]
    assert root.get("plans").json == PLANS
    renamed = root.patch("plans", {"gold": {"rename_from": "pro"}})
    assert renamed.json == {"free": PLANS["free"], "gold": PLANS["pro"]}
    gold = PRO.replace("pro", "gold")
    assert root.get("collections/posts/rules").json["list_rule"] == gold
    assert root.get("rules/fragments").json == {"paid": f"{gold} || {SLA}"}
    assert alice.get(f"webhooks/{made}").json["filter"] == f"{gold} && {SLA}"
    assert alice.get("account").json["plan"] == "gold"
    root.acting_in("acme").post("records/posts", {"title": "x"})
    assert planned.bob.get("records/posts").json["total"] == 1
    stuck = {"list_rule": "concat(@account.plan, '') = 'gold'"}
    assert root.put("collections/posts/rules", stuck).status_code == 200
    answer = root.patch("plans", {"best": {"rename_from": "gold"}})
    assert places(answer) == ["collections.posts.list_rule"]


def test_rights_of_fields_and_filters_know_plan_and_flags(planned: Cast) -> None:
    schema: list[dict[str, Any]] = [{"name": "title", "type": "text"}]
    schema.append({"name": "fee", "type": "number", "readable_if": SLA, "writable_if": PRO})
    make_collection(planned.root, schema=schema)
    make_record(planned.root.acting_in("acme"), fee=3)
    assert "fee" not in planned.bob.get("records/posts").json["items"][0]
    give(planned, overrides={"flags": {"sla": True}})
    [record] = planned.bob.get("records/posts").json["items"]
    assert record["fee"] == 3
    one = f"records/posts/{record['id']}"
    assert codes(planned.bob.patch(one, {"fee": 4})) == [("fee", "field_read_only")]
    give(planned, plan="pro")
    assert planned.bob.patch(one, {"fee": 4}).status_code == 200
    for filter, total in ((PRO, 1), (f"!{SLA}", 0), (f"{SLA} && fee = 4", 1)):
        answer = planned.bob.get("records/posts", query_string={"filter": filter})
        assert answer.json["total"] == total, answer.json
    for filter, code in (("@flag(x)", "unknown_flag"), ("@account.plan = 'x'", "unknown_plan")):
        answer = planned.bob.get("records/posts", query_string={"filter": filter})
        assert codes(answer) == [("filter", code)]


def test_explain_test_and_diff_know_plan_and_flags(planned: Cast) -> None:
    root = planned.root
    make_collection(root, view_rule=f"{PRO} && {SLA}", list_rule="")
    make_record(root.acting_in("acme"))
    for auth, expected in (({"plan": "pro"}, False), ({"plan": "pro", "flags": ["sla"]}, True)):
        body = {"rule": f"{PRO} && {SLA}", "record": {}, "auth": auth}
        assert root.post("rules/test", body).json["allowed"] is expected
    asked = {"operation": "view", "user_id": planned.bob.id}
    told = root.post("collections/posts/rules/explain", asked).json
    assert (told["allowed"], told["clause"]["values"]) == (False, {"@account.plan": None})
    give(planned, plan="pro", overrides={"flags": {"sla": False}})
    told = root.post("collections/posts/rules/explain", asked).json
    assert (told["allowed"], told["clause"]["text"]) == (False, "@flag(sla)")
    made_up = {"operation": "view", "auth": {"account_id": planned.bob.account_id}}
    assert (
        root.post("collections/posts/rules/explain", made_up).json["clause"]["text"] == "@flag(sla)"
    )
    for terms, lost in (({}, 1), ({"overrides": {"flags": {"sla": None}}}, 0), ({"plan": None}, 1)):
        give(planned, **terms)
        diff = root.post("collections/posts/rules/diff", {"rules": {"list_rule": SLA}}).json
        counts = {
            one["role"]: one["lost"]["count"] for one in diff["items"] if one["operation"] == "list"
        }
        assert (counts["viewer"], counts["anonymous"]) == (lost, lost), terms
        made = root.post("collections/posts/rules/diff", {"rules": {"view_rule": PRO}}).json
        gained = {
            one["role"]: one["gained"]["count"]
            for one in made["items"]
            if one["operation"] == "view"
        }
        assert gained["viewer"] == int(lost and not terms), terms


def test_workflows_and_webhooks_know_plan_and_flags(planned: Cast) -> None:
    planned.root.patch("plans", {"free": {"quotas": {}}})
    make_collection(planned.root)
    trigger = {"type": "event", "event": "records.create", "collection": "posts"}
    trigger["condition"] = f"{PRO} && {SLA}"
    steps = [{"name": "wait", "type": "wait_delay", "duration": "1h"}]
    body = {"name": "w", "trigger": trigger, "steps": steps}
    answer = planned.alice.post("workflows", body)
    assert answer.status_code == 201, answer.json
    instances = f"workflows/{answer.json['id']}/instances"
    for terms, total in (({"plan": None}, 0), ({"plan": "pro"}, 1), ({"plan": "free"}, 1)):
        give(planned, **terms)
        make_record(planned.bob)
        assert planned.alice.get(instances).json["total"] == total


MANIFEST = """
version: 1
plans:
  gold: {rename_from: pro, flags: [sla, exports, api]}
  team: {quotas: {records: {hard: 5}}, flags: []}
collections:
- name: posts
  rules: {list_rule: "@account.plan = 'gold' && @flag(api)"}
  tests:
  - {operation: list, as: {role: viewer, plan: gold, flags: [api]}, expect: allow}
  - {operation: list, as: {role: viewer, plan: gold}, expect: deny}
"""


def test_manifest_changes_plans_and_shows_their_effect(planned: Cast) -> None:
    root = planned.root
    make_collection(root, list_rule="true", view_rule=SLA)
    make_record(root.acting_in("acme"))
    give(planned, plan="pro")
    plan = root.post("manifest/plan", {"yaml": MANIFEST}).json
    assert plan["problems"] == []
    assert all(one["passed"] for one in plan["tests"])
    changed = {one["kind"]: one for one in plan["operations"]}["plans"]
    assert [one["property"] for one in changed["changes"]][:2] == ["gold", "team"]
    changed = {"collection": "posts", "operation": "list", "gained": 1, "lost": 0}
    assert plan["access"] == [{**changed, "role": "anonymous"}]
    applied = root.post("manifest/apply", {"yaml": MANIFEST, "plan_hash": plan["plan_hash"]})
    assert applied.status_code == 200, applied.json
    assert root.get("plans").json.keys() == {"free", "gold", "team"}
    assert planned.alice.get("account").json["plan"] == "gold"
    assert planned.bob.get("records/posts").json["total"] == 1
    again = root.post("manifest/plan", {"yaml": MANIFEST}).json
    assert not again["has_changes"]
    without = "version: 1\nplans:\n  gold: {flags: [exports, api]}\n"
    plan = root.post("manifest/plan", {"yaml": without}).json
    assert [(one["field"], one["code"]) for one in plan["problems"]] == [("plans", "conflict")]
    free = "version: 1\nplans: {free: {removed: true}, team: {flags: [sla]}}\n"
    plan = root.post("manifest/plan", {"yaml": free}).json
    assert plan["reverse"]["plans"] == {
        "free": PLANS["free"],
        "team": {"quotas": {"records": {"hard": 5}}, "flags": []},
    }
    exported = root.get("manifest/export").json
    assert exported["plans"].keys() == {"free", "gold", "team"}


def test_plan_that_takes_a_flag_shows_whom_it_shuts_out(planned: Cast) -> None:
    make_collection(planned.root, list_rule=SLA, view_rule="true")
    make_record(planned.root.acting_in("acme"))
    give(planned, plan="pro")
    text = "version: 1\nplans: {pro: {flags: [exports]}, free: {flags: [sla]}}\n"
    access = planned.root.post("manifest/plan", {"yaml": text}).json["access"]
    assert {(one["role"], one["operation"], one["lost"]) for one in access} >= {
        ("viewer", "list", 1),
        ("anonymous", "list", 1),
    }


def test_plans_are_audited_and_their_change_reads_no_more(app: Flask, planned: Cast) -> None:
    make_collection(planned.root, list_rule="true")
    give(planned, plan="pro", overrides={"flags": {"sla": False}})
    entries = planned.root.acting_in("acme").get("audit-logs?table_name=accounts").json["items"]
    values = {(one["column_name"], one["new_value"]) for one in entries}
    assert ("plan", "pro") in values
    assert ("flags", '{"sla":false}') in values
    planned.bob.get("records/posts")
    with statements(app) as sent:
        assert planned.bob.get("records/posts").status_code == 200
    assert not [one for one in sent if "instance_settings" in one]
