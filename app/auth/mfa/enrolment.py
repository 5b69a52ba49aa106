"""Users created by admins, who get a link to set a password or to verify their address."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from app import db, events
from app.accounts import groups, roles, service_users, users
from app.accounts import service as accounts
from app.accounts.models import ADMIN, PII_GROUP, SYSTEM_ACCOUNT_ID, Group, User, UserKind
from app.accounts.types import Body
from app.auth import lockout, mail_tokens, password_resets, passwords, verification
from app.auth.mfa import gate
from app.auth.mfa.gate import Proof
from app.auth.models import LinkPurpose
from app.auth.principal import NO_ADDRESSES, NO_ADMINS, NO_PII_MEMBERS, Principal
from app.errors import InvalidValues


def check_role(
    body: Body, *, by: Principal, joins: str | None = None, user: User | None = None
) -> None:
    """Raise Forbidden if an API key would create an admin.

    `joins` is the account of a new user: every user of the system account is a superadmin. An
    operator key that also creates accounts makes the first admin of one, who is a person; `user`
    is who gets the role, unless new.
    """
    role = roles.resolve(body, []) if {"role", "role_id"} & set(body) else None
    if joins is not None and joins.lower() == SYSTEM_ACCOUNT_ID:
        by.refuse_key(NO_ADMINS)
    if role is not None and role.name == ADMIN:
        is_service = user.is_service if user else body.get("kind") == UserKind.SERVICE
        account_id = (user.account_id if user else joins or "").lower()
        may_be_first = "accounts:write" in (by.operator_scopes or ()) and not is_service
        if not may_be_first or users.has_admin(account_id):
            by.refuse_key(NO_ADMINS)


def check_group_assignment(account_id: str, references: Collection[str], *, by: Principal) -> None:
    """Check that the caller may add users to these groups (ids or names).

    If `pii_access` is among them, raises Forbidden for non-members and without a recent sign-in.
    """
    is_referenced = sa.or_(
        Group.id.in_([reference.lower() for reference in references]), Group.name.in_(references)
    )
    conditions = (Group.account_id == account_id, Group.name == PII_GROUP, is_referenced)
    group = db.db.session.scalar(sa.select(Group).where(*conditions)) if references else None
    if group is not None:
        by.refuse_key(NO_PII_MEMBERS)
        groups.check_may_add_member(group, by.user_id)
        by.require_recent_sign_in()


def check_address(scope: str | None, user_id: str, body: Body, *, by: Principal) -> None:
    """Check that the caller may change a user's address, which allows resetting the password.

    Raises Forbidden for API keys and without a recent sign-in, or NotFound.
    """
    if "email" in body:
        by.refuse_key(NO_ADDRESSES)
        user = users.get(scope, user_id)
        if accounts.email_key(body["email"].strip()) != user.email_key:
            by.require_recent_sign_in()


def enrol(account_id: str, body: Body, *, by: str | None = None) -> User:
    """Create a user, in `groups` if the body names some, and mail a link; a service gets none.

    Raises InvalidValues, Conflict, TooManyRequests, or Forbidden if `by` may not add members to
    one of the groups.
    """
    if body.get("kind") == UserKind.SERVICE:
        return service_users.create(account_id, body)
    password = body.get("password")
    personal = (body["email"], body.get("name"))
    weak = passwords.problems(password, own=personal) if password is not None else []
    problems = [*users.problems(account_id, body), *weak]
    chosen = groups.resolve(account_id, body.get("groups") or [], problems)
    if problems:
        raise InvalidValues(problems)
    password_hash = passwords.hash(password) if password is not None else None
    with db.transaction():
        user = users.create(account_id, body, password_hash)
        for group in chosen:
            groups.add_member(user.account_id, group.id, user.id, by=by)
        lockout.count_mail(user.account_id, user.email)
        if password is None and gate.allows(user, Proof.PASSWORD):
            password_resets.enqueue_mail(user)
        else:
            verification.enqueue_mail(user)
        return user


@events.subscribe(events.AddressReplaced)
def _on_address_replaced(event: events.AddressReplaced) -> None:
    user = db.db.session.get_one(User, (event.account_id, event.user_id))
    mail_tokens.revoke(user, LinkPurpose.EMAIL_CHANGE)
    lockout.count_mail(user.account_id, user.email)
    verification.enqueue_mail(user)
