"""The log shows a payload to whose view it is, and to who may view all of the collection."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from flask import Flask

from tests.builders import ADMIN, OPEN, Caller, Cast, make_collection, make_user
from tests.console.browser import Browser
from tests.mailbox import run_jobs
from tests.receivers import Receiver, receiving
from tests.sql import statements
from tests.webhooks.delivering import attempts, deliver, deliveries, make_webhook

FIELDS = [{"name": "title", "type": "text"}, {"name": "hidden", "type": "text"}]
OWNERS = {"view_rule": "@owns_record()"}
LISTED = {"view_fields": ["title"]}
EVERYBODY: dict[str, Any] = {}
ADMINS = {"view_rule": "@has_role(admin)"}
HIDDEN = "The record and the response are hidden"


@dataclass
class Story:
    """Alice's webhook for the diary, its receiver, and another admin of the account."""

    app: Flask
    cast: Cast
    dora: Caller
    acting: Caller
    receiver: Receiver
    webhook: dict[str, Any]

    @property
    def path(self) -> str:
        """The webhook in the API."""
        return f"webhooks/{self.webhook['id']}"

    def write(self, **values: Any) -> dict[str, Any]:
        """A new record of alice's, which is delivered; returns the record."""
        body = {"title": "t", "hidden": "h", **values}
        answer = self.cast.alice.post("records/diary", body)
        assert answer.status_code == 201, answer.json
        made: dict[str, Any] = answer.json
        return made

    def rule(self, rules: dict[str, Any]) -> None:
        """Set the diary's rules."""
        whole = {**OPEN, "view_fields": "*", **rules}
        assert self.cast.root.put("collections/diary/rules", whole).status_code == 200


@pytest.fixture
def story(app: Flask, cast: Cast) -> Any:
    make_collection(cast.root, "diary", FIELDS)
    dora = Caller(app, make_user(app, cast.alice.account_id, "dora@acme.example", ADMIN))
    acting = cast.root.acting_in("acme")
    with receiving(lambda request: (200, "echo")) as receiver:
        webhook = make_webhook(cast.alice, receiver.url, collection="diary")
        yield Story(app, cast, dora, acting, receiver, webhook)


def seen(story: Story, by: Caller) -> bool:
    """Whether a caller sees the only delivery's record, wherever it is shown."""
    (listed,) = by.get(f"{story.path}/deliveries").json["items"]
    shown = by.get(f"{story.path}/deliveries/{listed['id']}").json
    found = {
        (
            one["payload"]["record"] is not None,
            one["response_body"] == "echo",
            shown["attempts"][0]["response_body"] == "echo",
        )
        for one in (listed, shown)
    }
    assert listed["payload"]["collection"] == "diary"
    account = story.cast.alice.account_id
    address = f"webhooks/{account}/{story.webhook['id']}/deliveries/{listed['id']}"
    page = Browser(story.app, by).get(address).text
    found.add(("&#34;title&#34;" in page, "echo" in page, HIDDEN not in page))
    assert found in ({(True,) * 3}, {(False,) * 3}), found
    return found == {(True,) * 3}


@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("rules", "dora_sees"),
    [
        (OWNERS, False),
        (LISTED, False),
        ({**ADMINS, **LISTED}, False),
        (ADMINS, True),
        (EVERYBODY, True),
    ],
)
def test_delivery_payload_visibility_per_rules(
    story: Story, rules: dict[str, Any], dora_sees: bool
) -> None:
    story.rule(rules)
    story.write()
    deliver(story.app)
    assert len(story.receiver.requests) == 1
    assert seen(story, story.cast.alice)
    assert seen(story, story.acting)
    assert seen(story, story.dora) is dora_sees


@pytest.mark.parametrize(("before", "after"), [(EVERYBODY, OWNERS), (OWNERS, EVERYBODY)])
def test_delivery_payload_visibility_follows_current_rules(
    story: Story, before: dict[str, Any], after: dict[str, Any]
) -> None:
    story.rule(before)
    story.write()
    deliver(story.app)
    story.rule(after)
    assert seen(story, story.dora) is (after is EVERYBODY)


def test_delivery_payload_of_deleted_collection_is_hidden_from_others(story: Story) -> None:
    story.rule(EVERYBODY)
    story.write()
    deliver(story.app)
    root = story.cast.root
    id = root.get("collections/diary").json["id"]
    assert root.delete(f"collections/{id}").status_code == 200
    assert not seen(story, story.dora)
    assert seen(story, story.cast.alice)


def test_delivery_payload_from_before_takeover_is_hidden(story: Story) -> None:
    story.rule(OWNERS)
    story.write()
    deliver(story.app)
    assert story.dora.post(f"{story.path}/take-over").status_code == 200
    assert not seen(story, story.dora)
    assert seen(story, story.cast.alice)


def test_delivery_payload_without_active_owner_is_visible_by_rules(story: Story) -> None:
    story.rule(ADMINS)
    assert story.dora.post(f"{story.path}/take-over").status_code == 200
    story.write()
    deliver(story.app)
    assert len(story.receiver.requests) == 1
    assert story.cast.alice.delete(f"account/users/{story.dora.id}").status_code == 204
    assert seen(story, story.cast.alice)


def test_delivery_of_webhook_test_is_visible(story: Story) -> None:
    story.rule(OWNERS)
    assert story.cast.alice.post(f"{story.path}/test").json["success"]
    (shown,) = story.dora.get(f"{story.path}/deliveries").json["items"]
    assert (shown["payload"]["record"], shown["response_body"]) == ({}, "echo")


def test_delivery_list_looks_up_rules_once(story: Story) -> None:
    story.rule(OWNERS)
    counts = []
    story.dora.get(f"{story.path}/deliveries")  # which fills caches
    for _ in range(2):
        for _ in range(4):
            story.write()
        with statements(story.app) as made:
            page = story.dora.get(f"{story.path}/deliveries").json["items"]
        assert {one["payload"]["record"] for one in page} == {None}
        counts.append(len(made))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(("rules", "sent"), [(OWNERS, 0), (LISTED, 0), (EVERYBODY, 2)])
@pytest.mark.parametrize("way", ["take over", "move"])
def test_delivery_waiting_at_takeover_is_sent_only_if_viewable(
    story: Story, rules: dict[str, Any], sent: int, way: str
) -> None:
    story.rule(rules)
    for _ in range(2):
        story.write()
    with receiving() as other:
        if way == "move":
            answer = story.dora.patch(story.path, {"url": other.url, "events": ["delete"]})
        else:
            answer = story.dora.post(f"{story.path}/take-over")
        assert (answer.status_code, answer.json["created_by"]) == (200, story.dora.id)
        deliver(story.app)
        assert len(other.requests) + len(story.receiver.requests) == sent
    if not sent:
        assert {one.status for one in deliveries(story.app)} == {"retrying"}
        assert {one.error for one in attempts(story.app)} == {
            "The payload shows what a previous owner could view and the current one may not."
        }


@pytest.mark.both_databases
@pytest.mark.parametrize(("rules", "again"), [(OWNERS, False), (EVERYBODY, True)])
def test_delivery_from_before_takeover_is_resent_only_if_viewable(
    story: Story, rules: dict[str, Any], again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.rule(rules)
    story.receiver.answer = lambda request: (500, "no")
    settings = replace(story.app.extensions["atrium.config"], webhook_retry_delays=())
    monkeypatch.setitem(story.app.extensions, "atrium.config", settings)
    story.write()
    deliver(story.app)
    assert story.dora.post(f"{story.path}/take-over").status_code == 200
    (one,) = deliveries(story.app)
    answer = story.dora.post(
        f"{story.path}/deliveries/redeliver", {"since": "2020-01-01T00:00:00Z"}
    )
    assert answer.json["count"] == (1 if again else 0)
    run_jobs(story.app)
    assert len(deliveries(story.app)) == (2 if again else 1)
    deliver(story.app)
    answer = story.dora.post(f"{story.path}/deliveries/{one.id}/redeliver")
    assert answer.status_code == (202 if again else 409), answer.json
    deliver(story.app)
    assert len(story.receiver.requests) == (3 if again else 1)
