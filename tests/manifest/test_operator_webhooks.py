"""`operator_webhooks` of manifests: found by key, without secrets."""

from __future__ import annotations

import json
from typing import Any

from tests.builders import Caller
from tests.manifest.manifests import applied, exported, planned

URL = "http://127.0.0.1:9/billing"


def manifest(**hooks: Any) -> str:
    """A manifest with these webhooks."""
    return json.dumps({"version": 1, "operator_webhooks": hooks})


def listed(root: Caller) -> list[dict[str, Any]]:
    """The operator's webhooks."""
    found: list[dict[str, Any]] = root.get("operator/webhooks").json["items"]
    return found


def test_webhooks_are_created_changed_and_removed_by_key(root: Caller) -> None:
    billing = {"url": URL, "types": ["account.*"]}
    assert applied(root, manifest(billing=billing))
    (made,) = listed(root)
    assert (made["url"], made["types"], made["is_active"]) == (URL, ["account.*"], True)
    assert planned(root, manifest(billing=billing))["operations"] == []
    shown = exported(root)["operator_webhooks"]
    assert shown == {"billing": {**billing, "collections": [], "is_active": True}}
    assert "secret" not in str(shown)
    changed = {"types": ["records.*"], "collections": ["posts"], "is_active": False}
    assert applied(root, manifest(billing=changed))
    (other,) = listed(root)
    assert (other["id"], other["collections"]) == (made["id"], ["posts"])
    assert applied(root, manifest(billing={"removed": True}))
    assert listed(root) == []
    assert planned(root, manifest(billing={"removed": True}))["operations"] == []


def test_webhook_of_the_api_goes_by_its_id(root: Caller) -> None:
    id = root.post("operator/webhooks", {"url": URL, "types": ["user.*"]}).json["id"]
    assert applied(root, manifest(**{id: {"types": ["plan.changed"]}}))
    assert [(one["id"], one["types"]) for one in listed(root)] == [(id, ["plan.changed"])]


def test_problems_of_webhooks_have_their_place(root: Caller) -> None:
    given = manifest(
        billing={"types": ["user.nothing"]}, other={"url": URL, "types": ["records.*"]}
    )
    problems = planned(root, given)["problems"]
    assert {(one["field"], one["code"]) for one in problems} == {
        ("operator_webhooks.billing.url", "required"),
        ("operator_webhooks.billing.types", "invalid_option"),
        ("operator_webhooks.other.collections", "required"),
    }
