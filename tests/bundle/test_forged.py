"""A bundle that somebody made up gains nothing over other accounts, even if it is trusted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.bundle import frames
from tests.builders import Cast
from tests.bundle.accounts import PASSPHRASE, export, furnish, hashes, import_, run

OPTIONS = ("--as", "root@system.example", "--slug", "forged")
EARLIER = "2026-11-20T12:00:00.123456Z"
Lines = list[Any]


def rewritten(file: Path, change: Callable[[Lines, Cast], None], cast: Cast) -> None:
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


def with_security_event(lines: Lines, cast: Cast) -> None:
    head, place = table(lines, "security_events")
    lines[place + 1][head["columns"].index("user_id")] = cast.charlie.id


def with_checkpoint(lines: Lines, cast: Cast) -> None:
    head = lines[0]["bundle"]["security_head"]
    place = {"account_id": f"{cast.alice.account_id}/security", "entry_id": head["id"]}
    signed = {"public_key": "00" * 32, "signature": "00" * 64, "created_at": EARLIER}
    head["checkpoint"] = {**place, "checksum": head["checksum"], **signed}


REFUSED: list[Any] = [
    pytest.param(lambda it, cast: with_account(it, cast.charlie.account_id), id="other account"),
    pytest.param(lambda it, cast: with_account(it, SYSTEM_ACCOUNT_ID), id="system account"),
    pytest.param(lambda it, cast: table(it, "groups")[0].update(table="sessions"), id="table"),
    pytest.param(lambda it, cast: table(it, "groups")[0].update(table="roles"), id="shared table"),
    pytest.param(
        lambda it, cast: table(it, "records/posts")[0].update(table="records/unused"),
        id="other collection",
    ),
    pytest.param(with_column, id="account of a user"),
    pytest.param(with_record_column, id="account of a record"),
    pytest.param(with_no_date, id="no date"),
    pytest.param(with_audit_entry, id="actor of an entry"),
    pytest.param(with_security_event, id="actor of a security event"),
    pytest.param(with_checkpoint, id="checkpoint of the security log"),
    pytest.param(
        lambda it, cast: it[0]["bundle"]["security_head"].update(checksum="00" * 32),
        id="end of the security log",
    ),
    pytest.param(lambda it, cast: it.pop(), id="missing line"),
    pytest.param(lambda it, cast: it.insert(1, it[0]), id="two accounts"),
]


@pytest.mark.parametrize("change", REFUSED)
def test_a_forged_bundle_is_refused(
    cast: Cast, app: Flask, tmp_path: Path, change: Callable[[Lines, Cast], None]
) -> None:
    furnish(cast)
    file = export(app, tmp_path)
    rewritten(file, change, cast)
    accounts = (cast.alice.account_id, cast.charlie.account_id, SYSTEM_ACCOUNT_ID)
    before, count = hashes(app, *accounts), cast.root.get("accounts").json["total"]
    refused = import_(app, file, *OPTIONS, "--trust", "unsigned")
    assert refused.exit_code == 1, refused.output
    assert hashes(app, *accounts) == before
    assert cast.root.get("accounts").json["total"] == count


def test_only_a_trusted_one_is_imported(cast: Cast, app: Flask, tmp_path: Path) -> None:
    furnish(cast)
    file = export(app, tmp_path)
    rewritten(file, lambda lines, cast: None, cast)
    refused = import_(app, file, *OPTIONS)
    assert (refused.exit_code, "not signed" in refused.output) == (1, True)
    assert import_(app, file, *OPTIONS, "--trust", "unsigned").exit_code == 0
    assert run(app, "audit", "verify").exit_code == 0
