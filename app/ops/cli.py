"""Commands of `atrium`: set up, settings, `doctor`, the worker, keys, shards.

The functions import what only their command uses.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import click
from flask import Flask, current_app
from flask.cli import ScriptInfo, with_appcontext

from app import config, db
from app.auth import bootstrap
from app.collections import revisions as core
from app.db import engine, reencryption, row_security, sharding
from app.extensions import registry
from app.extensions import settings as extension_settings
from app.jobs import worker
from app.ops import command


def bind_migrate(app: Flask) -> None:
    """Register Flask-Migrate; loaded for its commands only, as it takes memory."""
    if "migrate" not in app.extensions:
        from flask_migrate import Migrate

        Migrate(app, db.db, directory=str(core.MIGRATIONS))
        group: Any = app.cli.commands["db"]
        options = {"params": group.params, "callback": group.callback, "help": group.help}
        app.cli.add_command(_MigrateGroup("db", group.commands, **options))


class Migrations(click.Command):
    """The commands of Flask-Migrate, loaded on use."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: object,
    ) -> click.Context:
        """Return the context of Flask-Migrate's own group."""
        app = click.get_current_context().ensure_object(ScriptInfo).load_app()
        bind_migrate(app)  # replaces this command by that group
        return app.cli.commands[self.name or ""].make_context(info_name, args, parent, **extra)


class _MigrateGroup(command.Group):
    def invoke(self, ctx: click.Context) -> object:
        result = super().invoke(ctx)
        # Processes that started earlier had no table for the superadmin.
        if ctx.invoked_subcommand == "upgrade" and core.applied_core_revision() == core.core_head():
            bootstrap.create_from_settings()
        return result


migrations = Migrations("db", help="Migrate the database.", epilog="Example: atrium db upgrade")


@click.command(cls=command.Command, epilog="Example: atrium setup")
@with_appcontext
def setup() -> None:
    """Migrate the database and create the first superadmin; safe to repeat."""
    _migrate()
    bootstrap.create_from_settings()
    credentials = bootstrap.create_for_development()
    base_url = config.current().base_url
    if credentials:
        file = config.current().instance_dir / bootstrap.CREDENTIALS
        click.echo(f"\n  The first superadmin, also in {os.path.relpath(file)}:\n")
        click.echo(
            f"    account   system\n    email     {credentials[0]}"
            f"\n    password  {credentials[1]}\n"
        )
    if link := bootstrap.sign_in_link():
        click.echo(f"  Sign in          {base_url}{link}")
        click.echo("                   (as the superadmin, once within an hour)")
    click.echo(f"  Console          {base_url}/console")
    click.echo(f"  API description  {base_url}/docs\n")


def _migrate() -> None:
    bind_migrate(current_app._get_current_object())  # type: ignore[attr-defined]
    from flask_migrate import upgrade

    upgrade()
    if registry.EXTENSIONS:
        from app.extensions import migrations

        for name in migrations.upgrade():
            click.echo(f"Tables of the extension {name} migrated.")


@click.command(cls=command.Command, epilog="Example: atrium settings | grep MAIL")
@with_appcontext
def settings() -> None:
    """List all settings; secrets show only whether they are set."""
    for variable, value, help in (*config.current().listing(), *extension_settings.listing()):
        click.echo(f"{variable:40} {value:40} {help}")


@click.command(cls=command.Command, epilog="Example: atrium doctor")
@with_appcontext
def doctor() -> None:
    """Check everything that the service needs, and say how to fix what is wrong."""
    from app.ops.doctor import run_checks

    findings = list(run_checks())
    for part, finding in findings:
        click.echo(f"{finding.state:5} {part:11} {finding.message}")
    if any(finding.state == "fail" for _, finding in findings):
        raise click.exceptions.Exit(1)


@click.command(cls=command.Command, epilog="Example: atrium reencrypt")
@with_appcontext
def reencrypt() -> None:
    """Re-encrypt stored secrets with the newest key, so that older keys can be retired."""
    with command.progress("Secrets read") as show:
        renewed, unreadable = reencryption.run(lambda done: show(done, 0))
    click.echo(f"{renewed} secrets re-encrypted.")
    if unreadable:
        locations = "\n  ".join(unreadable)
        raise click.ClickException(f"No key of SERVICE_ENCRYPTION_KEY decrypts\n  {locations}")


@click.command(cls=command.Command, epilog="Example: atrium release")
@with_appcontext
def release() -> None:
    """Migrate the database before a new version starts.

    honcho and foreman stop all processes when one ends: under them it stays until it is stopped.
    """
    _migrate()
    bootstrap.create_from_settings()
    if config.is_under_process_manager():
        click.echo("The database is migrated.")
        _stop_signal().wait()


@click.command("worker", cls=command.Command, epilog="Example: atrium worker")
@with_appcontext
def work() -> None:
    """Run background jobs until stopped (SIGTERM, Ctrl-C)."""
    if refusal := engine.pooler_refusal():
        raise click.ClickException(f"The database cannot be used: {refusal}")
    if url := config.current().worker_metrics_url:
        from app.ops import metrics

        metrics.serve(config.context().app, url)
    worker.serve(_stop_signal())


@click.command(cls=command.Command, epilog="Example: atrium shard")
@with_appcontext
def shard() -> None:
    """Distribute the tables over the nodes of Citus; safe to repeat, and to run after upgrades.

    Stop web and worker processes first.
    """
    try:
        moved = sharding.shard()
    except sharding.ShardingError as error:
        raise click.ClickException(str(error)) from None
    if config.current().row_security_enabled:
        row_security.install(db.db.engine)
    else:
        row_security.uninstall(db.db.engine)
    click.echo(f"{len(moved)} tables distributed." if moved else "All tables are distributed.")


def _stop_signal() -> threading.Event:
    """Return an event that SIGTERM and Ctrl-C set."""
    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    return stop
