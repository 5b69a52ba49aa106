"""An account with something of everything, and bundles of it."""

from __future__ import annotations

import hashlib
import io
from json import dumps
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from click.testing import Result
from flask import Flask

from app.audit import sealing
from app.collections import definitions
from app.context import tenancy
from app.db import Base, db
from tests.builders import OPEN, Caller, Cast, make_collection, make_record
from tests.manifest.manifests import applied
from tests.workflows.running import action

PASSPHRASE = "a long enough passphrase"
AUTHORS: list[dict[str, Any]] = [
    {"name": "name", "type": "text", "required": True},
    {"name": "born", "type": "date"},
    {"name": "best", "type": "reference", "collection": "posts"},
]
POSTS: list[dict[str, Any]] = [
    {"name": "title", "type": "text"},
    {"name": "views", "type": "number"},
    {"name": "price", "type": "number"},
    {"name": "amount", "type": "decimal", "unique": True},
    {"name": "labels", "type": "text_list"},
    {"name": "published", "type": "boolean"},
    {"name": "at", "type": "datetime"},
    {"name": "meta", "type": "json"},
    {"name": "paper", "type": "file"},
    {"name": "author", "type": "reference", "collection": "authors"},
    {"name": "parent", "type": "reference", "collection": "posts"},
    {"name": "owner", "type": "user"},
    {"name": "readers", "type": "user", "multiple": True},
    {"name": "authors", "type": "reference", "collection": "authors", "multiple": True},
]
PATHS = (
    "account/users",
    "groups",
    "api-keys",
    "webhooks",
    "workflows",
    "records/posts?sort=title",
    "records/authors?sort=name",
)
PAPER = b"words, and words\n" * 20_000


def furnish(cast: Cast) -> None:
    """Give acme and globex records, files, webhooks, workflows and keys."""
    both = [
        {"name": name, "schema": schema, "rules": OPEN}
        for name, schema in (("authors", AUTHORS), ("posts", POSTS))
    ]
    applied(cast.root, dumps({"version": 1, "collections": both}))
    make_collection(cast.root, "unused")
    for caller, name in ((cast.alice, "Ann"), (cast.charlie, "Cho")):
        upload = caller.post("files/upload", data={"file": (io.BytesIO(PAPER), "paper.txt")})
        author = make_record(caller, "authors", name=name, born="1990-02-28")
        first = make_record(
            caller,
            "posts",
            title="first",
            views=2**53 + 1,
            price=0.1,
            amount="-12.50",
            labels=["hot", caller.id],
            published=True,
            at="2026-11-26T12:00:00.123456Z",
            meta={"b": [1, 1.0, None], "a": "ü"},
            paper=upload.json["file"]["id"],
            author=author["id"],
            owner=caller.id,
            readers=[caller.id],
            authors=[author["id"]],
        )
        second = make_record(caller, "posts", title="second", amount=7, parent=first["id"])
        caller.patch(f"records/authors/{author['id']}", {"best": second["id"]})
        headers = {"X-Token": "secret header"}
        hook = {"url": "https://example.com/hook", "collection": "posts", "events": ["create"]}
        assert caller.post("webhooks", {**hook, "headers": headers}).status_code == 201
        assert caller.post("api-keys", {"name": "robot"}).status_code == 201
        step = action("send", "send_webhook", url="https://example.com", headers=headers)
        flow = {"name": "flow", "trigger": {"type": "webhook"}, "steps": [step]}
        answer = caller.post("workflows", flow)
        assert answer.status_code == 201, answer.json


def view(caller: Caller) -> dict[str, Any]:
    """What the API answers about an account."""
    answers = {path: caller.get(path) for path in PATHS}
    assert {answer.status_code for answer in answers.values()} == {200}, answers
    return {path: answer.json for path, answer in answers.items()}


def hashes(app: Flask, *account_ids: str) -> dict[str, str]:
    """The hash of all rows of these accounts, by table."""
    with app.app_context(), tenancy.as_owner():
        db.session.rollback()
        sealing.settle(None)  # or a reader would move rows
        found = {}
        tables = [one.table for one in definitions.get_all()]
        for table in (*Base.metadata.sorted_tables, *tables):
            if "account_id" not in table.c:
                continue
            query = sa.select(table).where(table.c.account_id.in_(account_ids))
            rows = db.session.connection().execute(query.order_by(*table.primary_key)).all()
            text = repr([tuple(row) for row in rows])
            found[table.name] = hashlib.sha256(text.encode()).hexdigest()
        return found


def run(app: Flask, *args: object) -> Result:
    """Run a command."""
    return app.test_cli_runner().invoke(args=[str(arg) for arg in args], catch_exceptions=False)


def export(app: Flask, folder: Path, slug: str = "acme", name: str = "acme.bundle") -> Path:
    """A bundle of an account."""
    secret, file = folder / "passphrase", folder / name
    secret.write_text(f"{PASSPHRASE}\n")
    result = run(app, "account", "export", slug, file, "--passphrase-file", secret)
    assert result.exit_code == 0, result.output
    return file


def import_(app: Flask, file: Path, *options: object) -> Result:
    """Import a bundle."""
    secret = file.with_name("passphrase")
    return run(app, "account", "import", file, "--passphrase-file", secret, *options)
