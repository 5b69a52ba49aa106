"""Connections to PostgreSQL that broke while nobody used them are replaced, and fail no request.

A server that restarts closes all connections. Each waits in a pool, of some process, and would be
noticed by the request that takes it, which may be long after the server is back.
"""

from __future__ import annotations

import select
from typing import Any

import psycopg2
import sqlalchemy as sa
from flask import Flask
from sqlalchemy.exc import DisconnectionError

from app import engines


def init_app(app: Flask) -> None:
    """Look at each connection before it is used."""
    with app.app_context():
        engine = engines.running()
        if engine.dialect.name == "postgresql":
            sa.event.listen(engine, "connect", _note_new)
            sa.event.listen(engine, "checkout", _replace_broken)


def _note_new(connection: Any, record: Any) -> None:
    record.info["is new"] = True


def _replace_broken(connection: Any, record: Any, fairy: Any) -> None:
    is_new = record.info.pop("is new", False)
    # Whoever is not asked anything says nothing, but where it ends. So the look costs no round
    # trip; only what was said needs one, as it may have been of no account.
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
