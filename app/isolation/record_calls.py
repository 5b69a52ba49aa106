"""How records are asked for and sent, with what belongs to an account."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date

from app.collections.definition import Definition
from app.isolation.tenants import Tenant


def queries(route: str, one: Definition, of: Tenant) -> Iterator[dict[str, str]]:
    """What a list or a record is asked for: by every way there is, and by each value."""
    if route.endswith("<record_id>"):
        yield from ({"expand": name} for name in _references(one))
        return
    if not route.endswith(("<collection>", "/export", "/aggregate")):
        return
    summed = {"functions": "count()"} if route.endswith("/aggregate") else {}
    for name, text in _known(one, of).items():
        yield {**summed, name: text}
    yield {**summed, "filter": f'id == "{of.id_of(one.table_name)}"'}
    yield from ({**summed, **way} for way in _ways(route, one))


def _ways(route: str, one: Definition) -> Iterator[dict[str, str]]:
    named = [name for name, spec in one.fields.items() if spec.filterable]
    if route.endswith("/aggregate"):
        yield {}
        yield from ({"group_by": name} for name in named)
        numbers = [name for name in named if one.fields[name].type == "number"]
        yield from ({"functions": f"sum({n}),min({n}),max({n}),avg({n})"} for n in numbers)
        return
    yield from ({"sort": f"-{name}"} for name in named)
    if route.endswith("/export"):
        yield from ({"format": kind} for kind in ("json", "jsonl", "csv"))
    else:
        yield {"cursor": "", "limit": "1"}
        yield from ({"expand": name} for name in _references(one))


def _references(one: Definition) -> list[str]:
    return [name for name, spec in one.fields.items() if spec.collection]


def _known(one: Definition, of: Tenant) -> dict[str, str]:
    row = of.records[one.name]
    kinds = ("text", "email", "url", "number", "reference")
    own = (name for name, spec in one.fields.items() if spec.type in kinds)
    return {name: str(row[name] or of.mark) for name in ("id", "account_id", "created_by", *own)}


def bodies(
    method: str, route: str, one: Definition | None, of: Tenant, own: Tenant
) -> Iterator[object]:
    """What is sent to a collection: the record, and the record with references of one's own."""
    if one is None or route.endswith("/restore"):
        yield {"audit_id": 1} if one else {}
        return
    row, id = _sendable(one, of.records[one.name]), of.id_of(one.table_name)
    references = _references(one)
    kept = _sendable(one, own.records[one.name])
    # A value may be anybody's, a reference only lead to what is one's own.
    for sent in [row, row | {name: kept[name] for name in references}][: 2 if references else 1]:
        if route.endswith("/batch"):
            some = {"POST": {"records": [sent]}, "PATCH": {"records": [{"id": id, "data": sent}]}}
            yield some.get(method, {"ids": [id]})
        else:
            yield [sent] if route.endswith("/import") else sent


def _sendable(one: Definition, row: Mapping[str, object]) -> dict[str, object]:
    """The stored fields of a record as JSON; what must be one of a few is the first of them."""
    chosen = {
        n: spec.options["choices"][0] for n, spec in one.fields.items() if "choices" in spec.options
    }
    plain = {name: row[name] for name in one.fields}
    return {n: v.isoformat() if isinstance(v, date) else v for n, v in (plain | chosen).items()}
