"""`bin/atrium extension`, and the commands of extensions themselves."""

from __future__ import annotations

import inspect
from typing import Any

import click
from flask.cli import with_appcontext

from app.extensions import registry
from app.extensions.registry import Handler, Kind, LoadError
from app.ops import command
from app.ops.listed import GROUPS


@click.group(cls=command.Group, epilog="Example: atrium extension migrate shop prices")
def extension() -> None:
    """Write extensions: code of your own, loaded by SERVICE_EXTENSIONS."""


@extension.command(cls=command.Command, epilog="Example: atrium extension migrate shop prices")
@click.argument("name")
@click.argument("text")
@with_appcontext
def migrate(name: str, text: str) -> None:
    """Write a revision with what the tables of extension NAME lack; TEXT says what it does."""
    from app.extensions import migrations

    click.echo(f"Written: {migrations.create(name, text)}. Read it, then run bin/atrium release.")


def of_extensions() -> list[click.Command]:
    """The commands of the loaded extensions. Raises LoadError if a name is one of the product's."""
    for name in registry.of(Kind.COMMAND):
        if any(name in group for group in GROUPS.values()):
            raise LoadError(f"bin/atrium has a command {name}: an extension cannot add another.")
    return [_command(handler) for (handler,) in registry.of(Kind.COMMAND).values()]


def _command(handler: Handler) -> click.Command:
    @with_appcontext
    def run(words: tuple[str, ...]) -> None:
        parameters = inspect.signature(handler.function)
        try:
            parameters.bind(*words)
        except TypeError as error:
            raise click.UsageError(f"{error}: {handler.subject}{parameters}") from None
        result = handler.function(*words)
        if isinstance(result, str):
            click.echo(result)

    arguments: list[Any] = [click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)]
    return command.Command(
        handler.subject,
        callback=run,
        params=arguments,
        help=inspect.getdoc(handler.function) or f"A command of the extension {handler.extension}.",
        context_settings={"ignore_unknown_options": True},
    )
