"""Reads of personal data, and what superadmins are shown of other accounts.

Whatever renders records notes which personal fields it shows unmasked: one event for each request,
collection and path. In a transaction the note becomes an event there. Else the request collects its
notes and stores them before it answers, and a stream before each piece that it sends. A masked read
notes nothing.

A superadmin's request is an event in each account that it acts in or names, or of which it reads
rows (`app/context/shown_accounts.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import Any, NamedTuple

from app import config, db
from app.audit.security_log.models import EventKind
from app.audit.security_log.recording import Event, record
from app.auth.principal import Principal
from app.collections.access import Access
from app.collections.definitions import Definition
from app.context import actor, shown_accounts
from app.context.actor import Actor, ActorKind
from app.types import JSONObject

MAX_IDS = 1000  # of an event
PATHS = {
    "get_record": "get",
    "list_records": "list",
    "export_records": "export",
    "export_user": "export",
    "aggregate_records": "aggregate",
    "list_changes": "changes",
    **dict.fromkeys(("create_record", "replace_record", "patch_record"), "write"),
}
DEFAULT_PATH = "get"


class _Key(NamedTuple):
    account_id: str
    table_name: str
    path: str
    fields: tuple[str, ...]
    user_id: str | None
    email: str | None
    name: str | None
    api_key_id: str | None
    acts_as: tuple[ActorKind | None, str | None, str | None] = (None, None, None)


class Collector:
    """The reads of a request or a stream that are not stored yet."""

    def __init__(self, path: str, *, is_stream: bool = False) -> None:
        self.path, self.is_stream = path, is_stream
        self._ids: dict[_Key, dict[str, None]] = {}

    def add(self, key: _Key, ids: Iterable[str]) -> None:
        self._ids.setdefault(key, {}).update(dict.fromkeys(ids))

    def __bool__(self) -> bool:
        return bool(self._ids)

    def clear(self) -> None:
        """Forget what was not answered."""
        self._ids.clear()

    def store(self) -> set[str]:
        """Store what was collected, and return the accounts that have an event of it."""
        events = [event for key, ids in self._ids.items() for event in _events(key, ids)]
        self._ids.clear()
        if events:
            record(*events)
        return {event.account_id for event in events}


class Route(NamedTuple):
    endpoint: str
    method: str
    rule: str


current_route: ContextVar[Route | None] = ContextVar("route", default=None)
"""The route of the current request, whose reads are collected."""
collector: ContextVar[Collector | None] = ContextVar("reads", default=None)
_path: ContextVar[str | None] = ContextVar("path", default=None)
is_shown: ContextVar[bool] = ContextVar("is shown", default=True)
"""Whether somebody sees what is rendered."""


@contextmanager
def by_path(path: str) -> Iterator[None]:
    """Say how records are read inside the block."""
    token = _path.set(path)
    try:
        yield
    finally:
        _path.reset(token)


@contextmanager
def shown_to_nobody() -> Iterator[None]:
    """Note no reads inside the block, whose answers are dropped; handlers that it calls do read."""
    token = is_shown.set(False)
    try:
        yield
    finally:
        is_shown.reset(token)


@contextmanager
def collected(path: str) -> Iterator[Collector]:
    """Collect the reads inside the block, and store them at its end unless it fails."""
    found = Collector(path)
    token = collector.set(found)
    try:
        yield found
    finally:
        collector.reset(token)
    found.store()


def before_each(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces of a stream, which outlives its request.

    What each shows is stored before it is sent.
    """
    current, app, acting = _collector(), config.running(), actor.current()
    own = Collector(DEFAULT_PATH if current is None else current.path, is_stream=True)

    def stored() -> Iterator[bytes]:
        remaining = iter(pieces)
        while True:
            token = collector.set(own)
            try:
                piece = next(remaining, None)
            finally:
                collector.reset(token)
            if own:
                with app.app_context(), actor.acting(acting):
                    own.store()
            if piece is None:
                return
            yield piece

    return stored()


def noting_accounts(
    pieces: Generator[bytes], recorded: set[str], *, by: Principal, route: Route
) -> Iterator[bytes]:
    """The pieces of a stream to a superadmin; accounts are recorded before a piece shows them."""
    app, acting = config.running(), actor.current()

    def noted() -> Iterator[bytes]:
        with closing(pieces):
            while True:
                token = shown_accounts.current.set(shown := set[str]())
                try:
                    piece = next(pieces, None)
                finally:
                    shown_accounts.current.reset(token)
                if not shown <= recorded:
                    with app.app_context(), actor.acting(acting):
                        note_request(by, shown - recorded, route)
                    recorded.update(shown)
                if piece is None:
                    return
                yield piece

    return noted()


def store_now() -> None:
    """Store what the request has shown so far: another service sends what it redirects to."""
    current = collector.get()
    if current is not None:
        current.store()


def note_rows(access: Access, rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> None:
    """Note that a caller is shown these fields of records."""
    fields = access.exposed.intersection(names)
    if not rows or not (fields or access.caller.is_superadmin):
        return
    by_account: dict[str, list[str]] = {}
    for row in rows:
        account_id = row.get("account_id") or access.caller.account_id
        if account_id is not None:
            by_account.setdefault(account_id, []).append(row["id"])
    for account_id, ids in by_account.items():
        note(access.definition, access.caller, account_id, ids, fields)


def note(
    definition: Definition,
    by: Principal,
    account_id: str,
    ids: Iterable[str],
    fields: Iterable[str],
) -> None:
    """Note that a caller is shown fields of an account's records; without ids, of many.

    It is by the path of `by_path`, else that of the request.
    """
    fields = tuple(sorted(fields))
    if not is_shown.get() or (not fields and (by.home is None or by.home.id == account_id)):
        return
    current = _collector()
    path = _path.get() or (DEFAULT_PATH if current is None else current.path)
    who = (by.user_id, by.email, by.name, by.api_key_id, by.acts_as)
    key = _Key(account_id, definition.table_name, path, fields, *who)
    if current is None or (not current.is_stream and db.in_transaction()):
        record(*_events(key, dict.fromkeys(ids)))
    else:
        current.add(key, ids)


def _collector() -> Collector | None:
    current, route = collector.get(), current_route.get()
    if current is None and route is not None:
        name = route.endpoint.rpartition(".")[2]
        is_page = route.endpoint.startswith(("console.", "welcome."))
        collector.set(current := Collector("console" if is_page else PATHS.get(name, name)))
    return current


def note_request(by: Principal, account_ids: Iterable[str], route: Route) -> None:
    """Record a superadmin's request in accounts other than the superadmin's own."""
    home, _ = by.home_and_user()
    details: JSONObject = {"method": route.method, "route": route.rule}
    if by.api_key_id:
        details["api_key_id"] = by.api_key_id
    others = sorted(set(account_ids) - {home.id})
    if others:
        record(*(Event(id, EventKind.OPERATOR_REQUEST, details=details) for id in others))


def _events(key: _Key, ids: Mapping[str, None]) -> Iterator[Event]:
    remaining, is_first = iter(ids), True
    while (piece := list(islice(remaining, MAX_IDS))) or is_first:
        is_first = False
        shared: JSONObject = {"fields": list(key.fields), "records": piece, "count": len(piece)}
        if key.api_key_id:
            shared["api_key_id"] = key.api_key_id
        yield Event(
            key.account_id,
            EventKind.PERSONAL_DATA_READ if key.fields else EventKind.OPERATOR_READ,
            key.table_name,
            piece[0] if len(piece) == 1 else "",
            shared,
            key.path,
            _reader(key),
        )


def _reader(key: _Key) -> Actor:
    acting = actor.current()
    if key.user_id in (None, acting.user_id):
        return acting
    # Somebody else's change is shown to this user, such as the owner of a webhook.
    name = key.name or key.email
    reader = Actor(str(key.user_id), key.email, name, request_id=acting.request_id)
    kind, id, named = key.acts_as
    return reader._replace(kind=kind, id=id, name=named)
