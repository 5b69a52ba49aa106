"""Users, groups, roles, API keys and second factors."""

from __future__ import annotations

from app.console.people import (
    api_keys,
    directory,
    groups,
    profile,
    roles,
    second_factors,
    team,
    users,
)

PAGES = (
    api_keys,
    directory,
    groups,
    users,
    profile,
    roles,
    second_factors,
    team,
)
