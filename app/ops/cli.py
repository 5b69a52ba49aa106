"""Commands of `flask --app wsgi`: set up, settings, superadmins, the worker, revisions."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import click
from flask import Flask, current_app
from flask.cli import ScriptInfo, with_appcontext

from app import config, db
from app.accounts import service as accounts
from app.auth import bootstrap, passwords
from app.collections import revision_files
from app.collections import revisions as core
from app.db import reencryption
from app.jobs import worker
from app.ops import backups
from app.ops import command as commands
from app.ops import doctor as doctoring
from app.ops.audit_commands import audit


def init_app(app: Flask) -> None:
    """Register the commands."""
    own = (setup, settings, doctor, create_superadmin, reencrypt, work, revisions, audit)
    keeping = (backup, restore)
    for command in (*own, *keeping, Migrations("db", help="Migrate the database.")):
        app.cli.add_command(command)


def bind_migrate(app: Flask) -> None:
    """Give the application Flask-Migrate, which takes memory that only its commands are worth."""
    if "migrate" not in app.extensions:
        from flask_migrate import Migrate

        Migrate(app, db.db, directory=str(core.MIGRATIONS))
        its: Any = app.cli.commands["db"]
        parts = {"params": its.params, "callback": its.callback, "help": its.help}
        app.cli.add_command(_Migrating("db", its.commands, **parts))


class Migrations(click.Command):
    """The commands of Flask-Migrate, loaded when one is asked for."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """What Flask-Migrate's own group makes of the arguments."""
        app = click.get_current_context().ensure_object(ScriptInfo).load_app()
        bind_migrate(app)  # which puts that group into our place
        return app.cli.commands[self.name or ""].make_context(info_name, args, parent, **extra)


class _Migrating(commands.Group):
    def invoke(self, ctx: click.Context) -> Any:
        found = super().invoke(ctx)
        # What started before had no table yet to put the superadmin into.
        if ctx.invoked_subcommand == "upgrade" and core.applied_core_revision() == core.core_head():
            bootstrap.create_from_settings()
        return found


@click.command(cls=commands.Command)
@with_appcontext
def setup() -> None:
    """Migrate the database and make the first superadmin; safe to repeat."""
    bind_migrate(current_app._get_current_object())  # type: ignore[attr-defined]
    from flask_migrate import upgrade

    upgrade()
    bootstrap.create_from_settings()
    made = bootstrap.create_for_development()
    base_url = config.current().base_url
    if made:
        click.echo("\n  The first superadmin; this is shown only once:\n")
        click.echo(f"    account   system\n    email     {made[0]}\n    password  {made[1]}\n")
    click.echo(f"  Console          {base_url}/console")
    click.echo(f"  API description  {base_url}/docs\n")


@click.command(cls=commands.Command)
@with_appcontext
def settings() -> None:
    """List every setting with its value; secrets are only said to be set."""
    for variable, value, help in config.current().listing():
        click.echo(f"{variable:40} {value:40} {help}")


@click.command(cls=commands.Command)
@with_appcontext
def doctor() -> None:
    """Look whether all that the service needs is there, and say what to do."""
    found = list(doctoring.findings())
    for one in found:
        click.echo(f"{one.state:5} {one.part:11} {one.told}")
    if any(one.state == "fail" for one in found):
        raise click.exceptions.Exit(1)


@click.command("create-superadmin", cls=commands.Command)
@click.argument("email")
@click.option("--pii-access", is_flag=True, help="Let this superadmin see personal data unmasked.")
@click.password_option(help="Asked for when not given.")
@with_appcontext
def create_superadmin(email: str, pii_access: bool, password: str) -> None:
    """Make another superadmin, already verified."""
    found = (accounts.email_problem(email), *passwords.problems(password, own=(email,)))
    wrong = [one for one in found if one]
    if wrong:
        raise click.ClickException("\n".join(str(one["message"]) for one in wrong))
    accounts.create_superadmin(email, passwords.hash(password), pii_access=pii_access)
    click.echo(f"{email} is a superadmin now.")


@click.command(cls=commands.Command)
@with_appcontext
def reencrypt() -> None:
    """Encrypt stored secrets with the newest key, so that older ones can be retired."""
    renewed, unreadable = reencryption.run()
    click.echo(f"{renewed} secrets are encrypted anew.")
    if unreadable:
        places = "\n  ".join(unreadable)
        raise click.ClickException(f"No key of SERVICE_ENCRYPTION_KEY reads\n  {places}")


@click.command(cls=commands.Command)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@with_appcontext
def backup(file: Path) -> None:
    """Write the whole database into a new FILE, beside a running service."""
    backups.make(file)
    click.echo(f"{file} holds the database, but none of the keys: keep SERVICE_ENCRYPTION_KEY too.")


@click.command(cls=commands.Command)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="Overwrite what the database holds.")
@with_appcontext
def restore(file: Path, replace: bool) -> None:
    """Make the database what FILE, a backup, says. Stop web and worker processes first."""
    backups.restore(file, replacing=replace)
    click.echo("Restored. Now run flask --app wsgi db upgrade, and flask --app wsgi audit verify.")


@click.command("worker", cls=commands.Command)
@with_appcontext
def work() -> None:
    """Carry out background work until stopped (SIGTERM, Ctrl-C)."""
    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    worker.serve(stop)


@click.group(cls=commands.Group)
def revisions() -> None:
    """The changes of the collections' tables."""


@revisions.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@with_appcontext
def export(folder: Path) -> None:
    """Write them into FOLDER as files that Alembic applies to a fresh database of this kind."""
    written = revision_files.export(folder)
    click.echo(f"{written} revisions are in {folder}. To make their tables elsewhere:")
    click.echo(f"  alembic -c {folder / 'alembic.ini'} -x url=DATABASE_URL upgrade head")
