"""Alembic's environment: the application's engine, in one transaction."""

import sqlalchemy as sa
from alembic import context
from flask import current_app

from app import config
from app.collections import service as collections
from app.context import tenancy
from app.db import row_security
from app.db.types import Text, UtcDateTime

engine = current_app.extensions["migrate"].db.engine
metadata = current_app.extensions["migrate"].db.metadata


def ours(object: object, name: str | None, type_: str, *rest: object) -> bool:
    """Exclude the tables of collections and of extensions, which have revisions of their own."""
    others = ("col_", "x_", "alembic_version_")
    return not (type_ == "table" and (name or "").startswith(others))


def rendered(kind: str, item: object, autogenerate: object) -> str | bool:
    """Render our column types by their names in `migrations.support.types`."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "UtcDateTime()"
    return "Text" if item is Text else False


def run() -> None:
    """Apply the revisions; serializes concurrent processes."""
    postgres = engine.dialect.name == "postgresql"
    options = {"isolation_level": "READ COMMITTED"} if postgres else {}
    with (
        tenancy.as_owner(),
        engine.connect().execution_options(**options) as connection,
        connection.begin(),
    ):
        if postgres:
            # Citus: before anything else, as shards and what all nodes share change together.
            connection.exec_driver_sql("SET LOCAL citus.multi_shard_modify_mode = 'sequential'")
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(4711)")
        else:
            connection.connection.dbapi_connection.begin()
        context.configure(
            connection=connection,
            target_metadata=metadata,
            include_object=ours,
            render_item=rendered,
        )
        with context.begin_transaction():
            context.run_migrations()
    if postgres and config.current().row_security_enabled:
        row_security.install(engine)
    if sa.inspect(engine).has_table("usage_counts"):
        collections.ensure_totals()


run()
