"""Roles and groups renamed and deleted: whatever names them follows, or refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.accounts.test_groups import make_group
from tests.accounts.test_roles import make_role
from tests.builders import Caller, Cast, make_collection, make_record
from tests.manifest.manifests import applied, planned
from tests.webhooks.delivering import make_webhook
from tests.workflows.running import action, create, instance, make_workflow, work

pytestmark = pytest.mark.both_databases
RULES = {
    "list_rule": "@has_any_role([ editor, lead, 'admin' ])",
    "view_rule": "!@has_role('lead') || title = 'lead' || (lead) = \"lead\"",
    "create_rule": "owner.role IN ['lead', title]",
    "update_rule": '"lead" != @request.auth.role',
    "delete_rule": "if(title = 'x', @request.auth.role, 'y') IN [ (\"lead\") , 'z']",
}
FOLLOWED = {
    "list_rule": "@has_any_role([ editor, \"team 'lead'\", 'admin' ])",
    "view_rule": "!@has_role('team \\'lead\\'') || title = 'lead' || (lead) = \"lead\"",
    "create_rule": "owner.role IN ['team \\'lead\\'', title]",
    "update_rule": "\"team 'lead'\" != @request.auth.role",
    "delete_rule": "if(title = 'x', @request.auth.role, 'y') IN [ (\"team 'lead'\") , 'z']",
}
SCHEMA = [
    {"name": "title", "type": "text"},
    {"name": "lead", "type": "text"},
    {"name": "owner", "type": "user"},
]
EVENT = {"type": "event", "event": "records.create", "collection": "posts"}
AWAIT = {"name": "wait", "type": "wait_event", "event": "records.update", "collection": "posts"}
FILTER = "title = '{{ trigger.lead }}' && @has_role(lead)"
STEPS = [
    AWAIT | {"condition": "@has_role(lead) && title = 'never'", "timeout": "1h"},
    action("query", "query_records", collection="posts", filter=FILTER),
]


@pytest.fixture
def lead(cast: Cast) -> dict[str, Any]:
    """A role that is named everywhere."""
    role = make_role(cast.root, "lead")
    make_collection(cast.root, schema=SCHEMA, **RULES)
    url = "https://example.com/hook"
    role["webhook"] = make_webhook(cast.alice, url, filter="@has_role(lead)")["id"]
    trigger = EVENT | {"condition": "@has_role(lead)"}
    role["workflow"] = make_workflow(cast.alice, STEPS, trigger)["id"]
    hook = {"name": "hook", "trigger": EVENT, "condition": "@has_role(lead)"}
    actions = [{"type": "create_record", "config": {"collection": "posts", "data": {"title": "x"}}}]
    made = cast.alice.post("hooks", hook | {"actions": actions})
    assert made.status_code == 201, made.json
    role["hook"] = made.json["id"]
    settings = {"mfa_roles": ["lead"], "sso_group_roles": [{"group": "lead", "role": "lead"}]}
    assert cast.alice.patch("account", settings).status_code == 200
    domain = cast.alice.post("account/domains", {"domain": "acme.example"})
    assert domain.status_code == 201, domain.json
    role["domain"] = f"account/domains/{domain.json['id']}"
    assert cast.alice.patch(role["domain"], {"auto_join_role": "lead"}).status_code == 200
    return role


def named_in(cast: Cast, role: dict[str, Any]) -> dict[str, Any]:
    """All that names the role, as the API shows it."""
    rules = cast.root.get("collections/posts/rules").json
    workflow = cast.alice.get(f"workflows/{role['workflow']}").json
    account = cast.alice.get("account").json
    return {
        "rules": {key: rules[key] for key in RULES},
        "webhook": cast.alice.get(f"webhooks/{role['webhook']}").json["filter"],
        "trigger": workflow["trigger"]["condition"],
        "wait": workflow["steps"][0]["condition"],
        "filter": workflow["steps"][1]["config"]["filter"],
        "hook": cast.alice.get(f"hooks/{role['hook']}").json["condition"],
        "mfa_roles": account["mfa_roles"],
        "mapping": account["sso_group_roles"],
        "join": cast.alice.get("account/domains").json["items"][0]["auto_join_role"],
    }


def test_role_rename_updates_rules_webhooks_and_workflows(cast: Cast, lead: dict[str, Any]) -> None:
    make_record(cast.root.acting_in("acme"), title="x")
    cast.root.patch(f"users/{cast.bob.id}", {"role": "lead"})
    assert cast.bob.get("records/posts").json["total"] == 1
    answer = cast.root.patch(f"roles/{lead['id']}", {"name": "team 'lead'"})
    assert answer.status_code == 200, answer.json
    assert cast.bob.get("records/posts").json["total"] == 1
    found, test = named_in(cast, lead), "@has_role(\"team 'lead'\")"
    assert found == {
        "rules": FOLLOWED,
        "webhook": test,
        "trigger": test,
        "wait": f"{test} && title = 'never'",
        "filter": f"title = '{{{{ trigger.lead }}}}' && {test}",
        "hook": test,
        "mfa_roles": ["team 'lead'"],
        "mapping": [{"group": "lead", "role": "team 'lead'"}],
        "join": "team 'lead'",
    }
    changed = {
        one["table_name"] for one in cast.root.acting_in("acme").get("audit-logs").json["items"]
    }
    assert {"webhooks", "workflows", "accounts", "account_domains"} <= changed
    assert cast.root.patch(f"roles/{lead['id']}", {"name": "lead"}).status_code == 200
    assert named_in(cast, lead)["join"] == "lead"


def test_role_deletion_while_named_in_rules_is_409(cast: Cast, lead: dict[str, Any]) -> None:
    answer = cast.root.delete(f"roles/{lead['id']}")
    assert answer.status_code == 409
    workflow = f"workflows[{lead['workflow']}]"
    assert {one["field"] for one in answer.json["details"]} == {
        *(f"collections.posts.{key}" for key in RULES),
        f"webhooks[{lead['webhook']}].filter",
        f"{workflow}.trigger.condition",
        f"{workflow}.steps.wait.condition",
        f"{workflow}.steps.query.filter",
        f"workflows[{lead['hook']}].condition",
        "accounts.acme.settings.mfa_roles",
        "accounts.acme.settings.sso_group_roles",
        "domains.acme.example.auto_join_role",
    }
    assert cast.root.get(f"roles/{lead['id']}").status_code == 200


def test_role_rename_that_rules_cannot_follow_is_409(cast: Cast) -> None:
    role = make_role(cast.root, "lead")
    make_collection(cast.root, view_rule="upper(@request.auth.role) = 'LEAD' || title = 'lead'")
    answer = cast.root.patch(f"roles/{role['id']}", {"name": "boss"})
    assert (answer.status_code, answer.json["details"][0]["field"]) == (
        409,
        "collections.posts.view_rule",
    )
    long = f"@has_role(lead) || title = '{'x' * 1900}'"
    cast.root.put("collections/posts/rules", {"view_rule": long})
    answer = cast.root.patch(f"roles/{role['id']}", {"name": "b" * 100})
    assert answer.status_code == 409
    assert cast.root.get("collections/posts/rules").json["view_rule"] == long
    assert cast.root.get(f"roles/{role['id']}").json["name"] == "lead"


def test_role_rename_updates_running_workflow_instances(
    app: Any, cast: Cast, lead: dict[str, Any]
) -> None:
    first = cast.alice.post(f"workflows/{lead['workflow']}/trigger", {})
    assert first.status_code == 202, first.json
    work(app)
    id = first.json["instance_id"]
    assert cast.root.patch(f"roles/{lead['id']}", {"name": "boss"}).status_code == 200
    shown = instance(cast.alice, id)
    assert (shown["status"], shown["version"]) == ("waiting", 2)
    workflow = f"workflows/{lead['workflow']}"
    # A version that is left behind names it still, and runs.
    assert cast.alice.patch(workflow, {"steps": [create("made")]}).status_code == 200
    answer = cast.root.patch(f"roles/{lead['id']}", {"name": "chief"})
    assert answer.status_code == 409
    assert f"{workflow.replace('/', '[')}].versions[2]" in answer.json["details"][0]["field"]


GROUP_TEXT = "@has_group(finance)"


def test_group_rename_updates_filters_of_its_own_account_only(cast: Cast) -> None:
    make_collection(cast.root)
    group, other = make_group(cast.alice), make_group(cast.charlie)
    hooks = [
        make_webhook(caller, "https://example.com", filter=GROUP_TEXT)["id"]
        for caller in (cast.alice, cast.charlie)
    ]
    workflow = make_workflow(cast.alice, [create("a")], EVENT | {"condition": GROUP_TEXT})["id"]
    answer = cast.alice.patch(f"groups/{group['id']}", {"name": "money"})
    assert answer.status_code == 200, answer.json
    assert cast.alice.get(f"webhooks/{hooks[0]}").json["filter"] == "@has_group(money)"
    shown = cast.alice.get(f"workflows/{workflow}").json
    assert shown["trigger"]["condition"] == "@has_group(money)"
    assert cast.charlie.get(f"webhooks/{hooks[1]}").json["filter"] == GROUP_TEXT
    refused = cast.alice.delete(f"groups/{group['id']}")
    assert refused.status_code == 409
    assert {one["field"] for one in refused.json["details"]} == {
        f"webhooks[{hooks[0]}].filter",
        f"workflows[{workflow}].trigger.condition",
    }
    assert cast.charlie.delete(f"webhooks/{hooks[1]}").status_code == 204
    assert cast.charlie.delete(f"groups/{other['id']}").status_code == 204


def test_group_rename_while_named_in_service_rules_is_409(cast: Cast) -> None:
    make_collection(cast.root, view_rule=GROUP_TEXT)
    path = f"groups/{make_group(cast.alice)['id']}"
    shown = {cast.alice: "rules of this service", cast.root.acting_in("acme"): POSTS_VIEW}
    for caller, place in shown.items():
        for answer in (caller.patch(path, {"name": "money"}), caller.delete(path)):
            assert answer.status_code == 409, answer.json
            assert [one["field"] for one in answer.json["details"]] == [place]
    assert cast.alice.get(path).json["name"] == "finance"
    assert cast.alice.patch(path, {"description": "x"}).status_code == 200


POSTS_VIEW = "collections.posts.view_rule"
UNKNOWN = [
    ("@has_role(nobody)", "unknown_role", 10),
    ("title = 'a' || @has_any_role([admin, 'nobody'])", "unknown_role", 37),
    ("@request.auth.role IN ['admin', 'Admin']", "unknown_role", 32),
    ("state = 'gone'", "unknown_choice", 8),
    ("'gone' != state", "unknown_choice", 0),
    ("state IN ['open', null, 'gone']", "unknown_choice", 24),
    ("@contains(tags, 'c')", "unknown_choice", 16),
    ("coalesce(state, null) = 'gone'", "unknown_choice", 24),
    ("@request.data.state = 'gone'", "unknown_choice", 22),
    ("parent.state = 'gone'", "unknown_choice", 15),
    ("kind = 'gone'", "unknown_choice", 7),
    ("owner.role = 'nobody'", "unknown_role", 13),
    ("parent.owner.role IN ['admin', 'nobody']", "unknown_role", 31),
]
KNOWN = [
    "@has_role(admin)",
    "state = 'open'",
    "@has_group(none)",
    "title = 'gone'",
    "state = title",
]
CHOICES = [
    {"name": "title", "type": "text"},
    {"name": "kind", "type": "text", "options": {"choices": ["a", "b"]}},
    {"name": "state", "type": "select", "options": {"choices": ["open", "done"]}},
    {"name": "tags", "type": "multi_select", "options": {"choices": ["a", "b"]}},
    {"name": "parent", "type": "reference", "collection": "posts"},
    {"name": "owner", "type": "user"},
]


@pytest.mark.parametrize(("rule", "code", "position"), UNKNOWN)
def test_rule_with_unknown_role_or_choice_is_400(
    root: Caller, rule: str, code: str, position: int
) -> None:
    for answer in (
        root.post("collections", {"name": "posts", "schema": CHOICES, "view_rule": rule}),
        make_collection(root, schema=CHOICES) and root.put(RULES_OF, {"view_rule": rule}),
    ):
        assert answer.status_code == 400, answer.json
        (found,) = answer.json["details"]
        assert (found["field"], found["code"], found["position"]) == ("view_rule", code, position)
    valid = root.post("rules/validate", {"rule": rule, "collection": "posts"}).json
    assert (valid["valid"], valid["details"][0]["code"]) == (False, code)


RULES_OF = "collections/posts/rules"


def test_rule_with_known_role_or_choice_is_accepted(root: Caller) -> None:
    make_collection(root, schema=CHOICES)
    for rule in KNOWN:
        assert root.put(RULES_OF, {"view_rule": rule}).status_code == 200, rule
    answer = root.post("rules/validate", {"rule": "@has_group(none)", "collection": "posts"}).json
    assert (answer["valid"], answer["warnings"][0]["code"]) == (True, "unknown_group")


def test_filters_and_computed_fields_with_unknown_role_or_choice_are_400(cast: Cast) -> None:
    posts = make_collection(cast.root, schema=CHOICES)
    webhook = {"url": "https://example.com", "collection": "posts", "events": ["create"]}
    trigger = EVENT | {"condition": "record.state = 'gone'"}
    waits = [AWAIT | {"condition": "@has_role(nobody)"}]
    query = [action("q", "query_records", collection="posts", filter="state = 'gone'")]
    computed = {"name": "c", "type": "computed", "return_type": "boolean"}
    flow = {"name": "flow", "trigger": EVENT}
    for answer, place, code in (
        (cast.alice.post("webhooks", webhook | {"filter": "state = 'gone'"}), "filter", "choice"),
        (cast.alice.post("webhooks", webhook | {"filter": "@has_role(x)"}), "filter", "role"),
        (
            cast.alice.post("workflows", flow | {"trigger": trigger, "steps": [create("a")]}),
            "trigger.condition",
            "choice",
        ),
        (cast.alice.post("workflows", flow | {"steps": waits}), "steps[0].condition", "role"),
        (cast.alice.post("workflows", flow | {"steps": query}), "steps[0].config.filter", "choice"),
        (
            cast.root.patch(
                f"collections/{posts['id']}",
                {"schema": [computed | {"expression": "state = 'gone'"}]},
            ),
            "c",
            "choice",
        ),
    ):
        assert answer.status_code == 400, answer.json
        (found,) = answer.json["details"]
        assert (found["field"], found["code"]) == (place, f"unknown_{code}")


def test_choice_removal_while_named_in_rules_is_409(cast: Cast) -> None:
    computed = {"name": "is_open", "type": "computed", "return_type": "boolean"}
    schema = [*CHOICES, computed | {"expression": "state = 'open'"}]
    posts = make_collection(cast.root, schema=schema, view_rule="state != 'open'")
    hook = make_webhook(cast.alice, "https://example.com", filter="state = 'open'")["id"]
    trigger = EVENT | {"condition": "record.state = 'open'"}
    flow = make_workflow(cast.alice, [create("a")], trigger)["id"]
    places = {
        "posts.is_open",
        "posts.view_rule",
        f"webhooks[{hook}].filter",
        f"workflows[{flow}].trigger.condition",
    }
    changed = [{"name": "state", "options": {"choices": ["done"]}}]
    url = f"collections/{posts['id']}"
    whole = [one | (changed[0] if one["name"] == "state" else {}) for one in schema]
    plan = cast.root.post(f"{url}/plan", {"schema": whole})
    assert {one["field"] for one in plan.json["problems"]} == places
    answer = cast.root.patch(url, {"schema": changed})
    assert answer.status_code == 409
    assert {one["field"] for one in answer.json["details"]} == places
    cast.alice.delete(f"webhooks/{hook}")
    cast.alice.delete(f"workflows/{flow}")
    body = {"schema": [*changed, computed | {"expression": "state = 'done'"}]}
    answer = cast.root.patch(url, body | {"view_rule": "state = 'done'"})
    assert answer.status_code == 200, answer.json


MANIFEST = """\
    version: 1
    roles: [{name: boss, rename_from: lead}]
    """


def test_manifest_diff_shows_texts_changed_by_role_rename(cast: Cast, lead: dict[str, Any]) -> None:
    make_record(cast.root.acting_in("acme"), title="x")
    cast.root.patch(f"users/{cast.bob.id}", {"role": "lead"})
    plan = planned(cast.root, MANIFEST)
    assert (plan["problems"], plan["access"]) == ([], [])
    (operation,) = plan["operations"]
    shown = {(one["operation"], one["field"], one["property"]) for one in operation["changes"]}
    assert ("change_rule", "collections.posts", "list_rule") in shown
    assert ("change_name", "domains.acme.example", "auto_join_role") in shown
    applied(cast.root, MANIFEST)
    assert cast.bob.get("records/posts").json["total"] == 1
    assert planned(cast.root, MANIFEST)["has_changes"] is False


def test_manifest_role_rename_with_new_rules_applies(cast: Cast) -> None:
    make_role(cast.root, "lead")
    make_collection(cast.root, list_rule="@has_role(lead)", view_rule="@has_role(lead)")
    make_record(cast.root.acting_in("acme"), title="x")
    cast.root.patch(f"users/{cast.bob.id}", {"role": "lead"})
    text = MANIFEST + "collections: [{name: posts, rules: {list_rule: %s}}]\n"
    stale = planned(cast.root, text.replace("    ", "") % "'@has_role(lead)'")
    assert [one["code"] for one in stale["problems"]] == []  # as stored: it follows
    other = planned(cast.root, text.replace("    ", "") % "'@has_role(lead) || false'")
    assert [(one["field"], one["code"]) for one in other["problems"]] == [
        ("collections.posts.rules.list_rule", "unknown_role")
    ]
    new = text.replace("    ", "") % "'@has_role(boss)'"
    plan = planned(cast.root, new)
    assert (plan["problems"], plan["access"]) == ([], [])
    applied(cast.root, new)
    assert cast.bob.get("records/posts").json["total"] == 1
    assert planned(cast.root, new)["has_changes"] is False
    shut = planned(cast.root, "version: 1\ncollections: [{name: posts, rules: {list_rule: null}}]")
    assert {one["role"] for one in shut["access"]} == {"boss"}
