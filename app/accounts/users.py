"""Managing users: superadmins in any account, admins in their own.

`scope` is the account that the caller may manage; None means all. `by` is the id of the acting
user, as nobody may lock themselves out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app import clock, db, events
from app.accounts import attributes, pii, roles, service_users
from app.accounts import service as accounts
from app.accounts.models import (
    ADMIN,
    SYSTEM_ACCOUNT_ID,
    USER_LABEL,
    VIEWER,
    Account,
    GroupMember,
    Role,
    User,
    UserKind,
)
from app.accounts.types import Body, Condition, Problem, Query
from app.db import counts, errors, filters
from app.errors import Conflict, Forbidden, InvalidValues, NotFound, problem

NO_ADDRESS = "A service user has neither an address nor a password."
SORTABLE = {
    "email": User.email_key,
    "name": User.name,
    "created_at": User.created_at,
    "last_login": User.last_login,
    "is_active": User.is_active,
}


def page(scope: str | None, query: Query, max_total: int | None = None) -> tuple[list[User], int]:
    """One page of the users that match, and the total, counted to `max_total` + 1 at most."""
    conditions = _conditions(scope, query)
    total = counts.count_up_to(User, conditions, max_total)
    ascending = query.get("sort_order") == "asc"
    order: list[Any] = [User.id]
    if "sort_by" not in query:  # ids are ordered by time, and indexed
        order = [User.id.asc() if ascending else User.id.desc()]
    else:
        column = SORTABLE[query["sort_by"]]
        ordered = column.asc() if ascending else column.desc()
        nullable = column.property.columns[0].nullable
        order.insert(0, ordered.nulls_last() if nullable else ordered)
    statement = sa.select(User).where(*conditions).order_by(*order)
    return list(db.db.session.scalars(statement.offset(query["skip"]).limit(query["limit"]))), total


def count_by_role(limit: int) -> tuple[dict[int, int], bool]:
    """The users by role among the newest `limit` ones, and whether there are more users."""
    newest = sa.select(User.id, User.role_id).order_by(User.id.desc()).limit(limit + 1).subquery()
    query = sa.select(newest.c.role_id, sa.func.count().label("number")).group_by(newest.c.role_id)
    numbers = {row.role_id: row.number for row in db.connection().execute(query)}
    return numbers, sum(numbers.values()) > limit


def cursor_at_offset(scope: str | None, offset: int) -> str | None:
    """The id of the user at this offset in the list, newest first, for `after`."""
    user_id: str | None = counts.value_at_offset(User.id, _conditions(scope, {}), offset)
    return user_id


def _conditions(scope: str | None, query: Query) -> list[Condition]:
    conditions: list[Condition] = [User.leaving_at.is_(None)]
    account_id = scope or query.get("account_id")
    if account_id is not None:
        conditions.append(User.account_id == account_id.lower())
    if query.get("without_system"):
        conditions.append(User.account_id != SYSTEM_ACCOUNT_ID)
    if "kind" in query:
        conditions.append(User.kind == query["kind"])
    if "role_id" in query:
        conditions.append(User.role_id == query["role_id"])
    if "is_active" in query:
        conditions.append(User.is_active == query["is_active"])
    if query.get("after"):
        conditions.append(User.id > query["after"])
    if "email_verified" in query:
        conditions.append(User.email_verified == query["email_verified"])
    if search := query.get("search"):
        by_address = User.email_key.contains(accounts.email_key(search), autoescape=True)
        by_name = filters.has_text(User.name, search.strip())
        conditions.append(sa.or_(by_address, by_name))
    return conditions


def get(scope: str | None, user_id: str) -> User:
    """The user with this id. Raises NotFound, also for a user of another account."""
    conditions = [User.account_id == scope] if scope else []
    conditions += [User.id == user_id.lower(), User.leaving_at.is_(None)]
    user = db.db.session.scalar(sa.select(User).where(*conditions))
    if user is None:
        raise NotFound("There is no such user.")
    return user


def emails(account_id: str, user_ids: Collection[str]) -> dict[str, str]:
    """Email addresses of an account's users, and names of services, by user id."""
    conditions = (User.account_id == account_id, User.id.in_(user_ids))
    rows = db.connection().execute(sa.select(User.id, USER_LABEL.label("label")).where(*conditions))
    return {row.id: row.label for row in rows}


def verified_admins(account_id: str) -> list[str]:
    """The ids of the account's active admins with a verified address, who get its notices."""
    query = sa.select(User.id).join(Role, Role.id == User.role_id)
    is_eligible = (User.is_active, User.email_verified, Role.name == ADMIN)
    return list(db.db.session.scalars(query.where(User.account_id == account_id, *is_eligible)))


def has_admin(account_id: str) -> bool:
    """Whether an account has an active admin who is a person."""
    query = sa.select(User.id).join(Role, Role.id == User.role_id)
    is_admin = (User.is_active, User.kind == UserKind.PERSON, Role.name == ADMIN)
    return db.db.session.scalar(query.where(User.account_id == account_id, *is_admin)) is not None


def problems(account_id: str, body: Body) -> list[Problem]:
    """All validation problems of a new user of the account."""
    wrong = _column_problems(body)
    account = db.db.session.get(Account, account_id.lower())
    if account is None or not account.is_active:
        wrong.append(problem("account_id", "invalid_reference", "There is no such account."))
    roles.resolve(body, wrong, VIEWER)
    return wrong


def _column_problems(body: Body) -> list[Problem]:
    checks = [accounts.email_problem(body["email"].strip())] if "email" in body else []
    checks.append(accounts.name_problem(body.get("name") or ""))
    return [check for check in checks if check]


def create(account_id: str, body: Body, password_hash: str | None) -> User:
    """Create a user from a body that `problems` has checked. Raises Conflict."""
    role = roles.resolve(body, [], VIEWER)
    return accounts.create_user(
        account_id.lower(),
        email=body["email"].strip(),
        password_hash=password_hash,
        role=role.name if role else VIEWER,
        name=body.get("name"),
        attributes=attributes.merged({}, body.get("attributes", {})),
    )


def change(scope: str | None, user_id: str, body: Body, *, by: str | None) -> User:
    """Change a user. Raises InvalidValues, Conflict for the account's last admin.

    Raises Forbidden if `by` would deactivate or demote themselves.
    """
    with db.transaction() as session:
        user = get_for_update(session, scope, user_id)
        wrong: list[Problem] = []
        role = roles.resolve(body, wrong) if {"role", "role_id"} & set(body) else user.role
        wrong += _column_problems(body)
        if user.is_service and "email" in body:
            wrong = [problem("email", "field_read_only", NO_ADDRESS)]
        if role is None or wrong:
            raise InvalidValues(wrong)
        stays_admin = role.name == ADMIN and body.get("is_active", user.is_active)
        loses_rights = role.id != user.role_id or body.get("is_active") is False
        if loses_rights:
            _check_may_lose_rights(session, user, stays_admin=stays_admin, by=by)
        if {"role", "role_id"} & set(body):
            events.publish(events.RoleAssigned(user.account_id, user.id))
        user.role = role
        if "name" in body and user.is_service:
            service_users.rename(user, body["name"])
        elif "name" in body:
            user.name = body["name"]
        if "is_active" in body:
            user.is_active = body["is_active"]
        if "attributes" in body:
            user.attributes = attributes.merged(user.attributes, body["attributes"])
        if "email" in body:
            _replace_email(user, body["email"].strip(), by=by)
        _flush_changes(session, user)
        if loses_rights:  # last: the row lock has ended concurrent sign-ins
            event = events.RoleChanged if user.is_active else events.UserLostAccess
            events.publish(event(user.account_id, user.id))
            if not stays_admin:
                _publish_left(user)
        return user


def verify(scope: str | None, user_id: str) -> User:
    """Mark a user's address verified, as superadmins may. Raises Conflict for a service."""
    with db.transaction():
        user = get(scope, user_id)
        require_person(user)
        accounts.mark_verified(user)
        return user


def delete(scope: str | None, user_id: str, *, by: str | None) -> None:
    """Delete a user; their records stay. Raises Forbidden or Conflict like `change`.

    Access ends at once. If many records refer to the user, the row goes once a job has cleared
    them; until then it is found by nobody, and its address is free.
    """
    with db.transaction() as session:
        user = get_for_update(session, scope, user_id)
        _check_may_lose_rights(session, user, stays_admin=False, by=by)
        session.refresh(user, ["version"], with_for_update={"of": User})  # no new references
        leaving = events.UserLeaving(user.account_id, user.id, by, [])
        events.publish(leaving)
        events.publish(events.UserLostAccess(user.account_id, user.id, is_deleted=True))
        # Whoever never proved the address does not keep its owner out.
        if user.email_verified:
            accounts.remember_deleted(user.account_id, user.email_key)
        key = (user.account_id, user.id)
        if leaving.unfinished:
            mine = (GroupMember.account_id == user.account_id, GroupMember.user_id == user.id)
            session.execute(sa.delete(GroupMember).where(*mine))
            user.is_active, user.leaving_at, user.email_key = False, clock.now(), user.id
            events.publish(events.UserLeavesLater(*key))
            _flush_changes(session, user)
        else:
            session.delete(user)
            session.flush()
        events.publish(events.AdminLeft(*key))


def require_person(user: User) -> None:
    """Raise Conflict for a service user, who has neither an address nor a password."""
    if user.is_service:
        raise Conflict(NO_ADDRESS)


def finish_deletion(account_id: str, user_id: str) -> None:
    """Delete the row of a user who was leaving, if it is still there."""
    with db.transaction() as session:
        key = (User.account_id == account_id, User.id == user_id, User.leaving_at.is_not(None))
        user = session.scalar(sa.select(User).where(*key).with_for_update(of=User))
        if user is not None:
            session.delete(user)


def is_leaving(account_id: str, user_id: str) -> bool:
    """Whether a deleted user's row is still there."""
    mine = (User.account_id == account_id, User.id == user_id, User.leaving_at.is_not(None))
    return db.db.session.scalar(sa.select(User.id).where(*mine)) is not None


def set_role(user: User, role: Role) -> bool:
    """Set the role from a sign-in; returns whether it changed. Never demotes the last admin."""
    with db.transaction() as session:
        user = get_for_update(session, user.account_id, user.id)
        if user.role_id == role.id:
            return False
        try:
            _check_may_lose_rights(session, user, stays_admin=role.name == ADMIN, by=None)
        except Conflict:
            return False
        user.role = role
        _flush_changes(session, user)
        events.publish(events.RoleChanged(user.account_id, user.id))
        if role.name != ADMIN:
            _publish_left(user)
        return True


def _publish_left(user: User) -> None:
    # Whatever their role, users of the system account are superadmins.
    if user.account_id != SYSTEM_ACCOUNT_ID or not user.is_active:
        events.publish(events.AdminLeft(user.account_id, user.id))


def set_roles(account_id: str, roles: Mapping[str, Role]) -> dict[str, Role]:
    """Set roles by user id, as a directory gives them; returns those that changed.

    Never demotes the last admin.
    """
    changed = {}
    with db.transaction() as session:
        accounts.get_for_update(account_id)
        session.flush()
        # Locked, as in `bump_version`: two increments from the same version would lose one.
        query = sa.select(User).where(User.account_id == account_id, User.id.in_(roles))
        locking = query.with_for_update(of=User, key_share=True)
        for user in session.scalars(locking.execution_options(populate_existing=True)).all():
            role = roles[user.id]
            if user.role.name == ADMIN:  # rare, and has more to check
                is_changed = set_role(user, role)
            else:
                is_changed = user.role_id != role.id
                user.role = role
                user.version += is_changed
            if is_changed:
                changed[user.id] = role
        session.flush()
        events.publish(events.RolesChanged(account_id, frozenset(changed)))
    return changed


def set_password(user: User, password_hash: str) -> None:
    """Set a user's password and end all of the user's sessions. Raises Conflict for a service."""
    require_person(user)
    with db.transaction() as session:
        user = session.get_one(User, (user.account_id, user.id))
        user.password_hash = password_hash
        events.publish(events.UserLostAccess(user.account_id, user.id))


def replace_hash(account_id: str, user_id: str, old: str, new: str) -> None:
    """Replace the hash of a password by another of the same; the user's sessions go on."""
    table = User.__table__.c
    own = (table.account_id == account_id, table.id == user_id, table.password_hash == old)
    # Not by the ORM: to the audit log, the password is the same.
    values = {"password_hash": new, "updated_at": table.updated_at}
    with db.transaction() as session:
        session.execute(sa.update(User.__table__).where(*own).values(values))


def set_email(user: User, email: str) -> None:
    """Set a user's address. Raises Conflict if it is taken in the account."""
    user.email, user.email_key = email, accounts.email_key(email)
    with errors.conflict_on_unique("users", "email_key", "email", "This address is taken."):
        db.db.session.flush()


def get_for_update(session: Session, scope: str | None, user_id: str) -> User:
    """The user, locked until the transaction ends. Raises NotFound."""
    user = get(scope, user_id)
    # Locking the account serializes changes that could each demote one of the last two admins.
    accounts.get_for_update(user.account_id)
    session.expire(user)
    return get(scope, user_id)


def _replace_email(user: User, email: str, *, by: str | None) -> None:
    changed = accounts.email_key(email) != user.email_key
    if changed:
        pii.remove_untrusted(user, by=by, reason=pii.NEW_ADDRESS)
    previous, verified = user.email, user.email_verified
    set_email(user, email)
    if changed:
        user.email_verified, user.email_verified_at = False, None
        key = (user.account_id, user.id)
        events.publish(events.AddressReplaced(*key, previous, verified, by_user=user.id == by))


def _check_may_lose_rights(
    session: Session, user: User, *, stays_admin: bool, by: str | None
) -> None:
    if user.id == by:
        raise Forbidden("You cannot deactivate, demote or delete your own user.")
    if stays_admin or user.role.name != ADMIN or not user.is_active or user.is_service:
        return
    others = sa.select(User.id).where(
        User.account_id == user.account_id,
        User.id != user.id,
        User.is_active,
        User.kind == UserKind.PERSON,
        User.role_id == user.role_id,
    )
    if session.scalar(others.limit(1)) is None:
        raise Conflict("The account's last admin cannot be deactivated, demoted or deleted.")


def _flush_changes(session: Session, user: User) -> None:
    accounts.bump_version(user)
    session.flush()
    session.refresh(user)
