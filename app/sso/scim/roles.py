"""Roles by the groups that the directory manages, as at sign-in.

The account's mapping of groups to roles applies to users whose role the directory or a sign-in
gave. A role that was assigned by hand stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import partial

import sqlalchemy as sa

from app import db, events
from app.accounts import names, users
from app.accounts.models import PII_GROUP, VIEWER, Account, Group, GroupMember, Role, User
from app.accounts.names import MAPPING, Name, Use
from app.rules.named import GROUP as GROUP_NAME
from app.sso import roles as sso_roles
from app.sso.models import Identity
from app.sso.scim.models import DirectoryGroup, DirectoryUser


@events.subscribe(events.UserLeavesLater)
def _forget(event: events.UserLeavesLater) -> None:
    # The directory may send the person again before the row of the user is gone.
    mine = (DirectoryUser.account_id == event.account_id, DirectoryUser.user_id == event.user_id)
    db.db.session.execute(sa.delete(DirectoryUser).where(*mine))


def assign(account_id: str, user_ids: Collection[str]) -> None:
    """Give users the roles of their groups, if the account maps groups to roles."""
    settings = db.db.session.get_one(Account, account_id).settings
    if not user_ids or settings.get("sso_group_roles") is None:
        return
    mapping, groups = sso_roles.effective_mapping(settings), _groups(account_id, user_ids)
    by_name = {role.name: role for role in db.db.session.scalars(sa.select(Role))}
    assigned, rows = {}, {}
    for row, is_own in _directory_users(account_id, user_ids):
        name = sso_roles.first_match(mapping, groups[row.user_id])
        if name or is_own:
            assigned[row.user_id], rows[row.user_id] = by_name[name or VIEWER], row
    users.set_roles(account_id, assigned)
    holders = sa.select(User.id, User.role_id).where(
        User.account_id == account_id, User.id.in_(assigned)
    )
    for user_id, role_id in db.connection().execute(holders):
        if assigned[user_id].id == role_id:  # the last admin may have kept another one
            rows[user_id].given_role_id = role_id
    db.db.session.flush()


def _groups(account_id: str, user_ids: Collection[str]) -> defaultdict[str, set[str]]:
    """Return the names of the directory's groups that users are in, by user id."""
    query = (
        sa.select(GroupMember.user_id, Group.name)
        .join(
            Group,
            sa.and_(Group.account_id == GroupMember.account_id, Group.id == GroupMember.group_id),
        )
        .join(
            DirectoryGroup,
            sa.and_(
                DirectoryGroup.account_id == Group.account_id, DirectoryGroup.group_id == Group.id
            ),
        )
        .where(GroupMember.account_id == account_id, GroupMember.user_id.in_(user_ids))
        .where(Group.name != PII_GROUP)
    )
    names = defaultdict[str, set[str]](set)
    for user_id, name in db.connection().execute(query):
        names[user_id].add(name)
    return names


def _directory_users(
    account_id: str, user_ids: Collection[str]
) -> list[tuple[DirectoryUser, bool]]:
    """Return the users whose role the directory gave (true) or a sign-in gave (false)."""
    is_own = sa.func.coalesce(DirectoryUser.given_role_id == User.role_id, sa.false())
    by_sign_in = sa.exists().where(
        Identity.account_id == User.account_id,
        Identity.user_id == User.id,
        Identity.given_role_id == User.role_id,
    )
    query = (
        sa.select(DirectoryUser, is_own)
        .join(
            User,
            sa.and_(User.account_id == DirectoryUser.account_id, User.id == DirectoryUser.user_id),
        )
        .where(DirectoryUser.account_id == account_id, DirectoryUser.user_id.in_(user_ids))
        .where(sa.or_(is_own, by_sign_in))
    )
    return [(row[0], bool(row[1])) for row in db.db.session.execute(query)]


@events.subscribe(events.RoleAssigned)
def _clear_given_role(event: events.RoleAssigned) -> None:
    same_user = (
        DirectoryUser.account_id == event.account_id,
        DirectoryUser.user_id == event.user_id,
        DirectoryUser.given_role_id.is_not(None),
    )
    db.db.session.execute(sa.update(DirectoryUser).where(*same_user).values(given_role_id=None))


@names.place
def in_mapping(name: Name) -> Iterator[Use]:
    """The account's mapping of groups to roles, if it means this group of the directory.

    Otherwise it names a group of a sign-in provider, which keeps its name. It may outlive the
    group: a mapping may name groups that are not there yet.
    """
    if name.kind != GROUP_NAME:
        return
    is_directorys = sa.select(DirectoryGroup.group_id).where(
        DirectoryGroup.account_id == name.account_id, DirectoryGroup.group_id == name.id
    )
    account = db.db.session.get_one(Account, name.account_id)
    mapping = account.settings.get(MAPPING) or []
    mapped = any(entry["group"] == name.value for entry in mapping)
    if mapped and db.db.session.scalar(is_directorys):
        texts, follow = {MAPPING: name.value}, partial(_store_mapping, account.id, name.value)
        yield Use("account.settings", texts, follow, account.id, are_names=True, may_outlive=True)


def _store_mapping(account_id: str, former: str, texts: Mapping[str, str]) -> None:
    names.change_mapping(account_id, "group", former, texts[MAPPING])
