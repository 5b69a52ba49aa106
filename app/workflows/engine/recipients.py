"""Whom a `send_email` goes to: addresses, people of the account, and address fields of records.

Roles and groups reach active members at verified addresses only, each by a mail of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app import db
from app.accounts import service as accounts
from app.accounts.models import Group, GroupMember, Role, User, name_key
from app.types import JSONMapping
from app.workflows.language import expressions
from app.workflows.language.checks import address
from app.workflows.language.recipients import FIELD, GROUP, ROLE, USER

MAX_RECIPIENTS = 100
TOO_MANY = f"A mail reaches at most {MAX_RECIPIENTS} people."
NOBODY = "Nobody active has the {} {} and a verified address."
NO_SUCH_USER = "The user {} is not an active member of this account with a verified address."
NO_ADDRESS = "The field {} of the record has no email address."
NOT_AN_ADDRESS = "The template did not return an email address."
NO_RECIPIENTS = "A mail needs at least one recipient."


class Unreachable(Exception):
    """A recipient that a mail cannot have; the message says why."""


@dataclass(frozen=True)
class Recipients:
    """The addresses of a mail, each once, and those among them that are of a record's field."""

    addresses: Sequence[str]
    of_fields: frozenset[str]


def resolve(account_id: str, to: object, names: JSONMapping) -> Recipients:
    """The addresses of rendered recipients. Raises Unreachable."""
    found, of_fields = dict[str, str](), set[str]()
    for one in to if isinstance(to, list) else [to]:
        if isinstance(one, Mapping) and len(one) == 1:
            ((kind, value),) = one.items()
            text = str(value or "")
            if kind == FIELD:
                addresses = [_field_address(text, names)]
                of_fields.update(map(accounts.email_key, addresses))
            else:
                addresses = _members(account_id, str(kind), text)
        else:
            addresses = [_normalized(one, NOT_AN_ADDRESS)]
        for each in addresses:
            found.setdefault(accounts.email_key(each), each)
        if len(found) > MAX_RECIPIENTS:
            raise Unreachable(TOO_MANY)
    if not found:
        raise Unreachable(NO_RECIPIENTS)
    return Recipients(list(found.values()), frozenset(of_fields))


def strangers(account_id: str, addresses: Sequence[str]) -> list[str]:
    """The addresses that are not verified ones of active members."""
    keys = {accounts.email_key(one): one for one in addresses}
    known = sa.select(User.email_key).where(
        *_is_member(account_id), User.email_key.in_(sorted(keys))
    )
    return [keys[key] for key in sorted(keys.keys() - set(db.db.session.scalars(known)))]


def _field_address(name: str, names: JSONMapping) -> str:
    """The address in a field of the record of a `for_each`, else of the trigger."""
    item = names.get("item")
    in_trigger = expressions.get_path(names, ("trigger", "record"))
    record = item if isinstance(item, Mapping) else in_trigger
    return _normalized(expressions.get_path(record, (name,)), NO_ADDRESS.format(name[:63]))


def _members(account_id: str, kind: str, value: str) -> list[str]:
    query = sa.select(User.email).where(*_is_member(account_id)).order_by(User.id)
    if kind == USER:
        found = db.db.session.scalars(query.where(User.id == value.lower())).all()
        if not found:
            raise Unreachable(NO_SUCH_USER.format(value[:63]))
        return list(found)
    if kind == ROLE:
        role = sa.select(Role.id).where(Role.name_key == name_key(value))
        query = query.where(User.role_id.in_(role))
    elif kind == GROUP:
        of_group = sa.and_(
            GroupMember.account_id == User.account_id, GroupMember.user_id == User.id
        )
        named = sa.and_(
            Group.account_id == GroupMember.account_id, Group.id == GroupMember.group_id
        )
        query = query.join(GroupMember, of_group).join(Group, named)
        query = query.where(Group.name_key == name_key(value))
    else:
        raise Unreachable(NOT_AN_ADDRESS)
    found = db.db.session.scalars(query.limit(MAX_RECIPIENTS + 1)).all()
    if not found:
        raise Unreachable(NOBODY.format(kind, value[:80]))
    return list(found)


def _is_member(account_id: str) -> Sequence[Any]:
    return (User.account_id == account_id, User.is_active, User.email_verified)


def _normalized(value: object, refusal: str) -> str:
    found = address(value) if isinstance(value, str) else None
    if found is None:
        raise Unreachable(refusal)
    return found
