"""Membership of `pii_access`, and how a user loses it.

Whoever reads a member's mail or knows the member's password sees personal data. So a user leaves
the group when somebody outside it sets the user's address or password.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from app import db, events
from app.accounts import service as accounts
from app.accounts.models import PII_GROUP, SYSTEM_ACCOUNT_ID, Group, GroupMember, User, UserKind
from app.accounts.types import Condition

NEW_ADDRESS, NEW_PASSWORD = "address", "password"
ONLY_MEMBERS = f"Only a member of {PII_GROUP} may do this."


def is_member(account_id: str, user_id: str | None) -> bool:
    """Whether a user is in the account's group now; reads the database."""
    return (
        db.db.session.scalar(_memberships(account_id, GroupMember.user_id == user_id)) is not None
    )


def is_trusted(account_id: str, by: str | None) -> bool:
    """Whether a user may act for members: as a member here or in the system account."""
    return is_member(account_id, by) or is_member(SYSTEM_ACCOUNT_ID, by)


def members(account_id: str, limit: int) -> Sequence[str]:
    """Ids of up to `limit` active members who are people."""
    is_person = User.kind == UserKind.PERSON
    active = sa.select(User.id).where(User.account_id == account_id, User.is_active, is_person)
    member_ids = active.where(User.id.in_(_memberships(account_id)))
    return db.db.session.scalars(member_ids.order_by(User.id).limit(limit)).all()


def references_group(account_id: str, references: Collection[str]) -> bool:
    """Whether any of these ids or names is the account's `pii_access` group."""
    referenced = sa.or_(Group.id.in_(references), Group.name.in_(references))
    conditions = (Group.account_id == account_id, Group.name == PII_GROUP)
    return db.db.session.scalar(sa.select(Group.id).where(*conditions, referenced)) is not None


def remove_untrusted(user: User, *, by: str | None, reason: str) -> None:
    """Remove a user from the group unless `by` is trusted; the members get a mail.

    Call it in a transaction that has locked the user.
    """
    if not is_member(user.account_id, user.id) or is_trusted(user.account_id, by):
        return
    session = db.db.session
    conditions = (Group.account_id == user.account_id, Group.name == PII_GROUP)
    group_id = session.scalars(sa.select(Group.id).where(*conditions)).one()
    session.delete(session.get_one(GroupMember, (user.account_id, group_id, user.id)))
    accounts.bump_version(user)
    events.publish(events.PiiMemberExpelled(user.account_id, user.id, user.email, reason))


def _memberships(account_id: str, *conditions: Condition) -> sa.Select[str]:
    member_ids = sa.select(GroupMember.user_id).join(
        Group,
        sa.and_(Group.account_id == GroupMember.account_id, Group.id == GroupMember.group_id),
    )
    return member_ids.where(
        GroupMember.account_id == account_id, Group.name == PII_GROUP, *conditions
    )
