"""Who is in `pii_access`, and what takes somebody out of it (contract section 7).

Whoever can read a member's mail or knows the password reads what the member reads. So a user whose
address or password somebody outside the group has set is a member no more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from app import db, events
from app.accounts import service as accounts
from app.accounts.models import PII_GROUP, SYSTEM_ACCOUNT_ID, Group, GroupMember, User

NEW_ADDRESS, NEW_PASSWORD = "address", "password"
ONLY_MEMBERS = f"Only a member of {PII_GROUP} may do this."


def is_member(account_id: str, user_id: str | None) -> bool:
    """Whether a user of the account is in its group, as the database has it now."""
    return (
        db.db.session.scalar(_memberships(account_id, GroupMember.user_id == user_id)) is not None
    )


def is_trusted(account_id: str, by: str | None) -> bool:
    """Whether a user may act for members of the account: as one of them, or of the system's."""
    return is_member(account_id, by) or is_member(SYSTEM_ACCOUNT_ID, by)


def members(account_id: str, most: int) -> Sequence[str]:
    """The ids of active members, at most so many."""
    active = sa.select(User.id).where(User.account_id == account_id, User.is_active)
    inside = active.where(User.id.in_(_memberships(account_id)))
    return db.db.session.scalars(inside.order_by(User.id).limit(most)).all()


def names_group(account_id: str, references: Collection[str]) -> bool:
    """Whether the group is among these, by id or name."""
    named = sa.or_(Group.id.in_(references), Group.name.in_(references))
    mine = (Group.account_id == account_id, Group.name == PII_GROUP)
    return db.db.session.scalar(sa.select(Group.id).where(*mine, named)) is not None


def expel(user: User, *, by: str | None, reason: str) -> None:
    """Take a user out of the group, unless whoever acts is trusted; the members are told.

    Part of a transaction in which the user is locked.
    """
    if not is_member(user.account_id, user.id) or is_trusted(user.account_id, by):
        return
    session = db.db.session
    mine = (Group.account_id == user.account_id, Group.name == PII_GROUP)
    group_id = session.scalars(sa.select(Group.id).where(*mine)).one()
    session.delete(session.get_one(GroupMember, (user.account_id, group_id, user.id)))
    accounts.outdate(user)
    events.publish(events.PiiMemberExpelled(user.account_id, user.id, user.email, reason))


def _memberships(account_id: str, *where: Any) -> sa.Select[str]:
    inside = sa.select(GroupMember.user_id).join(
        Group,
        sa.and_(Group.account_id == GroupMember.account_id, Group.id == GroupMember.group_id),
    )
    return inside.where(GroupMember.account_id == account_id, Group.name == PII_GROUP, *where)
