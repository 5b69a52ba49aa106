"""Attributes of users and accounts: a schema each, which the operator sets for the instance.

Values are stored as JSON by name. Who may see or write one is a level; each level includes the
ones above it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import partial
from types import MappingProxyType

import orjson
import sqlalchemy as sa

from app import db, rules
from app.accounts.models import InstanceSetting
from app.rules import attributes as rule_attributes
from app.rules.nodes import OF_USER
from app.types import JSONMapping, JSONObject


class Kind(StrEnum):
    """Whose attributes a schema describes; also the name of their table."""

    USERS = "users"
    ACCOUNTS = "accounts"

    @property
    def setting(self) -> str:
        return f"attributes.{self}"


class Level(IntEnum):
    """How near somebody is to a user or account; who may more has a higher one."""

    MEMBERS = 0
    SELF = 1
    ADMIN = 2
    SUPERADMIN = 3

    @property
    def word(self) -> str:
        return self.name.lower()


TRUNCATED = "attributes_truncated"
MAX_CLAIMS = 2000
"""Bytes of the claims of attributes, as JSON: proxies refuse requests with long headers."""
RESERVED_CLAIMS = frozenset(
    {
        *("acr", "act", "amr", "aud", "azp", "cnf", "exp", "iat", "iss", "jti", "nbf", "nonce"),
        *("account_id", "auth_time", "client_id", "csrf", "email", "email_verified", "fresh"),
        *("groups", "groups_truncated", "mfa", "plan", "role", "scope", "sid", "sub", "type"),
        TRUNCATED,
    }
)
"""The claims that tokens have, or will have, for other things."""
WORDS = {level.word: level for level in Level}
WRITERS = tuple(level.word for level in Level if level is not Level.MEMBERS)
VIEWERS = tuple(WORDS)


@dataclass(frozen=True)
class Attribute:
    """An attribute of a schema; `definition` has all of its properties, as stored."""

    definition: JSONMapping

    @property
    def name(self) -> str:
        return str(self.definition["name"])

    @property
    def type(self) -> str:
        return str(self.definition["type"])

    def may_see(self, level: Level) -> bool:
        """Whether somebody at this level sees it; oneself also sees what oneself may write."""
        return level >= WORDS[self.definition["visible_to"]] or (
            level >= Level.SELF and self.may_write(level)
        )

    def may_write(self, level: Level) -> bool:
        return level >= WORDS[self.definition["writable_by"]]


@dataclass(frozen=True)
class Attributes:
    """The attributes of users, or of accounts, by name."""

    kind: Kind
    by_name: Mapping[str, Attribute]
    version: int

    @property
    def definitions(self) -> list[JSONMapping]:
        """The definitions, in the order in which they were added."""
        return [one.definition for one in self.by_name.values()]

    def seen_by(self, level: Level) -> list[JSONMapping]:
        """The definitions of what somebody at this level sees."""
        return [one.definition for one in self.by_name.values() if one.may_see(level)]

    @property
    def written_by_self(self) -> list[str]:
        """The names of those that users, or accounts' admins, write themselves."""
        return [name for name, one in self.by_name.items() if one.may_write(Level.SELF)]

    def shown(self, values: JSONMapping, level: Level) -> JSONObject:
        """The values that somebody at this level sees."""
        return {
            name: values[name]
            for name, one in self.by_name.items()
            if name in values and one.may_see(level)
        }


def load(kind: Kind, *, lock: bool = False) -> Attributes:
    """The schema of users or accounts as it is stored."""
    query = sa.select(InstanceSetting).where(InstanceSetting.id == kind.setting)
    if lock:
        query = query.with_for_update()
    row = db.db.session.scalars(query.execution_options(populate_existing=True)).one()
    return of(kind, row.value["fields"], row.version)


_expected: ContextVar[Mapping[Kind, Sequence[JSONMapping]]] = ContextVar(
    "expected_attributes", default=MappingProxyType({})
)


@contextmanager
def expecting(definitions: Mapping[Kind, Sequence[JSONMapping]]) -> Iterator[None]:
    """In the block, let expressions name these attributes, too: an open change will define them."""
    token = _expected.set(definitions)
    try:
        yield
    finally:
        _expected.reset(token)


def expected(kind: Kind) -> Attributes:
    """The attributes that expressions may name: the stored ones, and those that a change adds."""
    schema, added = load(kind), _expected.get().get(kind, ())
    return replace(schema, by_name={**schema.by_name, **{d["name"]: Attribute(d) for d in added}})


def choices(kind: Kind, name: str) -> Sequence[str] | None:
    """The only values of an attribute; None if it has others, or does not exist."""
    one = expected(kind).by_name.get(name)
    found: Sequence[str] | None = one.definition["options"].get("choices") if one else None
    return found


def secret(kind: Kind, names: Sequence[str]) -> frozenset[str]:
    """The names, of these, whose values only superadmins see; also in the midst of a flush."""
    query = sa.select(InstanceSetting.value).where(InstanceSetting.id == kind.setting)
    schema = of(kind, db.connection().execute(query).scalar_one()["fields"], 0)
    seen = {one["name"] for one in schema.seen_by(Level.ADMIN)}
    return frozenset({*names} - seen)


def of(kind: Kind, definitions: Sequence[JSONMapping], version: int) -> Attributes:
    """A schema with these definitions."""
    return Attributes(kind, {one["name"]: Attribute(one) for one in definitions}, version)


RULE_TYPES = {
    "number": rules.Type.NUMBER,
    "boolean": rules.Type.BOOLEAN,
    "date": rules.Type.DATE,
    "datetime": rules.Type.DATETIME,
    "multi_select": rules.Type.LIST,
}
"""The types of values in expressions; all others are texts."""


@rule_attributes.provide
def rule_types(prefix: str) -> Mapping[str, rules.Type]:
    """The types of attributes by name, for expressions."""
    kind = Kind.USERS if prefix == OF_USER else Kind.ACCOUNTS
    by_name = expected(kind).by_name
    return {name: RULE_TYPES.get(one.type, rules.Type.TEXT) for name, one in by_name.items()}


def rule_types_seen(levels: Mapping[Kind, Level], prefix: str) -> Mapping[str, rules.Type]:
    """The types of the attributes that somebody sees, as whoever filters by one learns its value.

    `levels` are how near they are to the caller that the expression is about, and to the account.
    """
    kind = Kind.USERS if prefix == OF_USER else Kind.ACCOUNTS
    seen = expected(kind).seen_by(levels[kind])
    return {one["name"]: RULE_TYPES.get(one["type"], rules.Type.TEXT) for one in seen}


SEEN_BY_ADMINS = partial(rule_types_seen, dict.fromkeys(Kind, Level.ADMIN))
"""Those of what admins of accounts define for callers of theirs."""


def claims(values: JSONMapping) -> JSONObject:
    """The claims that access tokens of a user with these values have by them.

    What would make them longer than MAX_CLAIMS is left out, and `attributes_truncated` is true.
    """
    found, left_out = dict[str, object](), False
    for one in load(Kind.USERS).by_name.values() if values else ():
        name = one.definition["claim"]
        if name and name not in RESERVED_CLAIMS and one.name in values:
            longer = {**found, name: values[one.name]}
            fits = len(orjson.dumps(longer)) <= MAX_CLAIMS
            found, left_out = (longer, left_out) if fits else (found, True)
    return {**found, TRUNCATED: True} if left_out else found


def merged(stored: JSONMapping, changes: JSONMapping) -> JSONObject:
    """The values after a change; null takes a value away."""
    values = {**stored, **changes}
    return {name: value for name, value in values.items() if value is not None}
