"""A collection as the application works with it: immutable, cached, with its table (contract 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from app import stamps
from app.collections import table
from app.collections.fields import SYSTEM_FIELDS, TYPES, Field
from app.collections.models import Collection
from app.db import db
from app.errors import NotFound
from app.stamps import Stamp

OPERATIONS = ("list", "view", "create", "update", "delete")
FIELD_LISTS = ("list", "view", "create", "update")
ALL_FIELDS = "*"


@dataclass(frozen=True)
class Definition:
    """A collection's name, fields and rules at one version."""

    id: str
    name: str
    table_name: str
    schema: tuple[Mapping[str, Any], ...]
    rules: Mapping[str, Any]
    created_at: datetime
    updated_at: datetime
    version: int

    @cached_property
    def fields(self) -> Mapping[str, Field]:
        """The declared fields by name, in order."""
        return {spec["name"]: field_of(spec) for spec in self.schema}

    @cached_property
    def columns(self) -> Mapping[str, Field]:
        """Every field by name, the system's first."""
        return {name: one.like for name, one in SYSTEM_FIELDS.items()} | dict(self.fields)

    @cached_property
    def table(self) -> sa.Table:
        """The table that holds the records."""
        return table.of(self.table_name, self.fields.values())

    @cached_property
    def selected(self) -> Sequence[sa.Column[Any]]:
        """The table's columns in the order of `columns`."""
        return [self.table.c[name] for name in self.columns]

    @property
    def stamp(self) -> Stamp:
        """What must be unchanged for this to be still true."""
        return Stamp("collections", (self.id,), self.version)

    def rule(self, operation: str) -> str | None:
        """The rule of an operation; None closes it."""
        text: str | None = self.rules.get(f"{operation}_rule")
        return text

    def field_list(self, operation: str) -> Any:
        """The names of the fields that the operation opens, or `*`."""
        return self.rules.get(f"{operation}_fields", ALL_FIELDS)


def field_of(spec: Mapping[str, Any]) -> Field:
    """The field that a valid entry of a schema declares."""
    known = ("name", "required", "default", "unique", "options", "collection")
    return TYPES[spec["type"]](**{key: spec[key] for key in known if key in spec})


def of_row(row: Collection) -> Definition:
    """The definition that is stored in a row."""
    return Definition(
        id=row.id,
        name=row.name,
        table_name=row.table_name,
        schema=tuple(row.schema),
        rules=row.rules,
        created_at=row.created_at,
        updated_at=row.updated_at,
        version=row.version,
    )


def named(name: str) -> Definition:
    """The definition of the collection with that name, whatever its case. Raises NotFound."""
    key = name.lower()
    definition = stamps.cache("definitions").get(key, lambda: _load(key))
    if definition is None:
        raise NotFound("There is no such collection.")
    return definition


def _load(name_key: str) -> Definition | None:
    statement = sa.select(Collection).where(Collection.name_key == name_key)
    row = db.session.scalar(statement.execution_options(populate_existing=True))
    return of_row(row) if row else None
