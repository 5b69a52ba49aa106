"""The first steps of a new instance or account, each ticked off by what is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from flask import url_for

from app import db
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, User
from app.auth.models import ApiKey
from app.auth.principal import Principal
from app.collections import definitions
from app.console.shell import switcher
from app.rules import OPERATIONS
from app.web.languages import gettext
from app.webhooks.models import Webhook


@dataclass(frozen=True)
class Step:
    """A step, its page, and whether it is done."""

    name: str
    help: str
    url: str
    is_done: bool


def steps(caller: Principal, *, has_records: bool) -> Sequence[Step]:
    """The steps for an admin; none once all are done."""
    found = list(_instance_steps(has_records) if caller.is_superadmin else _steps(caller))
    return [] if all(step.is_done for step in found) else found


def _instance_steps(has_records: bool) -> Iterator[Step]:
    collections = definitions.get_all()
    ruled = any(one.rules.get(f"{name}_rule") for one in collections for name in OPERATIONS)
    account = next(iter(switcher.recent()), None)
    closed = next(iter(collections), None)
    yield Step(
        gettext("Define a collection"),
        gettext(
            "A table with typed fields, shared by all accounts; each account has its own records."
        ),
        url_for("console.show_new_collection"),
        bool(collections),
    )
    yield Step(
        gettext("Write its rules"),
        gettext("Who may list, view, create, update and delete its records."),
        url_for("console.show_rules", collection_id=closed.id)
        if closed
        else url_for("console.show_collections"),
        ruled,
    )
    yield Step(
        gettext("Create an account"),
        gettext("A customer with users of its own."),
        url_for("console.show_new_account"),
        _exists(Account, Account.id != SYSTEM_ACCOUNT_ID, Account.closed_at.is_(None)),
    )
    yield Step(
        gettext("Enter a record"),
        gettext("In the console, or by the REST API."),
        url_for("console.show_record_collections", account_id=account.id)
        if account
        else url_for("console.show_records_home"),
        has_records,
    )


def _steps(caller: Principal) -> Iterator[Step]:
    account_id = caller.require_account_id()
    yield Step(
        gettext("Invite people"),
        gettext("Colleagues get a mail with a link."),
        url_for("console.show_invite"),
        _exists(User, User.account_id == account_id, User.id != caller.user_id),
    )
    yield Step(
        gettext("Create an API key"),
        gettext("Your programs read and write records with it."),
        url_for("console.show_new_key"),
        _exists(ApiKey, ApiKey.account_id == account_id),
    )
    yield Step(
        gettext("Set up a webhook"),
        gettext("Your programs are notified of changes."),
        url_for("console.show_new_webhook", account_id=account_id),
        has_webhooks(account_id),
    )


def has_webhooks(account_id: str) -> bool:
    return _exists(Webhook, Webhook.account_id == account_id)


def _exists(model: Any, *where: Any) -> bool:
    return bool(db.db.session.scalar(sa.select(sa.exists(sa.select(model.id).where(*where)))))
