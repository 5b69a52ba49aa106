"""Groups: sets of users of one account, kept by its admins (contract section 2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app import db, events
from app.accounts import service as accounts
from app.accounts import users
from app.accounts.models import PII_GROUP, SYSTEM_ACCOUNT_ID, Group, GroupMember, User
from app.db import errors
from app.errors import Conflict, Forbidden, NotFound

TAKEN = "The account has a group of this name."


def page(
    account_id: str | None, skip: int, limit: int, search: str | None
) -> tuple[list[Group], int]:
    """The groups of an account (None: of all) by name, and how many there are."""
    conditions = [Group.account_id == account_id] if account_id else []
    if search:
        conditions.append(Group.name.icontains(search, autoescape=True))
    total = db.db.session.scalar(sa.select(sa.func.count()).select_from(Group).where(*conditions))
    chosen = sa.select(Group).where(*conditions).order_by(Group.name, Group.id)
    return list(db.db.session.scalars(chosen.offset(skip).limit(limit))), total or 0


def get(account_id: str | None, group_id: str) -> Group:
    """One group of the account. Raises NotFound."""
    return _found(_named(account_id, group_id))


def _named(account_id: str | None, group_id: str) -> sa.Select[Group]:
    mine = [Group.account_id == account_id] if account_id else []
    return sa.select(Group).where(Group.id == group_id.lower(), *mine)


def _found(chosen: sa.Select[Group]) -> Group:
    group = db.db.session.scalar(chosen)
    if group is None:
        raise NotFound("There is no such group.")
    return group


def members(group: Group) -> list[User]:
    """The users in a group, by address."""
    chosen = sa.select(User).where(*_inside(group)).order_by(User.email_key)
    return list(db.db.session.scalars(chosen))


def member_page(group: Group, skip: int, limit: int) -> tuple[list[User], int]:
    """Some of the users in a group, by address, and how many there are."""
    counted = sa.select(sa.func.count()).select_from(User).where(*_inside(group))
    chosen = sa.select(User).where(*_inside(group)).order_by(User.email_key)
    found = db.db.session.scalars(chosen.offset(skip).limit(limit))
    return list(found), db.db.session.scalar(counted) or 0


def _inside(group: Group) -> list[Any]:
    inside = sa.select(GroupMember.user_id).where(
        GroupMember.account_id == group.account_id, GroupMember.group_id == group.id
    )
    return [User.account_id == group.account_id, User.id.in_(inside)]


def create(account_id: str, name: str, description: str | None) -> Group:
    """A new group. Raises Conflict for a taken name."""
    name = accounts.label(name)
    with db.transaction() as session, _unique():
        group = Group(account_id=account_id, name=name, description=description)
        session.add(group)
        session.flush()
        return group


def change(account_id: str, group_id: str, body: Mapping[str, Any]) -> Group:
    """Rename or describe a group. Raises Conflict for `pii_access` or a taken name."""
    body = {**body, "name": accounts.label(body["name"])} if "name" in body else body
    with db.transaction() as session, _unique():
        group = _alone(account_id, group_id)
        if body.get("name", group.name) != group.name:
            _check_ordinary(group)
            _outdate(session, group)
        for name, value in body.items():
            setattr(group, name, value)
        session.flush()
        return group


def delete(account_id: str, group_id: str) -> None:
    """Remove a group. Raises Conflict for `pii_access`."""
    with db.transaction() as session:
        group = _alone(account_id, group_id)
        _check_ordinary(group)
        _outdate(session, group)
        session.delete(group)
        session.flush()


def add(account_id: str, group_id: str, user_id: str, *, by: str | None = None) -> Group:
    """Put a user of the same account into a group; being in it already is fine.

    Raises Forbidden where it is `pii_access` and `by` is a user who may not open it.
    """
    with db.transaction() as session:
        user = users.locked(session, account_id, user_id)
        group = get(account_id, group_id)
        check_may_admit(group, by)
        key = {"account_id": group.account_id, "group_id": group.id, "user_id": user.id}
        if session.get(GroupMember, tuple(key.values())) is None:
            session.add(GroupMember(**key))
            accounts.outdate(user)
            session.flush()
            if group.name == PII_GROUP:
                events.publish(events.PiiMemberAdmitted(user.account_id, user.id))
        return group


def remove(account_id: str, group_id: str, user_id: str) -> None:
    """Take a user out of a group. Raises NotFound for one who is not in it."""
    with db.transaction() as session:
        user = users.locked(session, account_id, user_id)
        group = get(account_id, group_id)
        member = session.get(GroupMember, (group.account_id, group.id, user.id))
        if member is None:
            raise NotFound("This user is not in the group.")
        session.delete(member)
        accounts.outdate(user)
        session.flush()


def check_may_admit(group: Group, by: str | None) -> None:
    """Refuse whoever would let somebody into `pii_access` from outside it (contract section 7).

    A superadmin may in an ordinary account, whose last member may be gone. Raises Forbidden.
    """
    if group.name != PII_GROUP:
        return
    inside = sa.select(GroupMember.user_id).where(
        GroupMember.account_id == group.account_id, GroupMember.group_id == group.id
    )
    home = User.account_id == group.account_id
    may = sa.and_(home, User.id.in_(inside))
    if group.account_id != SYSTEM_ACCOUNT_ID:
        may = sa.or_(may, User.account_id == SYSTEM_ACCOUNT_ID)
    if db.db.session.scalar(sa.select(User.id).where(User.id == (by or ""), may)) is None:
        raise Forbidden(f"Only a member of {PII_GROUP} may let somebody into it.")


def _alone(account_id: str, group_id: str) -> Group:
    # Who joins was waited for, or waits: nobody is missed who must be told of the change.
    return _found(_named(account_id, group_id).with_for_update())


@contextmanager
def _unique() -> Iterator[None]:
    with (
        errors.conflict_on_unique("groups", "name", "name", TAKEN),
        errors.conflict_on_unique("groups", "name_key", "name", TAKEN),
    ):
        yield


def _check_ordinary(group: Group) -> None:
    if group.name == PII_GROUP:
        raise Conflict(f"{PII_GROUP} cannot be renamed or deleted.")


def _outdate(session: Session, group: Group) -> None:
    mine = sa.update(User).where(*_inside(group))
    session.execute(mine.values(version=User.version + 1, updated_at=User.updated_at))
