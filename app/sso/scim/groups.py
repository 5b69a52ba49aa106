"""Groups as the directory sees and changes them; `pii_access` is not its to change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from app import db
from app.accounts import groups as account_groups
from app.accounts import service as accounts
from app.accounts.models import PII_GROUP, Group
from app.errors import Forbidden, NotFound, PayloadTooLarge
from app.sso.scim import conditions, filters, patch, resources, roles, schemas
from app.sso.scim.attributes import GROUP, canonical
from app.sso.scim.errors import refusal
from app.sso.scim.models import DirectoryGroup
from app.sso.scim.patch import Operation
from app.types import JSONMapping, JSONObject
from app.web.preconditions import Preconditions

MAX_LISTED, MAX_CHANGED = 10_000, 1000
MAX_WORK = 100_000  # operations times members
TOO_MANY = (
    f"The groups have more than {MAX_LISTED:,} members. Leave them out by"
    " excludedAttributes=members."
)
TOO_MANY_CHANGED = f"At most {MAX_CHANGED:,} members may join or leave in one request."
TOO_MUCH_WORK = "This is too much for one request. Send fewer operations."
NO_GROUP = "There is no such group."
NOT_ITS_GROUP = f"Only its members may change {PII_GROUP}."
Row = tuple[Group, DirectoryGroup | None]


def page(
    account_id: str, filter: str | None, start: int, count: int, *, with_members: bool
) -> tuple[list[JSONObject], int]:
    """One page of the groups that match a filter, in order of creation, and the total."""
    where = [Group.account_id == account_id]
    if filter is not None:
        parsed = filters.parse(filter, GROUP.schema)
        where.append(conditions.condition(parsed, conditions.GROUP_FIELDS))
    total = sa.select(sa.func.count()).select_from(Group).outerjoin(*_JOIN).where(*where)
    query = _query().where(*where).order_by(Group.id).offset(start - 1).limit(count)
    rows = db.db.session.execute(query).all() if count else []
    members = _members(account_id, [row[0].id for row in rows]) if with_members else None
    listed = [resources.group(*row, members[row[0].id] if members else None) for row in rows]
    return listed, db.db.session.scalar(total) or 0


def get(account_id: str, group_id: str, *, with_members: bool = True) -> JSONObject:
    """Return a group. Raises NotFound."""
    group, row = _get(account_id, group_id)
    members = _members(account_id, [group.id])[group.id] if with_members else None
    return resources.group(group, row, members)


def create(account_id: str, body: JSONMapping) -> JSONObject:
    """Create a group. Raises BadRequest, PayloadTooLarge, or Conflict if the name is taken."""
    values = schemas.load(schemas.GroupBody(), canonical(body, GROUP))
    with db.transaction() as session:
        accounts.get_for_update(account_id)
        group = account_groups.create(account_id, values["display_name"], None)
        row = DirectoryGroup(account_id=account_id, group_id=group.id)
        row.external_id = values.get("external_id")
        session.add(row)
        session.flush()
        joined = account_groups.set_members(account_id, group.id, _ids(values, ()))
        roles.assign(account_id, joined)
        return get(account_id, group.id)


def replace(
    account_id: str, group_id: str, body: JSONMapping, only_if: Preconditions
) -> JSONObject:
    """Replace a group; takes over one that the directory did not create.

    Raises NotFound, BadRequest, Conflict, Forbidden or PreconditionFailed.
    """
    return _change(account_id, group_id, lambda present: body, only_if)


def modify(
    account_id: str, group_id: str, operations: Sequence[Operation], only_if: Preconditions
) -> JSONObject:
    """Apply PATCH operations to a group; otherwise like `replace`."""

    def patched(present: JSONObject) -> JSONObject:
        if len(operations) * len(present.get("members", ())) > MAX_WORK:
            raise PayloadTooLarge(TOO_MUCH_WORK)
        return patch.apply(present, operations, GROUP)

    return _change(account_id, group_id, patched, only_if)


def delete(account_id: str, group_id: str, only_if: Preconditions) -> None:
    """Delete a group; its members lose the role that it gave.

    Raises NotFound, Forbidden or PreconditionFailed.
    """
    with db.transaction() as session:
        accounts.get_for_update(account_id)
        group, row = _get(account_id, group_id)
        member_ids = _check_may_change(group, row, only_if)
        account_groups.delete(account_id, group.id)
        if row is not None:
            session.expire(row)
            roles.assign(account_id, member_ids)


def _change(
    account_id: str,
    group_id: str,
    change: Callable[[JSONObject], JSONMapping],
    only_if: Preconditions,
) -> JSONObject:
    with db.transaction() as session:
        accounts.get_for_update(account_id)
        group, row = _get(account_id, group_id)
        before = _check_may_change(group, row, only_if)
        body = change(resources.group(group, row, before))
        values = schemas.load(schemas.GroupBody(), canonical(body, GROUP))
        is_new = row is None or group.name != values["display_name"].strip()
        row = row or DirectoryGroup(account_id=account_id, group_id=group.id)
        row.external_id = values.get("external_id")
        session.add(row)
        if group.name != values["display_name"].strip():
            account_groups.change(account_id, group.id, {"name": values["display_name"]})
        changed = account_groups.set_members(account_id, group.id, _ids(values, before))
        # A group that the directory takes over or renames matters to all its members.
        roles.assign(account_id, changed | set(before) if is_new else changed)
        session.flush()
        return get(account_id, group.id)


def _check_may_change(
    group: Group, row: DirectoryGroup | None, only_if: Preconditions
) -> list[str]:
    """Return the ids of the members of a group that may be changed."""
    if group.name == PII_GROUP:
        raise Forbidden(NOT_ITS_GROUP)
    member_ids = _members(group.account_id, [group.id])[group.id]
    only_if.check(resources.group_etag(group, row, member_ids).removeprefix("W/"))
    return member_ids


def _ids(values: JSONMapping, before: Sequence[str]) -> set[str]:
    """Return the ids of the members to have. Raises BadRequest or PayloadTooLarge."""
    members = {one["value"].lower() for one in values.get("members") or ()}
    if len(members) > MAX_LISTED:
        raise refusal("tooMany", f"A group of a directory has at most {MAX_LISTED:,} members.")
    if len(members ^ set(before)) > MAX_CHANGED:
        raise PayloadTooLarge(TOO_MANY_CHANGED)
    return members


def _members(account_id: str, group_ids: Sequence[str]) -> defaultdict[str, list[str]]:
    members = defaultdict[str, list[str]](list)
    rows = account_groups.member_ids(account_id, group_ids, MAX_LISTED + 1)
    if len(rows) > MAX_LISTED:
        raise refusal("tooMany", TOO_MANY)
    for group_id, user_id in rows:
        members[group_id].append(user_id)
    return members


_JOIN = (
    DirectoryGroup,
    sa.and_(DirectoryGroup.account_id == Group.account_id, DirectoryGroup.group_id == Group.id),
)


def _query() -> sa.Select[Group, DirectoryGroup]:
    return sa.select(Group, DirectoryGroup).outerjoin(*_JOIN)


def _get(account_id: str, group_id: str) -> Row:
    same = (Group.account_id == account_id, Group.id == group_id.lower())
    row = db.db.session.execute(_query().where(*same)).first()
    if row is None:
        raise NotFound(NO_GROUP)
    return row[0], row[1]
