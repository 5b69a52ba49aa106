"""The base of all `bin/atrium` commands: errors as one-line messages, and progress on stderr.

Progress is a bar or a counter on a terminal, plain lines elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EPIPE
from typing import Any

import click
from flask.cli import AppGroup
from sqlalchemy.exc import ProgrammingError

from app.db.errors import UNAVAILABLE, error_summary
from app.errors import AppError

SECONDS_BETWEEN_LINES = 10.0

Progress = Callable[[int, int], None]
"""Takes what is done so far, and the total (0: not known)."""


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


def ignore_progress(done: int, total: int) -> None:
    """The progress that nobody looks at."""


@contextmanager
def progress(label: str) -> Iterator[Progress]:
    """Show the progress of the block; yields the function to call with it."""
    display = _Bar(label) if sys.stderr.isatty() else _Lines(label)
    try:
        yield display.show
    finally:
        display.close()


class _Bar:
    """click's bar where the total is known, else a counter."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.bar: Any = None
        self.is_counting = False

    def show(self, done: int, total: int) -> None:
        if not total:
            self.is_counting = True
            click.echo(f"\r{self.label}: {done:,}", nl=False, err=True)
            return
        if self.bar is None:
            self.bar = click.progressbar(length=total, label=self.label, file=sys.stderr)
            self.bar.render_progress()
        self.bar.update(done - self.bar.pos)

    def close(self) -> None:
        if self.bar:
            self.bar.render_finish()
        elif self.is_counting:
            click.echo(err=True)


class _Lines:
    """A line at the start, every ten seconds, and at the end."""

    def __init__(self, label: str) -> None:
        self.label, self.line, self.printed = label, "", ""
        self.printed_at = float("-inf")

    def show(self, done: int, total: int) -> None:
        self.line = f"{self.label}: {done:,}{f' of {total:,}' if total else ''}"
        if time.monotonic() >= self.printed_at + SECONDS_BETWEEN_LINES:
            self._print()

    def close(self) -> None:
        if self.line != self.printed:
            self._print()

    def _print(self) -> None:
        self.printed, self.printed_at = self.line, time.monotonic()
        click.echo(self.line, err=True)
