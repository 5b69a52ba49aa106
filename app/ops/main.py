"""`bin/atrium`: all commands, those of `flask --app wsgi`, with a help text in groups."""

from __future__ import annotations

import click
from flask.cli import FlaskGroup, ScriptInfo

from app import web

GROUPS = {
    "Set up": ("setup", "settings", "create-superadmin"),
    "Define": ("export", "plan", "apply"),
    "Run": ("release", "worker"),
    "Check": ("doctor", "audit", "isolation-check"),
    "Data": (
        *("db", "backup", "restore", "expire-changes"),
        *("account", "shard", "reencrypt", "revisions"),
    ),
    "Develop": ("routes", "run", "shell", "openapi"),
}


class Atrium(FlaskGroup):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by group; one without a group comes last."""
        names = self.list_commands(ctx)
        grouped = {name for group in GROUPS.values() for name in group}
        others = {"Other": [name for name in names if name not in grouped]}
        for title, group in {**GROUPS, **others}.items():
            commands = {name: self.get_command(ctx, name) for name in group if name in names}
            rows = [(name, one.get_short_help_str(70)) for name, one in commands.items() if one]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def main() -> None:
    """Run a command."""
    group = Atrium(
        name="atrium",
        help="Atrium's commands. `atrium COMMAND --help` has an example of each.",
        add_version_option=False,
    )
    group = click.version_option(web.VERSION, message="atrium %(version)s")(group)
    group.main(prog_name="atrium", obj=ScriptInfo("wsgi:app"))


if __name__ == "__main__":
    main()
