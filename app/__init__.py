"""Atrium: a multi-tenant backend service.

`import app` and `create_app` load next to nothing. What works below requests is loaded with the
first application context, and the routes with the first request, or before the servers fork, by
`wsgi.py`: so a command loads what it uses, and a worker no routes.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from flask import Flask

from app import config
from app.config import Config
from app.ops.listed import Commands
from app.web.app import Application

if TYPE_CHECKING:
    from app.types import JSONObject
    from app.web.feature import Feature, Routes

# In the order of the API description.
FEATURES = (
    *("auth", "accounts", "sso", "records", "files", "realtime", "audit", "collections"),
    *("webhooks", "operator", "workflows", "manifest", "portability", "ops", "console", "welcome"),
    "extensions",
)


@cache
def features() -> list[Feature]:
    """Import what all features do below requests.

    First that of audit, whose subscribers record rows before those of others remove them.
    """
    import_module("app.audit.feature")
    return [import_module(f"app.{name}.feature").FEATURE for name in FEATURES]


@cache
def routes() -> list[Routes]:
    """Import the routes of all features.

    By name, which is the order of operations in a blueprint that several modules add to.
    """
    named = dict(zip(FEATURES, features(), strict=True))
    imported = {name: named[name].routes() for name in sorted(named)}
    return [imported[name] for name in FEATURES]


def create_app(settings: Config | None = None) -> Application:
    """Create the Flask application.

    Raises ConfigError if settings are invalid, or an extension cannot be loaded.
    """
    settings = settings or Config.from_env()
    app = Application(
        __name__,
        root_path=str(config.PROJECT),
        instance_path=str(settings.instance_dir.resolve()),
        template_folder="templates",
        static_folder="static",
    )
    app.extensions["atrium.config"] = settings
    app.cli = Commands(app.name)
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
    )
    if hops := settings.trusted_proxies:
        from werkzeug.middleware.proxy_fix import ProxyFix

        app.wsgi_app = ProxyFix(  # type: ignore[method-assign]
            app.wsgi_app, x_for=hops, x_proto=hops, x_host=hops
        )
    if settings.otel_exporter_otlp_endpoint:
        from app.web import tracing

        tracing.init_app(app, settings.otel_exporter_otlp_endpoint)
    if settings.extensions:
        from app.extensions import commands, loading
        from app.extensions import settings as extension_settings

        features()  # in its order, which what extensions import would change
        loading.load(settings.extensions)
        extension_settings.check()
        for one in commands.of_extensions():
            app.cli.add_command(one)
    app.load_later(_load_features, _load_routes)
    return app


def _load_features(app: Flask) -> None:
    from app import db
    from app.auth import tokens
    from app.db import versioned_cache
    from app.web import languages, logging

    settings: Config = app.extensions["atrium.config"]
    is_traced = bool(settings.otel_exporter_otlp_endpoint)
    logging.configure(as_text=settings.logs_as_text, with_trace=is_traced)
    tokens.init_app(app, settings.base_url)
    db.init_app(app, settings)
    languages.init_app(app)
    versioned_cache.write_sources[:] = [s for one in features() for s in one.version_sources]
    if settings.extensions:
        from app.extensions import loading

        with app.app_context():
            loading.log_loaded()
    app.extensions["atrium.checks"] = [check for one in features() for check in one.checks]


def _load_routes(app: Flask) -> None:
    from app import hooks, web
    from app.console.shell.guard import csrf
    from app.web import error_handlers, html, openapi, openapi_text
    from app.web.access import public
    from app.web.app import IntegerPath, LargeIntegerPath, UuidPath
    from app.web.openapi import api
    from app.web.serialization import Json

    app.config.update(
        API_TITLE="Atrium",
        API_VERSION=web.API_VERSION,
        OPENAPI_VERSION="3.1.0",
        OPENAPI_URL_PREFIX="/",
        OPENAPI_JSON_PATH="openapi.json",
        API_SPEC_OPTIONS=openapi_text.options(app.extensions["atrium.config"].base_url),
    )
    app.json = Json(app)
    app.url_map.strict_slashes = False
    # A double slash is a 404; werkzeug would redirect with an HTML page.
    app.url_map.merge_slashes = False
    app.url_map.converters.update(uuid=UuidPath, integer=IntegerPath, large=LargeIntegerPath)
    hooks.init_app(app)
    csrf.init_app(app)
    api.init_app(app)
    error_handlers.init_app(app)  # after `api`, to replace its handler
    api.with_collections = _with_collections
    app.register_blueprint(openapi.blueprint)
    # All are imported before the first is registered, as modules add to blueprints of others.
    for parts in routes():
        for blueprint in parts.api:
            api.register_blueprint(blueprint)
        for pages in parts.pages:
            app.register_blueprint(pages)
        for init_app in parts.init:
            init_app(app)
    html.serve_static(app)
    public(app.view_functions["static"])


def _with_collections(spec: JSONObject) -> JSONObject:
    from app.auth import guard
    from app.collections import typed_spec
    from app.context import tenancy

    caller = guard.signed_in_caller()
    with tenancy.scoped_to(caller.tenancy):
        return typed_spec.add_collections(spec, by=caller)
