"""Users as they are managed: by superadmins in any account, by admins in their own.

`scope` is the account that may be touched; None means every account. Whoever changes others is
named by `by`, as nobody may lock themself out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app import db, events
from app.accounts import pii, roles
from app.accounts import service as accounts
from app.accounts.models import ADMIN, VIEWER, Account, Role, User
from app.db import counts, errors
from app.errors import Conflict, Forbidden, InvalidValues, NotFound, problem

SORTABLE = {
    "email": User.email_key,
    "name": User.name,
    "created_at": User.created_at,
    "last_login": User.last_login,
    "is_active": User.is_active,
}


def page(
    scope: str | None, asked: Mapping[str, Any], most: int | None = None
) -> tuple[list[User], int]:
    """The users that match, and how many there are in all (more than `most`: one beyond it)."""
    conditions = _matching(scope, asked)
    total = counts.count_up_to(User, conditions, most)
    chosen = sa.select(User).where(*conditions).order_by(*_order(asked))
    return list(db.db.session.scalars(chosen.offset(asked["skip"]).limit(asked["limit"]))), total


def place(scope: str | None, newer: int) -> str | None:
    """The id of the user that has so many newer ones, for `after`; None where none has."""
    found: str | None = counts.value_at_offset(User.id, _matching(scope, {}), newer)
    return found


def _order(asked: Mapping[str, Any]) -> list[Any]:
    ascending = asked.get("sort_order") == "asc"
    if "sort_by" not in asked:  # ids are made in the order of time, and have an index
        return [User.id.asc() if ascending else User.id.desc()]
    column = SORTABLE[asked["sort_by"]]
    ordered = column.asc() if ascending else column.desc()
    nullable = column.property.columns[0].nullable
    return [ordered.nulls_last() if nullable else ordered, User.id]


def _matching(scope: str | None, asked: Mapping[str, Any]) -> list[Any]:
    conditions: list[Any] = []
    account_id = scope or asked.get("account_id")
    if account_id is not None:
        conditions.append(User.account_id == account_id.lower())
    for name in ("role_id", "is_active"):
        if name in asked:
            conditions.append(getattr(User, name) == asked[name])
    if asked.get("after"):  # the id of a user that all others are newer than
        conditions.append(User.id > asked["after"])
    if asked.get("search"):
        conditions.append(
            User.email_key.contains(accounts.email_key(asked["search"]), autoescape=True)
        )
    return conditions


def get(scope: str | None, user_id: str) -> User:
    """One user. Raises NotFound, also for one of another account."""
    mine = [User.account_id == scope] if scope else []
    user = db.db.session.scalar(sa.select(User).where(User.id == user_id.lower(), *mine))
    if user is None:
        raise NotFound("There is no such user.")
    return user


def emails(account_id: str, user_ids: Collection[str]) -> dict[str, str]:
    """The addresses of users of an account, by id."""
    theirs = (User.account_id == account_id, User.id.in_(user_ids))
    rows = db.connection().execute(sa.select(User.id, User.email).where(*theirs))
    return {row.id: row.email for row in rows}


def problems(account_id: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Everything that keeps `body` from being a user of the account."""
    found: list[Any] = [accounts.email_problem(body["email"].strip())]
    found.append(accounts.name_problem(body.get("name") or ""))
    account = db.db.session.get(Account, account_id.lower())
    if account is None or not account.is_active:
        found.append(problem("account_id", "invalid_reference", "There is no such account."))
    roles.chosen(body, found, VIEWER)
    return [one for one in found if one]


def create(account_id: str, body: Mapping[str, Any], password_hash: str | None) -> User:
    """A new user of an account, as `problems` found nothing against. Raises Conflict."""
    role = roles.chosen(body, [], VIEWER)
    return accounts.create_user(
        account_id.lower(),
        email=body["email"].strip(),
        password_hash=password_hash,
        role=role.name if role else VIEWER,
        name=body.get("name"),
    )


def change(scope: str | None, user_id: str, body: Mapping[str, Any], *, by: str | None) -> User:
    """Change a user. Raises Forbidden for oneself, Conflict for the account's last admin."""
    with db.transaction() as session:
        user = locked(session, scope, user_id)
        found: list[Any] = []
        role = roles.chosen(body, found) if {"role", "role_id"} & set(body) else user.role
        found.append(accounts.name_problem(body.get("name") or ""))
        if "email" in body:
            found.append(accounts.email_problem(body["email"].strip()))
        if role is None or any(found):
            raise InvalidValues([one for one in found if one])
        stays_admin = role.name == ADMIN and body.get("is_active", user.is_active)
        loses = role.id != user.role_id or body.get("is_active") is False
        if loses:
            _check_may_lose(session, user, stays_admin=stays_admin, by=by)
        if {"role", "role_id"} & set(body):
            events.publish(events.RoleAssigned(user.account_id, user.id))
        user.role = role
        if "name" in body:
            user.name = body["name"]
        if "is_active" in body:
            user.is_active = body["is_active"]
        if "email" in body:
            _replace_email(user, body["email"].strip(), by=by)
        _touch(session, user)
        if loses:  # afterwards: who signed in meanwhile was waited for
            lost = events.RoleChanged if user.is_active else events.UserLostAccess
            events.publish(lost(user.account_id, user.id))
        return user


def verify(scope: str | None, user_id: str) -> User:
    """Take a user's address for proved."""
    with db.transaction():
        user = get(scope, user_id)
        accounts.mark_verified(user)
        return user


def delete(scope: str | None, user_id: str, *, by: str | None) -> None:
    """Remove a user; what they made stays. Raises Forbidden or Conflict as `change` does."""
    with db.transaction() as session:
        user = locked(session, scope, user_id)
        _check_may_lose(session, user, stays_admin=False, by=by)
        events.publish(events.UserLostAccess(user.account_id, user.id))
        session.delete(user)


def give_role(user: User, role: Role) -> bool:
    """Give a user the role that a sign-in brings; never takes away the account's last admin."""
    with db.transaction() as session:
        user = locked(session, user.account_id, user.id)
        if user.role_id == role.id:
            return False
        try:
            _check_may_lose(session, user, stays_admin=role.name == ADMIN, by=None)
        except Conflict:
            return False
        user.role = role
        _touch(session, user)
        events.publish(events.RoleChanged(user.account_id, user.id))
        return True


def set_password(user: User, password_hash: str) -> None:
    """Give a user a new password, and end all of the user's sessions."""
    with db.transaction() as session:
        user = session.get_one(User, (user.account_id, user.id))
        user.password_hash = password_hash
        events.publish(events.UserLostAccess(user.account_id, user.id))


def set_email(user: User, email: str) -> None:
    """Give a user another address. Raises Conflict when it is taken in the account."""
    user.email, user.email_key = email, accounts.email_key(email)
    with errors.conflict_on_unique("users", "email_key", "email", "This address is taken."):
        db.db.session.flush()


def locked(session: Session, scope: str | None, user_id: str) -> User:
    """One user, whom nobody else changes before the transaction ends. Raises NotFound."""
    user = get(scope, user_id)
    # The account's row puts those in order who would each take the last admin but one.
    accounts.locked(user.account_id)
    session.expire(user)
    return get(scope, user_id)


def _replace_email(user: User, email: str, *, by: str | None) -> None:
    moved = accounts.email_key(email) != user.email_key
    if moved:
        pii.expel(user, by=by, reason=pii.NEW_ADDRESS)
    previous, verified = user.email, user.email_verified
    set_email(user, email)
    if moved:
        user.email_verified, user.email_verified_at = False, None
        who = (user.account_id, user.id)
        events.publish(events.AddressReplaced(*who, previous, verified, by_user=user.id == by))


def _check_may_lose(session: Session, user: User, *, stays_admin: bool, by: str | None) -> None:
    if user.id == by:
        raise Forbidden("Nobody can deactivate, demote or delete themself.")
    if stays_admin or user.role.name != ADMIN or not user.is_active:
        return
    others = sa.select(User.id).where(
        User.account_id == user.account_id,
        User.id != user.id,
        User.is_active,
        User.role_id == user.role_id,
    )
    if session.scalar(others.limit(1)) is None:
        raise Conflict("This is the account's last admin.")


def _touch(session: Session, user: User) -> None:
    accounts.outdate(user)
    session.flush()
    session.refresh(user)
