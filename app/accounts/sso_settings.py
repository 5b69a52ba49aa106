"""What an account says of sign-in by providers: who becomes a user, and with which role."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from app import db
from app.accounts import service as accounts
from app.accounts.models import ADMIN, Role
from app.errors import problem

NAMES = (
    "sso_provisioning",
    "sso_email_domains",
    "sso_group_roles",
    "sso_allow_admin",
    "sso_tokens_in_fragment",
)
Mapped = Sequence[Mapping[str, str]]
DOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+")


def saved(given: Mapping[str, Any], present: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with those that are given. An account that never mapped a group maps none."""
    kept = {name: given[name] for name in NAMES if name in given}
    if not kept.get("sso_group_roles") and present.get("sso_group_roles") is None:
        kept.pop("sso_group_roles", None)
    if "sso_email_domains" in kept:
        keys = [accounts.domain_key(one) for one in kept["sso_email_domains"]]
        kept["sso_email_domains"] = list(dict.fromkeys(keys))
    return {**present, **kept}


def problems(body: Mapping[str, Any], present: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Everything that is wrong with these settings of an account."""
    found = [
        problem("sso_email_domains", "pattern_mismatch", f"This is no domain: {one[:100]}")
        for one in body.get("sso_email_domains", ())
        if not DOMAIN.fullmatch(accounts.domain_key(one))
    ]
    settings = {**present, "sso_allow_admin": body.get("sso_allow_admin", _allows(present))}
    return found + mapping_problems(body.get("sso_group_roles", ()), settings)


def mapping_problems(mapping: Mapped, present: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Everything that is wrong with a mapping of groups to roles.

    What stands in the present one may stay as it is: it may count for nothing since it was saved,
    and whoever changes something else must not have to mend it.
    """
    kept = present.get("sso_group_roles") or ()
    due = [one for one in mapping if one not in kept]
    if not due:
        return []
    known, allow_admin = role_names(), _allows(present)
    found = []
    for one in due:
        if one["role"] not in known:
            message = f"There is no role {one['role']}."
            found.append(problem("sso_group_roles", "invalid_reference", message))
        elif one["role"] == ADMIN and not allow_admin:
            message = "A sign-in makes an admin only where sso_allow_admin is on."
            found.append(problem("sso_group_roles", "invalid_option", message))
    return found


def counting(mapping: Mapped, settings: Mapping[str, Any]) -> Mapped:
    """What of a mapping counts: no role that is gone, and `admin` only where that is allowed."""
    known = role_names() if mapping else ()
    allowed = _allows(settings)
    return [one for one in mapping if one["role"] in known and (allowed or one["role"] != ADMIN)]


def ignored(settings: Mapping[str, Any]) -> list[str]:
    """The groups of an account's mapping that count for nothing at present."""
    mapping = settings.get("sso_group_roles") or []
    counts = counting(mapping, settings)
    return [one["group"] for one in mapping if one not in counts]


def role_names() -> set[str]:
    """The names of all roles."""
    return set(db.db.session.scalars(sa.select(Role.name)))


def _allows(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("sso_allow_admin"))
