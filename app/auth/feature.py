"""Signing in: passwords, links, second factors, sessions, tokens, API keys, invitations."""

from __future__ import annotations

from app.auth import (
    api_keys,
    devices,
    email_changes,
    invitations,
    joining,
    magic_links,
    mail_tokens,
    password_resets,
    pii_notices,
    purge,
    sessions,
    verification,
)
from app.auth.mfa import enrolment, service
from app.web.feature import Feature, Routes


def routes() -> Routes:
    """Import the routes."""
    from app.auth import (
        email_routes,
        invitation_routes,
        key_routes,
        magic_link_routes,
        password_routes,
        portal_routes,
    )
    from app.auth import routes as sign_in
    from app.auth.mfa import routes as mfa_routes

    return Routes(
        api=(sign_in.blueprint, sign_in.links, invitation_routes.blueprint, key_routes.blueprint),
        modules=(
            email_routes,
            password_routes,
            portal_routes,
            magic_link_routes,
            mfa_routes,
        ),
    )


FEATURE = Feature(
    routes=routes,
    jobs=(
        devices,
        email_changes,
        invitations,
        joining,
        magic_links,
        service,
        password_resets,
        pii_notices,
        purge,
        verification,
    ),
    subscribers=(
        api_keys,
        email_changes,
        invitations,
        mail_tokens,
        enrolment,
        service,
        pii_notices,
        sessions,
    ),
)
