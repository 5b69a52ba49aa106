"""Groups: sets of users of one account, managed by its admins."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app import db, events
from app.accounts import names, users
from app.accounts import service as accounts
from app.accounts.models import (
    PII_GROUP,
    SYSTEM_ACCOUNT_ID,
    Group,
    GroupMember,
    User,
    UserKind,
)
from app.accounts.names import Name
from app.accounts.types import Body, Condition, Problem
from app.db import counts, errors, filters
from app.errors import Conflict, Forbidden, InvalidValues, NotFound, problem
from app.rules.named import GROUP

TAKEN = "The account already has a group with this name."
_IS_PERSON = sa.and_(
    User.account_id == GroupMember.account_id,
    User.id == GroupMember.user_id,
    User.kind == UserKind.PERSON,
)


def page(
    account_id: str | None, skip: int, limit: int, search: str | None
) -> tuple[list[Group], int]:
    """One page of an account's groups (None: all accounts) by name, and the total."""
    conditions = [Group.account_id == account_id] if account_id else []
    if search:
        conditions.append(filters.has_text(Group.name, search))
    total = db.db.session.scalar(sa.select(sa.func.count()).select_from(Group).where(*conditions))
    query = sa.select(Group).where(*conditions).order_by(Group.name, Group.id)
    return list(db.db.session.scalars(query.offset(skip).limit(limit))), total or 0


def member_counts(groups: Sequence[Group], most: int) -> list[int]:
    """The number of members of each group; counts to `most` + 1."""
    conditions = [
        (GroupMember.account_id == group.account_id, GroupMember.group_id == group.id)
        for group in groups
    ]
    return [*counts.count_each_up_to(GroupMember, conditions, most)]


def get(account_id: str | None, group_id: str) -> Group:
    """The group with this id. Raises NotFound."""
    return _one(_select(account_id, group_id))


def _select(account_id: str | None, group_id: str) -> sa.Select[Group]:
    conditions = [Group.account_id == account_id] if account_id else []
    return sa.select(Group).where(Group.id == group_id.lower(), *conditions)


def _one(query: sa.Select[Group]) -> Group:
    group = db.db.session.scalar(query)
    if group is None:
        raise NotFound("There is no such group.")
    return group


def resolve(account_id: str, references: Sequence[str], problems: list[Problem]) -> Sequence[Group]:
    """The account's groups of these ids or names; appends unknown ones to `problems`."""
    named = sa.or_(Group.id.in_(references), Group.name.in_(references))
    query = sa.select(Group).where(Group.account_id == account_id, named)
    groups = db.db.session.scalars(query).all() if references else []
    known = {group.id for group in groups} | {group.name for group in groups}
    problems += [
        problem("groups", "invalid_reference", f"There is no group {reference[:80]}.")
        for reference in references
        if reference not in known
    ]
    return groups


def members(group: Group) -> list[User]:
    """The members of a group, by email address."""
    query = sa.select(User).where(*_in_group(group)).order_by(User.email_key)
    return list(db.db.session.scalars(query))


def member_page(group: Group, skip: int, limit: int) -> tuple[list[User], int]:
    """One page of a group's members, by email address, and the total."""
    count = sa.select(sa.func.count()).select_from(User).where(*_in_group(group))
    query = sa.select(User).where(*_in_group(group)).order_by(User.email_key)
    rows = db.db.session.scalars(query.offset(skip).limit(limit))
    return list(rows), db.db.session.scalar(count) or 0


def _in_group(group: Group) -> list[Condition]:
    return [User.account_id == group.account_id, User.id.in_(_member_ids(group))]


def _member_ids(group: Group) -> sa.Select[str]:
    return sa.select(GroupMember.user_id).where(
        GroupMember.account_id == group.account_id, GroupMember.group_id == group.id
    )


def create(account_id: str, name: str, description: str | None) -> Group:
    """Create a group. Raises Conflict if the name is taken."""
    name = accounts.label(name)
    with db.transaction() as session, _unique():
        group = Group(account_id=account_id, name=name, description=description)
        session.add(group)
        session.flush()
        return group


def change(account_id: str, group_id: str, body: Body, *, shows_rules: bool = False) -> Group:
    """Change a group's name or description; what names the group follows, in its account.

    Raises Conflict if the name is taken, to rename `pii_access`, or with the places that cannot
    follow: with `shows_rules` also those of the instance.
    """
    if "name" in body:
        body = {**body, "name": accounts.label(body["name"])}
    with db.transaction() as session, _unique():
        group = _get_for_update(account_id, group_id)
        former = Name(GROUP, group.name, group.account_id, group.id)
        renamed = body.get("name", group.name) != group.name
        if renamed:
            _refuse_pii_group(group)
            _bump_members(session, group)
        for name, value in body.items():
            setattr(group, name, value)
        session.flush()
        if renamed:
            names.follow(former, group.name, shows_all=shows_rules)
        return group


def delete(account_id: str, group_id: str, *, shows_rules: bool = False) -> None:
    """Delete a group. Raises Conflict for `pii_access`, or with the places that name it."""
    with db.transaction() as session:
        group = _get_for_update(account_id, group_id)
        _refuse_pii_group(group)
        name = Name(GROUP, group.name, group.account_id, group.id)
        names.refuse_deletion(name, shows_all=shows_rules)
        _bump_members(session, group)
        # SQLite does not cascade in a transaction that also changes tables.
        members = (GroupMember.account_id == group.account_id, GroupMember.group_id == group.id)
        session.execute(sa.delete(GroupMember).where(*members))
        session.delete(group)
        session.flush()


def add_member(account_id: str, group_id: str, user_id: str, *, by: str | None = None) -> Group:
    """Add a user of the account to a group; does nothing for a member.

    Raises Forbidden if the group is `pii_access` and `by` may not add members to it.
    """
    with db.transaction() as session:
        user = users.get_for_update(session, account_id, user_id)
        group = get(account_id, group_id)
        check_may_add_member(group, by)
        key = {"account_id": group.account_id, "group_id": group.id, "user_id": user.id}
        if session.get(GroupMember, tuple(key.values())) is None:
            session.add(GroupMember(**key))
            accounts.bump_version(user)
            session.flush()
            if group.name == PII_GROUP:
                events.publish(events.PiiMemberAdmitted(user.account_id, user.id))
        return group


def remove_member(account_id: str, group_id: str, user_id: str) -> None:
    """Remove a user from a group. Raises NotFound for a user who is not a member."""
    with db.transaction() as session:
        user = users.get_for_update(session, account_id, user_id)
        group = get(account_id, group_id)
        member = session.get(GroupMember, (group.account_id, group.id, user.id))
        if member is None:
            raise NotFound("This user is not in the group.")
        session.delete(member)
        accounts.bump_version(user)
        session.flush()


def member_ids(account_id: str, group_ids: Collection[str], limit: int) -> list[tuple[str, str]]:
    """Group and user ids of up to `limit` memberships of people in these groups, by user id."""
    in_groups = (GroupMember.account_id == account_id, GroupMember.group_id.in_(group_ids))
    query = sa.select(GroupMember.group_id, GroupMember.user_id).join(User, _IS_PERSON)
    rows = db.connection().execute(
        query.where(*in_groups).order_by(GroupMember.user_id).limit(limit)
    )
    return [(row.group_id, row.user_id) for row in rows]


def set_members(account_id: str, group_id: str, user_ids: Collection[str]) -> set[str]:
    """Make these the only people in a group; returns the ids of those who joined or left.

    Its service users stay. Raises NotFound, Conflict for `pii_access`, or InvalidValues for ids
    that are of no people here.
    """
    with db.transaction() as session:
        accounts.get_for_update(account_id)
        group = _get_for_update(account_id, group_id)
        _refuse_pii_group(group)
        present = set(session.scalars(_member_ids(group).join(User, _IS_PERSON)))
        joining, leaving = set(user_ids) - present, present - set(user_ids)
        people = (User.account_id == account_id, User.kind == UserKind.PERSON)
        known = sa.select(User.id).where(*people, User.id.in_(joining))
        if unknown := joining - set(session.scalars(known)):
            message = f"There is no user {min(unknown)[:100]}."
            raise InvalidValues([problem("members", "invalid_reference", message)])
        key = {"account_id": account_id, "group_id": group.id}
        session.add_all(GroupMember(**key, user_id=user_id) for user_id in sorted(joining))
        own = (GroupMember.account_id == account_id, GroupMember.group_id == group.id)
        session.execute(sa.delete(GroupMember).where(*own, GroupMember.user_id.in_(leaving)))
        session.flush()
        changed = joining | leaving
        affected = sa.update(User).where(User.account_id == account_id, User.id.in_(changed))
        session.execute(affected.values(version=User.version + 1, updated_at=User.updated_at))
        return changed


def check_may_add_member(group: Group, by: str | None) -> None:
    """Only members of `pii_access` may add members to it.

    Superadmins may too, but not in the system account: an account may have lost its last member.
    Raises Forbidden.
    """
    if group.name != PII_GROUP:
        return
    allowed = sa.and_(*_in_group(group))
    if group.account_id != SYSTEM_ACCOUNT_ID:
        allowed = sa.or_(allowed, User.account_id == SYSTEM_ACCOUNT_ID)
    if db.db.session.scalar(sa.select(User.id).where(User.id == (by or ""), allowed)) is None:
        raise Forbidden(f"Only a member of {PII_GROUP} may add members to it.")


def _get_for_update(account_id: str, group_id: str) -> Group:
    # Serializes with joins, so the version of every member is bumped.
    return _one(_select(account_id, group_id).with_for_update())


@contextmanager
def _unique() -> Iterator[None]:
    with (
        errors.conflict_on_unique("groups", "name", "name", TAKEN),
        errors.conflict_on_unique("groups", "name_key", "name", TAKEN),
    ):
        yield


def _refuse_pii_group(group: Group) -> None:
    if group.name == PII_GROUP:
        raise Conflict(f"{PII_GROUP} cannot be renamed or deleted.")


def _bump_members(session: Session, group: Group) -> None:
    members = sa.update(User).where(*_in_group(group))
    session.execute(members.values(version=User.version + 1, updated_at=User.updated_at))
