"""A bundle that somebody made up gains nothing over other accounts, even if it is trusted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flask import Flask

from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.bundle import frames
from tests.builders import Cast
from tests.bundle.accounts import PASSPHRASE, export, furnish, hashes, import_, run

OPTIONS = ("--as", "root@system.example", "--slug", "forged")
Lines = list[Any]


def rewritten(file: Path, change: Callable[[Lines, Cast], object], cast: Cast) -> None:
    """Change the lines of a bundle, as who knows its passphrase can."""
    with file.open("rb") as source:
        lines = list(frames.Reader(source, PASSPHRASE).lines())
    end = lines.pop()
    change(lines, cast)
    header = frames.new_header()
    with file.open("wb") as target:
        writer = frames.Writer(target, header, frames.derive_key(PASSPHRASE, header))
        for line in lines:
            (writer.write_bytes if isinstance(line, bytes) else writer.write)(line)
        assert isinstance(end, dict)
        writer.write({"end": {"counts": end["end"]["counts"], "digest": writer.digest}})
        writer.close()


def table(lines: Lines, name: str) -> tuple[Any, int]:
    """The line that begins a table, and its place."""
    place = next(
        i
        for i, one in enumerate(lines)
        if isinstance(one, dict) and "table" in one and one["table"] == name
    )
    return lines[place], place


def with_account(lines: Lines, account_id: str) -> None:
    lines[0]["bundle"]["account"]["id"] = account_id


def with_column(lines: Lines, cast: Cast) -> None:
    head, place = table(lines, "users")
    head["columns"].append("account_id")
    for row in lines[place + 1 :]:
        if not isinstance(row, list):
            return
        row.append(cast.charlie.account_id)


def with_record_column(lines: Lines, cast: Cast) -> None:
    head, place = table(lines, "records/posts")
    head["columns"].append("account_id")
    for row in lines[place + 1 :]:
        if not isinstance(row, list):
            return
        row.append(cast.charlie.account_id)


def with_no_date(lines: Lines, cast: Cast) -> None:
    head, place = table(lines, "records/authors")
    lines[place + 1][head["columns"].index("born")] = "yesterday"


def with_audit_entry(lines: Lines, cast: Cast) -> None:
    head, place = table(lines, "audit_changes")
    lines[place + 1][head["columns"].index("user_id")] = cast.charlie.id


REFUSED: dict[str, Callable[[Lines, Cast], object]] = {
    "other account": lambda it, cast: with_account(it, cast.charlie.account_id),
    "system account": lambda it, cast: with_account(it, SYSTEM_ACCOUNT_ID),
    "table": lambda it, cast: table(it, "groups")[0].update(table="sessions"),
    "shared table": lambda it, cast: table(it, "groups")[0].update(table="roles"),
    "other collection": lambda it, cast: table(it, "records/posts")[0].update(
        table="records/unused"
    ),
    "account of a user": with_column,
    "account of a record": with_record_column,
    "no date": with_no_date,
    "actor of an entry": with_audit_entry,
    "missing line": lambda it, cast: it.pop(),
    "two accounts": lambda it, cast: it.insert(1, it[0]),
}


def test_a_forged_bundle_is_refused(cast: Cast, app: Flask, tmp_path: Path) -> None:
    furnish(cast)
    file = export(app, tmp_path)
    genuine = file.read_bytes()
    accounts = (cast.alice.account_id, cast.charlie.account_id, SYSTEM_ACCOUNT_ID)
    before, count = hashes(app, *accounts), cast.root.get("accounts").json["total"]
    for name, change in REFUSED.items():
        file.write_bytes(genuine)
        rewritten(file, change, cast)
        refused = import_(app, file, *OPTIONS, "--trust", "unsigned")
        assert refused.exit_code == 1, (name, refused.output)
        assert hashes(app, *accounts) == before, name
        assert cast.root.get("accounts").json["total"] == count, name


def test_only_a_trusted_one_is_imported(cast: Cast, app: Flask, tmp_path: Path) -> None:
    furnish(cast)
    file = export(app, tmp_path)
    rewritten(file, lambda lines, cast: None, cast)
    refused = import_(app, file, *OPTIONS)
    assert (refused.exit_code, "not signed" in refused.output) == (1, True)
    assert import_(app, file, *OPTIONS, "--trust", "unsigned").exit_code == 0
    assert run(app, "audit", "verify").exit_code == 0
