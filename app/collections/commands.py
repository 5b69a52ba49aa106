"""`atrium revisions`."""

from __future__ import annotations

from pathlib import Path

import click
from flask.cli import with_appcontext

from app.collections import revision_files
from app.ops import command


@click.group(cls=command.Group, epilog="Example: atrium revisions export ./revisions")
def revisions() -> None:
    """Revisions of the collections' tables."""


@revisions.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@with_appcontext
def export(folder: Path) -> None:
    """Export them to FOLDER as Alembic files for a fresh database of the same kind."""
    count = revision_files.export(folder)
    click.echo(f"Exported {count} revisions to {folder}. To create their tables elsewhere:")
    click.echo(f"  alembic -c {folder / 'alembic.ini'} -x url=DATABASE_URL upgrade head")
