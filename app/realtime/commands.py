"""`atrium expire-changes`."""

from __future__ import annotations

import click
from flask.cli import with_appcontext

from app.ops import command
from app.realtime.feed import changes


@click.command("expire-changes", cls=command.Command, epilog="Example: atrium expire-changes")
@with_appcontext
def expire_changes() -> None:
    """Have clients that follow changes read anew, after a restore by other means.

    `atrium restore` does it by itself, and so does the service after a failover of PostgreSQL.
    """
    first = changes.start_generation(always=True)
    click.echo(f"Clients that follow changes read anew, and go on behind change {first}.")
