"""Compares the listed items of a manifest with the stored ones, and applies the differences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from app import db
from app.auth import principal as principals
from app.auth.principal import Principal
from app.errors import AppError, BadRequest, Conflict, Forbidden, InvalidValues
from app.errors import RecentSignInRequired as NotRecent
from app.manifest.account_kinds import OF_ACCOUNT
from app.manifest.document import Document, Path, path_of
from app.manifest.instance_kinds import ROLES, SINGLES
from app.manifest.kind import Key, Kind
from app.types import JSONMapping, JSONObject

META = ("rename_from", "removed")
NO_ACCOUNT = "There is no active account with this slug. Create it first."
AMBIGUOUS = "Several {}s are found by this: list all of them, so that it is clear which to remove."


class Action(StrEnum):
    """The actions of steps, in the order in which they run."""

    REMOVE = "remove"
    CREATE = "create"
    UPDATE = "update"


@dataclass(frozen=True)
class Step:
    """One item to create, change or remove."""

    kind: Kind
    account: str | None
    """The account's slug."""
    by: Principal
    path: Path
    action: Action
    body: JSONMapping
    """The item as it shall be; of an update only what changes."""
    row: object = None

    def run(self) -> JSONObject | None:
        """Run the step; returns secrets that are shown only once. Raises as the services."""
        if self.action == Action.CREATE:
            return self.kind.create(self.body, by=self.by)
        if self.action == Action.UPDATE:
            self.kind.change(self.row, self.body, by=self.by)
        else:
            self.kind.remove(self.row, by=self.by)
        return None

    def operation(self, document: Document) -> JSONObject:
        """Return the step as the plan shows it."""
        changes: list[JSONObject] = []
        if self.action == Action.UPDATE:
            changes += self.kind.changes(self.row, self.body)
            changes += self.kind.follow_ups(self.row, self.body)
        line = document.line(self.path)
        return {**self.subject, "action": self.action, "changes": changes, "line": line}

    @property
    def subject(self) -> JSONObject:
        name = " ".join(self.kind.key(self._before or self.body)) or ".".join(map(str, self.path))
        return {"kind": self.kind.name, "account": self.account, "name": name}

    @property
    def _before(self) -> JSONMapping:
        return self.kind.export(self.row) if self.row is not None else {}


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
            place = (*path, *path_of(str(detail.get("field") or "")))
            code, message = detail.get("code", error.error), detail.get("message", error.message)
            self.problems.append(self.document.problem(place, code, message))


def compare(
    document: Document, content: JSONMapping, *, by: Principal, renamed: Mapping[str, str]
) -> Comparison:
    """Compare the items of a manifest with the stored ones, but for collections.

    `renamed` has the new names of collections that the same manifest renames, by name key.
    """
    comparison = Comparison(document)
    sections = [_Section(ROLES, ("roles",), by, content.get("roles", ()), ROLES.rows())]
    for single in SINGLES:
        item: JSONMapping | None = content
        for name in single.path:
            item = (item or {}).get(name)
        if item is not None:
            sections.append(_Section(single, single.path, by, item, single.rows()))
    accounts = content.get("accounts", {})
    acting = dict[str, Principal]()
    for slug in sorted(accounts):
        account = principals.reload_active_account(slug)
        if account is None or account.slug != slug:
            missing = document.problem(("accounts", slug), "account_missing", NO_ACCOUNT)
            comparison.problems.append(missing)
        else:
            acting[slug] = by.acting_in(account)
    for kind in OF_ACCOUNT:
        slugs = [slug for slug in acting if kind.section in accounts[slug]]
        account_ids = [acting[slug].require_account_id() for slug in slugs]
        rows = defaultdict[str, list[object]](list)
        for row in kind.rows(account_ids) if account_ids else ():
            rows[row.account_id].append(row)
        for slug, account_id in zip(slugs, account_ids, strict=True):
            path = ("accounts", slug, kind.section)
            content_of_account = accounts[slug][kind.section]
            sections.append(
                _Section(kind, path, acting[slug], content_of_account, rows[account_id])
            )
    for section in sections:
        section.compare(comparison, renamed)
    # Attributes and the directory first: its rule may go on without a role that is removed.
    # Settings of accounts last, as these may name a role that is new.
    order = list(Action)

    def turn(step: Step) -> tuple[int, int]:
        return 1 if not step.kind.is_single else 2 if step.account else 0, order.index(step.action)

    comparison.steps.sort(key=turn)
    return comparison


@dataclass(frozen=True)
class _Section:
    """The items of one kind in a manifest, and the stored ones."""

    kind: Kind
    path: Path
    by: Principal
    content: Any
    rows: Sequence[object]

    @property
    def account(self) -> str | None:
        """The account's slug."""
        return str(self.path[1]) if self.path[0] == "accounts" else None

    def compare(self, comparison: Comparison, renamed: Mapping[str, str]) -> None:
        """Add the steps, problems and reverse of this section."""
        stored = defaultdict[Key, list[object]](list)
        for row in self.rows:
            exported = self.kind.export(row)
            collection = str(exported.get("collection")).lower()
            if collection in renamed:  # the row follows the collection
                exported["collection"] = renamed[collection]
            stored[self.kind.key(exported)].append(row)
        listed = defaultdict[Key, list[tuple[Path, JSONMapping]]](list)
        for place, item in self.kind.entries(self.content):
            key, former = self.kind.key(item), (str(item.get("rename_from") or ""),)
            is_to_rename = former in stored and key not in stored
            listed[former if is_to_rename else key].append(((*self.path, *place), item))
        undone = list[JSONObject]()
        for key, entries in listed.items():
            steps, undo = self._compare_alike(comparison, entries, stored.get(key, ()))
            comparison.steps += steps
            undone += undo if steps else []
        if undone:
            parent = comparison.reverse
            for name in self.path[:-1]:
                parent = parent.setdefault(str(name), {})
            parent[self.kind.section] = self.kind.section_of(undone)

    def _compare_alike(
        self,
        comparison: Comparison,
        entries: Sequence[tuple[Path, JSONMapping]],
        rows: Sequence[object],
    ) -> tuple[list[Step], list[JSONObject]]:
        """Compare items with the same key: the first has the first row, and so on."""
        steps, undo, is_unclear = list[Step](), list[JSONObject](), len(rows) > len(entries)
        for place, (path, item) in enumerate(entries):
            if item.get("removed") and is_unclear:
                message = AMBIGUOUS.format(self.kind.name)
                comparison.problems.append(comparison.document.problem(path, "ambiguous", message))
                continue
            row = rows[place] if place < len(rows) else None
            step = self._step(comparison, path, item, row)
            steps += [step] if step else []
            undo += self._undo(step, item, row)
        return steps, undo

    def _step(
        self, comparison: Comparison, path: Path, item: JSONMapping, row: object
    ) -> Step | None:
        body = {name: value for name, value in item.items() if name not in META}
        step = Step(self.kind, self.account, self.by, path, Action.CREATE, body, row)
        if item.get("removed"):
            return None if row is None else replace(step, action=Action.REMOVE)
        try:
            if row is None:
                self.kind.check(body, self.by)
                return step
            changed = self.kind.changed(row, body, self.by)
        except InvalidValues as error:
            comparison.add_problems(path, error)
            return None
        changes = {name: body[name] for name in changed}
        return replace(step, action=Action.UPDATE, body=changes) if changes else None

    def _undo(self, step: Step | None, item: JSONMapping, row: object) -> list[JSONObject]:
        """Return the items that undo a step; an unchanged item only keeps its place."""
        if row is None:
            identity = {name: item[name] for name in self.kind.identity if name in item}
            return [{**identity, "removed": True}] if step else []
        before = self.kind.export(row)
        identity = {name: before[name] for name in self.kind.identity if name in before}
        if step is None or step.action == Action.REMOVE:
            return [before if step else identity]
        is_renamed = "name" in step.body and not self.kind.is_single
        former = {"rename_from": step.body["name"]} if is_renamed else {}
        return [identity | former | self.kind.undone(row, step.body)]


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
            secrets += [step.subject | shown] if shown else []
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
