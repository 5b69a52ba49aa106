"""`atrium account ...`: export an account to a bundle, import and clone it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import orjson
import sqlalchemy as sa
from flask.cli import with_appcontext

from app import clock, db
from app.accounts.models import Account
from app.auth import principal as principals
from app.auth.commands import AS, superadmin
from app.manifest.commands import readable_problems
from app.ops import command
from app.portability import certificates
from app.portability.bundle import contents, exporting, frames, importing, restoring, snapshot
from app.portability.bundle.importing import Imported

account = command.Group(
    "account",
    help="Export, import, clone and restore an account; certify a deletion.",
    epilog="Example: atrium account export acme acme.bundle",
)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
PASSPHRASE = click.option(
    "--passphrase-file", type=FILE, help="The passphrase is the first line of this file."
)
SLUG = click.option("--slug", help="The slug of the new account, instead of that in the bundle.")
TOO_SHORT = f"A passphrase has at least {frames.SHORTEST_PASSPHRASE} characters."


@account.command("export", epilog="Example: atrium account export acme acme.bundle")
@click.argument("slug")
@click.argument("file", type=NEW_FILE)
@PASSPHRASE
@with_appcontext
def export(slug: str, file: Path, passphrase_file: Path | None) -> None:
    """Write the account SLUG to a new FILE, encrypted to a passphrase; the service may run."""
    account_id = _account_id(slug)
    passphrase = _passphrase(passphrase_file, confirm=True)
    with _new_file(file) as draft:
        snapshot.seal_events(account_id)
        _write(account_id, draft, passphrase)
    click.echo(f"Exported {slug} to {file}.")


@account.command("import", epilog="Example: atrium account import acme.bundle")
@click.argument("file", type=FILE)
@SLUG
@PASSPHRASE
@click.option(
    "--trust",
    metavar="KEY",
    help="The public key of another instance that signed the bundle, or `unsigned`.",
)
@AS
@with_appcontext
def import_(
    file: Path,
    slug: str | None,
    passphrase_file: Path | None,
    trust: str | None,
    email: str | None,
) -> None:
    """Create an account from the bundle FILE, under the same ids where they are free."""
    imported = _import(file, _passphrase(passphrase_file), slug, email, trusted=trust)
    chain = "with its audit chain" if imported.is_same else "under a new id, with a new audit chain"
    click.echo(f"Imported {imported.slug} ({imported.account_id}), {chain}.")


@account.command("clone", epilog="Example: atrium account clone acme acme-staging")
@click.argument("slug")
@click.argument("new_slug")
@AS
@with_appcontext
def clone(slug: str, new_slug: str, email: str | None) -> None:
    """Copy the account SLUG to a new account NEW_SLUG.

    Webhooks and workflows of the copy are disabled, and it has no API keys.
    """
    account_id, passphrase = _account_id(slug), os.urandom(32).hex()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "bundle")
        _write(account_id, file, passphrase)
        imported = _import(
            file, passphrase, new_slug, email, trusted=contents.UNSIGNED, as_copy=True
        )
    click.echo(f"Cloned {slug} to {imported.slug} ({imported.account_id}).")


@account.command("restore", epilog="Example: atrium account restore acme --at 2026-11-26T12:00Z")
@click.argument("slug")
@click.option("--at", required=True, metavar="TIME", help="In ISO 8601; UTC without an offset.")
@click.option("--yes", is_flag=True, help="Change the records; else only show what would change.")
@AS
@with_appcontext
def restore(slug: str, at: str, yes: bool, email: str | None) -> None:
    """Make the records of the account SLUG what they were at a moment, as audited changes."""
    try:
        moment = clock.parse(at)
    except ValueError:
        raise click.ClickException(f"{at} is no time, such as 2026-11-26T12:00Z.") from None
    account_id = _account_id(slug)
    with readable_problems(), superadmin(email) as root:
        by = principals.choose_account(root, account_id)
        run = restoring.apply if yes else restoring.plan
        counts = run(moment, by=by)
    for (collection, action), count in sorted(counts.items()):
        click.echo(f"{collection}: {action} {count}")
    if counts and not yes:
        click.echo("Nothing was changed. Restore them with --yes.")
    if not counts:
        click.echo("All records are what they were.")


@account.command("certificate", epilog="Example: atrium account certificate 019a9f00-... > it")
@click.argument("account_id")
@with_appcontext
def certificate(account_id: str) -> None:
    """Print the signed certificate of the deletion of the account ACCOUNT_ID."""
    click.echo(orjson.dumps(certificates.get(account_id)))


def _import(
    file: Path,
    passphrase: str,
    slug: str | None,
    email: str | None,
    *,
    trusted: str | None,
    as_copy: bool = False,
) -> Imported:
    with command.progress("Lines verified") as show:
        bundle = contents.load(
            file, passphrase, trusted=trusted, progress=lambda done: show(done, 0)
        )
    with readable_problems(), superadmin(email) as by, command.progress("Rows imported") as show:
        return importing.run(
            bundle, by=by, slug=slug, as_copy=as_copy, progress=lambda done: show(done, 0)
        )


def _write(account_id: str, file: Path, passphrase: str) -> None:
    header = frames.new_header()
    key = frames.derive_key(passphrase, header)
    with file.open("wb") as target, command.progress("Lines written") as show:
        exporting.write(account_id, target, header, key, lambda done: show(done, 0))


def _account_id(slug: str) -> str:
    account_id = db.db.session.scalar(sa.select(Account.id).where(Account.slug == slug.lower()))
    if account_id is None:
        raise click.ClickException(f"There is no account with the slug {slug}.")
    return account_id


def _passphrase(file: Path | None, *, confirm: bool = False) -> str:
    if file is not None:
        passphrase = (file.read_text(errors="replace").splitlines() or [""])[0]
    else:
        passphrase = click.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm)
    if len(passphrase) < frames.SHORTEST_PASSPHRASE:
        raise click.ClickException(TOO_SHORT)
    return passphrase


@contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """A draft that gets the name of a new file at the end of the block."""
    if path.exists():
        raise click.ClickException(f"{path} exists already: choose another file.")
    number, name = tempfile.mkstemp(".part", f"{path.name}.", path.parent)
    os.close(number)
    try:
        yield Path(name)
        Path(name).rename(path)
    finally:
        Path(name).unlink(missing_ok=True)
