"""A kind of items that a manifest lists: how they are found, compared and changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import sqlalchemy as sa

from app import db
from app.accounts import names
from app.accounts.names import Name
from app.auth.principal import Principal
from app.db.types import json_equal
from app.errors import InvalidValues, problem
from app.manifest.document import Path
from app.types import JSONMapping, JSONObject

Key = tuple[str, ...]


class Kind(ABC):
    """A kind of items. Rows of a kind that belong to no account have no `account_id`."""

    name: ClassVar[str]
    section: ClassVar[str]
    model: ClassVar[Any]
    properties: ClassVar[Sequence[str]]
    is_single: ClassVar[bool] = False
    """Whether there is one item of the kind, always: a section is that item, no list."""
    identity: ClassVar[Sequence[str]] = ("name",)
    """The properties that an item is found by."""
    required: ClassVar[Sequence[str]] = ()
    """The other properties that a new item needs."""
    hidden: ClassVar[frozenset[str]] = frozenset()
    """Properties that may hold secrets, so plans do not show their values."""

    def rows(self, account_ids: Sequence[str] | None = None) -> list[Any]:
        """Return the stored items of some accounts, or of all, oldest first."""
        query = sa.select(self.model).order_by(self.model.id)
        if account_ids is not None:
            query = query.where(self.model.account_id.in_(account_ids))
        return list(db.db.session.scalars(query))

    def export(self, row: Any) -> JSONObject:
        """Return a stored item as a manifest shows it; secrets are `***`."""
        return {name: getattr(row, name) for name in self.properties}

    def entries(self, section: Any) -> Iterator[tuple[Path, JSONMapping]]:
        """The items of a section of a manifest, each with its place in it."""
        yield from (((index,), item) for index, item in enumerate(section))

    def section_of(self, items: Sequence[JSONMapping]) -> Any:
        """The section of a manifest that has these items."""
        return list(items)

    def key(self, item: JSONMapping) -> Key:
        return tuple(item[name] for name in self.identity)

    def changed(self, row: Any, body: JSONMapping, by: Principal) -> list[str]:
        """Return the properties that differ from those of a stored item. Raises InvalidValues."""
        return [name for name, value in body.items() if not json_equal(getattr(row, name), value)]

    def check(self, body: JSONMapping, by: Principal) -> None:
        """Check a new item, also for what takes too long in a transaction. Raises InvalidValues."""
        missing = [name for name in self.required if name not in body]
        if missing:
            message = f"A new {self.name} needs this."
            raise InvalidValues([problem(name, "required", message) for name in missing])

    def changes(self, row: Any, body: JSONMapping) -> list[JSONObject]:
        """Return how an item changes, as a plan shows it."""
        before = self.export(row)
        return [
            {"operation": "change_property", "field": None, "property": name}
            | ({} if name in self.hidden else {"before": before.get(name), "after": value})
            for name, value in body.items()
        ]

    def undone(self, row: Any, body: JSONMapping) -> JSONObject:
        """Return the properties that undo a change."""
        before = self.export(row)
        return {name: before[name] for name in body if name in before}

    def follow_ups(self, row: Any, body: JSONMapping) -> list[JSONObject]:
        """Return the changes of other things that changing an item brings along."""
        return []

    @abstractmethod
    def create(self, body: JSONMapping, *, by: Principal) -> JSONObject | None:
        """Create an item. Returns secrets that are shown only once. Raises as its service."""

    @abstractmethod
    def change(self, row: Any, body: JSONMapping, *, by: Principal) -> None:
        """Change an item. Raises as its service."""

    @abstractmethod
    def remove(self, row: Any, *, by: Principal) -> None:
        """Remove an item. Raises as its service."""


class Single(Kind):
    """A kind of which the instance has one item, always."""

    is_single, identity = True, ()

    @property
    def path(self) -> tuple[str, ...]:
        """The names that lead to the item in a manifest."""
        return (self.section,)

    def entries(self, section: Any) -> Iterator[tuple[Path, JSONMapping]]:
        """The section is the item."""
        yield (), section

    def section_of(self, items: Sequence[JSONMapping]) -> JSONMapping:
        return items[0]

    def create(self, body: JSONMapping, *, by: Principal) -> None:
        raise NotImplementedError

    def remove(self, row: object, *, by: Principal) -> None:
        raise NotImplementedError


class ByName(Single):
    """A kind of items that a manifest has by name: all of them are one row."""

    properties = ()

    @abstractmethod
    def after(self, row: Any, body: JSONMapping) -> JSONMapping:
        """Return the items by name after a change, as a manifest shows them."""

    def changes(self, row: Any, body: JSONMapping) -> list[JSONObject]:
        """Return how each item changes."""
        before, after = self.export(row), self.after(row, body)
        return [
            {"operation": "change_property", "field": None, "property": name}
            | {"before": before.get(item.get("rename_from") or name), "after": after.get(name)}
            for name, item in body.items()
        ]


def renames(name: Name, new: str) -> list[JSONObject]:
    """Return the changes that a rename brings along, as a plan shows them."""
    changes: list[JSONObject] = []
    for use in names.uses(name):
        operation = "change_rule" if use.account_id is None else "change_name"
        for place, text in (use.after(name, new) or {}).items():
            change = {"operation": operation, "field": use.owner, "property": place}
            changes.append(change | {"before": use.texts[place], "after": text})
    return changes
