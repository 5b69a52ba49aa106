"""Lists and pauses what an admin who leaves would go on receiving or could still use (ADR 55).

When a user is no admin any more, their webhooks and the receiver of the security log are paused
until an admin takes them over. Tokens, links and settings that they know stay, as others depend on
them; the remaining admins are mailed a list of it all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import orjson
import sqlalchemy as sa

from app import clock, config, db, events, jobs
from app.accounts import users
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, User, UserKind
from app.accounts.product import mails
from app.audit import entries, sealing
from app.audit.entries import CHANGES
from app.audit.security_log.models import SecurityStream
from app.auth.models import ApiKey, ScimToken, SetupLink
from app.context import tenancy
from app.db import Base
from app.sso.models import ProviderSetting
from app.types import JSONMapping, JSONObject
from app.webhooks import queue, versions
from app.webhooks.models import Webhook

REDIRECTS = ("allowed_redirect_uris", "default_redirect_uri")
MAX_CHANGES = 200


class LeftKind(StrEnum):
    WEBHOOK = "webhook"
    STREAM = "security_stream"
    SCIM = "scim_token"
    SETUP_LINK = "setup_link"
    PROVIDER = "provider"
    REDIRECT = "redirect_address"
    API_KEY = "api_key"
    WORKFLOW = "workflow"
    HOOK = "hook"


SERVICE_TABLES = {
    LeftKind.WEBHOOK: "webhooks",
    LeftKind.STREAM: "security_streams",
    LeftKind.SCIM: "scim_tokens",
    LeftKind.SETUP_LINK: "setup_links",
    LeftKind.API_KEY: "api_keys",
    LeftKind.WORKFLOW: "workflows",
    LeftKind.HOOK: "workflows",
}
"""What may belong to a service user, and goes on when the person who made it leaves."""


@dataclass(frozen=True)
class Left:
    """Something that a user made or changed last, and that still works."""

    kind: LeftKind
    id: str | None
    """The id of the webhook, token and so on; None for a redirect address."""
    name: str
    changed_at: datetime
    paused_at: datetime | None = None
    of_service: bool = False
    """Whether it belongs to a service user, and so goes on."""


def of_user(account_id: str, user_id: str) -> list[Left]:
    """The things that a user, perhaps deleted, has made in an account; by kind, the newest first.

    Provider settings, redirect addresses, and what belongs to service users are those that the
    audit log says they changed.
    """
    found = []
    for webhook in _made(Webhook, account_id, user_id):
        changed_at, paused_at = webhook.updated_at, webhook.paused_at
        found.append(Left(LeftKind.WEBHOOK, webhook.id, _name(webhook), changed_at, paused_at))
    for stream in _made(SecurityStream, account_id, user_id):
        changed_at, paused_at = stream.updated_at, stream.paused_at
        found.append(Left(LeftKind.STREAM, stream.id, _host(stream), changed_at, paused_at))
    for token in _made(ScimToken, account_id, user_id):
        found.append(Left(LeftKind.SCIM, token.id, _hint(token), token.created_at))
    for link in _open_links(account_id, user_id):
        found.append(Left(LeftKind.SETUP_LINK, link.id, link.name, link.created_at))
    same_account = ProviderSetting.account_id == account_id
    query = sa.select(ProviderSetting).where(same_account)
    settings = {setting.id: setting for setting in db.db.session.scalars(query)}
    account = db.db.session.get(Account, account_id)
    of_services = _of_services(account_id)
    sealing.settle(account_id)  # after the rows were read: their own changes are among the entries
    for id, changed_at in _changed(account_id, user_id, ProviderSetting.__tablename__):
        if setting := settings.get(id):
            found.append(Left(LeftKind.PROVIDER, id, setting.display_name, changed_at))
    for kind, table in SERVICE_TABLES.items():
        named = of_services[kind]
        for id, changed_at in _changed(account_id, user_id, table) if named else ():
            if name := named.get(id):
                found.append(Left(kind, id, name, changed_at, of_service=True))
    present = _redirects(account.settings) if account else set()
    for address, changed_at in _added_redirects(account_id, user_id).items():
        if address in present:
            found.append(Left(LeftKind.REDIRECT, None, address, changed_at))
    return found


def _changed(account_id: str, user_id: str, table: str) -> Sequence[Any]:
    """The ids of rows that a user has created or changed, and when last; the newest first."""
    changes = (
        CHANGES.c.account_id == account_id,
        CHANGES.c.user_id == user_id,
        CHANGES.c.table_name == table,
    )
    last = sa.func.max(CHANGES.c.occurred_at)
    changed = sa.select(CHANGES.c.record_id, last).where(*changes).group_by(CHANGES.c.record_id)
    return db.connection().execute(changed.order_by(last.desc())).all()


def _of_services(account_id: str) -> dict[LeftKind, dict[str, str]]:
    """What works on because it belongs to a service user: names by id, by kind."""
    is_service = (User.account_id == account_id, User.kind == UserKind.SERVICE)
    ids = db.db.session.scalars(sa.select(User.id).where(*is_service)).all()
    if not ids:
        return {kind: {} for kind in SERVICE_TABLES}
    table = Base.metadata.tables[SERVICE_TABLES[LeftKind.WORKFLOW]].c
    own = (table.account_id == account_id, table.owner_id.in_(ids))
    flows = db.connection().execute(sa.select(table.id, table.name, table.kind).where(*own)).all()
    return {
        LeftKind.WEBHOOK: {one.id: _name(one) for one in _made(Webhook, account_id, *ids)},
        LeftKind.STREAM: {one.id: _host(one) for one in _made(SecurityStream, account_id, *ids)},
        LeftKind.SCIM: {one.id: _hint(one) for one in _made(ScimToken, account_id, *ids)},
        LeftKind.SETUP_LINK: {one.id: one.name for one in _open_links(account_id, *ids)},
        LeftKind.API_KEY: {k.id: k.name for k in _made(ApiKey, account_id, *ids) if k.is_active},
        **{
            kind: {row.id: row.name for row in flows if row.kind == kind}
            for kind in (LeftKind.WORKFLOW, LeftKind.HOOK)
        },
    }


def _name(webhook: Webhook) -> str:
    return f"{urlsplit(webhook.url).hostname}: {webhook.collection}"


def _host(stream: SecurityStream) -> str:
    return urlsplit(stream.url).hostname or ""


def _hint(token: ScimToken) -> str:
    return f"…{token.hint}"


def _open_links(account_id: str, *user_ids: str) -> list[SetupLink]:
    links = _made(SetupLink, account_id, *user_ids)
    return [link for link in links if link.state in ("pending", "opened")]


def _made(model: Any, account_id: str, *user_ids: str) -> Sequence[Any]:
    own = (model.account_id == account_id, model.created_by.in_(user_ids))
    return db.db.session.scalars(sa.select(model).where(*own).order_by(model.id.desc())).all()


def _added_redirects(account_id: str, user_id: str) -> dict[str, datetime]:
    """The redirect addresses that a user added to the account's settings, and when last."""
    own = (CHANGES.c.account_id == account_id, CHANGES.c.user_id == user_id)
    of_account = (CHANGES.c.table_name == Account.__tablename__, CHANGES.c.record_id == account_id)
    query = sa.select(*entries.columns()).where(*own, *of_account)
    newest = query.order_by(CHANGES.c.occurred_at.desc(), CHANGES.c.first_id.desc())
    added: dict[str, datetime] = {}
    for change in db.connection().execute(newest.limit(MAX_CHANGES)):
        for entry in entries.readable(change._asdict()):
            if entry["column_name"] == "settings":
                before, after = (_settings(entry[name]) for name in ("old_value", "new_value"))
                for address in _redirects(after) - _redirects(before):
                    added.setdefault(address, change.occurred_at)
    return added


def _settings(text: str | None) -> JSONMapping:
    found = orjson.loads(text) if text else {}
    return found if isinstance(found, dict) else {}


def _redirects(settings: JSONMapping) -> set[str]:
    default = settings.get("default_redirect_uri")
    return {*settings.get("allowed_redirect_uris", ()), *([default] if default else ())}


@events.subscribe(events.AdminLeft)
def _pause(event: events.AdminLeft) -> None:
    """Pause what sends data to the user, and mail the admins who stay what else there is."""
    for account_id in _accounts_of(event):
        with tenancy.in_account(account_id):
            now, made_by = clock.now(), (account_id, event.user_id)
            if webhooks := [one for one in _made(Webhook, *made_by) if one.paused_at is None]:
                versions.outdate(account_id)
            for one in (*webhooks, *_made(SecurityStream, *made_by)):
                one.paused_at = one.paused_at or now
            db.db.session.flush()
            for webhook in webhooks:
                queue.lay_by(account_id, webhook.id)
            if of_user(*made_by):
                for admin_id in set(users.verified_admins(account_id)) - {event.user_id}:
                    payload = {"left_by": event.user_id, "user_id": admin_id}
                    jobs.enqueue("webhooks.tell_left", payload, account_id=account_id)


def _accounts_of(event: events.AdminLeft) -> Sequence[str]:
    """The user's account; of a superadmin, those in which they made something."""
    if event.account_id != SYSTEM_ACCOUNT_ID:
        return [event.account_id]
    made = (
        sa.select(model.account_id).where(model.created_by == event.user_id)
        for model in (Webhook, SecurityStream, ScimToken, SetupLink)
    )
    of_services = sa.select(CHANGES.c.account_id).where(
        CHANGES.c.user_id == event.user_id, CHANGES.c.table_name.in_(SERVICE_TABLES.values())
    )
    found = {*db.connection().scalars(sa.union(*made)), *db.connection().scalars(of_services)}
    return sorted(found)


@jobs.job("webhooks.tell_left", mails=True)
def _tell(payload: JSONMapping) -> None:
    account_id = payload["account_id"]
    admin = db.db.session.get(User, (account_id, payload["user_id"]))
    account = db.db.session.get(Account, account_id)
    left = of_user(account_id, payload["left_by"])
    if admin is None or account is None or not admin.is_active or not left:
        return
    base = config.current().base_url
    details: JSONObject = {
        "account": account.name,
        # Not what they are called: the user chose that.
        "numbers": Counter("of_service" if one.of_service else one.kind for one in left),
        "link": f"{base}/console/team/left/{payload['left_by']}",
    }
    mails.send("admin_left", admin.email, account_id, user=admin, **details)
