"""Queries and bodies for records, with an account's ids and marks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date

from app.collections.definitions import Definition
from app.collections.fields import PEOPLE
from app.isolation.tenants import Tenant
from app.rules import Type


def queries(route: str, definition: Definition, owner: Tenant) -> Iterator[dict[str, str]]:
    """Yield the queries of a list or record: each parameter, and each value as a filter."""
    if route.endswith("<record_id>"):
        yield from ({"expand": name} for name in ("created_by", *_references(definition)))
        return
    if not route.endswith(("<collection>", "/export", "/aggregate")):
        return
    base = {"functions": "count()"} if route.endswith("/aggregate") else {}
    for name, text in _filters(definition, owner).items():
        yield {**base, name: text}
    yield {**base, "filter": f'id == "{owner.id_of(definition.table_name)}"'}
    if definition.rules.get("list_rule") is not None:  # else closed to `@any` as well
        yield {
            **base,
            "filter": f'@any({definition.name}, id = "{owner.id_of(definition.table_name)}")',
        }
        yield {**base, "filter": f"@count({definition.name}, id IS NOT NULL) <= 1"}
    for name, field in definition.fields.items():
        if field.leads_to == PEOPLE:
            yield {**base, "filter": f'{name}.name ~ "{owner.mark}%"'}
    yield from ({**base, **query} for query in _parameters(route, definition))


def _parameters(route: str, definition: Definition) -> Iterator[dict[str, str]]:
    names = [name for name, spec in definition.fields.items() if spec.filterable]
    if route.endswith("/aggregate"):
        yield {}
        yield from ({"group_by": name} for name in names)
        numbers = [name for name in names if definition.fields[name].rule_type is Type.NUMBER]
        yield from ({"functions": f"sum({n}),min({n}),max({n}),avg({n})"} for n in numbers)
        return
    yield from ({"sort": f"-{name}"} for name in names)
    if route.endswith("/export"):
        yield from ({"format": kind} for kind in ("json", "jsonl", "csv", "zip"))
    else:
        yield {"cursor": "", "limit": "1"}
        yield from ({"expand": name} for name in _references(definition))


def _references(definition: Definition) -> list[str]:
    return [*definition.references]


def _filters(definition: Definition, owner: Tenant) -> dict[str, str]:
    row = owner.records[definition.name]
    names = [
        name
        for name, spec in definition.fields.items()
        if spec.filterable and not isinstance(row[name], bool | date)
    ]
    return {
        name: str(row[name] or owner.mark) for name in ("id", "account_id", "created_by", *names)
    }


def bodies(
    method: str, route: str, definition: Definition | None, owner: Tenant, caller: Tenant
) -> Iterator[object]:
    """Yield bodies: the owner's record, and the same with the caller's own references."""
    if definition is None or route.endswith("/restore"):
        yield {"audit_id": 1} if definition else {}
        return
    row, id = (
        _sendable(definition, owner.records[definition.name]),
        owner.id_of(definition.table_name),
    )
    references = _references(definition)
    caller_row = _sendable(definition, caller.records[definition.name])
    # Values are free, but references must be the caller's own.
    for body in [row, row | {name: caller_row[name] for name in references}][
        : 2 if references else 1
    ]:
        if route.endswith("/batch"):
            body = {"POST": {"records": [body]}, "PATCH": {"records": [{"id": id, "data": body}]}}
            yield body.get(method, {"ids": [id]})
        else:
            yield [body] if route.endswith("/import") else body


def _sendable(definition: Definition, row: Mapping[str, object]) -> dict[str, object]:
    """The stored fields of a record as JSON; fields with choices have the first one."""
    chosen = {n: spec.example for n, spec in definition.fields.items() if "choices" in spec.options}
    plain = {name: row[name] for name in definition.fields}
    return {n: v.isoformat() if isinstance(v, date) else v for n, v in (plain | chosen).items()}
