"""The declarative base, and the Flask-SQLAlchemy extension."""

from __future__ import annotations

from typing import ClassVar

import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase

from app import config
from app.db import engine, row_security
from app.db.session import Session


class Base(DeclarativeBase):
    """The declarative base. Constraint names are fixed, so that errors can be mapped by name."""

    metadata = sa.MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    __table__: ClassVar[sa.Table]


def partial_index(name: str, *columns: str, where: str) -> sa.Index:
    """Return an index of those rows that fulfil a condition, on either database."""
    condition = sa.text(where)
    return sa.Index(name, *columns, postgresql_where=condition, sqlite_where=condition)


db = SQLAlchemy(
    model_class=Base,
    disable_autonaming=True,
    session_options={"class_": Session, "scopefunc": config.context},
)


def init_app(app: Flask, settings: config.Config) -> None:
    """Connect the application to the database of the settings."""
    app.config["SQLALCHEMY_DATABASE_URI"] = settings.database_url
    app.config["SQLALCHEMY_ENGINE_OPTIONS"] = engine.options(settings)
    db.init_app(app)
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
