"""Rule tests of collections: a manifest states them, they are stored, and an export has them.

They follow new names of what they name, so that an export passes its own tests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import sqlalchemy as sa

from app import db, events
from app.accounts import names
from app.accounts.names import Name, Use
from app.collections import models
from app.rules.named import FLAG, ROLE
from app.rules.nodes import PLAN
from app.types import JSONMapping, JSONObject

ROWS = models.Collection
HAS_TESTS = sa.cast(ROWS.tests, sa.Text) != "[]"


def stored() -> dict[str, list[JSONObject]]:
    """Return the tests of all collections that have any, by the collection's name."""
    query = sa.select(ROWS.name, ROWS.tests).where(HAS_TESTS)
    return {row.name: row.tests for row in db.db.session.execute(query)}


@events.subscribe(events.FieldsRenamed)
def _follow_fields(event: events.FieldsRenamed) -> None:
    """Have the records of tests follow; what is removed leaves them."""

    def followed(row: models.Collection, test: JSONObject) -> JSONObject:
        fields = partial(_with_fields, renames=event.renames, removed=event.removed)
        changed = dict(test)
        if row.id == event.definition.id:
            changed |= {name: fields(test[name]) for name in ("given", "old") if name in test}
        if "records" in test:
            changed["records"] = {
                name: [*map(fields, rows)] if _is_same(name, event.definition.name) else rows
                for name, rows in test["records"].items()
            }
        return changed

    _rewrite(followed)


def _with_fields(
    values: JSONMapping, renames: Mapping[str, str], removed: Collection[str]
) -> JSONObject:
    return {renames.get(name, name): one for name, one in values.items() if name not in removed}


@events.subscribe(events.CollectionRenamed)
def _follow_collection(event: events.CollectionRenamed) -> None:
    def followed(row: models.Collection, test: JSONObject) -> JSONObject:
        records = {
            event.name if _is_same(name, event.former) else name: rows
            for name, rows in test.get("records", {}).items()
        }
        return {**test, **({"records": records} if records else {})}

    _rewrite(followed)


@names.place
def in_rule_tests(name: Name) -> Iterator[Use]:
    """The callers of tests, who have a role, a plan and flags; a test may outlive these."""
    if name.kind not in (ROLE, PLAN, FLAG):
        return
    rows = db.db.session.execute(sa.select(ROWS.id, ROWS.name, ROWS.tests).where(HAS_TESTS))
    for row in rows.all():
        if any(_renamed(test, name, "") != test for test in row.tests):
            follow = partial(_follow_name, row.id, name)
            texts = {"as": name.value}
            yield Use(f"{row.name}.tests", texts, follow, are_names=True, may_outlive=True)


def _follow_name(collection_id: str, name: Name, texts: Mapping[str, str]) -> None:
    new = texts["as"]
    _rewrite(lambda row, test: _renamed(test, name, new), ROWS.id == collection_id)


def _renamed(test: JSONObject, name: Name, new: str) -> JSONObject:
    caller = test.get("as")
    if name.kind == ROLE and caller == name.value:
        return {**test, "as": new}
    if not isinstance(caller, dict):
        return test
    place = "flags" if name.kind == FLAG else name.kind
    value = caller.get(place)
    if isinstance(value, list):
        changed: object = [new if one == name.value else one for one in value]
    else:
        changed = new if value == name.value else value
    return {**test, "as": {**caller, place: changed}} if place in caller else test


def _rewrite(change: Callable[[models.Collection, JSONObject], JSONObject], *where: Any) -> None:
    query = sa.select(ROWS).where(HAS_TESTS, *where).order_by(ROWS.id).with_for_update()
    for row in db.db.session.scalars(query).all():
        tests = [change(row, test) for test in row.tests]
        if tests != row.tests:
            row.tests = tests
    db.db.session.flush()


def _is_same(one: str, other: str) -> bool:
    return one.lower() == other.lower()
