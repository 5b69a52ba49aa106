"""`atrium export`, `atrium plan`, `atrium apply`: definitions as a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import orjson
from flask.cli import with_appcontext

from app.auth.commands import AS, superadmin
from app.auth.principal import Principal
from app.errors import InvalidValues
from app.manifest import document, service, templates, upgrades
from app.manifest import export as exports
from app.manifest.document import Document
from app.ops import command
from app.types import JSONMapping, JSONObject

FILE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
SIGNS = {"create": "+", "update": "~", "remove": "-"}
HAS_CHANGES, HAS_DRIFT = 2, 3
DESTRUCTIVE = "This removes data. Read the plan, and apply it with --plan HASH."
UNCONFIRMED = "Say --plan HASH, or --yes."


@click.command(cls=command.Command, epilog="Example: atrium export atrium.yaml")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
@click.option("--account", "slugs", multiple=True, help="Only this account; may be repeated.")
@click.option("--no-accounts", is_flag=True, help="Only roles and collections.")
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@with_appcontext
def export(file: Path | None, slugs: tuple[str, ...], no_accounts: bool, force: bool) -> None:
    """Export roles, collections and the accounts' definitions as YAML to FILE, or print them."""
    if file is not None and file.exists() and not force:
        raise click.ClickException(f"{file} exists. Say --force to overwrite it.")
    text = document.dump(exports.manifest(slugs if slugs or no_accounts else None))
    if file is None:
        click.echo(text, nl=False)
    else:
        file.write_text(text)


@click.command(cls=command.Command, epilog="Example: atrium plan atrium.yaml")
@click.argument("file", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.option("--exit-code", is_flag=True, help="Exit with 2 if there are changes.")
@click.option("--strict", is_flag=True, help="Exit with 3 if anything exists that is not in FILE.")
@AS
@with_appcontext
def plan(file: Path, as_json: bool, exit_code: bool, strict: bool, email: str | None) -> None:
    """Show what applying FILE would change; exits with 1 if it has problems."""
    manifest = _read(file)
    planned = _plan(manifest, email, strict=strict)
    if as_json:
        click.echo(orjson.dumps(planned, option=orjson.OPT_INDENT_2))
    else:
        click.echo("\n".join(_lines(planned)))
    if planned["problems"]:
        raise SystemExit(1)
    if planned["drift"]:
        raise SystemExit(HAS_DRIFT)
    if exit_code and planned["has_changes"]:
        raise SystemExit(HAS_CHANGES)


@click.command(cls=command.Command, epilog="Example: atrium apply atrium.yaml --plan HASH")
@click.argument("file", type=FILE)
@click.option("--plan", "plan_hash", metavar="HASH", help="Do what this plan says, or nothing.")
@click.option("--yes", is_flag=True, help="Do not ask; only if no data is removed.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option(
    "--reverse",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the manifest that undoes it to this file.",
)
@click.option(
    "--accounts", metavar="SLUGS", help="Then bring these up to templates: all, or slugs."
)
@click.option("--force", is_flag=True, help="With --accounts: overwrite what they have changed.")
@AS
@with_appcontext
def apply(
    file: Path,
    plan_hash: str | None,
    yes: bool,
    as_json: bool,
    reverse: Path | None,
    accounts: str | None,
    force: bool,
    email: str | None,
) -> None:
    """Apply FILE in one transaction; asks on a terminal, unless --plan or --yes is given."""
    manifest = _read(file)
    given = manifest.content.get("account_templates", {})
    names = [name for name, one in given.items() if not one.get("removed")]
    if accounts and not names:
        raise click.UsageError("FILE has no account_templates that --accounts are brought up to.")
    if force and not accounts:
        raise click.UsageError("--force needs --accounts.")
    chosen = accounts if accounts == upgrades.ALL else (accounts or "").split(",")
    if plan_hash is None:
        plan_hash = _confirmed(manifest, email, yes=yes, quiet=as_json)
    with readable_problems(), superadmin(email) as by:
        if accounts:
            upgrades.check(chosen or "")
        result = service.apply(manifest, plan_hash, by=by)
    if reverse is not None and result["applied"]:
        reverse.write_text(document.dump(result["reverse"]))
    click.echo(orjson.dumps(result, option=orjson.OPT_INDENT_2) if as_json else _outcome(result))
    if accounts:
        with readable_problems(), superadmin(email) as by:
            _bring_up(names, chosen, force=force, by=by, quiet=as_json)


def _bring_up(
    names: Sequence[str], accounts: str | Sequence[str], *, force: bool, by: Principal, quiet: bool
) -> None:
    """Bring accounts up to templates, by jobs that workers go on with after a kill."""
    owner, has_failed = templates.operator(by.user_id), False
    for name in names:
        job = upgrades.order(name, accounts, force=force, by=owner, after=upgrades.LEFT_TO_WORKERS)
        for done in upgrades.run(job):
            click.echo(f"{done.account.slug}: {len(done.changes)} changed", err=quiet)
            for one in done.kept:
                properties = " ".join(one["properties"])
                text = f"    kept, as changed by hand: {one['place']} {properties}"
                click.echo(text, err=quiet)
        job = upgrades.get_job(name, job.id)
        for failure in job.failures:
            click.echo(f"{failure['account']}: failed: {failure['message']}", err=quiet)
        counts = f"{job.done} of {job.total} brought up, {job.kept} with changes by hand"
        click.echo(f"{name}: {counts}, {job.failed} failed. {job.error or ''}".strip(), err=quiet)
        has_failed |= bool(job.failed or job.error)
    if has_failed:
        raise SystemExit(1)


def _read(file: Path) -> Document:
    source = sys.stdin.buffer if str(file) == "-" else file.open("rb")
    with source:
        raw = source.read(document.MAX_BYTES + 1)
    try:
        with readable_problems():
            return document.parse(raw.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise click.ClickException("The file is not valid UTF-8.") from None


def _plan(manifest: Document, email: str | None, *, strict: bool = False) -> JSONObject:
    with readable_problems(), superadmin(email) as by:
        return service.plan(manifest, by=by, strict=strict)


def _confirmed(manifest: Document, email: str | None, *, yes: bool, quiet: bool) -> str:
    """Show the plan, and return its hash once it is approved."""
    planned = _plan(manifest, email)
    if not quiet or planned["problems"]:
        click.echo("\n".join(_lines(planned)), err=quiet)
    if planned["problems"]:
        raise SystemExit(1)
    removes = any(operation["action"] == "remove" for operation in planned["operations"])
    if yes and (removes or planned["data_lost"]):
        raise click.ClickException(DESTRUCTIVE)
    if planned["has_changes"] and not yes:
        if not sys.stdin.isatty():
            raise click.ClickException(UNCONFIRMED)
        click.confirm("Apply this plan?", abort=True)
    plan_hash: str = planned["plan_hash"]
    return plan_hash


@contextmanager
def readable_problems() -> Iterator[None]:
    """List the problems of invalid values, each with its line."""
    try:
        yield
    except InvalidValues as error:
        lines = [*_problem_lines(error.details)]
        raise click.ClickException("\n  ".join([error.message, *lines])) from error


def _problem_lines(problems: Sequence[JSONMapping]) -> Iterator[str]:
    for problem in problems:
        line = f"line {problem['line']}: " if problem.get("line") else ""
        field = f"{problem['field']}: " if problem["field"] else ""
        yield f"{line}{field}{problem['message']}"


def _lines(planned: JSONMapping) -> Iterator[str]:
    """Render a plan as text."""
    for operation in planned["operations"]:
        yield from _operation_lines(operation)
    yield from _section("SQL", planned["sql"])
    lost = (
        f"{'.'.join(filter(None, (one['collection'], one['field'])))}:"
        f" {one['count']} record{'' if one['count'] == 1 else 's'}"
        for one in planned["data_lost"]
    )
    yield from _section("Data lost", lost)
    access = (
        f"{one['collection']} {one['operation']} {one['role']}: +{one['gained']} -{one['lost']}"
        for one in planned["access"]
    )
    yield from _section("Access to records", access)
    yield from _section("Rule tests", map(_test_line, planned["tests"]))
    yield from _section("Warnings", _problem_lines(planned["warnings"]))
    yield from _section("Problems", _problem_lines(planned["problems"]))
    unlisted = (
        f"{one['kind']} {one['name']}" + (f" of {one['account']}" if one["account"] else "")
        for one in planned["drift"] or ()
    )
    yield from _section("Not in the file", unlisted)
    actions = [operation["action"] for operation in planned["operations"]]
    if actions:
        counts = (f"{actions.count(one)} to {one}" for one in SIGNS if one in actions)
        yield f"Plan: {', '.join(counts)}."
        yield f"Hash: {planned['plan_hash']}"
    else:
        yield "No changes."


def _operation_lines(operation: JSONMapping) -> Iterator[str]:
    account = f" of {operation['account']}" if operation["account"] else ""
    sign = SIGNS[operation["action"]]
    yield f"{sign} {operation['kind']} {operation['name']}{account}"
    for change in operation["changes"]:
        fields = (change.get("index") or {}).get("fields", ())
        names = filter(None, (change["operation"], change["field"], change["property"], *fields))
        values = (orjson.dumps(change.get(name)).decode() for name in ("before", "after"))
        yield f"    {' '.join(names)}" + (f": {' -> '.join(values)}" if "after" in change else "")


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    shown = [f"  {line}" for line in lines]
    yield from ([f"{title}:", *shown] if shown else ())


def _test_line(test: JSONMapping) -> str:
    outcome = "passed" if test["passed"] else f"FAILED, expected {test['expected']}"
    name = f" {test['name']}" if test["name"] else ""
    return f"line {test['line']}: {test['collection']} {test['operation']}{name}: {outcome}"


def _outcome(result: JSONMapping) -> str:
    """The result of applying a manifest as text."""
    if not result["applied"]:
        return "No changes."
    secrets = (
        f"The secret of {one['kind']} {one['name']} of {one['account']}, shown once:"
        f" {one['secret']}"
        for one in result["secrets"]
    )
    count = len(result["operations"])
    return "\n".join([*secrets, f"Applied {count} change{'' if count == 1 else 's'}."])
