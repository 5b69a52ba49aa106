"""Replaces PostgreSQL connections that broke while idle, before a request gets them.

A server restart closes all connections: without this each pooled one fails a request, perhaps long
after the server is back. Unlike SQLAlchemy's `pool_pre_ping` it costs no round trip.
"""

from __future__ import annotations

import select

import psycopg2
import sqlalchemy as sa
from psycopg2.extensions import connection as Connection
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry


def listen(engine: sa.Engine) -> None:
    """Check each connection of an engine at checkout."""
    sa.event.listen(engine, "connect", _mark_new)
    sa.event.listen(engine, "checkout", _replace_broken)


def _mark_new(connection: Connection, record: ConnectionPoolEntry) -> None:
    record.info["is new"] = True


def _replace_broken(connection: Connection, record: ConnectionPoolEntry, fairy: object) -> None:
    is_new = record.info.pop("is new", False)
    # On an idle connection the server sends nothing but its end, or a notice: only if it has sent
    # something, a query finds out which.
    if connection.closed or (_has_input(connection) and not _responds(connection)):
        if is_new:  # the server is not back yet
            raise psycopg2.OperationalError("The new connection broke, too.")
        raise DisconnectionError  # the pool then opens a new one


def _has_input(connection: Connection) -> bool:
    socket = select.poll()
    socket.register(connection.fileno(), select.POLLIN)
    return bool(socket.poll(0))


def _responds(connection: Connection) -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except psycopg2.Error:
        return False
    return True
