"""Atrium: a multi-tenant backend service."""

from __future__ import annotations

from flask import Flask
from werkzeug.middleware.proxy_fix import ProxyFix

from app import config, db, hooks, web
from app.accounts import group_routes, own_account_routes, role_routes, routes, user_routes
from app.accounts.domains import checks as domain_checks
from app.accounts.domains import routes as domain_routes
from app.accounts.usage import routes as usage_routes
from app.accounts.usage import upkeep as usage_upkeep
from app.audit import records as audited_records
from app.audit import routes as audit
from app.audit import tracking
from app.audit.security_log import erasing as security_erasing
from app.audit.security_log import routes as security_log
from app.audit.security_log import sealing as security_sealing
from app.audit.security_log import subscribers as security_events
from app.audit.security_log import verifying as security_verifying
from app.auth import cleanup as token_upkeep
from app.auth import (
    email_routes,
    guard,
    invitation_routes,
    key_routes,
    magic_link_routes,
    password_routes,
    session_routes,
    tokens,
)
from app.auth import routes as auth
from app.auth.mfa import admin_routes
from app.auth.mfa import routes as mfa_routes
from app.collections import (
    open_routes,
    permission_routes,
    revision_routes,
    trial_routes,
    typed_spec,
)
from app.collections import routes as collections
from app.collections import transfer_routes as collection_transfer
from app.config import Config
from app.console import routes as console
from app.console.records import saved_views
from app.console.shell.guard import csrf
from app.context import tenancy
from app.files import upkeep as file_upkeep
from app.files.routes import files as file_routes
from app.isolation import commands as isolation
from app.manifest import routes as manifest
from app.ops import backup_runs, cli, dashboard_routes, health, metrics
from app.portability import certificate_routes, certificates
from app.portability.bundle import routes as bundle_routes
from app.portability.retention import routes as retention
from app.realtime import routes as realtime
from app.realtime.feed import routes as feed
from app.realtime.feed import upkeep as feed_upkeep
from app.records.routes import aggregates, batches, denials, explain, history, records
from app.records.routes import transfer as record_transfer
from app.records.write import cleanup
from app.sso import config_routes as sso_config
from app.sso import discovery_routes as sso_discovery
from app.sso import document_renewal, setup_link_routes
from app.sso import overview_routes as sso_overview
from app.sso import responses as sso_answers
from app.sso import roles as sso_roles
from app.sso import routes as sso
from app.sso import saml_key_routes as saml_keys
from app.sso import saml_logout_routes as saml_logout
from app.sso import saml_metadata_routes as saml_metadata
from app.sso.scim import routes as scim
from app.sso.scim import token_routes as scim_tokens
from app.types import JSONObject
from app.web import assets, docs_pages, error_handlers, languages, logging, openapi_text, tracing
from app.web.access import public
from app.web.app import Application
from app.web.converters import IntegerPath, LargeIntegerPath, UuidPath
from app.web.openapi import api
from app.web.serialization import Json
from app.webhooks import delivery_routes, dispatch, handover_routes, security_stream_routes
from app.webhooks import routes as webhooks
from app.webhooks import uses as webhook_uses
from app.workflows import dispatch as workflow_dispatch
from app.workflows import erasure as workflow_erasure
from app.workflows import upkeep
from app.workflows import uses as workflow_uses
from app.workflows.routes import hooks as hook_routes
from app.workflows.routes import instances, workflows
from app.workflows.triggers import record_events

API_BLUEPRINTS = (
    auth.blueprint,
    auth.links,
    routes.blueprint,
    own_account_routes.blueprint,
    user_routes.blueprint,
    role_routes.blueprint,
    group_routes.blueprint,
    invitation_routes.blueprint,
    key_routes.blueprint,
    scim_tokens.blueprint,
    sso.blueprint,
    sso.browsers,
    sso_config.blueprint,
    sso_config.own,
    records.blueprint,
    record_transfer.blueprint,
    aggregates.blueprint,
    batches.blueprint,
    history.blueprint,
    file_routes.blueprint,
    feed.blueprint,
    audit.blueprint,
    collections.blueprint,
    collection_transfer.blueprint,
    open_routes.blueprint,
    revision_routes.blueprint,
    trial_routes.blueprint,
    webhooks.blueprint,
    delivery_routes.blueprint,
    workflows.blueprint,
    workflows.callers,
    instances.all_instances,
    hook_routes.blueprint,
    manifest.blueprint,
    realtime.blueprint,
    dashboard_routes.blueprint,
    health.blueprint,
    metrics.blueprint,
)
# Imported for the routes that they add to blueprints of other modules.
ADDITIONS = (
    *(email_routes, mfa_routes, password_routes, session_routes, explain, permission_routes),
    magic_link_routes,
    admin_routes,
    usage_routes,
    *(sso_overview, saml_keys, saml_logout, saml_metadata),
    *(domain_routes, setup_link_routes, sso_discovery, retention),
    *(security_log, security_stream_routes, handover_routes),
    *(bundle_routes, certificate_routes),
)
# Imported for their event subscriptions and jobs.
SUBSCRIBERS = (
    *(cleanup, tracking, audited_records, dispatch, sso_roles),
    *(workflow_dispatch, record_events, upkeep, workflow_erasure, token_upkeep),
    *(feed_upkeep, file_upkeep, webhook_uses, workflow_uses, saved_views),
    *(domain_checks, security_events, security_sealing, security_erasing, security_verifying),
    *(usage_upkeep, certificates, backup_runs, document_renewal),
)
# Not in the API description.
PAGES = (console.blueprint, docs_pages.blueprint, scim.blueprint)


def create_app(settings: Config | None = None) -> Flask:
    """Create the Flask application. Raises ConfigError if settings are invalid."""
    settings = settings or Config.from_env()
    app = Application(
        __name__,
        root_path=str(config.PROJECT),
        instance_path=str(settings.instance_dir.resolve()),
        template_folder="templates",
        static_folder="static",
    )
    app.extensions["atrium.config"] = settings
    _configure(app, settings)
    is_traced = bool(settings.otel_exporter_otlp_endpoint)
    logging.configure(as_text=settings.logs_as_text, with_trace=is_traced)
    if is_traced:
        tracing.init_app(app, settings.otel_exporter_otlp_endpoint)
    for extension in (hooks, cli, isolation, sso_answers):
        extension.init_app(app)
    tokens.init_app(app, settings.base_url)
    db.init_app(app, settings)
    csrf.init_app(app)
    languages.init_app(app)
    api.init_app(app)
    error_handlers.init_app(app)  # after `api`, to replace its handler
    denials.init_app(app)
    api.with_collections = _with_collections
    for blueprint in API_BLUEPRINTS:
        api.register_blueprint(blueprint)
    for page in PAGES:
        app.register_blueprint(page)
    assets.init_app(app)
    public(app.view_functions["static"])
    return app


def _with_collections(spec: JSONObject) -> JSONObject:
    caller = guard.signed_in_caller()
    with tenancy.scoped_to(caller.tenancy):
        return typed_spec.add_collections(spec, by=caller)


def _configure(app: Flask, settings: Config) -> None:
    app.config.update(
        SECRET_KEY=settings.secret_key,
        SECRET_KEY_FALLBACKS=list(settings.secret_key_previous),
        SESSION_COOKIE_NAME="__Host-atrium_form" if settings.production else "atrium_form",
        SESSION_COOKIE_SECURE=settings.production,
        SESSION_COOKIE_SAMESITE="Lax",
        WTF_CSRF_CHECK_DEFAULT=False,  # the API uses no cookies; the console checks explicitly
        WTF_CSRF_TIME_LIMIT=None,
        WTF_CSRF_SECRET_KEY=[*settings.secret_key_previous, settings.secret_key],
        MAX_CONTENT_LENGTH=settings.max_body_bytes,
        # What the server may receive; the application allows so much for uploads only.
        LARGEST_BODY=settings.max_body_bytes + settings.file_max_bytes,
        API_TITLE="Atrium",
        API_VERSION=web.API_VERSION,
        OPENAPI_VERSION="3.1.0",
        OPENAPI_URL_PREFIX="/",
        OPENAPI_JSON_PATH="openapi.json",
        API_SPEC_OPTIONS=openapi_text.options(settings.base_url),
    )
    app.json = Json(app)
    app.url_map.strict_slashes = False
    # A double slash is a 404; werkzeug would redirect with an HTML page.
    app.url_map.merge_slashes = False
    app.url_map.converters.update(uuid=UuidPath, integer=IntegerPath, large=LargeIntegerPath)
    if settings.trusted_proxies:
        hops = settings.trusted_proxies
        app.wsgi_app = ProxyFix(  # type: ignore[method-assign]
            app.wsgi_app, x_for=hops, x_proto=hops, x_host=hops
        )
