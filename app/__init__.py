"""Atrium: a multi-tenant backend service."""

from __future__ import annotations

from flask import Flask
from werkzeug.middleware.proxy_fix import ProxyFix

from app import config, db, hooks, web
from app.accounts.feature import FEATURE as ACCOUNTS
from app.audit.feature import FEATURE as AUDIT
from app.auth import guard, tokens
from app.auth.feature import FEATURE as AUTH
from app.collections import typed_spec
from app.collections.feature import FEATURE as COLLECTIONS
from app.config import Config
from app.console.feature import FEATURE as CONSOLE
from app.console.shell.guard import csrf
from app.context import tenancy
from app.db import versioned_cache
from app.files.feature import FEATURE as FILES
from app.isolation.feature import FEATURE as ISOLATION
from app.manifest.feature import FEATURE as MANIFEST
from app.ops.feature import FEATURE as OPS
from app.portability.feature import FEATURE as PORTABILITY
from app.realtime.feature import FEATURE as REALTIME
from app.records.feature import FEATURE as RECORDS
from app.sso.feature import FEATURE as SSO
from app.types import JSONObject
from app.web import (
    assets,
    docs_pages,
    error_handlers,
    languages,
    logging,
    openapi_text,
    tracing,
)
from app.web.access import public
from app.web.app import Application
from app.web.converters import IntegerPath, LargeIntegerPath, UuidPath
from app.web.openapi import api
from app.web.serialization import Json
from app.webhooks.feature import FEATURE as WEBHOOKS
from app.workflows.feature import FEATURE as WORKFLOWS

# In the order of the API description.
FEATURES = (
    AUTH,
    ACCOUNTS,
    SSO,
    RECORDS,
    FILES,
    REALTIME,
    AUDIT,
    COLLECTIONS,
    WEBHOOKS,
    WORKFLOWS,
    MANIFEST,
    PORTABILITY,
    OPS,
    CONSOLE,
    ISOLATION,
)


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
    hooks.init_app(app)
    tokens.init_app(app, settings.base_url)
    db.init_app(app, settings)
    csrf.init_app(app)
    languages.init_app(app)
    api.init_app(app)
    error_handlers.init_app(app)  # after `api`, to replace its handler
    api.with_collections = _with_collections
    app.register_blueprint(docs_pages.blueprint)
    versioned_cache.write_sources[:] = [s for one in FEATURES for s in one.version_sources]
    app.extensions["atrium.checks"] = [check for one in FEATURES for check in one.checks]
    for feature in FEATURES:
        for blueprint in feature.api:
            api.register_blueprint(blueprint)
        for pages in feature.pages:
            app.register_blueprint(pages)
        for command in feature.commands:
            app.cli.add_command(command)
        for init_app in feature.init:
            init_app(app)
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
