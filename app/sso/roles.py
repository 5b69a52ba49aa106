"""Maps provider groups to roles at sign-in.

Manually set roles are never overwritten: an identity stores the role it gave, until the user gets
another one. `admin` requires a setting of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import sqlalchemy as sa
from sqlalchemy import orm

from app import db, events
from app.accounts import names, sso_settings, users
from app.accounts.models import ADMIN, PII_GROUP, VIEWER, Account, Group, Role, User
from app.accounts.names import Name, Use
from app.auth.principal import Principal
from app.db.types import Text
from app.errors import InvalidValues
from app.rules.named import ROLE
from app.sso import service
from app.sso.connections import Connection
from app.sso.models import Identity, ProviderSetting
from app.sso.scim.models import DirectoryGroup
from app.types import JSONMapping

MAX_IDENTITIES = 5000
"""The identities that signed in last: more would make a page wait."""
GroupRoles = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Change:
    """A user whose role would change at the next sign-in."""

    user: User
    groups: list[str]
    role: str
    becomes: str


def mapped_role(connection: Connection, groups: Sequence[str]) -> Role | None:
    """Return the role for members of these groups; None if the account has no mapping.

    An emptied mapping still revokes the roles it gave.
    """
    if connection.account.settings.get("sso_group_roles") is None:
        return None
    return get_or_viewer(_mapped(connection, groups) or _default_role(connection.config))


def _mapped(connection: Connection, groups: Sequence[str]) -> str | None:
    return first_match(effective_mapping(connection.account.settings), groups)


def effective_mapping(settings: JSONMapping) -> GroupRoles:
    """Return the entries of an account's mapping that apply."""
    return sso_settings.effective_mapping(settings.get("sso_group_roles") or [], settings)


def get_or_viewer(name: str | None) -> Role:
    """Return the role of that name, else viewer."""
    session = db.db.session
    role = session.scalar(sa.select(Role).where(Role.name == name)) if name else None
    return role or session.scalars(sa.select(Role).where(Role.name == VIEWER)).one()


def _default_role(config: JSONMapping) -> str | None:
    name = config.get("default_role")
    return name if name != ADMIN else None


def apply_mapping(
    user: User, identity: Identity, connection: Connection, groups: Sequence[str]
) -> None:
    """Assign the mapped role, unless the current one was set manually.

    A matching group applies whichever identity gave the current role; a missing group revokes only
    the role that this identity gave.
    """
    role = mapped_role(connection, groups)
    may_change = identity.given_role_id == user.role_id
    may_change = may_change or bool(_mapped(connection, groups) and is_from_sign_in(user))
    if role is not None and may_change:
        users.set_role(user, role)
        identity.given_role_id = role.id if user.role_id == role.id else identity.given_role_id


def is_from_sign_in(user: User) -> bool:
    """Whether the user's role came from a sign-in."""
    return any(identity.given_role_id == user.role_id for identity in identities(user))


def revoke_mapped_role(user: User) -> None:
    """Reset a role that came from an identity to be removed."""
    granting = [identity for identity in identities(user) if identity.given_role_id == user.role_id]
    if granting:
        users.set_role(
            user, get_or_viewer(_default_roles(user.account_id).get(granting[0].provider_name))
        )


def identities(user: User) -> Sequence[Identity]:
    """Return a user's identities."""
    same_user = (Identity.account_id == user.account_id, Identity.user_id == user.id)
    return db.db.session.scalars(sa.select(Identity).where(*same_user)).all()


def _default_roles(account_id: str) -> dict[str, str | None]:
    rows = service.list_for_sign_in(account_id)
    return {row.provider_name: _default_role(row.config) for row in rows}


def providers_with_groups(account_id: str) -> set[str]:
    """Return the names of the enabled providers whose groups can give roles."""
    return {
        row.provider_name
        for row in service.list_for_sign_in(account_id)
        if service.get_provider(row).names_directory(row.config)
    }


def seen_group_names(account_id: str, first: Collection[str], limit: int) -> list[str]:
    """Return groups that providers and the directory sent lately and that can give a role.

    At most `limit` names: those in `first`, then by name.
    """
    providers = providers_with_groups(account_id)
    latest = (
        sa.select(Identity.groups)
        .where(Identity.account_id == account_id, Identity.provider_name.in_(providers))
        .order_by(Identity.last_used_at.desc())
        .limit(MAX_IDENTITIES)
        .subquery()
    )
    value = sa.column("value", Text)
    if db.connection().dialect.name == "postgresql":
        elements = sa.func.json_array_elements_text(latest.c.groups).table_valued(value)
        one = elements.render_derived()
    else:
        one = sa.func.json_each(latest.c.groups).table_valued(value)
    in_directory = (
        sa.select(Group.name)
        .join(
            DirectoryGroup,
            sa.and_(
                DirectoryGroup.account_id == Group.account_id, DirectoryGroup.group_id == Group.id
            ),
        )
        .where(Group.account_id == account_id, Group.name != PII_GROUP)
    )
    found = sa.union(
        sa.select(one.c.value.label("name")).select_from(latest.join(one, sa.true())), in_directory
    ).subquery()
    is_first = sa.case((found.c.name.in_(first), 0), else_=1)
    query = sa.select(found.c.name).order_by(is_first, found.c.name).limit(limit)
    return list(db.db.session.scalars(query))


def preview(changed_settings: JSONMapping, *, by: Principal) -> list[Change]:
    """Return the role changes of a mapping (default: the current one), by the last sign-ins.

    Raises InvalidValues for an invalid mapping.
    """
    account = db.db.session.get_one(Account, by.require_account_id())
    settings = sso_settings.merge(changed_settings, account.settings)
    problems = sso_settings.problems(changed_settings, account.settings)
    if problems:
        raise InvalidValues(problems)
    mapping = settings.get("sso_group_roles")
    if mapping is None:
        return []
    effective = sso_settings.effective_mapping(mapping, settings)
    role_names = sso_settings.role_names()
    default_roles = {
        name: role if role in role_names else VIEWER
        for name, role in _default_roles(account.id).items()
    }
    with_groups = providers_with_groups(account.id)
    source = orm.aliased(Identity)
    role_is_from_sign_in = sa.exists().where(
        source.account_id == User.account_id,
        source.user_id == User.id,
        source.given_role_id == User.role_id,
    )
    query = (
        sa.select(Identity, User)
        .join(User, sa.and_(User.account_id == Identity.account_id, User.id == Identity.user_id))
        # Only active users with an enabled provider.
        .where(Identity.account_id == account.id, Identity.provider_name.in_(default_roles))
        .where(User.is_active, role_is_from_sign_in)
        .order_by(User.email_key, Identity.id)
    )
    changes = []
    for identity, user in db.db.session.execute(query).all():
        groups = identity.groups if identity.provider_name in with_groups else []
        mapped = first_match(effective, groups)
        becomes = mapped or default_roles[identity.provider_name]
        is_affected = mapped or identity.given_role_id == user.role_id
        if is_affected and becomes != user.role_name:
            changes.append(Change(user, groups, user.role_name, becomes))
    return changes


def first_match(mapping: GroupRoles, groups: Collection[str]) -> str | None:
    """Return the role of the first entry with one of these groups; None without one."""
    return next((entry["role"] for entry in mapping if entry["group"] in groups), None)


@names.place
def in_providers(name: Name) -> Iterator[Use]:
    """The role of new users of providers, in all accounts."""
    if name.kind != ROLE:
        return
    columns = (ProviderSetting.account_id, ProviderSetting.id, ProviderSetting.provider_name)
    names_one = sa.cast(ProviderSetting.config, sa.Text).contains('"default_role"')
    query = sa.select(*columns, ProviderSetting.config).where(names_one)
    for row in names.pages(query, *columns[:2]):
        if row.config.get("default_role") == name.value:
            follow = partial(_store_default_role, row.account_id, row.id)
            owner, texts = f"providers.{row.provider_name}", {"default_role": name.value}
            yield Use(owner, texts, follow, row.account_id, are_names=True)


def _store_default_role(account_id: str, setting_id: str, texts: Mapping[str, str]) -> None:
    row = service.lock(account_id, setting_id)
    row.config = {**row.config, **texts}


@events.subscribe(events.RoleAssigned)
def _clear_mapped_role(event: events.RoleAssigned) -> None:
    same_user = (Identity.account_id == event.account_id, Identity.user_id == event.user_id)
    update = sa.update(Identity).where(*same_user, Identity.given_role_id.is_not(None))
    db.db.session.execute(update.values(given_role_id=None))
