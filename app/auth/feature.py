"""Signing in: passwords, links, second factors, sessions, tokens, API keys, invitations."""

from __future__ import annotations

from app.auth import (
    api_keys,
    commands,
    email_changes,
    email_routes,
    invitation_routes,
    invitations,
    key_routes,
    magic_link_routes,
    mail_tokens,
    password_routes,
    pii_notices,
    purge,
    routes,
    session_routes,
    sessions,
)
from app.auth.mfa import admin_routes, enrolment, service
from app.auth.mfa import routes as mfa_routes
from app.web.feature import Feature

FEATURE = Feature(
    api=(routes.blueprint, routes.links, invitation_routes.blueprint, key_routes.blueprint),
    routes=(
        email_routes,
        password_routes,
        session_routes,
        magic_link_routes,
        mfa_routes,
        admin_routes,
    ),
    jobs=(purge,),
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
    commands=(commands.create_superadmin,),
)
