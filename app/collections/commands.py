"""`atrium revisions`: revisions of collections as files for Alembic and a database of its own.

The folder is complete: `alembic -c DIR/alembic.ini -x url=DATABASE_URL upgrade head` makes the
tables of all collections, without this application. The statements are those that ran here, so they
fit databases of the same kind. Definitions travel by export and import of collections.
"""

from __future__ import annotations

import re
from pathlib import Path
from pprint import pformat

import click
import sqlalchemy as sa
from flask.cli import with_appcontext

from app import clock, db
from app.collections import definitions, search_words
from app.collections.models import Revision
from app.ops import command

ALEMBIC_INI = """[alembic]
script_location = %(here)s
"""
ENV = '''"""Applies the revisions of this folder: `alembic -x url=... upgrade head`."""

import sqlalchemy as sa
from alembic import context

url = sa.make_url(context.get_x_argument(as_dictionary=True)["url"])
if url.drivername in ("postgres", "postgresql"):
    url = url.set(drivername="postgresql+psycopg2")
engine = sa.create_engine(url)
with engine.begin() as connection:
    # A table of its own: the application keeps its core's revision in the usual one.
    context.configure(connection=connection, version_table="collection_versions")
    with context.begin_transaction():
        context.run_migrations()
'''
FILE = '''"""{description}

Revision ID: {revision}
Revises: {revises}
Create Date: {created_at}
"""

from alembic import op

revision = {revision!r}
down_revision = {down_revision!r}
branch_labels = None
depends_on = None

STATEMENTS = {statements}


def upgrade() -> None:
    """Apply the revision."""
    for statement in STATEMENTS:
        options = {{"no_parameters": True}}
        op.get_bind().exec_driver_sql(statement, execution_options=options)


def downgrade() -> None:
    """Changes of collections are not taken back."""
    raise NotImplementedError("changes of collections are not taken back")
'''


@click.group(cls=command.Group, epilog="Example: atrium revisions export ./revisions")
def revisions() -> None:
    """Revisions of the collections' tables."""


@revisions.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@with_appcontext
def export(folder: Path) -> None:
    """Export them to FOLDER as Alembic files for a fresh database of the same kind."""
    count = export_revisions(folder)
    click.echo(f"Exported {count} revisions to {folder}. To create their tables elsewhere:")
    click.echo(f"  alembic -c {folder / 'alembic.ini'} -x url=DATABASE_URL upgrade head")


@click.group(cls=command.Group, epilog="Example: atrium search rebuild notes")
def search() -> None:
    """The words that lists are searched for."""


@search.command()
@click.argument("collection", required=False)
@with_appcontext
def rebuild(collection: str | None) -> None:
    """Store the words of COLLECTION's records anew, or of all; the service may run."""
    chosen = [definitions.get(collection)] if collection else definitions.get_all()
    for one in chosen:
        if one.searched:
            with command.progress(f"Records of {one.name}") as show:
                mended = search_words.repair(one, show)
            click.echo(f"{one.name}: {mended} records had other words, the index is written anew.")
        elif collection:
            raise click.ClickException(f"No field of {one.name} is searched.")


def export_revisions(folder: Path) -> int:
    """Write every revision of a collection into a folder. Returns how many there are."""
    versions = folder / "versions"
    versions.mkdir(parents=True, exist_ok=True)
    (folder / "alembic.ini").write_text(ALEMBIC_INI)
    (folder / "env.py").write_text(ENV)
    rows = list(db.db.session.scalars(sa.select(Revision).order_by(Revision.number)))
    for row in rows:
        words = re.sub(r"[^a-z0-9]+", "_", row.description.lower()).strip("_")
        text = FILE.format(
            description=row.description,
            revision=row.revision,
            revises=row.down_revision or "",
            down_revision=row.down_revision,
            created_at=clock.iso(row.created_at),
            statements=pformat(list(row.statements), width=100),
        )
        (versions / f"{row.number:04d}_{words[:60]}.py").write_text(text, encoding="utf-8")
    return len(rows)
