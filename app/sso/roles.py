"""Roles that a sign-in brings: the account maps groups of its providers to roles (contract 10).

A role that somebody set by hand is never overwritten: an identity remembers which role it gave,
and forgets it when the user is given another. `admin` takes a setting of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app import db, events
from app.accounts import people, sso_settings
from app.accounts.models import ADMIN, VIEWER, Account, Role, User
from app.auth.principal import Principal
from app.errors import InvalidValues
from app.sso import service
from app.sso.models import Identity
from app.sso.service import Connection

GroupRoles = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Change:
    """What a mapping would make of a user at the next sign-in."""

    user: User
    groups: list[str]
    role: str
    becomes: str


def due(connection: Connection, groups: Sequence[str]) -> Role | None:
    """The role that members of these groups are to have; None where the account maps nothing."""
    settings = connection.account.settings
    mapping = settings.get("sso_group_roles") or []
    if not mapping:
        return None
    name = _chosen(sso_settings.counting(mapping, settings), groups)
    return usual(name or _default(connection.config))


def usual(name: str | None) -> Role:
    """The role of that name, else the least one."""
    session = db.db.session
    found = session.scalar(sa.select(Role).where(Role.name == name)) if name else None
    return found or session.scalars(sa.select(Role).where(Role.name == VIEWER)).one()


def _default(config: Mapping[str, Any]) -> str | None:
    name = config.get("default_role")
    return name if name != ADMIN else None


def settle(user: User, identity: Identity, role: Role | None) -> None:
    """Give a user the mapped role, unless the present one was set by hand."""
    if role is None or identity.given_role_id != user.role_id:
        return
    if people.give_role(user, role):
        identity.given_role_id = role.id


def plan(mapping: GroupRoles | None, *, by: Principal) -> list[Change]:
    """Who would change by a mapping (None: the present one), going by their last sign-ins.

    Raises InvalidValues for a mapping that could not be saved.
    """
    account = db.db.session.get_one(Account, by.one_account())
    settings = account.settings
    mapping = settings.get("sso_group_roles") or [] if mapping is None else mapping
    found = sso_settings.mapping_problems(mapping, settings)
    if found:
        raise InvalidValues(found)
    counts = sso_settings.counting(mapping, settings)
    defaults = {row.provider_name: _default(row.config) for row in service.offered(account.id)[1]}
    changes = []
    for identity, user in _given(account.id) if mapping else ():
        usual_role = defaults.get(identity.provider_name) or VIEWER
        becomes = _chosen(counts, identity.groups) or usual_role
        if becomes != user.role_name:
            changes.append(Change(user, identity.groups, user.role_name, becomes))
    return changes


def _given(account_id: str) -> Iterable[tuple[Identity, User]]:
    chosen = (
        sa.select(Identity, User)
        .join(User, sa.and_(User.account_id == Identity.account_id, User.id == Identity.user_id))
        .where(Identity.account_id == account_id, Identity.given_role_id == User.role_id)
        .order_by(User.email_key, Identity.id)
    )
    return [(row[0], row[1]) for row in db.db.session.execute(chosen)]


def _chosen(mapping: GroupRoles, groups: Sequence[str]) -> str | None:
    return next((one["role"] for one in mapping if one["group"] in groups), None)


@events.subscribe(events.RoleSetByHand)
def _forget_given(event: events.RoleSetByHand) -> None:
    mine = (Identity.account_id == event.account_id, Identity.user_id == event.user_id)
    changed = sa.update(Identity).where(*mine, Identity.given_role_id.is_not(None))
    db.db.session.execute(changed.values(given_role_id=None))
