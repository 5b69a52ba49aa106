"""The tables and columns of a bundle, and how their values are written as JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from decimal import Decimal
from functools import cache, partial
from typing import Any

import orjson
import sqlalchemy as sa
from cryptography.fernet import InvalidToken

from app import clock, crypto
from app.collections import search_index
from app.collections.fields import Exact, JsonText
from app.db import Base, policies, policy_of
from app.db.policy import Bundled
from app.db.types import UtcDateTime
from app.extensions import registry
from app.outbound.header_values import ENCRYPTED
from app.records.store import Octets
from app.rules import values

ROLE_COLUMNS = {"role_id", "given_role_id"}
"""Ids of roles, which differ between instances: a bundle has names."""

OPEN = "decrypted"
"""The property that a bundle has in the place of `ENCRYPTED`."""

Coder = Callable[[Any], Any]


@cache
def bundled() -> Mapping[str, Bundled]:
    """The policies of bundled tables, by name; in the order of a bundle, the logs last."""
    found = ((name, policy.bundle) for name, policy in policies().items())
    kept = [(name, bundle) for name, bundle in found if isinstance(bundle, Bundled)]
    return dict(sorted(kept, key=lambda item: (item[1].is_log, item[1].order)))


registry.on_change(bundled.cache_clear)


def included() -> list[sa.Table]:
    """The tables that are written before the records of collections."""
    return [core_table(name) for name, bundle in bundled().items() if not bundle.is_log]


def logs() -> list[sa.Table]:
    """The tables of the logs."""
    return [core_table(name) for name, bundle in bundled().items() if bundle.is_log]


def core_table(name: str) -> sa.Table:
    """A table of the application."""
    return Base.metadata.tables[name]


def names_of(table: sa.Table) -> list[str]:
    """The columns that a bundle has of a table: all but the account, and what an import makes."""
    return [
        str(column.name)
        for column in table.columns
        # Those of a subquery, such as the trash of a collection, have none.
        if column.name != "account_id" and search_index.OF_FIELD not in getattr(column, "info", ())
    ]


def plain(table: sa.Table, name: str | None = None) -> sa.TableClause:
    """The table, or one like it, with JSON as text, so that it is copied as it is stored."""
    columns: list[sa.ColumnClause[Any]] = []
    for column in table.columns:
        is_text = isinstance(column.type, sa.JSON | JsonText)
        columns.append(sa.column(column.name, sa.Text() if is_text else column.type))
    return sa.table(name or table.name, *columns)


def selected(table: sa.Table) -> list[sa.ColumnElement[Any]]:
    """The columns to read, in the order of `names_of`."""
    columns = (table.c[name] for name in names_of(table))
    return [sa.cast(one, sa.Text) if isinstance(one.type, sa.JSON) else one for one in columns]


def shortened(
    columns: Sequence[sa.ColumnElement[Any]], key: Sequence[sa.Column[Any]], most: int
) -> list[sa.ColumnElement[Any]]:
    """The columns without values beyond `most` bytes, and behind them whether there are any."""
    result, is_long = list[sa.ColumnElement[Any]](), list[sa.ColumnElement[bool]]()
    for column in columns:
        is_key = any(column is one for one in key)
        if isinstance(column.type, sa.Text | JsonText) and not is_key:
            size: sa.ColumnElement[int] = Octets(column)
            is_long.append(sa.func.coalesce(size, 0) > most)
            short = sa.type_coerce(sa.case((size <= most, column)), column.type)
            result.append(short.label(None))
        else:
            result.append(column)
    return [*result, (sa.or_(*is_long) if is_long else sa.false()).label("is_long")]


def encoders(table: sa.Table, roles: Mapping[int, str]) -> list[Coder | None]:
    """The functions that turn the stored values of each column into JSON."""
    secret = (crypto.decrypt, _open_header)
    return [_coder(table, name, ENCODERS, roles.__getitem__, secret) for name in names_of(table)]


def decoders(table: sa.Table, roles: Mapping[str, int]) -> list[Coder | None]:
    """The functions that turn the JSON of each column into values to insert."""
    secret = (crypto.encrypt, _seal_header)
    return [_coder(table, name, DECODERS, roles.__getitem__, secret) for name in names_of(table)]


def coded(coders: Iterable[Coder | None], values: Sequence[Any]) -> list[Any]:
    """The values, each as its coder turns it; null stays null."""
    return [
        value if value is None or coder is None else coder(value)
        for coder, value in zip(coders, values, strict=True)
    ]


def _coder(
    table: sa.Table,
    name: str,
    by_type: Mapping[type, Coder],
    role: Coder,
    secrets: tuple[Coder, Coder],
) -> Coder | None:
    if name in ROLE_COLUMNS:
        return role
    of_text, of_header = secrets
    policy = policy_of(table.name)
    if policy and name in policy.encrypted_json:
        return partial(_recoded, of_header, within=name != "headers")
    if policy and name in policy.encrypted:  # the bundle is encrypted itself
        return of_text
    return by_type.get(type(table.c[name].type))


def _recoded(change: Coder, text: str, *, within: bool) -> str:
    value = orjson.loads(text)
    changed = _headers_changed(value if within else {"headers": value}, change)
    return orjson.dumps(changed if within else changed["headers"]).decode()


def _headers_changed(value: Any, change: Coder) -> Any:
    """JSON with every header value changed: of webhooks, the values; of steps, in `headers`."""
    if isinstance(value, list):
        return [_headers_changed(item, change) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: (
            {header: change(content) for header, content in item.items()}
            if name == "headers" and isinstance(item, dict)
            else _headers_changed(item, change)
        )
        for name, item in value.items()
    }


def _open_header(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {ENCRYPTED}:
        with suppress(InvalidToken, AttributeError):  # else a body of that form
            return {OPEN: crypto.decrypt(value[ENCRYPTED])}
    return value


def _seal_header(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {OPEN}:
        return {ENCRYPTED: crypto.encrypt(value[OPEN])}
    return value


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


ENCODERS: dict[type, Coder] = {
    UtcDateTime: clock.iso,
    sa.Date: date.isoformat,
    Exact: values.plain,
    sa.LargeBinary: _base64,
}
DECODERS: dict[type, Coder] = {
    UtcDateTime: clock.parse,
    sa.Date: date.fromisoformat,
    Exact: Decimal,
    sa.LargeBinary: base64.b64decode,
}
