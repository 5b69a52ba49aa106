"""Fragments of rules: used, changed, planned, and kept while rules use them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import OPEN, Caller, Cast, make_collection, make_record
from tests.parallel import at_once

NAME = {"name": "name", "type": "text"}
STAFF = {"staff": "@has_any_role([admin, editor])"}
MEMBERS = [{"name": "user", "type": "text"}, {"name": "level", "type": "text"}]


def put(root: Caller, texts: dict[str, Any], status: int = 200, **query: str) -> Any:
    answer = root.put("rules/fragments", texts, query_string=query)
    assert answer.status_code == status, answer.json
    return answer.json


def make_posts(cast: Cast, rule: str = "@rule(staff)", **rules: Any) -> None:
    make_collection(cast.root, schema=[NAME], **{**OPEN, "list_rule": rule, **rules})
    make_record(cast.alice, name="a")


def count(caller: Caller) -> int:
    answer = caller.get("records/posts")
    return len(answer.json["items"]) if answer.status_code == 200 else -answer.status_code


def test_changed_fragment_acts_at_once_on_every_rule(cast: Cast) -> None:
    put(cast.root, STAFF)
    make_posts(cast)
    make_collection(cast.root, "others", [NAME], **{**OPEN, "view_rule": "!@rule(staff)"})
    other = make_record(cast.alice, "others", name="o")
    url = f"records/others/{other['id']}"
    for _ in range(2):
        assert (count(cast.bob), count(cast.alice)) == (0, 1)
        assert (cast.bob.get(url).status_code, cast.alice.get(url).status_code) == (200, 404)
        put(cast.root, {"staff": "@has_role(viewer)"})
        assert (count(cast.bob), count(cast.alice)) == (1, 0)
        assert (cast.bob.get(url).status_code, cast.alice.get(url).status_code) == (404, 200)
        assert put(cast.root, STAFF) == STAFF == cast.root.get("rules/fragments").json


@pytest.mark.parametrize(
    ("texts", "code", "message"),
    [
        ({"x": "name >"}, "rule_invalid", "Expected a value, found the end."),
        ({"x": "1 + 1"}, "rule_invalid", "Expected a condition, found a number."),
        ({"x": "@rule(staff)"}, "rule_invalid", "@rule cannot be used here."),
        ({"x": "@has_role(nobody_has_this)"}, "unknown_role", "There is no role"),
        ({"x": ""}, "required", "Enter a condition."),
        ({"x": 5}, "required", "Enter a condition."),
        ({"a b": "true"}, "name_invalid", "A fragment's name has letters"),
        ({"staff": "size > 1"}, "rule_invalid", "The fragment staff does not fit here: There is"),
    ],
)
def test_fragment_that_is_no_condition(
    cast: Cast, texts: dict[str, Any], code: str, message: str
) -> None:
    put(cast.root, STAFF)
    make_posts(cast)
    details = put(cast.root, {**STAFF, **texts}, 400)["details"]
    assert [one["code"] for one in details] == [code]
    assert details[0]["message"].startswith(message)
    assert cast.root.get("rules/fragments").json == STAFF


def test_used_fragment_is_not_removed(cast: Cast) -> None:
    put(cast.root, {**STAFF, "unused": "true"})
    make_posts(cast, view_rule="@owns_record() || @rule(staff)")
    refused = put(cast.root, {"unused": "true"}, 409)
    assert [one["field"] for one in refused["details"]] == ["posts.list_rule", "posts.view_rule"]
    assert put(cast.root, STAFF) == STAFF
    rules = {"list_rule": "true", "view_rule": "true"}
    assert cast.root.put("collections/posts/rules", rules).status_code == 200
    assert put(cast.root, {}) == {}


def test_plan_shows_effect_on_each_rule(cast: Cast) -> None:
    put(cast.root, STAFF)
    make_posts(cast, create_rule="@rule(staff)")
    planned = cast.root.post("rules/fragments/plan", {"staff": "@has_role(viewer)"})
    assert planned.status_code == 200, planned.json
    effect = {(one["collection"], one["operation"]): one for one in planned.json["effect"]}
    assert effect.keys() == {("posts", "list"), ("posts", "create")}
    gained = {one["role"]: one["gained"] for one in effect["posts", "list"]["roles"]}
    assert gained == {"admin": 0, "viewer": 1}
    assert count(cast.bob) == 0
    plan_hash = planned.json["plan_hash"]
    stale = put(cast.root, {"staff": "true"}, 409, plan_hash=plan_hash)
    assert stale["error"] == "plan_stale"
    put(cast.root, {"staff": "@has_role(viewer)"}, plan_hash=plan_hash)
    assert count(cast.bob) == 1


def test_fragment_does_not_gain_old_while_a_rule_uses_it(cast: Cast) -> None:
    put(cast.root, {"kept": "name != 'x'", "steady": "!@changed(name)"})
    make_posts(cast, "true", update_rule="@rule(kept) && @rule(steady)")
    for name, text in (("kept", "@old.name != 'x'"), ("steady", "name = 'a'")):
        texts = {"kept": "name != 'x'", "steady": "!@changed(name)", name: text}
        details = put(cast.root, texts, 400)["details"]
        assert [one["field"] for one in details] == [name]
        assert "does not gain or lose @old" in details[0]["message"]
    put(cast.root, {"kept": "name != 'y'", "steady": "!@changed(name)"})
    record = cast.bob.get("records/posts").json["items"][0]
    assert cast.bob.patch(f"records/posts/{record['id']}", {"name": "b"}).status_code == 403
    refused = cast.root.put("collections/posts/rules", {"list_rule": "@rule(steady)"})
    assert "no @changed" in refused.json["details"][0]["message"]


def test_fragment_counts_its_subqueries_and_guards_with_the_rule(cast: Cast) -> None:
    make_collection(cast.root, "members", MEMBERS)
    member = "@any(members, user = @request.auth.id)"
    put(cast.root, {"member": member, "own": "name = @request.auth.id"})
    make_posts(cast, "@rule(member)")
    assert count(cast.bob) == 0
    make_record(cast.root.acting_in("acme"), "members", user=cast.bob.id)
    assert count(cast.bob) == 1
    many = " || ".join(["@rule(member)"] * 6)
    for rules in ({"list_rule": many}, {"update_rule": "@rule(own) && @old.name = 'x'"}):
        refused = cast.root.put("collections/posts/rules", rules)
        assert [one["code"] for one in refused.json["details"]] == ["rule_invalid"]
    collection = cast.root.get("collections/members").json
    refused = cast.root.delete(f"collections/{collection['id']}")
    assert [one["field"] for one in refused.json["details"]] == ["fragments.member"]
    schema = [{**MEMBERS[0], "name": "person", "rename_from": "user"}, MEMBERS[1]]
    refused = cast.root.put(f"collections/{collection['id']}", {"schema": schema})
    assert refused.status_code == 400
    assert "posts.list_rule" in [one["field"] for one in refused.json["details"]]


def test_fragment_follows_rename_of_role(cast: Cast) -> None:
    role = cast.root.post("roles", {"name": "agent"}).json
    put(cast.root, {"staff": "@has_any_role([agent, viewer])"})
    make_posts(cast)
    assert count(cast.bob) == 1
    answer = cast.root.patch(f"roles/{role['id']}", {"name": "helper"})
    assert answer.status_code == 200, answer.json
    expected = {"staff": "@has_any_role([helper, viewer])"}
    assert cast.root.get("rules/fragments").json == expected
    refused = cast.root.delete(f"roles/{role['id']}")
    assert refused.status_code == 409
    assert "fragments.staff" in str(refused.json)
    assert count(cast.bob) == 1
    assert put(cast.root, expected) == expected


def test_only_rules_have_fragments(cast: Cast) -> None:
    put(cast.root, STAFF)
    make_posts(cast, "true")
    answer = cast.bob.get("records/posts", query_string={"filter": "@rule(staff)"})
    assert answer.json["details"][0]["message"] == "@rule cannot be used here."
    unknown = cast.root.put("collections/posts/rules", {"list_rule": "@rule(stuff)"})
    assert unknown.json["details"][0]["message"] == "There is no fragment stuff."
    inside = cast.root.put("collections/posts/rules", {"list_rule": "@any(posts, @rule(staff))"})
    assert inside.json["details"][0]["message"] == "@rule cannot be used in @any and @count."
    for caller in (cast.alice, cast.bob):
        assert caller.get("rules/fragments").status_code == 403
        assert caller.put("rules/fragments", {}).status_code == 403
    told = cast.root.post("rules/validate", {"rule": "@rule(staff)", "collection": "posts"}).json
    assert told["valid"], told
    trial = {"rule": "@rule(staff)", "auth": {"id": "u", "role": "editor"}}
    assert cast.root.post("rules/test", trial).json["result"] is True
    question = {"operation": "view", "user_id": cast.bob.id}
    cast.root.put("collections/posts/rules", {"view_rule": "@rule(staff) || name = 'b'"})
    assert cast.root.post("collections/posts/rules/explain", question).status_code == 200


def manifest(root: Caller, content: dict[str, Any], status: int = 200) -> Any:
    """Plan and apply a manifest; the plan, or the refusal."""
    body = {"manifest": {"version": 1, **content}}
    planned = root.post("manifest/plan", body)
    assert planned.status_code == 200, planned.json
    answer = root.post("manifest/apply", {**body, "plan_hash": planned.json["plan_hash"]})
    assert answer.status_code == status, answer.json
    return planned.json if status == 200 else answer.json


def test_manifest_has_fragments(cast: Cast) -> None:
    put(cast.root, {"old_one": "true"})
    make_posts(cast, "@rule(old_one)")
    rules = {"list_rule": "@rule(staff)"}
    allowed = {"operation": "list", "as": "editor", "expect": "allow"}
    changed = {
        "fragments": {**STAFF, "old_one": None},
        "collections": [{"name": "posts", "rules": rules, "tests": [allowed]}],
    }
    planned = manifest(cast.root, changed)
    actions = [(one["kind"], one["name"], one["action"]) for one in planned["operations"]]
    assert actions == [
        ("fragment", "staff", "create"),
        ("fragment", "old_one", "remove"),
        ("collection", "posts", "update"),
    ]
    assert [one["passed"] for one in planned["tests"]] == [True]
    assert (count(cast.bob), count(cast.alice)) == (0, 1)
    assert cast.root.get("rules/fragments").json == STAFF
    planned = manifest(cast.root, {"fragments": {"staff": "@has_role(viewer)"}})
    access = {(one["role"], one["operation"]): one["gained"] for one in planned["access"]}
    assert access["viewer", "list"] == 1
    assert (count(cast.bob), count(cast.alice)) == (1, 0)
    assert manifest(cast.root, planned["reverse"])["has_changes"]
    assert cast.root.get("rules/fragments").json == STAFF
    assert cast.root.get("manifest/export").json["fragments"] == STAFF
    for texts, code in (
        ({"staff": None}, "in_use"),
        ({"staff": "size > 1"}, "rule_invalid"),
        ({"staff": "@changed(name)"}, "in_use"),
    ):
        refused = manifest(cast.root, {"fragments": texts}, 400)
        assert code in {one["code"] for one in refused["details"]}
    assert (count(cast.bob), count(cast.alice)) == (0, 1)


@pytest.mark.long
def test_fragments_rules_and_roles_change_concurrently_without_deadlock(cast: Cast) -> None:
    role = cast.root.post("roles", {"name": "agent"}).json["id"]
    put(cast.root, {"staff": "@has_role(agent)"})
    for name in ("posts", "others"):
        make_collection(cast.root, name, [NAME], **{**OPEN, "list_rule": "@rule(staff)"})

    def change(number: int) -> set[int]:
        statuses = set()
        for turn in range(12):
            rule = f"@rule(staff) || name = '{turn}' || @has_role(viewer)"
            path, body = (
                ("collections/posts/rules", {"list_rule": rule}),
                ("collections/others/rules", {"view_rule": rule}),
                ("rules/fragments", {"staff": f"@has_role(viewer) || name = '{turn}'"}),
                (f"roles/{role}", {"name": f"agent{turn}"}),
            )[number]
            method = "PATCH" if path.startswith("roles") else "PUT"
            statuses.add(cast.root(method, path, body).status_code)
        return statuses

    assert at_once(4, change) == [{200}] * 4
    assert cast.root.get("rules/fragments").json["staff"] == "@has_role(viewer) || name = '11'"
