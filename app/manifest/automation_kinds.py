"""Webhooks, workflows and hooks of accounts as items of manifests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from cryptography.fernet import InvalidToken

from app import crypto
from app.auth.principal import Principal
from app.db.types import json_equal
from app.manifest.kind import Kind
from app.outbound.header_values import MASK
from app.types import JSONMapping, JSONObject
from app.webhooks import headers
from app.webhooks import service as webhooks
from app.webhooks.models import Webhook
from app.workflows import hooks
from app.workflows import service as workflows
from app.workflows.language import step_headers
from app.workflows.models import HOOK, WORKFLOW, Workflow


class Webhooks(Kind):
    """Webhooks; the signing secret of a new one is shown once."""

    name, section, model = "webhook", "webhooks", Webhook
    identity, required = ("collection", "url"), ("events",)
    properties = (*identity, "events", "filter", "headers", "enabled", "include_pii")
    hidden = frozenset({"headers", "secret"})

    def rows(self, account_ids: Sequence[str] | None = None) -> list[Webhook]:
        """Return those of accounts, not the operator's."""
        return [row for row in super().rows(account_ids) if row.types is None]

    def export(self, row: Webhook) -> JSONObject:
        """Return the webhook with masked headers."""
        return super().export(row) | {"headers": headers.masked(row.headers)}

    def changed(self, row: Webhook, body: JSONMapping, by: Principal) -> list[str]:
        """Compares secrets and headers in clear text; `***` is the stored value."""
        plain = {name: value for name, value in body.items() if name not in self.hidden}
        different = super().changed(row, plain, by)
        webhooks.check({name: body[name] for name in different})
        if "headers" in body:
            stored, sent = headers.decrypted(row.headers), body["headers"]
            if sent is not None:
                sent = {name: stored.get(name) if v == MASK else v for name, v in sent.items()}
            if sent != (None if row.headers is None else stored):
                different.append("headers")
        if body.get("secret"):
            secret = None
            with suppress(InvalidToken):  # its key was removed from the settings
                secret = crypto.decrypt(row.secret)
            if secret != body["secret"]:
                different.append("secret")
        return different

    def check(self, body: JSONMapping, by: Principal) -> None:
        """Look the address up, too."""
        super().check(body, by)
        webhooks.check(body)

    def create(self, body: JSONMapping, *, by: Principal) -> JSONObject:
        made = webhooks.create(body, by=by)
        return {"secret": made.secret, "signing_secret": made.signing_secret}

    def change(self, row: Webhook, body: JSONMapping, *, by: Principal) -> None:
        webhooks.change(row.id, body, by=by)

    def remove(self, row: Webhook, *, by: Principal) -> None:
        webhooks.delete(row.id, by=by)


class Workflows(Kind):
    """Workflows; the caller becomes the owner of changed steps."""

    name, section, model = "workflow", "workflows", Workflow
    required = ("trigger",)
    properties: ClassVar[Sequence[str]] = ("name", "description", "enabled", "trigger", "steps")
    hidden = frozenset({"steps"})
    stored_kind: ClassVar[str] = WORKFLOW

    def rows(self, account_ids: Sequence[str] | None = None) -> list[Workflow]:
        """Return the workflows or hooks of some accounts."""
        return [row for row in super().rows(account_ids) if row.kind == self.stored_kind]

    def export(self, row: Workflow) -> JSONObject:
        """Return the workflow with masked headers."""
        return super().export(row) | {"steps": step_headers.masked(row.steps)}

    def changed(self, row: Workflow, body: JSONMapping, by: Principal) -> list[str]:
        """Compares what saving would store."""
        saved = workflows.preview(body, row, by=by)
        different = super().changed(saved, {n: getattr(row, n) for n in body if n != "steps"}, by)
        return [*different, *(["steps"] if "steps" in body and not _same_steps(saved, row) else [])]

    def check(self, body: JSONMapping, by: Principal) -> None:
        """Look the addresses up, too."""
        super().check(body, by)
        workflows.preview(body, None, by=by)

    def create(self, body: JSONMapping, *, by: Principal) -> None:
        workflows.create({"steps": [], **body}, by=by)

    def change(self, row: Workflow, body: JSONMapping, *, by: Principal) -> None:
        workflows.change(row.id, body, by=by)

    def remove(self, row: Workflow, *, by: Principal) -> None:
        """Delete a workflow or hook."""
        workflows.delete(row.id, by=by, kind=self.stored_kind)


class Hooks(Workflows):
    name, section, stored_kind = "hook", "hooks", HOOK
    properties = ("name", "description", "enabled", "trigger", "condition", "actions")
    hidden = frozenset({"actions"})

    def export(self, row: Workflow) -> JSONObject:
        """Return the hook with masked headers."""
        plain = {name: getattr(row, name) for name in self.properties if name != "actions"}
        return plain | {"actions": hooks.list_actions(row)}

    def changed(self, row: Workflow, body: JSONMapping, by: Principal) -> list[str]:
        """Compares what saving would store."""
        saved = hooks.preview(body, row, by=by)
        plain = {name: getattr(row, name) for name in body if name != "actions"}
        different = Kind.changed(self, saved, plain, by)
        return different if different or _same_steps(saved, row) else ["actions"]

    def check(self, body: JSONMapping, by: Principal) -> None:
        """Look the addresses up, too."""
        Kind.check(self, body, by)
        hooks.preview(body, None, by=by)

    def create(self, body: JSONMapping, *, by: Principal) -> None:
        hooks.create({"actions": [], **body}, by=by)

    def change(self, row: Workflow, body: JSONMapping, *, by: Principal) -> None:
        hooks.change(row.id, body, by=by)


def _same_steps(one: Workflow, other: Workflow) -> bool:
    comparable = step_headers.comparable
    return json_equal(comparable(one.steps), comparable(other.steps))
