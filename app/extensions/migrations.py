"""The Alembic branches of extensions: revisions in their folder `migrations/`, each with a version
table of its own, so that an extension that is gone leaves all others as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.schema import AddConstraint

from app import clock, config, db
from app.context import tenancy
from app.db import Base, citus, row_security
from app.db.policy import OF_EXTENSIONS
from app.db.types import Text, UtcDateTime
from app.errors import Conflict
from app.extensions import registry, tables
from app.extensions.registry import Extension
from app.web.feature import Finding

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

MAX_NAMED = 5
VERSIONS = "alembic_version_"
REVISION = '''"""{text}

Revision ID: {id}
Create Date: {created_at}
"""

import sqlalchemy as sa
from alembic import op

from app.extend.tables import Text, UtcDateTime

revision = "{id}"
down_revision = {before!r}
branch_labels = {labels!r}
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    {upgrade}


def downgrade() -> None:
    """Revert the revision."""
    {downgrade}
'''


def upgrade() -> list[str]:
    """Apply the revisions of all loaded extensions; returns the extensions that had new ones."""
    changed = [one.name for one in registry.EXTENSIONS.values() if _upgrade(one)]
    postgres = db.db.engine.dialect.name == "postgresql"
    if changed and postgres and config.current().row_security_enabled:
        row_security.install(db.db.engine)
    return changed


def _upgrade(extension: Extension) -> bool:
    from alembic.runtime.environment import EnvironmentContext  # only here: it takes memory

    script = _script(extension)
    if script is None or not script.get_heads():
        return False
    with _connection() as connection:
        before = _applied(connection, extension)
        environment = EnvironmentContext(
            _alembic_config(), script, fn=lambda at, _: script._upgrade_revs("heads", at)
        )
        with environment, _distributing(connection):
            environment.configure(connection=connection, version_table=_version_table(extension))
            with environment.begin_transaction():
                environment.run_migrations()
        return before != _applied(connection, extension)


@contextmanager
def _distributing(connection: sa.Connection) -> Iterator[None]:
    """Distribute the tables that the block makes, if the database is sharded.

    A foreign key to another distributed table can only come after that.
    """
    keys = list[sa.ForeignKeyConstraint]()

    def leave_out_keys(table: sa.Table, _connection: sa.Connection, **options: object) -> None:
        keys[:] = table.foreign_key_constraints
        table.constraints.difference_update(keys)

    def distribute(table: sa.Table, connection: sa.Connection, **options: object) -> None:
        if citus.COLUMN in table.c:
            connection.exec_driver_sql(citus.distribution(table.name))
        for key in keys:
            connection.execute(AddConstraint(key))

    if not citus.is_sharded(connection):
        yield
        return
    sa.event.listen(sa.Table, "before_create", leave_out_keys)
    sa.event.listen(sa.Table, "after_create", distribute)
    try:
        yield
    finally:
        sa.event.remove(sa.Table, "before_create", leave_out_keys)
        sa.event.remove(sa.Table, "after_create", distribute)


def create(name: str, text: str) -> Path:
    """Write a revision with what the tables of an extension lack; returns its file.

    Raises Conflict if there is none, or if the database lacks an earlier one.
    """
    from alembic.autogenerate import produce_migrations, render_python_code
    from alembic.operations.ops import CreateTableOp
    from alembic.runtime.migration import MigrationContext

    extension = registry.EXTENSIONS.get(name)
    if extension is None or extension.folder is None:
        raise Conflict(f"No package {name} is loaded: add it to SERVICE_EXTENSIONS.")
    folder = extension.folder / "migrations"
    folder.mkdir(exist_ok=True)
    script = _script(extension)
    heads = script.get_heads() if script else []
    with _connection() as connection:
        if set(heads) != _applied(connection, extension):
            raise Conflict("The database lacks earlier revisions: run bin/atrium release first.")
        owner = _owners(sa.inspect(connection).get_table_names())
        options = {
            "version_table": _version_table(extension),
            "target_metadata": Base.metadata,
            "include_name": lambda table, kind, _: kind != "table" or owner(table) == name,
            "include_object": lambda _, table, kind, *rest: kind != "table" or owner(table) == name,
        }
        context = MigrationContext.configure(connection, opts=options)
        found = produce_migrations(context, Base.metadata)
        if found.upgrade_ops is None or found.upgrade_ops.is_empty():
            raise Conflict("The tables are as the revisions make them: there is nothing to do.")
        for one in found.upgrade_ops.ops:
            if isinstance(one, CreateTableOp):
                one.info = {}  # the policy
        up, down = (
            render_python_code(ops, render_item=_rendered, migration_context=context)  # type: ignore[arg-type]
            for ops in (found.upgrade_ops, found.downgrade_ops)
        )
    number = f"{len(list(folder.glob('[0-9]*.py'))) + 1:04d}"
    words = "_".join(re.findall("[a-z0-9]+", text.lower())[:6])
    file = folder / f"{number}_{words}.py"
    _revisions.cache_clear()
    file.write_text(
        REVISION.format(
            text=text.replace('"', "'").replace("\\", "/"),
            id=f"{name}_{number}",
            created_at=clock.iso(clock.now()),
            before=heads[0] if heads else None,
            labels=None if heads else (name,),
            upgrade=up,
            downgrade=down,
        )
    )
    return file


def check() -> Finding:
    """Whether the tables of the loaded extensions are there, and those of others are left over."""
    names = _table_names()
    declared, behind = [*registry.of(registry.Kind.TABLE)], lacking()
    if behind:
        return Finding("fail", f"{_named(behind)}: tables are missing. Run bin/atrium release.")
    if missing := sorted({*declared} - {*names}):
        return Finding("fail", f"no revision makes {_named(missing)}: bin/atrium extension migrate")
    owner = _owners(names)
    of_extensions = (name for name in names if name.startswith(OF_EXTENSIONS))
    if left := [name for name in of_extensions if owner(name) not in registry.EXTENSIONS]:
        return Finding(
            "warn",
            f"the extensions of {_named(left)} are not loaded: their rows are in no bundle, and"
            " stay when an account is closed",
        )
    return Finding("ok", f"{len(declared)} of extensions, up to date")


def lacking() -> list[str]:
    """The loaded extensions of which the database lacks revisions; newer ones are fine."""
    with tenancy.as_owner():
        return [one.name for one in registry.EXTENSIONS.values() if _lacks(db.connection(), one)]


def _lacks(connection: sa.Connection, extension: Extension) -> bool:
    heads, known = _revisions(extension)
    applied = _applied(connection, extension) if heads else heads
    return not heads <= applied and applied <= known


@cache  # read once: the folder may belong to another version later
def _revisions(extension: Extension) -> tuple[frozenset[str], frozenset[str]]:
    """The newest revisions of an extension's files, and all."""
    script = _script(extension)
    if script is None:
        return frozenset(), frozenset()
    return frozenset(script.get_heads()), frozenset(one.revision for one in script.walk_revisions())


def _owners(names: Iterable[str]) -> Callable[[str], str | None]:
    """A function that names the extension of a table, loaded or not, by the tables that exist.

    An extension that is not loaded has its version table, and its name may begin as another's.
    """
    prefix = f"{VERSIONS}{OF_EXTENSIONS}"
    away = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
    extensions = {tables.prefix_of(one): one for one in (*registry.EXTENSIONS, *away)}

    def owner(table: str) -> str | None:
        fitting = [one for one in extensions if table.startswith(one)]
        return extensions[max(fitting, key=len)] if fitting else None

    return owner


def has_tables() -> bool:
    """Whether the database has tables of extensions, loaded or not."""
    return any(name.startswith(OF_EXTENSIONS) for name in _table_names())


def _table_names() -> list[str]:
    with tenancy.as_owner(), db.db.engine.connect() as connection:
        return sa.inspect(connection).get_table_names()


def _named(names: list[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _script(extension: Extension) -> ScriptDirectory | None:
    from alembic.script import ScriptDirectory

    folder = extension.folder and extension.folder / "migrations"
    if folder is None or not folder.is_dir():
        return None
    return ScriptDirectory(str(folder), version_locations=[str(folder)])


def _alembic_config() -> Any:
    from alembic.config import Config

    return Config()


def _version_table(extension: Extension) -> str:
    return f"{VERSIONS}{tables.prefix_of(extension.name)}".rstrip("_")


def _applied(connection: sa.Connection, extension: Extension) -> set[str]:
    table = sa.table(_version_table(extension), sa.column("version_num"))
    if not sa.inspect(connection).has_table(table.name):
        return set()
    return set(connection.scalars(sa.select(table.c.version_num)))


def _rendered(kind: str, item: object, autogenerate: object) -> str | bool:
    if kind == "type" and isinstance(item, UtcDateTime):
        return "UtcDateTime()"
    return "Text" if item is Text else False


@contextmanager
def _connection() -> Iterator[sa.Connection]:
    """A connection of the owner, in a transaction that changes the schema."""
    with tenancy.as_owner(), db.transaction(changes_schema=True):
        yield db.connection()
