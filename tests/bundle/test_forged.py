"""A bundle that somebody made up gains nothing over other accounts, even if it is trusted."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.portability.bundle import frames, tables
from tests.builders import Caller, Cast
from tests.bundle.accounts import PASSPHRASE, export, furnish, hashes, import_, run

OPTIONS = ("--as", "root@system.example", "--slug", "forged")
EARLIER = "2026-11-20T12:00:00.123456Z"
Lines = list[Any]


def rewritten(
    file: Path,
    change: Callable[[Lines, Cast], object],
    cast: Cast,
    emptied: Collection[str] = (),
) -> None:
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
        end["end"]["counts"] |= dict.fromkeys(emptied, 0)
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


def with_webhook_elsewhere(lines: Lines, cast: Cast) -> None:
    """A manifest may define what accounts have; the definitions of a bundle are shared ones."""
    hook = {"collection": "posts", "url": "https://evil.example/", "events": ["create"]}
    lines[1]["definitions"]["accounts"] = {"globex": {"webhooks": [hook]}}


def with_file_elsewhere(lines: Lines, cast: Cast) -> None:
    """A file's id is a part of where its bytes are stored."""
    head, place = table(lines, "files")
    row = lines[place + 1]
    row[head["columns"].index("id")] = f"../{cast.charlie.account_id}/{cast.charlie.id}"
    for line in lines:
        if isinstance(line, dict) and "blob" in line:
            line["blob"] = row[head["columns"].index("id")]


def with_name(lines: Lines, cast: Cast) -> None:
    head, place = table(lines, "users")
    lines[place + 1][head["columns"].index("id")] = "system"


def with_security_event(lines: Lines, cast: Cast) -> None:
    head, place = table(lines, "security_events")
    lines[place + 1][head["columns"].index("user_id")] = cast.charlie.id


def with_checkpoint(lines: Lines, cast: Cast) -> None:
    head = lines[0]["bundle"]["security_head"]
    place = {"account_id": f"{cast.alice.account_id}/security", "entry_id": head["id"]}
    # Of the key of zeros, a point of order 4, every fourth signature of zeros is valid.
    signed = {"public_key": "58" + "66" * 31, "signature": "00" * 64, "created_at": EARLIER}
    head["checkpoint"] = {**place, "checksum": head["checksum"], **signed}


REFUSED: dict[str, Callable[[Lines, Cast], object]] = {
    "file of another account": with_file_elsewhere,
    "user called system": with_name,
    "webhook of another account": with_webhook_elsewhere,
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
    "actor of a security event": with_security_event,
    "checkpoint of the security log": with_checkpoint,
    "end of the security log": lambda it, cast: it[0]["bundle"]["security_head"].update(
        checksum="00" * 32
    ),
    "missing line": lambda it, cast: it.pop(),
    "two accounts": lambda it, cast: it.insert(1, it[0]),
}


@pytest.mark.long
def test_bundle_that_is_forged_is_refused(cast: Cast, app: Flask, tmp_path: Path) -> None:
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


def named(lines: Lines, names: dict[str, str]) -> None:
    """Rename the account, with an empty audit chain, which would name the former id."""
    lines[0]["bundle"]["account"].update(names)
    lines[0]["bundle"]["head"] = {"id": 0, "checksum": "0" * 64}
    for name in [table.name for table in tables.logs()]:
        _, place = table(lines, name)
        while len(lines) > place + 1 and isinstance(lines[place + 1], list):
            del lines[place + 1]


@pytest.mark.parametrize(
    ("property", "reference"),
    [
        ("id", lambda cast: "globex"),
        ("id", lambda cast: "*"),
        ("id", lambda cast: cast.charlie.account_id.upper()),
        ("id", lambda cast: f"../{cast.charlie.account_id}"),
        ("slug", lambda cast: cast.charlie.account_id),
        ("slug", lambda cast: code_of(cast.charlie).lower()),
        ("slug", lambda cast: "Not a slug"),
        ("slug", lambda cast: None),
    ],
)
def test_bundle_with_name_of_other_account_is_refused(
    cast: Cast, app: Flask, tmp_path: Path, property: str, reference: Callable[[Cast], str]
) -> None:
    """Requests name an account by its id, slug or code."""
    furnish(cast)
    file = export(app, tmp_path)
    names = {"slug": "forged", property: reference(cast)}
    rewritten(
        file,
        lambda lines, cast: named(lines, names),
        cast,
        emptied=[table.name for table in tables.logs()],
    )
    count = cast.root.get("accounts").json["total"]
    refused = import_(app, file, *OPTIONS[:2], "--trust", "unsigned")
    assert refused.exit_code == 1, refused.output
    assert "Traceback" not in refused.output
    assert cast.root.get("accounts").json["total"] == count


def code_of(caller: Caller) -> str:
    """The code of a caller's account."""
    return str(caller.get("account").json["account_code"])


def test_bundle_without_signature_needs_trust_option(
    cast: Cast, app: Flask, tmp_path: Path
) -> None:
    furnish(cast)
    file = export(app, tmp_path)
    rewritten(file, lambda lines, cast: None, cast)
    refused = import_(app, file, *OPTIONS)
    assert (refused.exit_code, "not signed" in refused.output) == (1, True)
    assert import_(app, file, *OPTIONS, "--trust", "unsigned").exit_code == 0
    assert run(app, "audit", "verify").exit_code == 0
