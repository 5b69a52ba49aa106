"""`/account/export`: admins export their account; nobody else gets the bundle."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from flask import Flask

from app import clock
from app.accounts import service as accounts
from app.db import Base, db
from app.errors import Unavailable
from app.files import purge, storage
from app.portability.bundle import exporting, exports
from tests.builders import Cast, make_collection, make_record, make_user
from tests.bundle.accounts import PAPER, PASSPHRASE, furnish, import_, run
from tests.mailbox import run_jobs
from tests.security.reading import CUSTOMERS, reads

BODY = {"passphrase": PASSPHRASE}
ROOT = ("--as", "root@system.example")


def exported(cast: Cast, app: Flask) -> dict[str, Any]:
    """An export that is ready."""
    started = cast.alice.post("account/export", BODY)
    assert (started.status_code, started.json["status"]) == (202, "pending")
    run_jobs(app)
    found: dict[str, Any] = cast.alice.get(f"account/export/{started.json['id']}").json
    return found


def test_account_export_bundle_can_be_imported(cast: Cast, app: Flask, tmp_path: Path) -> None:
    furnish(cast)
    export = exported(cast, app)
    assert export["status"] == "ready"
    answer = cast.alice.get(f"account/export/{export['id']}/download")
    assert (answer.status_code, len(answer.data)) == (200, export["size"])
    assert "attachment" in answer.headers["Content-Disposition"]
    file = tmp_path / "fetched.bundle"
    file.write_bytes(answer.data)
    file.with_name("passphrase").write_text(PASSPHRASE)
    assert PASSPHRASE.encode() not in answer.data
    result = import_(app, file, *ROOT, "--slug", "acme-again")
    assert result.exit_code == 0, result.output
    assert run(app, "audit", "verify").exit_code == 0


def test_account_export_order_and_download_are_recorded_as_reads(cast: Cast, app: Flask) -> None:
    """A bundle has personal data unmasked."""
    for name in ("customers", "leads"):
        make_collection(cast.root, name, CUSTOMERS)
    make_collection(cast.root, "posts")
    for name, fields in (("customers", {"email": "zoe@example.org"}), ("posts", {})):
        make_record(cast.alice, name, **fields)
    make_record(cast.charlie, "leads", email="max@example.org")
    export = exported(cast, app)
    assert len(reads(cast.alice, path="bundle")) == 1
    answer = cast.alice.get(f"account/export/{export['id']}/download")
    assert answer.status_code == 200
    found = reads(cast.alice, path="bundle")
    shown = [(one["user_id"], one["target_type"], one["details"]["fields"]) for one in found]
    assert shown == [(cast.alice.id, "col_customers", ["email"])] * 2
    assert not reads(cast.charlie, path="bundle")


def test_account_export_replaces_bundle_of_former_export(cast: Cast, app: Flask) -> None:
    """Or an account's exports of an hour could fill the disk of all."""
    for _ in range(3):
        exported(cast, app)
    with app.app_context():
        stored = [*storage.current().blobs(f"{cast.alice.account_id}/")]
    assert len(stored) == 1


def test_account_export_fails_with_too_little_free_disk(
    cast: Cast, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(cast)
    monkeypatch.setattr(exporting, "PIECE", 1)
    monkeypatch.setattr(storage, "free_bytes", lambda: 100 * 2**20)
    export = exported(cast, app)
    assert (export["status"], export["error"]) == ("failed", storage.FULL)


def test_account_export_requires_recent_sign_in_and_pii_access(cast: Cast, app: Flask) -> None:
    export = exported(cast, app)
    download = f"account/export/{export['id']}/download"
    outsider = make_user(app, cast.alice.account_id, "eve@acme.example", "admin")
    eve = type(cast.alice)(app, outsider)
    refused = eve.post("account/export", BODY)
    assert (refused.status_code, "pii_access" in refused.json["message"]) == (403, True)
    assert eve.get(download).status_code == 403
    key = cast.alice.post("api-keys", {"name": "k"}).json["key"]
    robot = type(cast.alice)(app, **{"X-API-Key": key})
    assert robot.post("account/export", BODY).status_code == 403
    with time_machine.travel(clock.now() + timedelta(minutes=16)):
        for answer in (cast.alice.post("account/export", BODY), cast.alice.get(download)):
            assert answer.json["error"] in ("recent_sign_in_required", "token_expired")
    with app.app_context():
        accounts.join_group(db.session.merge(outsider), "pii_access")
    assert eve.get(download).status_code == 200


@pytest.mark.parametrize("passphrase", ["", "short", 12_345_678_901_234, None])
def test_account_export_with_short_passphrase_is_422(cast: Cast, passphrase: object) -> None:
    assert cast.alice.post("account/export", {"passphrase": passphrase}).status_code == 422


def test_account_export_second_while_running_is_409(cast: Cast, app: Flask) -> None:
    first = exported(cast, app)
    second = cast.alice.post("account/export", BODY).json
    assert cast.alice.post("account/export", BODY).status_code == 409
    assert cast.alice.get(f"account/export/{second['id']}/download").status_code == 409
    assert cast.alice.get(f"account/export/{first['id']}").status_code == 404
    run_jobs(app)
    assert cast.alice.get(f"account/export/{second['id']}/download").status_code == 200


def test_account_export_bundle_expires_after_24_hours(cast: Cast, app: Flask) -> None:
    export = exported(cast, app)
    with app.app_context():
        with time_machine.travel(clock.now() + timedelta(hours=23)):
            purge.sweep({})
            exports.expire({})
            assert len(list(storage.current().blobs())) == 1
        with time_machine.travel(clock.now() + timedelta(hours=25)):
            exports.expire({})
            assert not list(storage.current().blobs())
    assert cast.alice.get(f"account/export/{export['id']}").status_code == 404


def test_account_export_list_keeps_former_exports(cast: Cast, app: Flask) -> None:
    first, second = exported(cast, app), exported(cast, app)
    listed = cast.alice.get("account/export?limit=5").json
    assert [(one["id"], one["status"]) for one in listed["items"]] == [
        (second["id"], "ready"),
        (first["id"], "expired"),
    ]
    assert (listed["total"], listed["items"][1]["size"]) == (2, first["size"])
    assert cast.charlie.get("account/export").json["total"] == 0
    with app.app_context():
        exports.expire({})
        purge.sweep({})
        assert [blob.key.rpartition("/")[2] for blob in storage.current().blobs()] == [second["id"]]
    assert cast.alice.get("account/export").json == {**listed, "limit": 25, "page_size": 25}
    with app.app_context(), time_machine.travel(clock.now() + timedelta(days=91)):
        for _ in range(2):  # first the bundle expires, then its row
            exports.expire({})
        assert db.session.query(exports.AccountExport).count() == 0


def test_account_export_deletion_removes_bundle(cast: Cast, app: Flask) -> None:
    export = f"account/export/{exported(cast, app)['id']}"
    assert cast.alice.delete(export).status_code == 204
    assert [cast.alice.delete(export).status_code, cast.alice.get(export).status_code] == [404] * 2
    assert cast.alice.get("account/export").json["items"] == []
    with app.app_context():
        assert not list(storage.current().blobs())


def test_account_export_deleted_while_running_leaves_no_bundle(
    cast: Cast, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = cast.alice.post("account/export", BODY).json
    write = exports._write

    def write_and_delete(path: Path, payload: dict[str, Any]) -> None:
        write(path, payload)
        assert cast.alice.delete(f"account/export/{started['id']}").status_code == 204

    monkeypatch.setattr(exports, "_write", write_and_delete)
    run_jobs(app)
    assert cast.alice.get("account/export").json["total"] == 0
    with app.app_context():
        assert not list(storage.current().blobs())


def test_account_export_contents_equal_bundle(cast: Cast, app: Flask) -> None:
    furnish(cast)
    contents = cast.alice.get("account/export/contents").json
    assert contents.pop("record_bytes") > 0
    assert contents == {"records": 3, "files": 1, "file_bytes": len(PAPER), "users": 2}


def test_account_export_failure_has_status_and_error(
    cast: Cast, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise Unavailable(storage.FULL)

    monkeypatch.setattr(exports, "_write", fail)
    export = exported(cast, app)
    assert (export["status"], export["error"]) == ("failed", storage.FULL)
    assert cast.alice.post("account/export", BODY).status_code == 202


def test_account_export_passphrase_is_not_stored(cast: Cast, app: Flask) -> None:
    cast.alice.post("account/export", BODY)
    with app.app_context():
        dump = "".join(
            repr(db.session.connection().execute(table.select()).all())
            for table in Base.metadata.tables.values()
        )
    assert "export_id" in dump
    assert PASSPHRASE not in dump
