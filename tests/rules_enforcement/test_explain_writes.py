"""What `rules/explain` says of a write, beside the same write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.builders import Caller, Cast, make_collection, make_record

pytestmark = pytest.mark.one_database
FULL = "*" * 8
SCHEMA: list[dict[str, Any]] = [
    {"name": "p", "type": "text", "pii": True},
    {"name": "x", "type": "number"},
    {"name": "locked", "type": "text"},
    {"name": "team", "type": "reference", "collection": "teams"},
]
OPEN = [one["name"] for one in SCHEMA if one["name"] != "locked"]
NOWHERE = "019a9f00-0000-7000-8000-000000000001"


@dataclass
class Posts:
    """A record of acme, and who writes it: nobody, a viewer, and one who sees personal data."""

    cast: Cast
    nobody: Caller
    record: dict[str, Any]
    team: str

    @property
    def auths(self) -> list[tuple[Caller, dict[str, Any]]]:
        """Callers, and how they are told of."""
        bob, home = self.cast.bob, self.cast.bob.account_id
        made_up = {"id": bob.id, "account_id": home, "role": "viewer"}
        knowing = {"id": self.cast.alice.id, "account_id": home, "groups": ["pii_access"]}
        return [
            (bob, {"user_id": bob.id}),
            (bob, {"auth": made_up}),
            (self.nobody, {"auth": {"account_id": home}}),
            (self.cast.alice, {"user_id": self.cast.alice.id}),
            (self.cast.alice, {"auth": knowing}),
        ]

    def rule(self, **rules: Any) -> None:
        """Set rules; viewing is open."""
        saved = self.cast.root.put("collections/posts/rules", {"view_rule": "", **rules})
        assert saved.status_code == 200, saved.json

    def explain(self, operation: str, **asked: Any) -> Any:
        """What is answered to a question about the record."""
        if operation != "create":
            asked = {"record_id": self.record["id"], **asked}
        asked["operation"] = operation
        return self.cast.root.post("collections/posts/rules/explain", asked)

    def write(self, caller: Caller, operation: str, data: dict[str, Any]) -> Any:
        """Really do it."""
        if operation == "create":
            return caller.post("records/posts", data)
        return caller.patch(f"records/posts/{self.record['id']}", data)


@pytest.fixture
def posts(cast: Cast, anyone: Caller) -> Posts:
    make_collection(cast.root, "teams", [{"name": "name", "type": "text"}])
    make_collection(cast.root, schema=SCHEMA, create_fields=OPEN, update_fields=OPEN)
    team = make_record(cast.alice, "teams", name="red")["id"]
    record = make_record(cast.alice, p="secret", x=1)
    return Posts(cast, anyone.acting_in("acme"), record, team)


def test_rules_explain_treats_masked_value_as_unchanged(posts: Posts) -> None:
    posts.rule(update_rule="p = 'secret'")
    for caller, auth in posts.auths:
        for shown, allowed in ((FULL, caller is not posts.cast.alice), ("other", False)):
            sent = {"p": shown, "x": 2}
            told = posts.explain("update", **auth, data=sent).json
            assert told["allowed"] is allowed, (auth, shown, told)
            answer = posts.write(caller, "update", sent)
            assert (answer.status_code == 200) is allowed, (auth, shown, answer.json)


def test_rules_explain_reports_invalid_data_where_a_write_would(posts: Posts) -> None:
    never, here = "@has_role(editor) && x = 1", {"team": posts.team}
    for operation, rule, data, status in (
        ("update", "x = 2", {"x": "many"}, 403),
        ("update", "x = 1", {"x": "many"}, 400),
        ("update", "x = 1", {"x": "many", "locked": "a"}, 403),
        ("update", "x = 1", {"x": 2}, 403),
        ("update", "x = 1", here, 200),
        ("create", never, {"x": "many", "hue": 1}, 403),
        ("create", "x = 2", {"x": "many"}, 400),
        ("create", "x = 2", {"x": "many", "locked": "a"}, 403),
        ("create", "x = 2", {"x": 1}, 403),
        ("create", "team.name = 'red'", here, 201),
    ):
        posts.rule(**{f"{operation}_rule": rule})
        bob = posts.cast.bob
        told = posts.explain(operation, user_id=bob.id, data=data)
        assert posts.write(bob, operation, data).status_code == status, (rule, data)
        assert told.status_code == (400 if status == 400 else 200), (rule, data, told.json)
        assert told.json.get("allowed", status) == (status if status == 400 else status < 300)
    posts.rule(view_rule=None, update_rule="x = 2")
    assert posts.write(bob, "update", {"x": "many"}).status_code == 404
    assert posts.explain("update", user_id=bob.id, data={"x": "many"}).json["allowed"] is False


@pytest.mark.parametrize(
    ("data", "status"),
    [({"x": "many"}, 400), ({"x": "many", "locked": "a"}, 403), ({"hue": 1}, 400), ({"x": 2}, 200)],
)
@pytest.mark.parametrize("operation", ["create", "update"])
@pytest.mark.parametrize("rule", ["", "true", None])
def test_rules_explain_reports_invalid_data_under_open_rule(
    posts: Posts, rule: str | None, operation: str, data: dict[str, Any], status: int
) -> None:
    posts.rule(**{f"{operation}_rule": rule})
    bob, status = posts.cast.bob, 403 if rule is None else status
    told = posts.explain(operation, user_id=bob.id, data=data)
    answer = posts.write(bob, operation, data)
    assert answer.status_code in (status, 201 if status == 200 else status), answer.json
    assert told.status_code == (400 if status == 400 else 200), told.json
    if status == 400:
        wrong = [(f"data.{one['field']}", one["code"]) for one in answer.json["details"]]
        assert [(one["field"], one["code"]) for one in told.json["details"]] == wrong
    else:
        assert told.json["allowed"] is (status == 200)


def test_rules_explain_counts_unchanged_values_as_sent(posts: Posts) -> None:
    bob, record = posts.cast.bob, posts.record
    same = ("id", "account_id", "created_at", "created_by")
    rule = " && ".join(f"@request.data.{name} = {name}" for name in same)
    for operation, names in (("update", same), ("create", ["account_id"])):
        own = {name: record[name] for name in names}
        asked = rule if operation == "update" else "@request.data.account_id = account_id"
        posts.rule(**{f"{operation}_rule": asked})
        for sent in (own, {}):
            told = posts.explain(operation, user_id=bob.id, data={**sent, "x": 2}).json
            answer = posts.write(bob, operation, {**sent, "x": 2})
            assert told["allowed"] is bool(sent), (operation, told)
            assert (answer.status_code < 300) is bool(sent), answer.json
            bound = told["parameters"]["_sent_account_id"]
            assert bound == (record["account_id"] if sent else None)
    batch = {"records": [{"id": record["id"], "data": {name: record[name] for name in same}}]}
    assert bob.patch("records/posts/batch", batch).status_code == 200


def test_rules_explain_for_anonymous_caller_uses_acting_account(posts: Posts) -> None:
    home, rule = posts.record["account_id"], "account_id = @request.auth.account_id"
    posts.rule(view_rule=rule, create_rule=rule)
    assert posts.nobody.get(f"records/posts/{posts.record['id']}").status_code == 401
    assert posts.write(posts.nobody, "create", {}).status_code == 401
    for nobody in ({"account_id": home}, {"account_id": home, "id": "", "role": None}):
        for operation, more in (("view", {}), ("create", {"data": {}})):
            told = posts.explain(operation, auth=nobody, **more).json
            assert told["allowed"] is False
            assert told["clause"]["values"]["@request.auth.account_id"] is None
    assert posts.explain("view", auth={"id": "u", "account_id": home}).json["allowed"] is True
    foreign = posts.cast.charlie.account_id
    assert posts.explain("view", auth={"account_id": foreign}).status_code == 404
    owned = {"email": "a@b.example", "role": "admin", "groups": ["g"], "is_superadmin": True}
    refused = posts.explain("view", auth={"account_id": home, **owned})
    assert refused.status_code == 422
    assert {one["loc"][2] for one in refused.json["detail"]} == owned.keys()


def test_rules_explain_of_create_needs_account_only_when_rule_does(posts: Posts) -> None:
    home, data = posts.record["account_id"], {"team": posts.team}
    for rule in ("team.name = 'red'", "account_id != null", "@has_role(viewer) || team.name = 'x'"):
        posts.rule(create_rule=rule)
        for auth, code in (
            ({"auth": {"id": "u"}}, "required"),
            ({}, "required"),
            ({"auth": {"id": "u", "account_id": NOWHERE}}, "invalid_reference"),
        ):
            answer = posts.explain("create", **auth, data=data)
            assert answer.status_code == 400, (rule, auth, answer.json)
            assert [(one["field"], one["code"]) for one in answer.json["details"]] == [
                ("auth.account_id", code)
            ]
            assert posts.explain("create", **auth).json["allowed"] is None
        viewer = {"id": "u", "role": "viewer"}
        settled = posts.explain("create", auth=viewer, data=data)
        assert settled.status_code == (200 if "viewer" in rule else 400), settled.json
        told = posts.explain("create", auth={**viewer, "account_id": home}, data=data).json
        assert told["allowed"] is True, (rule, told)
