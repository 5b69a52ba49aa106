"""The base of all `bin/atrium` commands: errors become one-line messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from errno import EPIPE

import click
from flask.cli import AppGroup
from sqlalchemy.exc import ProgrammingError

from app.db.errors import UNAVAILABLE, error_summary
from app.errors import AppError


class Command(click.Command):
    """A command with readable errors."""

    def invoke(self, ctx: click.Context) -> object:
        with _readable_errors():
            return super().invoke(ctx)


class Group(Command, AppGroup):
    """A group of commands."""


@contextmanager
def _readable_errors() -> Iterator[None]:
    try:
        yield
    except AppError as error:
        raise click.ClickException(error.message) from error
    except (*UNAVAILABLE, ProgrammingError) as error:  # e.g. tables are missing
        message = f"The database cannot be used: {error_summary(error)}"
        raise click.ClickException(f"{message}\nRun bin/atrium doctor for details.") from error
    except OSError as error:
        if error.errno == EPIPE:  # the reader of our output is gone: click handles that
            raise
        message = error.strerror or type(error).__name__
        raise click.ClickException(": ".join(filter(None, (error.filename, message)))) from error
