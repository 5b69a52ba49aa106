"""Replaces PostgreSQL connections that broke while they were idle, before a request gets them.

A server that restarts closes all connections. Without this each pooled one would fail a request,
perhaps long after the server is back.
"""

from __future__ import annotations

import select
from typing import Any

import psycopg2
import sqlalchemy as sa
from flask import Flask
from sqlalchemy.exc import DisconnectionError

from app.db.engine import running


def init_app(app: Flask) -> None:
    """Check each connection at checkout."""
    with app.app_context():
        engine = running()
        if engine.dialect.name == "postgresql":
            sa.event.listen(engine, "connect", _note_new)
            sa.event.listen(engine, "checkout", _replace_broken)


def _note_new(connection: Any, record: Any) -> None:
    record.info["is new"] = True


def _replace_broken(connection: Any, record: Any, fairy: Any) -> None:
    is_new = record.info.pop("is new", False)
    # An idle server sends nothing unless it closes the connection, so this costs no round trip;
    # only where something was sent, which may be a mere notice, a query finds out.
    if connection.closed or (_has_news(connection) and not _answers(connection)):
        if is_new:  # the server is not back yet
            raise psycopg2.OperationalError("The new connection broke, too.")
        raise DisconnectionError  # the pool then takes a new one


def _has_news(connection: Any) -> bool:
    socket = select.poll()
    socket.register(connection.fileno(), select.POLLIN)
    return bool(socket.poll(0))


def _answers(connection: Any) -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except psycopg2.Error:
        return False
    return True
