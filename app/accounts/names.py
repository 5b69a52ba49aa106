"""The places that name roles, groups and plans, so that a rename neither gives nor takes access.

Each feature that stores such names, in expressions or settings, declares a place: a function that
finds its uses of a name, in all accounts or in one. A rename is followed in all uses or refused,
and what is named is not deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sqlalchemy as sa

from app import db, rules
from app.accounts import attributes
from app.accounts.attributes import Kind
from app.accounts.models import Account, Group, Role
from app.accounts.plans import stored as plans
from app.context import tenancy
from app.db import citus
from app.errors import Conflict, problem, truncated
from app.rules import named
from app.rules.named import (
    ACCOUNT_CHOICE,
    ATTRIBUTE,
    ATTRIBUTE_CHOICE,
    FLAG,
    GROUP,
    ROLE,
    NamesRole,
)
from app.rules.nodes import PLAN
from app.types import JSONObject

PAGE = 500
MAX_SHOWN = 5
OF_INSTANCE = (ROLE, PLAN, FLAG)
"""The kinds of names of the instance."""
CHOICES = {ATTRIBUTE_CHOICE: Kind.USERS, ACCOUNT_CHOICE: Kind.ACCOUNTS}
CANNOT_FOLLOW = "The {} is named where a new name cannot follow: {}."
IN_USE = "The {} is named in: {}. Change these first."
MAPPING = "sso_group_roles"
BY_OPERATOR = "rules of this service"
SELF_WRITTEN = "self_written"
WRITTEN = "Users write their attribute {} themselves, so whoever likes meets the condition."


@dataclass(frozen=True)
class Name:
    """The name of a role, plan or flag, or of a group of an account."""

    kind: str
    value: str
    account_id: str | None = None
    id: str | None = None
    """The group's."""

    def where(self, column: Any) -> Sequence[Any]:
        """The condition that rows of an account can name it; none for a role."""
        return [] if self.account_id is None else [column == self.account_id]


@dataclass(frozen=True)
class Use:
    """A stored thing that names a role, group, plan or flag, with the texts that do."""

    owner: str
    texts: Mapping[str, str]
    """The texts by their place within `owner`."""
    follow: Callable[[Mapping[str, str]], object] | None
    """Stores new texts, in the open transaction; None if they cannot be changed."""
    account_id: str | None = None
    """The account of the thing; None for the instance's."""
    are_names: bool = False
    """Whether the texts are the name alone, no expressions."""
    may_outlive: bool = False
    """Whether it may go on to name what is deleted."""
    role_tests: Mapping[str, NamesRole] = field(default_factory=dict)
    """What tells roles and attributes of people in a text, by its place."""

    @property
    def places(self) -> list[str]:
        return [f"{self.owner}.{place}" for place in self.texts]

    def after(self, name: Name, new: str) -> dict[str, str] | None:
        """The new texts after a rename; None if one cannot follow."""
        if self.follow is None:
            return None
        renamed = {
            place: new if self.are_names else self._renamed(place, name, new)
            for place, text in self.texts.items()
        }
        found = {place: text for place, text in renamed.items() if text is not None}
        return found if len(found) == len(renamed) else None

    def _renamed(self, place: str, name: Name, new: str) -> str | None:
        names_role = self.role_tests.get(place, named.no_role)
        return named.renamed(self.texts[place], name.kind, name.value, new, names_role)


Place = Callable[[Name], Iterable[Use]]
_places: list[Place] = []


def place(find: Place) -> Place:
    """Declare a function that finds uses; it may read all accounts."""
    _places.append(find)
    return find


def uses(name: Name) -> list[Use]:
    """All uses of a name, the instance's first."""
    with tenancy.across_accounts():
        found = [use for find in _places for use in find(name)]
    return sorted(found, key=lambda use: (use.account_id or "", use.owner))


def follow(name: Name, new: str, *, shows_all: bool = True) -> None:
    """Have every use follow a rename, in the open transaction. Raises Conflict with the places.

    A group that the instance's rules name is not renamed: they are other accounts', too. With
    `shows_all` the error tells of these rules.
    """
    if name.kind != GROUP:
        db.lock_schema()
    found = uses(name)
    afters = [use.after(name, new) for use in found]
    stuck = [
        use
        for use, after in zip(found, afters, strict=True)
        if after is None or (name.kind == GROUP and use.account_id is None)
    ]
    if stuck:
        raise _conflict(CANNOT_FOLLOW, name, stuck, shows_all=shows_all)
    with tenancy.across_accounts(), db.transaction() as session:
        for use, after in zip(found, afters, strict=True):
            if use.follow is not None and after is not None:
                use.follow(after)
                session.flush()


def refuse_deletion(name: Name, *, shows_all: bool = True) -> None:
    """Raise Conflict with the places if anything names it."""
    found = [use for use in uses(name) if not use.may_outlive]
    if found:
        raise _conflict(IN_USE, name, found, shows_all=shows_all)


def _conflict(message: str, name: Name, found: Sequence[Use], *, shows_all: bool) -> Conflict:
    shown_uses = [use for use in found if shows_all or use.account_id is not None]
    places = [place for use in shown_uses for place in use.places]
    places += [BY_OPERATOR] if len(shown_uses) < len(found) else []
    shown = ", ".join(places[:MAX_SHOWN]) + (", …" if len(places) > MAX_SHOWN else "")
    text = f"This names the {name.kind} {name.value[:80]}."
    details = [problem(one, "in_use", text) for one in places]
    return Conflict(message.format(name.kind, shown), **truncated("details", details))


def pages(query: Any, *key: Any) -> Iterator[Any]:
    """The rows of a query by a key that it selects first, some at a time."""
    last: Sequence[Any] | None = None
    while True:
        page = query if last is None else query.where(sa.tuple_(*key) > last)
        rows = db.connection().execute(page.order_by(*key).limit(PAGE)).all()
        yield from rows
        if len(rows) < PAGE:
            return
        last = tuple(rows[-1][: len(key)])


def about_callers(column: Any) -> Any:
    """The condition that a text or JSON may name roles, groups, attributes, plans or flags."""
    words = ("@has_", "@request", "@account", "@flag", "role", "attributes")
    text = sa.cast(column, sa.Text)
    return sa.or_(*(text.contains(one) for one in words))


@place
def in_settings(name: Name) -> Iterator[Use]:
    """The settings of accounts: who needs a second factor, and the roles of mapped groups."""
    if name.kind != ROLE:
        return
    text = sa.cast(Account.settings, sa.Text)
    has_one = sa.or_(*(text.contains(f'"{setting}"') for setting in ("mfa_roles", MAPPING)))
    query = sa.select(Account.id, Account.slug, Account.settings).where(has_one)
    for row in pages(query, Account.id):
        mapped = [one["role"] for one in row.settings.get(MAPPING) or ()]
        named_in = {"mfa_roles": row.settings.get("mfa_roles") or (), MAPPING: mapped}
        texts = {place: name.value for place, roles in named_in.items() if name.value in roles}
        if texts:
            follow = partial(_store_settings, row.id, name.value)
            yield Use(f"accounts.{row.slug}.settings", texts, follow, row.id, are_names=True)


def _store_settings(account_id: str, former: str, texts: Mapping[str, str]) -> None:
    if "mfa_roles" in texts:
        new = texts["mfa_roles"]
        change_setting(
            account_id, "mfa_roles", lambda roles: [new if one == former else one for one in roles]
        )
    if MAPPING in texts:
        change_mapping(account_id, "role", former, texts[MAPPING])


def change_mapping(account_id: str, side: str, former: str, new: str) -> None:
    """Change a name in the mapping of groups to roles of an account, in the open transaction."""
    change_setting(
        account_id,
        MAPPING,
        lambda mapping: [one | {side: new} if one[side] == former else one for one in mapping],
    )


def change_setting(account_id: str, setting: str, change: Callable[[Any], object]) -> None:
    """Change a setting of an account, in the open transaction."""
    query = sa.select(Account).where(Account.id == account_id)
    locking = query.with_for_update(key_share=True).execution_options(populate_existing=True)
    account = db.db.session.scalars(locking).one()
    account.settings = {**account.settings, setting: change(account.settings.get(setting) or [])}
    account.version += 1


@dataclass(frozen=True)
class Known:
    """The names of all roles, plans and flags once the open change is made, and new groups."""

    roles: frozenset[str]
    groups: frozenset[str]
    plans: frozenset[str]
    flags: frozenset[str]


_expected: ContextVar[Known | None] = ContextVar("expected_names", default=None)


@contextmanager
def expecting(known: Known) -> Iterator[None]:
    """In the block, check expressions against these names only; of groups, against them, too."""
    token = _expected.set(known)
    try:
        yield
    finally:
        _expected.reset(token)


def unknown(kind: str, values: Set[str]) -> set[str]:
    """The names, of these, that no role, plan or flag, or no group of any account, has.

    In a transaction, locks the roles or plans: they keep their names until it ends.
    """
    if not values:
        return set()
    column, expected = Role.name if kind == ROLE else Group.name, _expected.get()
    if kind in (PLAN, FLAG):
        if expected is not None:
            return {*values} - (expected.plans if kind == PLAN else expected.flags)
        present_plans = plans.load(lock=True)
        return {*values} - (
            present_plans.keys() if kind == PLAN else plans.all_flags(present_plans)
        )
    if expected is not None and kind == ROLE:
        return {*values} - set(map(rules.composed, expected.roles))
    query = sa.select(column).where(column.in_(rules.spellings(values)))
    # On Citus a shared lock of a shared table is one on all its rows, and two at once deadlock.
    if kind == ROLE and db.in_transaction() and not citus.is_sharded(db.connection()):
        query = query.order_by(column).with_for_update(read=True, key_share=True)
    with tenancy.across_accounts():
        present = {*db.db.session.scalars(query), *(expected.groups if expected else ())}
    return {*values} - set(map(rules.composed, present))


def unknown_problem(
    text: str | None, names_role: NamesRole = named.no_role, kinds: Sequence[str] = OF_INSTANCE
) -> JSONObject | None:
    """The first role, plan, flag, or choice of an attribute, that does not exist.

    A problem without a field.
    """
    found = [one for one in named.mentions(text, names_role) if one.is_certain]
    missing = {
        kind: unknown(kind, {one.value for one in found if one.kind == kind}) for kind in kinds
    }
    first = next((one for one in found if one.value in missing.get(one.kind, ())), None)
    if first is None and kinds is not OF_INSTANCE:
        return None
    if first is None:
        return _choice_problem(text, names_role)
    message = f"There is no {first.kind} {first.value[:80]}."
    return problem(None, f"unknown_{first.kind}", message, position=first.start)


def _choice_problem(text: str | None, names_role: NamesRole) -> JSONObject | None:
    """The first value of an expression that an attribute never has."""
    for one in named.mentions(text, names_role):
        if one.kind in CHOICES and one.is_certain:
            name, _, value = one.value.partition("=")
            choices = attributes.choices(CHOICES[one.kind], name)
            if choices is not None and value not in choices:
                message = f"{name} is never {value[:80]!r}. It is one of: {', '.join(choices[:20])}"
                return problem(None, "unknown_choice", message, position=one.start)
    return None


def warnings(text: str | None, names_role: NamesRole = named.no_role) -> list[JSONObject]:
    """A warning for each group that no account has, and each attribute that users set themselves.

    Problems without a field.
    """
    mentions = named.mentions(text, names_role)
    groups = [one for one in mentions if one.kind == GROUP]
    missing = unknown(GROUP, {one.value for one in groups})
    found = [
        problem(
            None, "unknown_group", f"No account has a group {one.value[:80]}.", position=one.start
        )
        for one in groups
        if one.value in missing
    ]
    named_attributes = [one for one in mentions if one.kind == ATTRIBUTE]
    own = attributes.expected(Kind.USERS).written_by_self if named_attributes else ()
    return found + [
        problem(None, SELF_WRITTEN, WRITTEN.format(one.value), position=one.start)
        for one in named_attributes
        if one.value in own
    ]
