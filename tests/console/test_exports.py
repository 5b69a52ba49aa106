"""The page of an account's exports, and that of deleted accounts."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from html import unescape
from pathlib import Path

import pytest
import time_machine
from flask import Flask

from app import clock
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.portability import certificates
from app.portability.bundle import exports
from tests.builders import Cast, make_user
from tests.bundle.accounts import PASSPHRASE, furnish, import_
from tests.console.browser import Browser, beside
from tests.mailbox import run_jobs

FORM = {"passphrase": PASSPHRASE, "passphrase_again": PASSPHRASE}


def test_console_account_export_start_progress_and_download(
    cast: Cast, app: Flask, admin: Browser, tmp_path: Path
) -> None:
    furnish(cast)
    settings = f"settings/{cast.alice.account_id}"
    path = f"{settings}/export"
    assert f'href="/console/{path}"' in admin.get(settings).text
    page = admin.get(path).text
    assert re.search(r"<dt>Records</dt><dd>3, .*<dt>Users</dt><dd>2</dd>", page, re.DOTALL)
    page = admin.done(f"{path}/start", **FORM)
    assert ("<progress" in page, 'data-refresh="2"' in page, 'name="passphrase"' in page) == (
        True,
        True,
        False,
    )
    assert admin.send(f"{path}/start", **FORM).status_code == 409
    run_jobs(app)
    page = admin.get(path).text
    assert ("<progress" in page, "data-refresh" in page) == (False, False)
    assert "bin/atrium account import acme-" in page
    link = re.search(r'href="/console/(\S+/download)"', page)
    assert link
    answer = admin.get(link[1])
    assert (answer.status_code, answer.mimetype) == (200, "application/octet-stream")
    file = tmp_path / "fetched.bundle"
    file.write_bytes(answer.data)
    file.with_name("passphrase").write_text(PASSPHRASE)
    result = import_(app, file, "--as", "root@system.example", "--slug", "acme-again")
    assert result.exit_code == 0, result.output
    delete = link[1].replace("/download", "/delete")
    assert "The export is deleted." in admin.done(delete)
    assert "The export is gone already." in admin.done(delete)
    assert admin.get(link[1]).status_code == 404


def test_console_account_export_as_zip_archive(cast: Cast, app: Flask, admin: Browser) -> None:
    furnish(cast)
    path = f"settings/{cast.alice.account_id}/export"
    assert 'value="zip"' in admin.get(path).text
    with_passphrase = admin.send(f"{path}/start", format="zip", **FORM)
    assert (with_passphrase.status_code, "leave the passphrase empty" in with_passphrase.text) == (
        400,
        True,
    )
    assert admin.send(f"{path}/start", format="tar", **FORM).status_code == 400
    admin.done(f"{path}/start", format="zip")
    run_jobs(app)
    page = admin.get(path).text
    assert "ZIP archive" in page
    link = re.search(r'href="/console/(\S+/download)"', page)
    assert link
    assert admin.get(link[1]).data.startswith(b"PK")


def test_console_exports_what_is_held_of_a_person(cast: Cast, admin: Browser) -> None:
    export = f"team/users/{cast.bob.id}/export"
    assert f'href="/console/{export}"' in admin.get(f"team/users/{cast.bob.id}").text
    for path in (export, "profile/export"):
        answer = admin.get(path)
        assert (answer.status_code, answer.mimetype) == (200, "application/zip")
        assert answer.data.startswith(b"PK")
    assert 'href="/console/profile/export"' in admin.get("profile").text
    assert admin.get(f"team/users/{cast.charlie.id}/export").status_code == 404


def test_console_account_export_progress_follows_written_lines(
    cast: Cast, app: Flask, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"settings/{cast.alice.account_id}/export"
    monkeypatch.setattr(exports, "expected_lines", lambda *args, **options: 40_000)
    seen = []

    def write(file: Path, payload: dict[str, str]) -> None:
        exports._show(payload["account_id"], payload["export_id"], 10_000)
        seen.append(admin.get(path).text)

    monkeypatch.setattr(exports, "_write", write)
    admin.done(f"{path}/start", **FORM)
    run_jobs(app)
    assert re.search(r'<progress max="100" value="25">.*25%, 10,000 lines written', seen[0])


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"passphrase": "short"}, "passphrase", "At least 12 characters."),
        ({"passphrase": "p" * 1001}, "passphrase", "At most 1000 characters."),
        ({"passphrase_again": f"{PASSPHRASE} "}, "passphrase_again", "The passphrases differ."),
        ({"passphrase": ""}, "passphrase", "Required."),
    ],
)
def test_console_account_export_with_bad_passphrase_is_400(
    cast: Cast, admin: Browser, change: dict[str, str], field: str, message: str
) -> None:
    path = f"settings/{cast.alice.account_id}/export/start"
    refused = admin.send(path, **{**FORM, **change})
    assert (refused.status_code, unescape(beside(refused, field))) == (400, message)
    assert PASSPHRASE not in refused.text
    assert cast.alice.get("account/export").json["total"] == 0


def test_console_account_export_requires_recent_sign_in(
    cast: Cast, app: Flask, admin: Browser
) -> None:
    path = f"settings/{cast.alice.account_id}/export"
    admin.done(f"{path}/start", **FORM)
    run_jobs(app)
    link = re.search(r'href="/console/(\S+/download)"', admin.get(path).text)
    assert link
    with time_machine.travel(clock.now() + timedelta(minutes=16)):
        for answer in (admin.send(f"{path}/start", **FORM), admin.get(link[1])):
            assert "Confirm that it is you" in answer.text
            assert 'name="unsent"' not in answer.text  # a passphrase never comes back
        assert admin.get(path).status_code == 200


def test_console_account_export_without_right_is_403_with_reason(
    cast: Cast, app: Flask, superadmin: Browser
) -> None:
    path = f"settings/{cast.alice.account_id}/export"
    eve = make_user(app, cast.alice.account_id, "eve@acme.example", "admin")
    for browser in (Browser(app, type(cast.alice)(app, eve)), superadmin):
        page = browser.get(path)
        assert (page.status_code, 'name="passphrase"' in page.text) == (200, False)
        assert "pii_access" in page.text
        assert browser.send(f"{path}/start", **FORM).status_code == 403
    assert "cannot be exported" in superadmin.get(f"settings/{SYSTEM_ACCOUNT_ID}/export").text
    for caller, status in ((cast.bob, 403), (cast.charlie, 404)):
        assert Browser(app, caller).get(path).status_code == status


def test_console_account_deletion_leads_to_certificate(
    cast: Cast, app: Flask, superadmin: Browser
) -> None:
    furnish(cast)
    account_id = cast.alice.account_id
    page = superadmin.get(f"accounts/{account_id}").text
    assert "certificate of deletion" in page
    assert f'href="/console/settings/{account_id}/export"' in page
    page = superadmin.done(f"accounts/{account_id}/close", slug="acme")
    assert ("not signed yet" in page, account_id in page) == (True, True)
    download = f"accounts/deletions/{account_id}/certificate"
    assert superadmin.get(download).status_code == 409
    run_jobs(app)
    with app.app_context():
        certificates.certify({"account_id": account_id})
    assert f"/console/{download}" in superadmin.get("accounts/deletions").text
    certificate = json.loads(superadmin.get(download).data)
    assert (certificate["purpose"], certificate["account_id"]) == ("deletion", account_id)
    for path in ("accounts/deletions", download):
        assert Browser(app, cast.charlie).get(path).status_code == 403
