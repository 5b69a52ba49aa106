"""Accounts, users, roles, groups, domains and usage."""

from __future__ import annotations

from app.accounts import directory, service
from app.accounts.domains import checks
from app.accounts.domains import service as domains
from app.accounts.plans import service as plans
from app.accounts.product import mails
from app.accounts.usage import metering, notices
from app.web.feature import Feature, Routes


def routes() -> Routes:
    """Import the routes."""
    from app.accounts import (
        attribute_routes,
        directory_routes,
        group_routes,
        own_account_routes,
        role_routes,
        user_routes,
    )
    from app.accounts import routes as accounts
    from app.accounts.domains import routes as domain_routes
    from app.accounts.plans import routes as plan_routes
    from app.accounts.product import mail_template_routes
    from app.accounts.product import routes as product
    from app.accounts.usage import routes as usage

    return Routes(
        api=(
            accounts.blueprint,
            own_account_routes.blueprint,
            user_routes.blueprint,
            role_routes.blueprint,
            group_routes.blueprint,
            directory_routes.blueprint,
            attribute_routes.blueprint,
            product.blueprint,
            mail_template_routes.blueprint,
            plan_routes.blueprint,
        ),
        modules=(usage, domain_routes),
    )


FEATURE = Feature(
    routes=routes,
    jobs=(checks, mails, metering, notices),
    subscribers=(service, directory, domains, plans, metering),
)
