"""Connects the application to the database of its settings."""

from __future__ import annotations

from flask import Flask

from app import config
from app.db import engine, row_security
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
        engine.prepare(db.engine)
        if db.engine.dialect.name == "postgresql" and settings.row_security_enabled:
            row_security.enforce(db.engine)
        app.extensions["atrium.engine"] = db.engine


def dispose_after_fork(app: Flask) -> None:
    """Drop connections inherited from the parent process, without closing the parent's."""
    with app.app_context():
        db.engine.dispose(close=False)
