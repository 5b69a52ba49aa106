"""SSO settings of an account: who becomes a user at sign-in, and with which role."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from app import db
from app.accounts import service as accounts
from app.accounts.models import ADMIN, Role
from app.accounts.types import Problem
from app.errors import problem
from app.types import JSONMapping, JSONObject

NAMES = (
    "sso_provisioning",
    "sso_email_domains",
    "sso_group_roles",
    "sso_allow_admin",
    "sso_tokens_in_fragment",
)
Settings = JSONMapping
"""The `settings` column of an account."""
GroupMapping = Sequence[Mapping[str, str]]
DOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+")


def merge(changes: Settings, stored: Settings) -> JSONObject:
    """The stored settings with the SSO settings of `changes`.

    An empty group mapping is not stored for an account that never had one.
    """
    merged = {name: changes[name] for name in NAMES if name in changes}
    if not merged.get("sso_group_roles") and stored.get("sso_group_roles") is None:
        merged.pop("sso_group_roles", None)
    if "sso_email_domains" in merged:
        keys = [accounts.domain_key(domain) for domain in merged["sso_email_domains"]]
        merged["sso_email_domains"] = list(dict.fromkeys(keys))
    return {**stored, **merged}


def problems(body: Settings, stored: Settings) -> list[Problem]:
    """All validation problems of an account's SSO settings."""
    wrong = [
        problem("sso_email_domains", "pattern_mismatch", f"Not a domain name: {domain[:100]}")
        for domain in body.get("sso_email_domains", ())
        if not DOMAIN.fullmatch(accounts.domain_key(domain))
    ]
    settings = {**stored, "sso_allow_admin": body.get("sso_allow_admin", _allows_admin(stored))}
    return wrong + mapping_problems(body.get("sso_group_roles", ()), settings)


def mapping_problems(mapping: GroupMapping, stored: Settings) -> list[Problem]:
    """All validation problems of a mapping of groups to roles.

    Entries that are stored already pass: a role may have been deleted since, and changing another
    entry must not require fixing these.
    """
    saved = stored.get("sso_group_roles") or ()
    changed = [entry for entry in mapping if entry not in saved]
    if not changed:
        return []
    names, allow_admin = role_names(), _allows_admin(stored)
    wrong = []
    for entry in changed:
        if entry["role"] not in names:
            message = f"There is no role {entry['role']}."
            wrong.append(problem("sso_group_roles", "invalid_reference", message))
        elif entry["role"] == ADMIN and not allow_admin:
            message = "A sign-in can grant the admin role only if sso_allow_admin is on."
            wrong.append(problem("sso_group_roles", "invalid_option", message))
    return wrong


def effective_mapping(mapping: GroupMapping, settings: Settings) -> GroupMapping:
    """The entries that apply: without deleted roles, and without `admin` unless it is allowed."""
    names = role_names() if mapping else ()
    allow_admin = _allows_admin(settings)
    return [
        entry
        for entry in mapping
        if entry["role"] in names and (allow_admin or entry["role"] != ADMIN)
    ]


def ignored_groups(settings: Settings) -> list[str]:
    """The mapped groups that have no effect at present."""
    mapping = settings.get("sso_group_roles") or []
    effective = effective_mapping(mapping, settings)
    return [entry["group"] for entry in mapping if entry not in effective]


def role_names() -> set[str]:
    """All role names."""
    return set(db.db.session.scalars(sa.select(Role.name)))


def _allows_admin(settings: Settings) -> bool:
    return bool(settings.get("sso_allow_admin"))
