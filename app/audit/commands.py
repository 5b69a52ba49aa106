"""`atrium audit ...`: verify the log or an export of it, and make checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import orjson

from app.audit import checkpoints, exports
from app.audit.chain import signing, verify
from app.audit.log import AUDIT
from app.audit.security_log import service as security_log
from app.ops import command
from app.types import JSONObject

audit = command.Group(
    "audit", help="The audit log.", epilog="Example: atrium audit verify --checkpoint sealed.jsonl"
)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@audit.command("verify")
@click.option("--account", help="Only the chain of the account with this id.")
@click.option("--file", type=FILE, help="An export (.jsonl, .json, .csv) instead of the database.")
@click.option("--checkpoint", type=FILE, help="Checkpoints stored elsewhere, one per line.")
def verify_log(account: str | None, file: Path | None, checkpoint: Path | None) -> None:
    """Verify every chain; exits with status 1 if one is broken."""
    account = account and account.lower()
    try:
        stored = _read_checkpoints(checkpoint) if checkpoint else ()
        expected = [item for item in stored if account in (None, item["account_id"])]
        with command.progress("Entries verified") as show:
            result = _verified(account, file, expected, lambda count: show(count, 0))
            show(result["checked"], 0)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise click.ClickException(
            "The file is neither an audit export nor a list of checkpoints."
        ) from error
    if file and account and not result["chains"]:
        raise click.ClickException(f"The file has no entries of the account {account}.")
    for fault in verify.faults(result):
        click.echo(f"BROKEN: {fault}")
    counts = ("checked", "unsealed", "values_masked", "values_erased")
    click.echo(", ".join(f"{name} {result[name]}" for name in counts))
    for report in result["chains"]:
        if report["valid"] and report["head"]:
            head = report["head"]
            click.echo(f"valid: {report['account_id']} up to {head['id']} {head['checksum']}")
    if not result["valid"]:
        raise SystemExit(1)


def _verified(
    account: str | None,
    file: Path | None,
    expected: Sequence[signing.Checkpoint],
    show: verify.Progress,
) -> verify.Summary:
    if file:
        entries = (item for item in exports.read(file) if account in (None, item["account_id"]))
        return verify.verify_export(entries, expected, show)
    return verify.require_chain(account, verify.verify_all(AUDIT, account, expected, show))


@audit.command("verify-security")
@click.option("--account", help="Only the security log of the account with this id.")
def verify_security_logs(account: str | None) -> None:
    """Verify the security log of every account; exits with status 1 if one is broken."""
    reports = [security_log.verify_chain(id) for id in security_log.account_ids(account)]
    for report in reports:
        state = "valid up to" if report["valid"] else f"BROKEN ({report['reason']}) at"
        head = report["head"] or {"id": 0}
        number = head["id"] if report["valid"] else report["first_broken_id"]
        click.echo(f"{report['account_id']}: {state} {number}")
    if not all(report["valid"] for report in reports):
        raise SystemExit(1)


@audit.command("checkpoint")
def make_checkpoints() -> None:
    """Sign the head of every chain that has grown since its last checkpoint."""
    click.echo(f"{checkpoints.create_due()} checkpoints made.")


@audit.command("checkpoints")
def list_checkpoints() -> None:
    """Print all checkpoints, one per line, as `verify --checkpoint` reads them."""
    for checkpoint in checkpoints.for_account():
        click.echo(orjson.dumps(checkpoint))


def _read_checkpoints(path: Path) -> Iterator[JSONObject]:
    for line in path.read_bytes().splitlines():
        if line.strip():
            value = orjson.loads(line)
            # The file may also be a page of the API.
            yield from value.get("items") or value.get("checkpoints") or [value]
