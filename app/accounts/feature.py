"""Accounts, users, roles, groups, domains and usage."""

from __future__ import annotations

from app.accounts import (
    deleted_addresses,
    group_routes,
    own_account_routes,
    role_routes,
    routes,
    user_routes,
)
from app.accounts.domains import checks, service
from app.accounts.domains import routes as domains_routes
from app.accounts.usage import metering, notices, purge
from app.accounts.usage import routes as usage_routes
from app.web.feature import Feature

FEATURE = Feature(
    api=(
        routes.blueprint,
        own_account_routes.blueprint,
        user_routes.blueprint,
        role_routes.blueprint,
        group_routes.blueprint,
    ),
    routes=(usage_routes, domains_routes),
    jobs=(checks, metering, notices, purge),
    subscribers=(deleted_addresses, service, metering, purge),
)
