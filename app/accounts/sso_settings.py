"""What an account says of sign-in by providers: who becomes a user, and with which role."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from app import db
from app.accounts.models import ADMIN, Role
from app.errors import problem

NAMES = (
    "sso_provisioning",
    "sso_email_domains",
    "sso_group_roles",
    "sso_allow_admin",
    "sso_tokens_in_fragment",
)
DOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+")


def problems(body: Mapping[str, Any], present: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Everything that is wrong with these settings of an account."""
    found = [
        problem("sso_email_domains", "pattern_mismatch", f"This is no domain: {one[:100]}")
        for one in body.get("sso_email_domains", ())
        if not DOMAIN.fullmatch(one)
    ]
    allowed = body.get("sso_allow_admin", present.get("sso_allow_admin", False))
    return found + mapping_problems(body.get("sso_group_roles", ()), allow_admin=allowed)


def mapping_problems(
    mapping: Sequence[Mapping[str, str]], *, allow_admin: bool
) -> list[dict[str, Any]]:
    """Everything that is wrong with a mapping of groups to roles."""
    if not mapping:
        return []
    known = set(db.db.session.scalars(sa.select(Role.name)))
    found = []
    for one in mapping:
        if one["role"] not in known:
            message = f"There is no role {one['role']}."
            found.append(problem("sso_group_roles", "invalid_reference", message))
        elif one["role"] == ADMIN and not allow_admin:
            message = "A sign-in makes an admin only where sso_allow_admin is on."
            found.append(problem("sso_group_roles", "invalid_option", message))
    return found
