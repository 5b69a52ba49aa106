"""`bin/atrium`: all commands, those of `flask --app wsgi`, with a help text in groups."""

from __future__ import annotations

from collections.abc import Mapping

import click
from flask.cli import FlaskGroup, ScriptInfo

from app import config, web
from app.ops.listed import COMMANDS, GROUPS, Commands


class Atrium(Commands, FlaskGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, without the application that FlaskGroup would load.

        Those of extensions are known to the application alone.
        """
        return sorted({*self.commands, *COMMANDS, *self._of_extensions(ctx)})

    def _of_extensions(self, ctx: click.Context) -> Mapping[str, click.Command]:
        if not config.names_extensions():
            return {}
        app = ctx.ensure_object(ScriptInfo).load_app()
        return {name: one for name, one in app.cli.commands.items() if name not in self.commands}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by group; one without a group comes last."""
        names = self.list_commands(ctx)
        others = {name for name in names if not any(name in group for group in GROUPS.values())}
        known = {**self._of_extensions(ctx), **self.commands}
        for title, group in {**GROUPS, "Extensions": dict.fromkeys(sorted(others))}.items():
            commands = {
                name: click.Command(name, help=listed.help) if listed else known[name]
                for name, listed in group.items()
            }
            rows = [(name, one.get_short_help_str(70)) for name, one in commands.items()]
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
