"""Plans and applies manifests: one transaction, all or nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import orjson
from sqlalchemy.exc import DBAPIError

from app.auth.principal import Principal
from app.collections import changes, fragments, imports, index_builds, table
from app.collections.changes import Change
from app.collections.index_builds import Builds
from app.db import errors, versioned_cache
from app.errors import Conflict, InvalidValues
from app.manifest import (
    definitions,
    drift,
    effects,
    fragment_changes,
    items,
    name_changes,
    schemas,
)
from app.manifest.document import Document
from app.manifest.export import VERSION
from app.manifest.fragment_changes import FragmentChanges
from app.manifest.name_changes import NameChanges
from app.types import JSONMapping, JSONObject

PLAN_STALE = "Something changed after this plan, or it is of another manifest. Plan again."
CHANGING = "The collections are being changed. Plan again."


@dataclass(frozen=True)
class _Comparison:
    """A manifest, compared with what is stored."""

    content: JSONMapping
    definitions: definitions.Comparison
    items: items.Comparison
    operations: Sequence[JSONMapping]
    tests: Sequence[JSONMapping]
    names: NameChanges
    fragments: FragmentChanges

    @property
    def problems(self) -> list[JSONObject]:
        """All problems but those of present records, by line."""
        failed = effects.rule_test_problems(self.tests)
        problems = [*self.definitions.problems, *self.items.problems, *failed]
        problems += self.fragments.problems
        return sorted(problems, key=lambda one: one.get("line") or 0)

    @property
    def plan_hash(self) -> str:
        """A digest of the plan and of the versions it is based on, in any order of properties."""
        changed = [change.plan_hash for change in self.definitions.changes]
        removed = [(row.id, row.version) for _, row in self.definitions.removed]
        operations = [{**one, "line": None} for one in self.operations]
        parts = (self.content, operations, changed, removed, self.fragments.present)
        text = orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(text).hexdigest()

    @property
    def reverse(self) -> JSONObject:
        """The manifest that undoes the plan."""
        own = [] if self.definitions.problems else definitions.reverse(self.definitions)
        listed = {"collections": own} if own else {}
        return {"version": VERSION, **self.fragments.reverse, **listed, **self.items.reverse}


def plan(document: Document, *, by: Principal, strict: bool = False) -> JSONObject:
    """Return what applying a manifest would do: operations, SQL, lost values, access, tests.

    With `strict`, also what exists and is not in the manifest. Changes nothing. Problems are
    returned, too; InvalidValues is raised for another shape, and RecentSignInRequired if providers
    or settings of accounts change.
    """
    content = schemas.load(document)
    try:
        with (
            versioned_cache.reloading(),
            name_changes.find(content).expected(),
            fragments.override(fragment_changes.resulting(content)),
        ):
            compared = _compare(document, content, by)
            own, names = compared.definitions, compared.names
            result = {
                "has_changes": bool(compared.operations),
                "operations": compared.operations,
                "tests": compared.tests,
                "plan_hash": compared.plan_hash,
                "reverse": compared.reverse,
                "sql": [],
                "data_lost": [],
                "access": [],
                "warnings": [],
                "drift": None,
            }
            if not own.problems:  # else there is no resulting definition to look at
                for problem in imports.row_problems(own.import_):
                    own.add_problem(problem)
                result |= {
                    "sql": effects.statements(own),
                    "data_lost": effects.lost_values(own),
                    "access": effects.access_changes(own, names),
                    "warnings": [
                        *effects.warnings(own, names),
                        *effects.directory_warnings(content),
                    ],
                }
            with name_changes.future(own):
                items.rehearse(compared.items)
            if strict:  # to an operator key, of what it may change
                result["drift"] = drift.find(content, of_definitions=by.is_operator_key)
            return {**result, "problems": compared.problems}
    except DBAPIError as error:
        if not errors.is_stale_schema(error):
            raise
        raise Conflict(CHANGING) from error


def apply(document: Document, plan_hash: str, *, by: Principal) -> JSONObject:
    """Apply a manifest, all or nothing; does nothing if nothing differs.

    Raises InvalidValues with all problems, and Conflict (`plan_stale`) if `plan_hash` is that of
    another plan.
    """
    content = schemas.load(document)

    @versioned_cache.reloading()  # for referenced collections
    def planned() -> list[Change]:
        changed = fragments.override(fragment_changes.resulting(content))
        with name_changes.find(content).expected(), changed:
            compared = _compare(document, content, by)
        _check(compared, plan_hash)
        return compared.definitions.changes

    with index_builds.ahead(planned) as built:
        return _apply(document, content, plan_hash, built, by)


@table.schema_change
@versioned_cache.reloading()  # for referenced collections
def _apply(
    document: Document, content: JSONMapping, plan_hash: str, built: Builds, by: Principal
) -> JSONObject:
    changed = fragments.override(fragment_changes.resulting(content))
    with name_changes.find(content).expected(), changed:
        compared = _compare(document, content, by, lock=True)
        _check(compared, plan_hash)
        result = {
            "applied": bool(compared.operations),
            "operations": compared.operations,
            "migrations_created": [],
            "secrets": [],
            "reverse": compared.reverse,
        }
        if not compared.operations:
            return result
        own = compared.definitions
        for problem in imports.row_problems(own.import_, built):
            own.add_problem(problem)
        changes.refuse(own.problems)
        with compared.fragments.stored():
            result["migrations_created"] = definitions.run(own, built)
        result["secrets"] = items.run(compared.items)
        if compared.items.problems:
            raise InvalidValues(compared.items.problems)
        return result


def _compare(
    document: Document, content: JSONMapping, by: Principal, *, lock: bool = False
) -> _Comparison:
    own = definitions.compare(document, content, lock=lock)
    renamed = {
        change.former_name.lower(): change.new.name for change in own.changes if change.former_name
    }
    listed = items.compare(document, content, by=by, renamed=renamed)
    names = name_changes.find(content)
    operations = [] if own.problems else definitions.operations(own)
    changed = fragment_changes.compare(document, content, own)
    operations = [*changed.operations, *operations]
    with name_changes.future(own):
        operations += [step.operation(document) for step in listed.steps]
    future = {} if own.problems else own.definitions()
    followed = {key: names.followed(one) for key, one in future.items()}
    tests = effects.run_rule_tests(document, own.items, followed)
    return _Comparison(document.content, own, listed, operations, tests, names, changed)


def _check(compared: _Comparison, plan_hash: str) -> None:
    if compared.operations and plan_hash != compared.plan_hash:
        raise Conflict(PLAN_STALE, error="plan_stale")
    if compared.problems:
        raise InvalidValues(compared.problems)
