"""Whom keys, workflows, webhooks and set-ups belong to: whoever makes them, or a service user.

What belongs to a service user goes on when people leave.
"""

from __future__ import annotations

import sqlalchemy as sa

from app import db
from app.accounts import pii
from app.accounts.models import ADMIN, PII_GROUP, Role, User, UserKind
from app.accounts.types import Condition
from app.auth import principal as principals
from app.auth.principal import Principal
from app.errors import Forbidden, InvalidValues, problem

NO_SERVICE_USER = "There is no active service user with this id."
NO_ADMIN = "The service user must be an admin, as only admins may have this."
OPERATOR_NEEDS_OWNER = "An operator key names a service user of the account as the owner."


def choose(
    account_id: str, owner_id: str | None, *, by: Principal, present: str | None = None
) -> tuple[str, str]:
    """Return the account and id of the owner that a caller names, of what is in an account.

    Without one a service user that owns it at `present` stays, if the caller may name it; else the
    caller becomes the owner. Raises InvalidValues or Forbidden.
    """
    home, user_id = by.home_and_user()
    if owner_id is not None and (owner_id.lower() != user_id or by.is_operator_key):
        require_service_user(account_id, owner_id, by=by, field="owner_id")
        return account_id, owner_id.lower()
    if owner_id is None and present is not None and may_name(account_id, present, by=by):
        return account_id, present
    if by.is_operator_key:  # whose rights would go beyond its scopes
        raise InvalidValues([problem("owner_id", "required", OPERATOR_NEEDS_OWNER)])
    return home.id, user_id


def choose_admin(
    account_id: str, owner_id: str | None, *, by: Principal, present: str | None = None
) -> str:
    """As `choose`, of what only admins may have; returns the owner's id."""
    present = present if is_admin(account_id, present) else None
    _, chosen_id = choose(account_id, owner_id, by=by, present=present)
    if chosen_id != by.user_id and not is_admin(account_id, chosen_id):
        raise InvalidValues([problem("owner_id", "invalid_reference", NO_ADMIN)])
    return chosen_id


def is_admin(account_id: str, user_id: str | None) -> bool:
    """Whether a user acts as an admin of the account: one of its own, or a superadmin."""
    principal = principals.for_user_in_account(account_id, user_id)
    return principal is not None and principal.is_admin


def require_service_user(account_id: str, user_id: str, *, by: Principal, field: str) -> None:
    """Raise InvalidValues unless this is an active service user of the account.

    Raises Forbidden for one in `pii_access`, whom only members name.
    """
    if not _is_service_user(account_id, user_id.lower()):
        raise InvalidValues([problem(field, "invalid_reference", NO_SERVICE_USER)])
    if not _may_act_for(account_id, user_id.lower(), by):
        raise Forbidden(pii.ONLY_MEMBERS)


def may_name(account_id: str, user_id: str, *, by: Principal) -> bool:
    """Whether a caller may let things belong to this user: an active service user."""
    return _is_service_user(account_id, user_id) and _may_act_for(account_id, user_id, by)


def service_users(account_id: str, limit: int, *, admins: bool = False) -> list[User]:
    """Return an account's active service users, or the admins among them, by name."""
    query = sa.select(User).where(*_active(account_id)).order_by(User.email_key).limit(limit)
    if admins:
        query = query.join(Role, Role.id == User.role_id).where(Role.name == ADMIN)
    return list(db.db.session.scalars(query))


def _is_service_user(account_id: str, user_id: str) -> bool:
    query = sa.select(User.id).where(User.id == user_id, *_active(account_id))
    return db.db.session.scalar(query) is not None


def _active(account_id: str) -> tuple[Condition, ...]:
    is_active = (User.is_active.is_(True), User.leaving_at.is_(None))
    return (User.account_id == account_id, User.kind == UserKind.SERVICE, *is_active)


def _may_act_for(account_id: str, user_id: str, by: Principal) -> bool:
    if not pii.is_member(account_id, user_id):
        return True
    # Operator keys, and portals that they open, act outside of the group of their user.
    return PII_GROUP in by.groups and pii.is_trusted(account_id, by.user_id)
