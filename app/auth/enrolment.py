"""Users made by admins: they get a link to set a password, or one to verify their address."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from app import db, events
from app.accounts import groups, roles, users
from app.accounts import service as accounts
from app.accounts.models import ADMIN, PII_GROUP, SYSTEM_ACCOUNT_ID, Group, User
from app.auth import lockout, mail_tokens, password_resets, passwords, verification
from app.auth.principal import NO_ADDRESSES, NO_ADMINS, NO_PII_MEMBERS, Principal
from app.errors import InvalidValues


def check_role(body: Mapping[str, Any], *, by: Principal, joins: str | None = None) -> None:
    """Refuse what makes somebody an admin by an API key. Raises Forbidden.

    `joins` is the account that somebody new is for: in the system's, everybody is a superadmin.
    """
    role = roles.resolve(body, []) if {"role", "role_id"} & set(body) else None
    if joins == SYSTEM_ACCOUNT_ID or (role is not None and role.name == ADMIN):
        by.refuse_key(NO_ADMINS)


def check_admission(account_id: str, named: Collection[str], *, by: Principal) -> None:
    """Refuse who may not let anybody into `pii_access`, where groups (ids or names) have it.

    Raises Forbidden, also long after the sign-in.
    """
    is_named = sa.or_(Group.id.in_([one.lower() for one in named]), Group.name.in_(named))
    mine = (Group.account_id == account_id, Group.name == PII_GROUP, is_named)
    group = db.db.session.scalar(sa.select(Group).where(*mine)) if named else None
    if group is not None:
        by.refuse_key(NO_PII_MEMBERS)
        groups.check_may_add_member(group, by.user_id)
        by.require_recent_sign_in()


def check_address(
    scope: str | None, user_id: str, body: Mapping[str, Any], *, by: Principal
) -> None:
    """Refuse another address for a user by an API key, or long after the sign-in.

    Whoever has the address can set the password. Raises Forbidden or NotFound.
    """
    if "email" in body:
        by.refuse_key(NO_ADDRESSES)
        user = users.get(scope, user_id)
        if accounts.email_key(body["email"].strip()) != user.email_key:
            by.require_recent_sign_in()


def enrol(account_id: str, body: Mapping[str, Any]) -> User:
    """Make a user of an account. Raises InvalidValues, Conflict or TooManyRequests."""
    password = body.get("password")
    own = (body["email"], body.get("name"))
    weak = passwords.problems(password, own=own) if password is not None else []
    found = [*users.problems(account_id, body), *weak]
    if found:
        raise InvalidValues(found)
    password_hash = passwords.hash(password) if password is not None else None
    with db.transaction():
        user = users.create(account_id, body, password_hash)
        lockout.mailbox(user.account_id, user.email)
        if password is None:
            password_resets.ask(user)
        else:
            verification.ask(user)
        return user


@events.subscribe(events.AddressReplaced)
def _ask_to_verify(event: events.AddressReplaced) -> None:
    user = db.db.session.get_one(User, (event.account_id, event.user_id))
    mail_tokens.end(user, mail_tokens.EMAIL_CHANGE)
    lockout.mailbox(user.account_id, user.email)
    verification.ask(user)
