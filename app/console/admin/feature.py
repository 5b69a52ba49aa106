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
    mail_templates,
    operation,
    plans,
    portals,
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
    mail_templates,
    operation,
    plans,
    portals,
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
