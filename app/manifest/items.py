"""Compares the listed items of a manifest with the stored ones, and applies the differences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app import db
from app.auth import principal as principals
from app.auth.principal import Principal
from app.db import versioned_cache
from app.errors import AppError, BadRequest, Conflict, Forbidden, InvalidValues
from app.errors import RecentSignInRequired as NotRecent
from app.manifest.document import Document, Path
from app.manifest.kinds import OF_ACCOUNT, ROLES, Key, Kind
from app.types import JSONMapping, JSONObject

CREATE, UPDATE, REMOVE = "create", "update", "remove"
ORDER = {CREATE: 1, UPDATE: 2, REMOVE: 0}
META = ("rename_from", "removed")
NO_ACCOUNT = "There is no active account with this slug. Create it first."
AMBIGUOUS = "Several {}s are found by this: list all of them, so that it is clear which to remove."


@dataclass(frozen=True)
class Step:
    """One item to create, change or remove."""

    kind: Kind
    account: str | None
    """The account's slug."""
    by: Principal
    path: Path
    action: str
    body: JSONMapping
    """The item as it shall be; of an update only what changes."""
    row: object = None

    def run(self) -> JSONObject | None:
        """Carry it out. Returns secrets that are shown only once. Raises as the services."""
        if self.action == CREATE:
            return self.kind.create(self.body, by=self.by)
        if self.action == UPDATE:
            self.kind.change(self.row, self.body, by=self.by)
        else:
            self.kind.remove(self.row, by=self.by)
        return None

    def operation(self, document: Document) -> JSONObject:
        """What the plan shows."""
        before = self.kind.export(self.row) if self.row is not None else {}
        changes = [
            {"operation": "change_property", "field": None, "property": name}
            | ({} if name in self.kind.hidden else {"before": before.get(name), "after": value})
            for name, value in (self.body.items() if self.action == UPDATE else ())
        ]
        return {
            "kind": self.kind.name,
            "account": self.account,
            "name": " ".join(self.kind.key(before or self.body)),
            "action": self.action,
            "changes": changes,
            "line": document.line(self.path),
        }


@dataclass
class Comparison:
    """The steps of a manifest's items, its problems, and what undoes the steps."""

    document: Document
    steps: list[Step] = field(default_factory=list)
    problems: list[JSONObject] = field(default_factory=list)
    reverse: JSONObject = field(default_factory=dict)

    def add_problems(self, path: Path, error: AppError) -> None:
        """Add the problems that a service reported of an item."""
        details = error.details if isinstance(error, InvalidValues) else [{}]
        for detail in details:
            text, line = str(detail.get("field") or ""), self.document.line(path)
            for name in (text, text.split(".")[0].split("[")[0]):
                line = self.document.lines.get((*path, name), line)
            found = self.document.problem(
                path, detail.get("code", error.error), detail.get("message", error.message)
            )
            names = ".".join(filter(None, (found["field"], text)))
            self.problems.append({**found, "field": names} | ({"line": line} if line else {}))


def compare(document: Document, content: JSONMapping, *, by: Principal) -> Comparison:
    """What has to be done for the roles and the accounts' items of a manifest."""
    comparison = Comparison(document)
    roles = content.get("roles", ())
    _compare_items(comparison, ROLES, roles, ROLES.rows(), ("roles",), by, None)
    principals_ = _acting_in(comparison, content.get("accounts", {}), by)
    for kind in OF_ACCOUNT:
        rows = defaultdict[str, list[object]](list)
        sections = {
            slug: content["accounts"][slug][kind.section]
            for slug in principals_
            if kind.section in content["accounts"][slug]
        }
        ids = [principals_[slug].require_account_id() for slug in sections]
        for row in kind.rows(ids) if ids else ():
            rows[row.account_id].append(row)
        for slug, items in sections.items():
            who = principals_[slug]
            path = ("accounts", slug, kind.section)
            _compare_items(comparison, kind, items, rows[who.require_account_id()], path, who, slug)
    comparison.steps.sort(key=lambda step: ORDER[step.action])
    return comparison


def _acting_in(
    comparison: Comparison, slugs: Mapping[str, object], by: Principal
) -> dict[str, Principal]:
    result = {}
    for slug in sorted(slugs):
        with versioned_cache.reloading():
            account = principals.find_active_account(slug)
        if account is None or account.slug != slug:
            comparison.problems.append(
                comparison.document.problem(("accounts", slug), "account_missing", NO_ACCOUNT)
            )
        else:
            result[slug] = by.acting_in(account)
    return result


def _compare_items(
    comparison: Comparison,
    kind: Kind,
    items: Sequence[JSONMapping],
    rows: Sequence[object],
    path: Path,
    by: Principal,
    account: str | None,
) -> None:
    stored = defaultdict[Key, list[object]](list)
    for row in rows:
        stored[kind.key(kind.export(row))].append(row)
    listed = defaultdict[Key, list[tuple[Path, JSONMapping]]](list)
    for index, item in enumerate(items):
        listed[_present_key(kind, item, stored)].append(((*path, index), item))
    undone = list[JSONObject]()
    for key, entries in listed.items():
        is_unclear = len(stored[key]) > len(entries)
        steps, undo = list[Step](), list[JSONObject | None]()
        for place, (where, item) in enumerate(entries):
            row = stored[key][place] if place < len(stored[key]) else None
            if item.get("removed") and is_unclear:
                message = AMBIGUOUS.format(kind.name)
                comparison.problems.append(comparison.document.problem(where, "ambiguous", message))
                continue
            step = _step(comparison, kind, item, row, where, by, account)
            undo.append(_undo(kind, step, item, row))
            steps += [step] if step else []
        comparison.steps += steps
        undone += [entry for entry in undo if entry] if steps else []
    if undone:
        section = comparison.reverse
        for name in path[:-1]:
            section = section.setdefault(str(name), {})
        section[kind.section] = undone


def _present_key(kind: Kind, item: JSONMapping, stored: Mapping[Key, Sequence[object]]) -> Key:
    """The key that an item's row has, which may still have its former name."""
    key, former = kind.key(item), (str(item.get("rename_from") or ""),)
    return former if former in stored and key not in stored else key


def _step(
    comparison: Comparison,
    kind: Kind,
    item: JSONMapping,
    row: object,
    path: Path,
    by: Principal,
    account: str | None,
) -> Step | None:
    body = {name: value for name, value in item.items() if name not in META}
    if item.get("removed"):
        return Step(kind, account, by, path, REMOVE, body, row) if row is not None else None
    if row is None:
        missing = [name for name in kind.required if name not in body]
        comparison.problems += [
            comparison.document.problem(path, "required", f"A new {kind.name} needs {name}.")
            for name in missing
        ]
        return None if missing else Step(kind, account, by, path, CREATE, body)
    try:
        changed = kind.changed(row, body, by)
    except InvalidValues as error:
        comparison.add_problems(path, error)
        return None
    changes = {name: body[name] for name in changed}
    return Step(kind, account, by, path, UPDATE, changes, row) if changes else None


def _undo(kind: Kind, step: Step | None, item: JSONMapping, row: object) -> JSONObject | None:
    """What a manifest needs to undo a step; an unchanged item only keeps its place."""
    if row is None:
        return {n: item[n] for n in kind.identity} | {"removed": True} if step else None
    before = kind.export(row)
    identity = {name: before[name] for name in kind.identity}
    if step is None or step.action == REMOVE:
        return before if step else identity
    former = {"rename_from": step.body["name"]} if "name" in step.body else {}
    return identity | former | {name: before[name] for name in step.body if name in before}


def run(comparison: Comparison) -> list[JSONObject]:
    """Carry out the steps in the open transaction; adds the problems of those that fail.

    Returns the secrets of new items.
    """
    secrets = []
    for step in comparison.steps:
        try:
            with db.savepoint():
                shown = step.run()
        except NotRecent:
            raise
        except (BadRequest, Conflict, Forbidden) as error:
            comparison.add_problems(step.path, error)
        else:
            names = {"account": step.account, "kind": step.kind.name}
            name = " ".join(step.kind.key(step.body))
            secrets += [{**names, "name": name, **shown}] if shown else []
    return secrets


class _Rehearsed(Exception):
    pass


def rehearse(comparison: Comparison) -> None:
    """Find the problems of the steps: carry them out in a transaction that is rolled back."""
    if not comparison.steps:
        return
    try:
        with db.transaction():
            run(comparison)
            raise _Rehearsed
    except _Rehearsed:
        pass
