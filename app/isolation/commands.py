"""`bin/atrium isolation-check`."""

from __future__ import annotations

import re

import click
from flask.cli import with_appcontext

from app.ops import command
from app.web.app import loaded


def _pattern(context: click.Context, option: click.Parameter, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text} is not a regular expression: {error}") from error
    return text


@click.command(
    "isolation-check",
    cls=command.Command,
    epilog="Example: atrium isolation-check --only /api/v1/records",
)
@click.option(
    "--only",
    default="",
    metavar="PATTERN",
    callback=_pattern,
    help="Try only routes that match this regular expression from their start.",
)
@with_appcontext
def isolation_check(only: str) -> None:
    """Try every route as another account; fails if anything leaks."""
    from app.isolation import prover  # only this command is worth the memory

    report = prover.prove(loaded(), only)
    for leak in report.leaks:
        click.echo(f"leak   {leak}")
    for finding in report.uncovered:
        click.echo(f"blind  {finding}")
    click.echo(
        f"{report.routes} routes, {report.requests} requests, {report.tables} tables and"
        f" {report.collections} collections: {len(report.leaks)} leaks,"
        f" {len(report.uncovered)} not covered"
    )
    if not report.routes:
        raise click.ClickException(f"No route matches {only}.")
    if report.leaks or report.uncovered:
        raise click.exceptions.Exit(1)
