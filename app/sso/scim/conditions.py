"""Turns filters into SQL conditions (RFC 7644, section 3.4.2.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app import clock
from app.accounts import service as accounts
from app.accounts.models import Group, GroupMember, User, name_key
from app.accounts.types import Condition
from app.sso.attributes import SCIM_TYPES, Extra
from app.sso.scim.attributes import GROUP, USER
from app.sso.scim.errors import refusal
from app.sso.scim.filters import PRESENT, Filter, Junction, Literal, Negation, ValuePath
from app.sso.scim.models import DirectoryGroup, DirectoryUser

Expression = sa.SQLColumnExpression[Any]
Wrap = Callable[[Condition], Condition]


def _itself(condition: Condition) -> Condition:
    return condition


def _lower(text: str) -> str:
    return text.lower()


@dataclass(frozen=True)
class Text:
    """An attribute with text; `key` normalizes what it is compared with."""

    column: Expression
    key: Callable[[str], str] = str
    wrap: Wrap = _itself

    def compare(self, name: str, value: Literal) -> Condition:
        """Return the condition of a comparison. Raises BadRequest."""
        if name == PRESENT:
            return self.wrap(sa.and_(self.column.is_not(None), self.column != ""))
        if not isinstance(value, str):
            raise _invalid("A text must be compared with a text.")
        column, key = self.column, self.key(value)
        comparisons: Mapping[str, Callable[[], Condition]] = {
            "eq": lambda: column == key,
            "ne": lambda: sa.or_(column.is_(None), column != key),
            "co": lambda: column.contains(key, autoescape=True),
            "sw": lambda: column.startswith(key, autoescape=True),
            "ew": lambda: column.endswith(key, autoescape=True),
            "gt": lambda: column > key,
            "ge": lambda: column >= key,
            "lt": lambda: column < key,
            "le": lambda: column <= key,
        }
        return self.wrap(comparisons[name]())


@dataclass(frozen=True)
class Exact(Text):
    """An attribute whose text is the same or another, on any database."""

    def compare(self, name: str, value: Literal) -> Condition:
        """Return the condition of a comparison. Raises BadRequest."""
        if name not in (PRESENT, "eq", "ne"):
            raise _invalid("Compare it by eq, ne or pr.")
        return super().compare(name, value)


@dataclass(frozen=True)
class Boolean:
    """An attribute that is true or false."""

    column: Expression

    def compare(self, name: str, value: Literal) -> Condition:
        """Return the condition of a comparison. Raises BadRequest."""
        if name == PRESENT:
            return sa.true()
        wanted = {"true": True, "false": False}.get(str(value).lower())
        if wanted is None or name not in ("eq", "ne"):
            raise _invalid("Compare it by eq or ne with true or false.")
        return self.column.is_(wanted if name == "eq" else not wanted)


@dataclass(frozen=True)
class Time:
    """An attribute with a moment."""

    column: Expression

    def compare(self, name: str, value: Literal) -> Condition:
        """Return the condition of a comparison. Raises BadRequest."""
        if name == PRESENT:
            return sa.true()
        try:
            moment = clock.parse(value if isinstance(value, str) else "")
        except (ValueError, OverflowError):
            raise _invalid("A moment must be written as 2026-11-20T12:00:00Z.") from None
        comparisons: Mapping[str, Condition] = {
            "eq": self.column == moment,
            "ne": self.column != moment,
            "gt": self.column > moment,
            "ge": self.column >= moment,
            "lt": self.column < moment,
            "le": self.column <= moment,
        }
        if name not in comparisons:
            raise _invalid("A moment cannot be compared like this.")
        return comparisons[name]


Field = Text | Boolean | Time
USER_NAME = sa.func.coalesce(DirectoryUser.user_name_key, User.email_key)


def _part(*path: str) -> Expression:
    value: Any = DirectoryUser.attributes
    for name in path:
        value = value[name]
    return sa.func.lower(value.as_string())


def _in_group(condition: Condition) -> Condition:
    same_user = (GroupMember.account_id == User.account_id, GroupMember.user_id == User.id)
    return sa.exists().where(*same_user, condition).correlate(User)


def _has_member(condition: Condition) -> Condition:
    same_group = (GroupMember.account_id == Group.account_id, GroupMember.group_id == Group.id)
    return sa.exists().where(*same_group, condition).correlate(Group)


USER_FIELDS: Mapping[str, Field] = {
    "id": Text(User.id, _lower),
    "externalid": Text(DirectoryUser.external_id),
    "username": Text(USER_NAME, accounts.email_key),
    "displayname": Text(sa.func.lower(User.name), _lower),
    "name.formatted": Text(_part("name", "formatted"), _lower),
    "name.givenname": Text(_part("name", "givenName"), _lower),
    "name.familyname": Text(_part("name", "familyName"), _lower),
    "active": Boolean(User.is_active),
    "emails": Text(User.email_key, accounts.email_key),
    "emails.value": Text(User.email_key, accounts.email_key),
    "emails.type": Text(sa.literal("work"), _lower),
    "emails.primary": Boolean(sa.true()),
    "meta.resourcetype": Text(sa.literal(USER.name)),
    "groups": Text(GroupMember.group_id, _lower, _in_group),
    "groups.value": Text(GroupMember.group_id, _lower, _in_group),
    "meta.created": Time(User.created_at),
    "meta.lastmodified": Time(User.updated_at),
}
GROUP_FIELDS: Mapping[str, Field] = {
    "id": Text(Group.id, _lower),
    "externalid": Text(DirectoryGroup.external_id),
    "displayname": Text(Group.name_key, name_key),
    "meta.resourcetype": Text(sa.literal(GROUP.name)),
    "members": Text(GroupMember.user_id, _lower, _has_member),
    "members.value": Text(GroupMember.user_id, _lower, _has_member),
    "meta.created": Time(Group.created_at),
    "meta.lastmodified": Time(Group.updated_at),
}


def user_fields(extras: Iterable[Extra]) -> Mapping[str, Field]:
    """What users are filtered by, with the texts that the directory fills."""
    filled = {}
    for one in extras:
        if one.attribute.type not in (*SCIM_TYPES, "multi_select"):
            name = ".".join(one.names)
            place = f"{one.schema}:{name}" if one.schema else name
            filled[place.lower()] = Exact(User.attributes[one.attribute.name].as_string())
    return {**filled, **USER_FIELDS}


def condition(parsed: Filter, fields: Mapping[str, Field], prefix: str = "") -> Condition:
    """Return the SQL condition of a filter. Raises BadRequest `invalidFilter`."""
    if isinstance(parsed, Junction):
        parts = [condition(part, fields, prefix) for part in parsed.parts]
        return sa.and_(*parts) if parsed.operator == "and" else sa.or_(*parts)
    if isinstance(parsed, Negation):
        # Where an attribute has no value, a comparison is NULL, and its negation true.
        return sa.not_(sa.func.coalesce(condition(parsed.inner, fields, prefix), sa.false()))
    if isinstance(parsed, ValuePath):
        return condition(parsed.inner, fields, f"{prefix}{parsed.attribute}.")
    name = f"{prefix}{parsed.attribute}"
    field = fields.get(name)
    if field is None:
        raise _invalid(f"“{name[:100]}” cannot be filtered by.")
    if parsed.value is None and parsed.operator in ("eq", "ne"):
        present = sa.func.coalesce(field.compare(PRESENT, None), sa.false())
        return present if parsed.operator == "ne" else sa.not_(present)
    return field.compare(parsed.operator, parsed.value)


def _invalid(message: str) -> Exception:
    return refusal("invalidFilter", message)
