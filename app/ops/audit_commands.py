"""`flask audit ...`: verify the log or an export of it, and make checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import orjson

from app.audit import checkpoints, exports, verify
from app.ops import command

audit = command.Group("audit", help="The audit log.")
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@audit.command("verify")
@click.option("--account", help="Only the chain of the account with this id.")
@click.option("--file", type=FILE, help="An export (.jsonl, .json, .csv) instead of the database.")
@click.option("--checkpoint", type=FILE, help="Checkpoints kept elsewhere, one in each line.")
def verify_log(account: str | None, file: Path | None, checkpoint: Path | None) -> None:
    """Verify every chain; the exit status is 1 where one is broken."""
    account = account and account.lower()
    try:
        given = _checkpoints(checkpoint) if checkpoint else ()
        kept = [one for one in given if account in (None, one["account_id"])]
        if file:
            entries = (one for one in exports.read(file) if account in (None, one["account_id"]))
            found = verify.verify_export(entries, kept, _progress)
        else:
            found = verify.require_chain(account, verify.verify_all(account, kept, _progress))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise click.ClickException("The file is neither an export nor checkpoints.") from error
    if file and account and not found["chains"]:
        raise click.ClickException(f"The file has nothing of the account {account}.")
    for fault in verify.faults(found):
        click.echo(f"BROKEN: {fault}")
    told = ("checked", "values_masked", "values_erased")
    click.echo(", ".join(f"{name} {found[name]}" for name in told))
    for report in found["chains"]:
        if report["valid"] and report["head"]:
            head = report["head"]
            click.echo(f"valid: {report['account_id']} up to {head['id']} {head['checksum']}")
    if not found["valid"]:
        raise SystemExit(1)


@audit.command("checkpoint")
def make_checkpoints() -> None:
    """Sign the head of every chain that has grown since its last checkpoint."""
    click.echo(f"{checkpoints.create_due()} checkpoints made.")


@audit.command("checkpoints")
def list_checkpoints() -> None:
    """Print all checkpoints, one in each line: what `verify --checkpoint` reads."""
    for one in checkpoints.for_account():
        click.echo(orjson.dumps(one))


def _progress(checked: int) -> None:
    click.echo(f"\r{checked} entries checked", nl=False, err=True)


def _checkpoints(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().splitlines():
        if line.strip():
            one = orjson.loads(line)
            # A page of the API is as good as a file of lines.
            yield from one.get("items") or one.get("checkpoints") or [one]
