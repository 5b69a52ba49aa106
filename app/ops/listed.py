"""The commands of `bin/atrium`, in the groups and the order of its help text.

A command's module is loaded when the command is used; the help text needs only what stands here.
"""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import click
from flask.cli import AppGroup

from app.web.app import collection_paused


class Listed(NamedTuple):
    """A command as the help text lists it."""

    place: str
    help: str


GROUPS: dict[str, dict[str, Listed | None]] = {  # None: of Flask
    "Set up": {
        "setup": Listed(
            "app.ops.cli:setup",
            "Migrate the database and create the first superadmin; safe to repeat.",
        ),
        "settings": Listed(
            "app.ops.cli:settings", "List all settings; secrets show only whether they are set."
        ),
        "create-superadmin": Listed(
            "app.auth.commands:create_superadmin", "Create another superadmin, already verified."
        ),
    },
    "Define": {
        "export": Listed(
            "app.manifest.commands:export",
            "Export roles, collections and the accounts' definitions as YAML to FILE, or print"
            " them.",
        ),
        "plan": Listed(
            "app.manifest.commands:plan",
            "Show what applying FILE would change; exits with 1 if it has problems.",
        ),
        "apply": Listed(
            "app.manifest.commands:apply",
            "Apply FILE in one transaction; asks on a terminal, unless --plan or --yes is given.",
        ),
    },
    "Run": {
        "release": Listed(
            "app.ops.cli:release", "Migrate the database before a new version starts."
        ),
        "worker": Listed(
            "app.ops.cli:work", "Run background jobs until stopped (SIGTERM, Ctrl-C)."
        ),
    },
    "Check": {
        "doctor": Listed(
            "app.ops.cli:doctor",
            "Check everything that the service needs, and say how to fix what is wrong.",
        ),
        "audit": Listed("app.audit.commands:audit", "The audit log."),
        "isolation-check": Listed(
            "app.isolation.commands:isolation_check",
            "Try every route as another account; fails if anything leaks.",
        ),
    },
    "Data": {
        "db": Listed("app.ops.cli:migrations", "Migrate the database."),
        "backup": Listed(
            "app.ops.backup_commands:backup",
            "Back up the database to a new FILE, uploaded files beside it; the service may run.",
        ),
        "restore": Listed(
            "app.ops.backup_commands:restore",
            "Restore the database from FILE, or from a scheduled backup by its name.",
        ),
        "expire-changes": Listed(
            "app.realtime.commands:expire_changes",
            "Have clients that follow changes read anew, after a restore by other means.",
        ),
        "account": Listed(
            "app.portability.commands:account",
            "Export, import, clone and restore an account; certify a deletion.",
        ),
        "shard": Listed(
            "app.ops.cli:shard",
            "Distribute the tables over the nodes of Citus; safe to repeat, and to run after"
            " upgrades.",
        ),
        "reencrypt": Listed(
            "app.ops.cli:reencrypt",
            "Re-encrypt stored secrets with the newest key, so that older keys can be retired.",
        ),
        "search": Listed(
            "app.collections.commands:search", "The words that lists are searched for."
        ),
        "revisions": Listed(
            "app.collections.commands:revisions", "Revisions of the collections' tables."
        ),
    },
    "Develop": {
        "extension": Listed(
            "app.extensions.commands:extension",
            "Write extensions: code of your own, loaded by SERVICE_EXTENSIONS.",
        ),
        "routes": None,
        "run": None,
        "shell": None,
        "openapi": Listed("app.web.openapi:commands", "OpenAPI commands."),
    },
}
COMMANDS = {name: listed for group in GROUPS.values() for name, listed in group.items() if listed}


class Commands(AppGroup):
    """The commands of the application, each loaded when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *COMMANDS})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a command, loaded now."""
        if name in COMMANDS and name not in self.commands:
            module, _, attribute = COMMANDS[name].place.partition(":")
            with collection_paused():
                self.add_command(getattr(import_module(module), attribute), name)
        return super().get_command(ctx, name)
