"""Accounts, their settings, sign-in, logs and quotas; jobs and health."""

from __future__ import annotations

from app.console.admin import (
    account_settings,
    attributes,
    audit,
    domains,
    exports,
    instance,
    jobs,
    operation,
    product,
    retention,
    scim,
    security_log,
    settings_home,
    setup_links,
    sso,
    sso_saml,
    usage,
)

PAGES = (
    account_settings,
    attributes,
    audit,
    instance,
    domains,
    exports,
    jobs,
    operation,
    product,
    retention,
    scim,
    security_log,
    settings_home,
    setup_links,
    sso,
    sso_saml,
    usage,
)
