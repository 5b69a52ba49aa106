"""What all commands of `flask --app wsgi` are: where they fail, they tell why in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from errno import EPIPE
from typing import Any

import click
from flask.cli import AppGroup
from sqlalchemy.exc import ProgrammingError

from app.db.errors import UNAVAILABLE, error_summary
from app.errors import AppError


class Command(click.Command):
    """A command."""

    def invoke(self, ctx: click.Context) -> Any:
        """Do what it is for."""
        with _in_words():
            return super().invoke(ctx)


class Group(Command, AppGroup):
    """Commands that are named by two words."""


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except AppError as error:
        raise click.ClickException(error.message) from error
    except (*UNAVAILABLE, ProgrammingError) as error:  # of PostgreSQL without its tables, say
        told = f"The database cannot be used: {error_summary(error)}"
        raise click.ClickException(f"{told}\nflask --app wsgi doctor looks for more.") from error
    except OSError as error:
        if error.errno == EPIPE:  # whoever read what is printed has gone: click knows about those
            raise
        told = error.strerror or type(error).__name__
        raise click.ClickException(": ".join(filter(None, (error.filename, told)))) from error
