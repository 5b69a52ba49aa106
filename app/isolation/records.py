"""A record of each collection whose values contain the account's mark."""

from __future__ import annotations

from app import clock
from app.collections import definitions
from app.collections.definitions import Definition
from app.ids import new_id
from app.isolation.tenants import Tenant
from app.types import JSONObject


def build_records(tenant: Tenant) -> list[Definition]:
    """Build a record for each collection; returns the collections, referenced ones first."""
    remaining, ordered = definitions.get_all(), list[Definition]()
    while remaining:
        ready = [definition for definition in remaining if not _waits(tenant, definition)]
        for definition in ready or remaining:
            tenant.records[definition.name] = _record(tenant, definition)
        ordered += ready or remaining
        remaining = [
            definition for definition in remaining if definition.name not in tenant.records
        ]
    return ordered


def _waits(tenant: Tenant, definition: Definition) -> bool:
    targets = {
        target.name
        for name, spec in definition.fields.items()
        if spec.collection
        and (target := definition.target(name))
        and target.name != definition.name
    }
    return not targets <= tenant.records.keys()


def _record(tenant: Tenant, definition: Definition) -> dict[str, object]:
    id, now, user = tenant.new_id(definition.table_name), clock.now(), tenant.id_of("users")
    row = {"id": id, "account_id": tenant.account_id, "created_at": now, "updated_at": now}
    row |= {"created_by": user, "updated_by": user}
    return row | {name: _content(tenant, definition, name) for name in definition.fields}


def _content(tenant: Tenant, definition: Definition, name: str) -> object:
    field, target = definition.fields[name], definition.target(name)
    mark = f"{tenant.mark}-{definition.table_name}-{name}"
    if target is not None:
        return tenant.ids.get(target.table_name)
    if name in definition.files:
        return definition.files[name].stored([_file(tenant, mark)])
    return field.marked(mark, tenant.number)


def _file(tenant: Tenant, text: str) -> JSONObject:
    return {
        "id": new_id(),
        "name": f"{text}.txt",
        "size": len(tenant.mark),  # filling.py stores the mark as its bytes
        "mime_type": "text/plain",
        "sha256": text,
    }
