"""The operator's webhooks: those of the system account that are sent events of all accounts.

They are webhooks like those of accounts, but for what they are sent (`app/webhooks/service.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, crypto, db, events
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.auth.principal import Principal
from app.collections import definitions as collections
from app.collections.models import Collection
from app.collections.schema import COLLECTION_NAME
from app.context import actor
from app.errors import InvalidValues, problem
from app.ids import new_id
from app.operator import deliveries, sealing, store, types
from app.types import JSONMapping, JSONObject
from app.webhooks import service, signing, versions
from app.webhooks.delivery import Result
from app.webhooks.models import IS_OPERATORS, Webhook
from app.webhooks.payload import TEST_EVENT
from app.webhooks.service import Secret

Body = JSONMapping
TO_COLUMN = {"is_active": "enabled"}


def all_() -> list[Webhook]:
    """The operator's webhooks, oldest first."""
    query = sa.select(Webhook).where(*IS_OPERATORS).order_by(Webhook.id)
    return list(db.db.session.scalars(query))


def page(skip: int, limit: int) -> tuple[list[Webhook], int]:
    """The operator's webhooks, oldest first, and the total."""
    count = sa.select(sa.func.count()).select_from(Webhook).where(*IS_OPERATORS)
    query = sa.select(Webhook).where(*IS_OPERATORS).order_by(Webhook.id)
    rows = db.db.session.scalars(query.offset(skip).limit(limit))
    return list(rows), db.db.session.scalar(count) or 0


def get(webhook_id: str, *, by: Principal) -> Webhook:
    """One of them. Raises NotFound."""
    return service.get(webhook_id, by=by, operators=True)


def create(body: Body, *, by: Principal, id: str | None = None) -> Secret:
    """Create one, which is sent what happens from now on. Raises InvalidValues, Conflict."""
    values = _checked(body, {})
    sealing.settle()
    secret = signing.new_secret()
    with db.transaction() as session:
        versions.outdate(SYSTEM_ACCOUNT_ID)
        service.check_room(SYSTEM_ACCOUNT_ID, operators=True)
        webhook = Webhook(
            account_id=SYSTEM_ACCOUNT_ID,
            id=id or new_id(),
            collection="",
            events=[],
            created_by=by.user_id,
            secret=crypto.encrypt(secret),
            **values,
        )
        session.add(webhook)
        session.flush()
        _announce()
    return Secret(webhook, secret)


def change(webhook_id: str, body: Body, *, by: Principal) -> Webhook:
    """Change one; who changes where it sends becomes its owner. Raises NotFound, InvalidValues."""
    sealing.settle()  # what happened before is sent as it was
    with service.changing(webhook_id, by, operators=True) as webhook:
        before = {"types": webhook.types, "collections": webhook.collections}
        values, url = _checked(body, before), webhook.url
        if values.get("url", url) != url:
            service.set_owner(webhook, by.require_user_id())
        for name, value in values.items():
            setattr(webhook, name, value)
        service.settle_change(webhook, values, url)
        db.db.session.flush()
        _announce()
    return webhook


def delete(webhook_id: str, *, by: Principal) -> None:
    """Delete one. Raises NotFound."""
    with db.transaction() as session:
        service.delete(webhook_id, by=by, operators=True)
        session.flush()
        _announce()


def send_test(webhook_id: str, *, by: Principal) -> Result:
    """Send a test in the form of an event. Raises NotFound, TooManyRequests."""
    webhook = get(webhook_id, by=by)
    event: JSONObject = {"id": new_id(), "type": TEST_EVENT, "account_id": webhook.account_id}
    event |= {"actor": store.shown(actor.current(), webhook.account_id), "at": clock.now()}
    content = deliveries.content({**event, "data": {"webhook_id": webhook.id}})
    return service.send_test(webhook, orjson.dumps(content).decode())


def problems(body: Body, before: Body) -> list[JSONObject]:
    """The problems of a new webhook, or of a change of one."""
    found = list[JSONObject]()
    try:
        service.check({name: body[name] for name in ("url",) if name in body})
    except InvalidValues as error:
        found += [dict(one) for one in error.details]
    names = body.get("collections", before.get("collections")) or []
    found += types.problems(body.get("types", ()))
    found += [
        problem("collections", "name_invalid", f"{name[:80]!r} is not a valid collection name.")
        for name in names
        if not COLLECTION_NAME.fullmatch(name)
    ]
    views = (name for name in names if collections.is_view(name))
    found += [problem("collections", *collections.NO_CHANGES) for _ in views]
    wanted = types.expand(body.get("types", before.get("types")) or ())
    of_records = {one for one in wanted if one.startswith(f"{types.RECORDS}.")}
    if of_records and not names:
        message = "Name the collections whose records it is sent."
        found.append(problem("collections", "required", message))
    return found


def _checked(body: Body, before: Body) -> JSONObject:
    """The columns of a body. Raises InvalidValues."""
    if found := problems(body, before):
        raise InvalidValues(found)
    return {TO_COLUMN.get(name, name): value for name, value in body.items()}


def _announce() -> None:
    """Let records be events of the collections that webhooks name, and of no others.

    A change of a record looks at its definition alone, which every write checks by its version.
    """
    session, named = db.db.session, _named(db.connection())
    rows = session.execute(sa.select(Collection.id, Collection.name, Collection.announced)).all()
    for row in rows:
        if (is_named := row.name.lower() in named) != row.announced:
            new = {"announced": is_named, "version": Collection.version + 1}
            change = sa.update(Collection).where(Collection.id == row.id)
            session.execute(change.values(**new, updated_at=Collection.updated_at))


def _named(connection: Any) -> set[str]:
    table: Any = Webhook.__table__
    lists: Iterable[list[str] | None] = connection.scalars(
        sa.select(table.c.collections).where(*IS_OPERATORS)
    )
    return {name.lower() for names in lists for name in names or ()}


@sa.event.listens_for(Collection, "before_insert")
def _on_new_collection(mapper: object, connection: sa.Connection, row: Collection) -> None:
    row.announced = row.name.lower() in _named(connection)


@events.subscribe(events.CollectionRenamed)
def _follow(event: events.CollectionRenamed) -> None:
    for webhook in db.db.session.scalars(sa.select(Webhook).where(*IS_OPERATORS)):
        names = webhook.collections or []
        followed = [event.name if one.lower() == event.former.lower() else one for one in names]
        if followed != names:
            webhook.collections = followed
