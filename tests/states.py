"""States of a database that tests start from: taken once, put back before each test."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import sqlalchemy as sa
from flask import Flask

from app.db import Base, db
from tests import services

TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
MADE = """
    SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename LIKE 'col\\_%'
"""
SHAPE = """
    SELECT attrelid::regclass::text, attname, format_type(atttypid, atttypmod), attnotnull
    FROM pg_attribute JOIN pg_class ON attrelid = pg_class.oid
    WHERE relnamespace = 'public'::regnamespace AND relname LIKE 'col%' AND attnum > 0
    UNION SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid), true
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    UNION SELECT tablename, indexname, indexdef, true FROM pg_indexes WHERE schemaname = 'public'
    ORDER BY 1, 2, 3
"""


class State:
    """All rows of an application's database at one moment; no collection has a table in it."""

    def __init__(self, app: Flask, name: str) -> None:
        self._app, self._name = app, name
        with app.app_context():
            self._engine = db.engine
        self._on_sqlite = self._engine.dialect.name == "sqlite"
        self._file = sqlite3.connect(":memory:", check_same_thread=False)
        with self._connection() as connection:
            if self._on_sqlite:
                connection.backup(self._file)
            elif services.CITUS_NODES:
                self._take_of_shards()
            else:
                _run(connection, self._taking())

    def restore(self) -> None:
        """Make the database what it was, with what the application remembers of it forgotten."""
        with self._connection() as connection:
            if self._on_sqlite:
                self._file.backup(connection)
            elif services.CITUS_NODES:
                self._restore_shards()
            else:
                _run(connection, f"SELECT {self._name}.restore()")
        self._app.extensions.pop("atrium.caches", None)

    def _connection(self) -> Any:
        return _Raw(self._engine)

    def _tables(self) -> list[str]:
        # The heads first: whoever still seals, as the thread of streams does, ends before.
        return sorted(Base.metadata.tables, key=lambda name: name != "audit_heads")

    def _filled(self) -> list[str]:
        """Those of the tables that have rows at this moment."""
        asked = (f"SELECT '{name}' WHERE EXISTS (TABLE {name})" for name in self._tables())
        with self._connection() as connection, connection, connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL ROLE NONE; {' UNION ALL '.join(asked)}")
            return [name for (name,) in cursor.fetchall()]

    def _take_of_shards(self) -> None:
        self._kept: list[str] = []
        with self._superuser() as cursor:
            cursor.execute(f"CREATE SCHEMA {self._name}")
            for table in self._tables():
                copy = f"{self._name}.{table}"
                cursor.execute(f"CREATE TABLE {copy} AS TABLE {table}")
                cursor.execute(f"SELECT 1 FROM {copy} LIMIT 1")  # noqa: S608 - constants
                self._kept += [table] if cursor.fetchone() else []
            login = services.CITUS_LOGIN  # its members make backups, which read all schemas
            cursor.execute(f"GRANT USAGE ON SCHEMA {self._name} TO {login}")
            cursor.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {self._name} TO {login}")

    def _restore_shards(self) -> None:
        """As a superuser, whom no policy binds: Citus copies rows to shards by COPY."""
        with self._superuser() as cursor:
            cursor.execute(MADE)
            for (table,) in cursor.fetchall():
                cursor.execute(f'DROP TABLE "{table}" CASCADE')
            cursor.execute("SET citus.propagate_set_commands = 'local'")
            cursor.execute("SET LOCAL citus.multi_shard_modify_mode = 'sequential'")
            cursor.execute("SET LOCAL session_replication_role = replica")
            for table in self._tables():
                cursor.execute(f"DELETE FROM {table}")  # noqa: S608 - constants
            for table in self._kept:
                cursor.execute(f"INSERT INTO {table} TABLE {self._name}.{table}")

    @contextmanager
    def _superuser(self) -> Iterator[Any]:
        netloc = urlsplit(services.CITUS_NODES[0]).netloc
        connection = psycopg2.connect(f"postgresql://{netloc}/{self._engine.url.database}")
        with closing(connection), connection, connection.cursor() as cursor:
            yield cursor

    def _taking(self) -> str:
        """PostgreSQL keeps the rows in a schema, beside the function that brings them back."""
        tables = self._tables()
        copies = [f"CREATE TABLE {self._name}.{table} AS TABLE {table};" for table in tables]
        emptied = [f"DELETE FROM {table};" for table in tables]  # noqa: S608 - constants
        filled = [f"INSERT INTO {table} TABLE {self._name}.{table};" for table in self._filled()]
        return f"""
            CREATE SCHEMA {self._name};
            {" ".join(copies)}
            CREATE FUNCTION {self._name}.restore() RETURNS void LANGUAGE plpgsql AS $$
            DECLARE made text;
            BEGIN
                SET LOCAL lock_timeout = '30s';
                -- Neither the guard of the audit log nor foreign keys.
                SET LOCAL session_replication_role = replica;
                FOR made IN SELECT tablename FROM pg_tables
                        WHERE schemaname = 'public' AND tablename LIKE 'col\\_%'
                        AND tablename <> ALL ('{{{",".join(tables)}}}') LOOP
                    EXECUTE format('DROP TABLE %I CASCADE', made);
                END LOOP;
                {" ".join(emptied + filled)}
            END $$;
        """  # noqa: S608 - constants


class Migrated:
    """A migrated database without other rows than those of the migrations, to make others of."""

    def __init__(self, engine: sa.Engine) -> None:
        self._file = sqlite3.connect(":memory:", check_same_thread=False)
        self._name = f"{engine.url.database}_migrated"
        if engine.dialect.name == "sqlite":
            with _Raw(engine) as connection:
                connection.backup(self._file)
        else:
            _copy(engine, str(engine.url.database), self._name)

    def copy_into(self, engine: sa.Engine) -> None:
        """Make an empty database one of these."""
        if engine.dialect.name == "sqlite":
            with _Raw(engine) as connection:
                self._file.backup(connection)
        else:
            _copy(engine, self._name, str(engine.url.database))


class Furnished(State):
    """The same with collections, whose tables may change from one moment to the other."""

    def __init__(self, app: Flask, name: str) -> None:
        super().__init__(app, name)
        self._database = str(self._engine.url.database)
        self._shape = self._present_shape()
        if not self._on_sqlite:
            _copy(self._engine, self._database, f"{self._database}_{name}")

    def restore(self) -> None:
        """Make the database what it was; as a whole only where tables are others: that is slow."""
        with self._app.app_context():
            db.session.remove()
        if self._on_sqlite or self._present_shape() == self._shape:
            super().restore()
            return
        _copy(self._engine, f"{self._database}_{self._name}", self._database)
        self._app.extensions.pop("atrium.caches", None)

    def _tables(self) -> list[str]:
        return [name for (name,) in self._read(TABLES)]

    def _taking(self) -> str:
        return f"DROP SCHEMA IF EXISTS {self._name} CASCADE; {super()._taking()}"

    def _present_shape(self) -> list[Any]:
        return [] if self._on_sqlite else self._read(SHAPE)

    def _read(self, query: str) -> list[Any]:
        with self._connection() as connection, connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())


class _Raw:
    """A connection of the driver, outside of all transactions of the application."""

    def __init__(self, engine: sa.Engine) -> None:
        self._pooled = engine.raw_connection()

    def __enter__(self) -> Any:
        return self._pooled.driver_connection

    def __exit__(self, *problem: object) -> None:
        self._pooled.close()


def _copy(engine: sa.Engine, name: str, other: str) -> None:
    server = services.Postgres()
    engine.dispose()
    server.drop_database(other)
    server.disconnect(name)  # a database that is in use cannot be copied
    server.create_database(other, template=name)


def _run(connection: Any, statements: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL ROLE NONE; {statements}")
    connection.commit()
