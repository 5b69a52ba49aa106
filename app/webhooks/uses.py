"""Webhooks that name a collection, its fields and choices, or roles and groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial

import sqlalchemy as sa

from app import db, events, rules
from app.accounts import names
from app.accounts.names import Name, Use
from app.context import tenancy
from app.errors import problem
from app.rules import named
from app.rules.named import CHOICE
from app.webhooks import versions
from app.webhooks.models import Webhook


@events.subscribe(events.FieldNamesEnd)
def find_in_filters(event: events.FieldNamesEnd) -> None:
    """Add a problem for each filter, in all accounts."""
    of_collection = sa.func.lower(Webhook.collection) == event.definition.name.lower()
    columns = (Webhook.account_id, Webhook.id, Webhook.filter)
    query = sa.select(*columns).where(of_collection, Webhook.filter.is_not(None))
    with tenancy.across_accounts():
        rows = db.connection().execute(query.order_by(Webhook.account_id, Webhook.id)).all()
    for account_id, id, text in rows:
        for name in sorted(event.names & _names(text)):
            message = f"The filter of a webhook of account {account_id} names {name}."
            event.problems.append(problem(f"webhooks[{id}].filter", "field_in_use", message))


@events.subscribe(events.ChoicesEnd)
def find_choices(event: events.ChoicesEnd) -> None:
    """Add a problem for each filter that names one of the choices, in all accounts."""
    of_collection = sa.func.lower(Webhook.collection) == event.definition.name.lower()
    columns = (Webhook.account_id, Webhook.id)
    query = sa.select(*columns, Webhook.filter).where(of_collection, Webhook.filter.is_not(None))
    with tenancy.across_accounts():
        rows = [*names.pages(query, *columns)]
    for account_id, id, text in rows:
        for one in named.mentions(text):
            if one.kind == CHOICE and one.value in event.choices.get(one.path[-1], ()):
                message = f"The filter of a webhook of account {account_id} names {one.value}."
                event.problems.append(problem(f"webhooks[{id}].filter", "in_use", message))


@names.place
def in_filters(name: Name) -> Iterator[Use]:
    """The filters that name a role or group."""
    columns = (Webhook.account_id, Webhook.id)
    about = names.about_callers(Webhook.filter)
    query = sa.select(*columns, Webhook.filter).where(about, *name.where(Webhook.account_id))
    for account_id, id, text in names.pages(query, *columns):
        if named.names(text, name.kind, name.value):
            follow = partial(_store_filter, account_id, id)
            yield Use(f"webhooks[{id}]", {"filter": text}, follow, account_id)


def _store_filter(account_id: str, id: str, texts: Mapping[str, str]) -> None:
    # Whose rights decide the payload stays: nothing else is sent than before.
    versions.outdate(account_id)
    own = (Webhook.account_id == account_id, Webhook.id == id)
    db.db.session.scalars(sa.select(Webhook).where(*own)).one().filter = texts["filter"]


@events.subscribe(events.CollectionRenamed)
def follow_collection(event: events.CollectionRenamed) -> None:
    """Let the webhooks of all accounts follow a renamed collection."""
    of_collection = sa.func.lower(Webhook.collection) == event.former.lower()
    accounts = sa.select(Webhook.account_id).where(of_collection).distinct()
    with tenancy.across_accounts(), db.transaction() as session:
        for account_id in session.scalars(accounts.order_by(Webhook.account_id)).all():
            versions.outdate(account_id)
            mine = Webhook.account_id == account_id  # the audit log locks what it is about
            change = sa.update(Webhook).where(mine, of_collection)
            session.execute(change.values(collection=event.name))


def _names(text: str | None) -> set[str]:
    with suppress(rules.RuleError):
        return {
            part.path[0]
            for part in rules.walk(rules.parse(text or ""))
            if isinstance(part, rules.Name | rules.Old)
        }
    return set()  # an empty one
