"""Which changes a filter lets through."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from flask import Flask

from app import db
from app.webhooks.models import DELIVERIES
from tests.builders import Caller, Cast, make_collection, make_record
from tests.webhooks.delivering import make_webhook

NOWHERE = "http://127.0.0.1:9/"
SCHEMA = [
    {"name": "title", "type": "text"},
    {"name": "views", "type": "number"},
    {"name": "state", "type": "text"},
    {"name": "label", "type": "computed", "return_type": "text"} | {"expression": "upper(state)"},
]
# On the record {title: "Hello", views: 10, state: "draft"}, created by alice.
FILTERS: list[tuple[str | None, bool]] = [
    (None, True),
    ("", True),
    ("state = 'draft'", True),
    ("state = 'public'", False),
    ("views >= 10", True),
    ("views >= 11", False),
    ("state IN ['draft', 'public']", True),
    ("state IN ['public']", False),
    ("title ~ 'hel%'", True),
    ("title ~ 'ello'", False),
    ("label = 'DRAFT'", True),
    ("label = 'draft'", False),
    ("@request.auth.email = 'alice@acme.example'", True),
    ("@request.auth.id != created_by", False),
    ("@has_role('viewer')", False),
    # What cannot be evaluated fires.
    ("nothing = 1", True),
    ("nothing != 1 && state = 'public'", True),
    ("views = 'many'", True),
    ("views ~ '1%'", True),
]


def told(app: Flask) -> dict[str, list[str]]:
    """The events that each webhook is told of, first to last."""
    found: dict[str, list[str]] = {}
    with app.app_context():
        columns = (DELIVERIES.c.webhook_id, DELIVERIES.c.event)
        for row in db.connection().execute(sa.select(*columns).order_by(DELIVERIES.c.id)):
            found.setdefault(row.webhook_id, []).append(row.event)
    return found


def test_webhook_filter_decides_deliveries(app: Flask, root: Caller, alice: Caller) -> None:
    make_collection(root, schema=SCHEMA)
    made = [make_webhook(alice, NOWHERE, filter=text, events=["create"]) for text, _ in FILTERS]
    make_record(alice, title="Hello", views=10, state="draft")
    fired = {text: one["id"] in told(app) for (text, _), one in zip(FILTERS, made, strict=True)}
    assert fired == dict(FILTERS)


def test_webhook_filter_on_masked_field_does_not_reveal_it(
    app: Flask, root: Caller, alice: Caller
) -> None:
    secret = {"name": "state", "type": "text", "pii": True}
    make_collection(root, schema=[SCHEMA[0], secret, SCHEMA[3]])
    asked = ("state = 'draft'", "state = 'public'", "label = 'DRAFT'", "label = 'PUBLIC'")
    given: dict[str, Any] = {"events": ["create"]}
    blind = [make_webhook(alice, NOWHERE, filter=text, **given)["id"] for text in asked]
    given["include_pii"] = True
    seeing = [make_webhook(alice, NOWHERE, filter=text, **given)["id"] for text in asked]
    make_record(alice, title="Hello", state="draft")
    assert [id in told(app) for id in blind] == [True] * 4
    assert [id in told(app) for id in seeing] == [True, False, True, False]


def test_webhook_filter_operand_request_auth_is_the_actor(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA)
    of_bob = make_webhook(cast.alice, NOWHERE, filter="@request.auth.id = created_by")
    record = make_record(cast.bob, state="draft")
    cast.alice.patch(f"records/posts/{record['id']}", {"state": "public"})
    cast.bob.patch(f"records/posts/{record['id']}", {"state": "draft"})
    assert told(app) == {of_bob["id"]: ["records.create", "records.update"]}


def test_webhook_filter_judges_update_by_new_and_deletion_by_old_record(
    app: Flask, root: Caller, alice: Caller
) -> None:
    make_collection(root, schema=SCHEMA)
    public = make_webhook(alice, NOWHERE, filter="state = 'public'")["id"]
    draft = make_webhook(alice, NOWHERE, filter="state = 'draft'")["id"]
    one = make_record(alice, state="draft")["id"]
    alice.patch(f"records/posts/{one}", {"state": "public"})
    alice.delete(f"records/posts/{one}")
    assert told(app) == {
        draft: ["records.create"],
        public: ["records.update", "records.delete"],
    }


def test_webhook_filter_follows_schema_changes(app: Flask, root: Caller, alice: Caller) -> None:
    early = make_webhook(alice, NOWHERE, filter="state = 'public'", events=["create"])["id"]
    posts = make_collection(root)
    make_record(alice, title="before the field was there")
    assert told(app) == {early: ["records.create"]}
    fields: list[dict[str, Any]] = [{"name": "title", "type": "text"}, SCHEMA[2]]
    assert root.put(f"collections/{posts['id']}", {"schema": fields}).status_code == 200
    make_record(alice, state="draft")
    assert len(told(app)[early]) == 1
    make_record(alice, state="public")
    assert len(told(app)[early]) == 2


def test_webhook_filter_by_entries_of_a_list(app: Flask, cast: Cast) -> None:
    helpers = {"name": "helpers", "type": "user", "multiple": True}
    make_collection(cast.root, schema=[SCHEMA[0], helpers])
    bob, alice = cast.bob.id, cast.alice.id
    texts = {f"helpers = '{bob}'": True, f"helpers = '{alice}'": False}
    texts |= {f"helpers != '{alice}'": True, f"@contains(helpers, '{bob}')": True}
    made = [make_webhook(cast.alice, NOWHERE, filter=text, events=["create"]) for text in texts]
    make_record(cast.alice, title="x", helpers=[bob])
    assert {text: hook["id"] in told(app) for text, hook in zip(texts, made, strict=True)} == texts


def test_webhook_filter_that_does_not_parse_is_filter_invalid(alice: Caller) -> None:
    wrong_paths = ("author.name = 'x'", "@request.data.", "@request.data.x = 1")
    for text in ("state =", *wrong_paths, "state IN ["):
        body = {"url": NOWHERE, "collection": "posts", "events": ["create"], "filter": text}
        answer = alice.post("webhooks", body)
        assert answer.status_code == 400, text
        (wrong,) = answer.json["details"]
        assert (wrong["field"], wrong["code"]) == ("filter", "filter_invalid")
        assert 0 <= wrong["position"] <= len(text)
