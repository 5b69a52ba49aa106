"""`bin/atrium extension`, and the commands of extensions themselves."""

from __future__ import annotations

import inspect
from typing import Any

import click
from flask.cli import with_appcontext

from app.config import Config
from app.extensions import loading, registry, scaffold
from app.extensions.registry import Handler, Kind, LoadError
from app.ops import command
from app.ops.listed import GROUPS

NEXT_STEPS = """Created. Its code is in {code}.

  make test T=extensions/{name}            runs its tests
  SERVICE_EXTENSIONS={name} make run       starts Atrium with it

docs/extensions.md says what it may do."""


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


@extension.command(
    cls=command.Command, epilog="Example: atrium extension new shop", with_appcontext=False
)
@click.argument("name")
def new(name: str) -> None:
    """Write an extension into extensions/NAME: a hook, an endpoint, and tests of both."""
    folder = scaffold.create(name)
    click.echo(NEXT_STEPS.format(name=name, code=folder / name / "__init__.py"))


@extension.command("run", cls=command.Command, epilog="Example: atrium extension run shop.remind")
@click.argument("name")
@with_appcontext
def run_now(name: str) -> None:
    """Have a worker run the periodic handler NAME at once, in each of its accounts."""
    from app.extensions import periodic

    periodic.make_due(name)
    click.echo(f"{name} is due. A worker runs it, and then at its next time.")


@extension.command(
    "list", cls=command.Command, epilog="Example: atrium extension list", with_appcontext=False
)
def list_() -> None:
    """List the extensions that can be loaded, and which of them SERVICE_EXTENSIONS names."""
    chosen = Config.from_env().extensions
    found = [
        (one.name, scaffold.version(one), str(one.folder or "installed"))
        for one in loading.available()
    ]
    found += [(name, "", "") for name in chosen if name not in {one[0] for one in found}]
    for name, version, place in sorted(found):
        state = "loaded" if name in chosen else "not loaded"
        click.echo(f"{name:20} {version:10} {state if place else 'missing':10} {place}".rstrip())
    if not found:
        click.echo(
            f"There is none. Write one: bin/atrium extension new NAME, into {loading.FOLDER}"
        )


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
