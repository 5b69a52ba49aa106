"""People in records: the users that fields of type `user` refer to, and what is seen of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import sqlalchemy as sa

from app import db
from app.accounts import directory
from app.accounts import service as accounts
from app.accounts.directory import ATTRIBUTE
from app.accounts.models import Role, User
from app.auth.principal import Principal, rule_caller
from app.collections.columns import UserAttributes
from app.db import filters
from app.rules import Node, Scope, Type
from app.rules import attributes as rule_attributes
from app.rules.nodes import OF_USER
from app.types import JSONMapping, JSONObject

FIELDS: Mapping[str, Type] = {
    "id": Type.TEXT,
    "name": Type.TEXT,
    "email": Type.TEXT,
    "role": Type.TEXT,
    "is_active": Type.BOOLEAN,
}
"""The names by which rules read a user."""
ROLE, ATTRIBUTES = "role", "attributes"
Key = tuple[str, str]
"""The account and the id of a user."""

_users = User.__table__.alias("person")
_role = sa.select(Role.name).where(Role.id == _users.c.role_id).scalar_subquery()


class People:
    """The users of an account as names of expressions reach them, like records of a collection."""

    def __init__(self) -> None:
        self.id = "people"
        self.is_trash = False
        self.columns: JSONMapping = FIELDS
        self.computed: Mapping[str, Node] = {}
        self.files = {ATTRIBUTES: UserAttributes()}

    table = (
        sa.select(_users.c.account_id, _users.c.id, _users.c.name, _users.c.email)
        .add_columns(_users.c.is_active, _role.label(ROLE), _users.c.attributes)
        .where(_users.c.leaving_at.is_(None))
        .subquery("people")
    )

    @property
    def scope(self) -> Scope:
        """The names of people in rules."""
        return _scope(FIELDS, rule_attributes.types_of(OF_USER))

    def followed(self, name: str) -> None:
        """Nothing: no name leads further."""

    expanded = followed

    def related(self, name: str) -> NoReturn:
        """Nothing: `@any` looks from records."""
        raise LookupError(name)

    def list_key(self, name: str) -> NoReturn:
        """Nothing: people have no lists."""
        raise LookupError(name)


PEOPLE = People()


def shown_fields(caller: Principal) -> Sequence[str]:
    """The fields of people that the directory shows to a caller; none: ids are all."""
    settings = directory.current() if caller.signed_in else None
    if settings is None or not settings.lets_in(rule_caller(caller)):
        return ()
    return ("id", *settings.shown)


def settings() -> directory.Settings:
    """The settings of the directory, from a cache: what relies on them checks their versions."""
    return directory.settings()


def known_fields(caller: Principal) -> Sequence[str]:
    """As `shown_fields`, from the cache of `settings`."""
    shown = directory.shown_fields(rule_caller(caller)) if caller.signed_in else None
    return () if shown is None else ("id", *shown)


def attribute_names() -> list[str]:
    """The names by which rules read attributes of a user."""
    return [ATTRIBUTE + name for name in rule_attributes.types_of(OF_USER)]


def filter_scope(caller: Principal) -> Scope | None:
    """The names of people in the caller's filters; None if there are none."""
    shown = shown_fields(caller)
    types = rule_attributes.types_of(OF_USER) if shown else {}
    attributes = {name: kind for name, kind in types.items() if ATTRIBUTE + name in shown}
    names = {name: FIELDS[name] for name in shown if name in FIELDS}
    return _scope(names, attributes) if shown else None


def _scope(names: Mapping[str, Type], attributes: Mapping[str, Type]) -> Scope:
    within = {ATTRIBUTES: Scope(attributes)} if attributes else {}
    return Scope(names, follow=within.get, ids=frozenset({"id"}))


def read(keys: Iterable[Key], names: Sequence[str]) -> dict[Key, JSONObject]:
    """These fields of users, attributes as one object; without those who are gone."""
    keys = set(keys)
    if not keys:
        return {}
    table = PEOPLE.table.c
    attributes = [name.removeprefix(ATTRIBUTE) for name in names if name.startswith(ATTRIBUTE)]
    shown = [name for name in names if name in FIELDS] + (["attributes"] if attributes else [])
    query = sa.select(table.account_id, table.id, *(table[name].label(name) for name in shown))
    query = query.where(
        table.account_id.in_({account_id for account_id, _ in keys}),
        table.id.in_({id for _, id in keys}),
    )
    rows = db.connection().execute(query)
    found = {(row[0], row[1]): dict(zip(shown, row[2:], strict=True)) for row in rows}
    for person in found.values() if attributes else ():
        values = person["attributes"]
        person["attributes"] = {name: values[name] for name in attributes if name in values}
    return found


def labels(caller: Principal, ids: Collection[str]) -> dict[str, str]:
    """The names, by id, of the users of the caller's account whom the caller may see."""
    if not ids or not shown_fields(caller):
        return {}
    query = _labelled(caller).where(PEOPLE.table.c.id.in_(ids))
    return {id: label for id, label in db.connection().execute(query) if label}


def search(caller: Principal, text: str, limit: int) -> list[tuple[str, str]] | None:
    """The ids and names of active users of the caller's account; None for who may see none.

    `text` is part of what is shown, or an id.
    """
    if not shown_fields(caller):
        return None
    query = _labelled(caller).where(PEOPLE.table.c.is_active)
    table = query.selected_columns
    is_meant = sa.or_(filters.has_text(table.label, text), table.id == text.lower())
    found = db.connection().execute(query.where(is_meant).order_by(table.label).limit(limit))
    return [(id, label or f"…{id[-8:]}") for id, label in found]


def _labelled(caller: Principal) -> sa.Select[str, str]:
    """The name of each user of the account, for admins else the address, which they may see."""
    table = PEOPLE.table.c
    label: Any = table.name if "name" in shown_fields(caller) else sa.null()
    if caller.is_admin:
        label = sa.func.coalesce(sa.func.nullif(table.name, ""), table.email)
    query = sa.select(table.id, label.label("label"))
    return query.where(table.account_id == caller.require_account_id())


def by_address(account_id: str, addresses: Collection[str]) -> dict[str, str]:
    """The ids of the account's users with these addresses, in the spelling given."""
    keys = {address: accounts.email_key(address) for address in addresses}
    mine = (User.account_id == account_id, User.email_key.in_({*keys.values()}))
    rows = db.connection().execute(sa.select(User.email_key, User.id).where(*mine)).all()
    ids = {row.email_key: row.id for row in rows}
    return {address: ids[key] for address, key in keys.items() if key in ids}


def existing(account_id: str, ids: Collection[str]) -> set[str]:
    """The ids, of these, of users of the account."""
    table = PEOPLE.table.c
    query = sa.select(table.id).where(table.account_id == account_id, table.id.in_(ids))
    return set(db.connection().scalars(query))
