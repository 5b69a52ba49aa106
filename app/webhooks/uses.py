"""Webhooks that name a collection, or its fields, whose names are about to end."""

from __future__ import annotations

from contextlib import suppress

import sqlalchemy as sa

from app import db, events, rules
from app.context import tenancy
from app.errors import problem
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
            if isinstance(part, rules.Name)
        }
    return set()  # an empty one
