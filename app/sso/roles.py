"""Roles that a sign-in brings: the account maps groups of its providers to roles (contract 10).

A role that somebody set by hand is never overwritten: an identity remembers which role it gave,
and forgets it when the user is given another. `admin` takes a setting of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import orm

from app import db, events
from app.accounts import sso_settings, users
from app.accounts.models import ADMIN, VIEWER, Account, Role, User
from app.auth.principal import Principal
from app.errors import InvalidValues
from app.sso import service
from app.sso.connections import Connection
from app.sso.models import Identity
from app.types import JSONMapping

GroupRoles = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Change:
    """What a mapping would make of a user at the next sign-in."""

    user: User
    groups: list[str]
    role: str
    becomes: str


def mapped_role(connection: Connection, groups: Sequence[str]) -> Role | None:
    """The role that members of these groups are to have; None where the account maps nothing.

    A mapping that was emptied still takes back what it gave.
    """
    if connection.account.settings.get("sso_group_roles") is None:
        return None
    return get_or_viewer(_mapped(connection, groups) or _default(connection.config))


def _mapped(connection: Connection, groups: Sequence[str]) -> str | None:
    settings = connection.account.settings
    return _chosen(
        sso_settings.effective_mapping(settings.get("sso_group_roles") or [], settings), groups
    )


def get_or_viewer(name: str | None) -> Role:
    """The role of that name, else the least one."""
    session = db.db.session
    found = session.scalar(sa.select(Role).where(Role.name == name)) if name else None
    return found or session.scalars(sa.select(Role).where(Role.name == VIEWER)).one()


def _default(config: JSONMapping) -> str | None:
    name = config.get("default_role")
    return name if name != ADMIN else None


def apply_mapping(
    user: User, identity: Identity, connection: Connection, groups: Sequence[str]
) -> None:
    """Give a user the mapped role, unless the present one was set by hand.

    A group counts whichever identity gave the present role; its absence only for that one.
    """
    role = mapped_role(connection, groups)
    counts = identity.given_role_id == user.role_id
    counts = counts or bool(_mapped(connection, groups) and is_from_sign_in(user))
    if role is not None and counts:
        users.set_role(user, role)
        identity.given_role_id = role.id if user.role_id == role.id else identity.given_role_id


def is_from_sign_in(user: User) -> bool:
    """Whether the user's role came from a sign-in."""
    return any(one.given_role_id == user.role_id for one in identities(user))


def revoke_mapped_role(user: User) -> None:
    """Take away the role that an identity gave which is the user's no more."""
    given = [one for one in identities(user) if one.given_role_id == user.role_id]
    if given:
        users.set_role(user, get_or_viewer(_defaults(user.account_id).get(given[0].provider_name)))


def identities(user: User) -> Sequence[Identity]:
    """Who a user is to providers."""
    mine = (Identity.account_id == user.account_id, Identity.user_id == user.id)
    return db.db.session.scalars(sa.select(Identity).where(*mine)).all()


def _defaults(account_id: str) -> dict[str, str | None]:
    rows = service.list_for_sign_in(account_id)[1]
    return {row.provider_name: _default(row.config) for row in rows}


def _without_directory(account_id: str) -> set[str]:
    rows = service.list_for_sign_in(account_id)[1]
    return {
        row.provider_name
        for row in rows
        if not service.provider_of(row).names_directory(row.config)
    }


def preview(given: JSONMapping, *, by: Principal) -> list[Change]:
    """Who would change by these settings (the present ones where absent), by their last sign-ins.

    Raises InvalidValues for a mapping that could not be saved.
    """
    account = db.db.session.get_one(Account, by.require_account_id())
    settings = sso_settings.merge(given, account.settings)
    found = sso_settings.problems(given, account.settings)
    if found:
        raise InvalidValues(found)
    mapping = settings.get("sso_group_roles")
    counts = sso_settings.effective_mapping(mapping or [], settings)
    known = sso_settings.role_names()
    defaults = _defaults(account.id).items()
    usual_roles = {name: role if role in known else VIEWER for name, role in defaults}
    unnamed = _without_directory(account.id)
    changes = []
    for identity, user in _given(account.id, usual_roles) if mapping is not None else ():
        groups = [] if identity.provider_name in unnamed else identity.groups
        mapped = _chosen(counts, groups)
        becomes = mapped or usual_roles[identity.provider_name]
        concerned = mapped or identity.given_role_id == user.role_id
        if concerned and becomes != user.role_name:
            changes.append(Change(user, groups, user.role_name, becomes))
    return changes


def _given(account_id: str, names: Iterable[str]) -> Iterable[tuple[Identity, User]]:
    # Who cannot sign in, or not by this provider, does not change.
    giver = orm.aliased(Identity)
    gave = (
        giver.account_id == User.account_id,
        giver.user_id == User.id,
        giver.given_role_id == User.role_id,
    )
    chosen = (
        sa.select(Identity, User)
        .join(User, sa.and_(User.account_id == Identity.account_id, User.id == Identity.user_id))
        .where(Identity.account_id == account_id, Identity.provider_name.in_(names))
        .where(User.is_active, sa.exists().where(*gave))
        .order_by(User.email_key, Identity.id)
    )
    return [(row[0], row[1]) for row in db.db.session.execute(chosen)]


def _chosen(mapping: GroupRoles, groups: Sequence[str]) -> str | None:
    return next((one["role"] for one in mapping if one["group"] in groups), None)


@events.subscribe(events.RoleAssigned)
def _forget_given(event: events.RoleAssigned) -> None:
    mine = (Identity.account_id == event.account_id, Identity.user_id == event.user_id)
    changed = sa.update(Identity).where(*mine, Identity.given_role_id.is_not(None))
    db.db.session.execute(changed.values(given_role_id=None))
