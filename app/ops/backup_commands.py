"""`atrium backup` and `atrium restore`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from flask.cli import with_appcontext

from app import clock, config
from app.ops import backup_proofs, backup_runs, backup_targets, backups, command, scratch
from app.ops.backups import BackupError

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(cls=command.Command, epilog="Example: atrium backup /backups/2026-11-26.atrium")
@click.argument("file", type=FILE, required=False)
@click.option("--verify", is_flag=True, help="Prove it: restore it elsewhere, count and verify.")
@click.option("--list", "lists", is_flag=True, help="List scheduled backups, or say what FILE is.")
@with_appcontext
def backup(file: Path | None, verify: bool, lists: bool) -> None:
    """Back up the database to a new FILE, uploaded files beside it; the service may run."""
    if lists and not verify:
        _list(file)
    elif file and not lists:
        _make(file, verify)
    else:
        raise click.UsageError("Give a FILE, or --list.")


def _make(file: Path, verify: bool) -> None:
    started_at = clock.now()
    saved = backups.create(file)
    click.echo(
        f"Saved the database to {file}. Keep SERVICE_ENCRYPTION_KEY, too: the file holds no keys."
    )
    if backups.has_files(file):
        click.echo(f"Saved the uploaded files to {backups.archive_of(file)}.")
    elif config.current().files_url:
        click.echo("Uploaded files are NOT included: they are in the bucket of SERVICE_FILES_URL.")
    if not verify:
        return
    place = (str(file.resolve().parent), file.name, started_at)
    try:
        proof = backup_proofs.prove(file, saved)
    except BackupError as error:
        backup_runs.record(*place, error)
        raise
    backup_runs.record(*place, proof)
    files = proof["files"]
    compared = f", and {files['count']} uploaded files" if files else ""
    click.echo(
        f"Proved: {proof['rows']} rows and {proof['audit_entries']} audit entries are as they"
        f" were{compared}. {backups.proof_of(file)} says so."
    )
    if files and files["missing"]:
        click.echo(f"{files['missing']} uploaded files are missing in the service, too.", err=True)


def _list(file: Path | None) -> None:
    if file:
        proof = backup_proofs.require_unaltered(file)
        click.echo(f"proved on {proof['proved_at']}" if proof else "not proved")
        return
    target, altered = backup_targets.current(), 0
    for stored in target.backups():
        is_unaltered = target.is_unaltered(stored)
        altered += not is_unaltered
        state = "proved" if is_unaltered else "altered since it was proved"
        click.echo(f"{stored.name}  {stored.size:>15,} bytes  {state}")
    if altered:
        raise click.exceptions.Exit(1)


@click.command(
    cls=command.Command,
    epilog="Example: atrium restore /backups/2026-11-26.atrium --replace",
)
@click.argument("file", type=FILE)
@click.option("--replace", is_flag=True, help="Overwrite existing data.")
@with_appcontext
def restore(file: Path, replace: bool) -> None:
    """Restore the database from FILE, or from a scheduled backup by its name.

    Stop web and worker processes first.
    """
    with _located(file) as path:
        proof = backup_proofs.require_unaltered(path)
        if proof:
            click.echo(f"The backup is as it was proved on {proof['proved_at']}.")
        backups.restore(path, replacing=replace)
    click.echo("Restored. Now run atrium db upgrade, and atrium audit verify.")


@contextmanager
def _located(file: Path) -> Iterator[Path]:
    """The file, or the scheduled backup of this name."""
    url, is_name = config.current().backup_target, backup_targets.NAME.fullmatch(str(file))
    if file.exists() or not url or not is_name:
        yield file
        return
    target = backup_targets.current()
    with scratch.folder(scratch.parent_folder()) as folder:
        yield target.fetch(file.name, folder)
