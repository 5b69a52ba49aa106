"""Connects the application to the database of its settings."""

from __future__ import annotations

import sqlalchemy as sa
from flask import Flask

from app import config
from app.db import engine, row_security
from app.db.engine import UncountedPool
from app.db.session import db, end_context


def init_app(app: Flask, settings: config.Config) -> None:
    """Connect the application to the database of the settings."""
    app.config["SQLALCHEMY_DATABASE_URI"] = settings.database_url
    app.config["SQLALCHEMY_ENGINE_OPTIONS"] = engine.options(settings)
    db.init_app(app)
    app.teardown_appcontext(end_context)
    with app.app_context():
        # Objects stay readable after the commit; those read outside a transaction expire as the
        # next one begins.
        db.session.session_factory.configure(expire_on_commit=False)
        app.extensions["atrium.engine"] = _prepared(db.engine, settings)
        if settings.database_replica_url:
            options = {**engine.options(settings), "poolclass": UncountedPool}
            replica = sa.create_engine(settings.database_replica_url, **options)
            app.extensions["atrium.replica_engine"] = _prepared(replica, settings)


def _prepared(made: sa.Engine, settings: config.Config) -> sa.Engine:
    engine.prepare(made)
    if made.dialect.name == "postgresql":
        engine.pre_ping(made)
        if settings.row_security_enabled:
            row_security.enforce(made)
    return made


def dispose_after_fork(app: Flask) -> None:
    """Drop connections inherited from the parent process, without closing the parent's."""
    for name in ("atrium.engine", "atrium.replica_engine"):
        if name in app.extensions:
            app.extensions[name].dispose(close=False)
