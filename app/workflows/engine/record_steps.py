"""Steps on records, through the records service with the rights of the workflow's owner.

The change and the step's log commit together, so record steps are executed exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.audit.security_log import reads
from app.auth.principal import Principal
from app.collections import definitions, masking
from app.errors import InvalidValues, problem
from app.records import service as records
from app.records.store.reads import ListQuery
from app.types import JSONMapping, JSONObject
from app.web import serialization

DEFAULT_LIMIT = 100
Config = JSONMapping


def create(config: Config, by: Principal) -> object:
    """Create a record; returns it as the owner sees it."""
    return records.create(_text(config, "collection"), _fields(config), by=by)


def update(config: Config, by: Principal) -> object:
    """Update fields of a record; returns it as the owner sees it."""
    name, id = _text(config, "collection"), _text(config, "record_id").lower()
    return records.patch(name, id, _fields(config), by=by)


def delete(config: Config, by: Principal) -> object:
    name, id = _text(config, "collection"), _text(config, "record_id").lower()
    records.delete(name, id, by=by)
    return {"id": id, "deleted": True}


def query_records(config: Config, by: Principal) -> object:
    """Records that the owner may list, up to a limit."""
    params = {name: [_text(config, name)] for name in ("filter", "sort") if config.get(name)}
    limit = config.get("limit")
    limit = DEFAULT_LIMIT if limit is None else limit
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= DEFAULT_LIMIT:
        message = f"Enter a number from 1 to {DEFAULT_LIMIT}."
        raise InvalidValues([problem("limit", "number_out_of_range", message)])
    name = _text(config, "collection")
    query = ListQuery(parameters=params, limit=limit, count=True)
    items, total = records.page(name, query, by=by)
    first = items[0] if items else None
    return {"records": items, "first": first, "count": len(items), "total": total}


RECORDS: Mapping[str, Callable[[Config, Principal], object]] = {
    "create_record": create,
    "update_record": update,
    "delete_record": delete,
    "query_records": query_records,
}


def carry_out(kind: str, config: Config, by: Principal) -> object:
    """Run an action on records, and return its output. Raises AppError."""
    with reads.by_path("workflow"):
        return serialization.plain(RECORDS[kind](config, by))


def shows_personal(config: Config, by: Principal) -> bool:
    """Whether the owner sees personal data unmasked."""
    collection = definitions.get(_text(config, "collection"))
    return bool(collection.personal) and not masking.masks_for(by)


def _text(config: Config, name: str) -> str:
    value = config.get(name)
    if not isinstance(value, str) or not value:
        message = "The template did not return text."
        raise InvalidValues([problem(name, "invalid_type", message)])
    return value


def _fields(config: Config) -> JSONObject:
    value = config.get("data")
    if not isinstance(value, dict):
        message = "The template did not return an object."
        raise InvalidValues([problem("data", "invalid_type", message)])
    return value
