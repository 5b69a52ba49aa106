"""`POST /account/export {"format": "zip"}`: readable without this service, and without secrets."""

from __future__ import annotations

import json
import zipfile
from io import BytesIO
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app.accounts.models import User
from app.auth.models import ApiKey, SignInSession
from app.db import db
from app.files.models import FILES
from app.portability import readable
from app.records.transfer import archives
from app.webhooks.models import Webhook
from tests.builders import PASSWORD, Cast, make_collection, make_record
from tests.bundle.accounts import PASSPHRASE, furnish
from tests.mailbox import run_jobs
from tests.security.reading import CUSTOMERS, reads

pytestmark = pytest.mark.both_databases


def exported(cast: Cast, app: Flask) -> zipfile.ZipFile:
    started = cast.alice.post("account/export", {"format": "zip"})
    assert (started.status_code, started.json["format"]) == (202, "zip"), started.json
    run_jobs(app)
    path = f"account/export/{started.json['id']}"
    found = cast.alice.get(path).json
    assert found["status"] == "ready", found
    answer = cast.alice.get(f"{path}/download")
    assert answer.status_code == 200
    assert answer.headers["Content-Disposition"].endswith(".zip")
    archive = zipfile.ZipFile(BytesIO(answer.data))
    assert archive.testzip() is None
    return archive


def lines(archive: zipfile.ZipFile, name: str) -> list[Any]:
    return [json.loads(line) for line in archive.read(f"{name}.jsonl").splitlines()]


def test_archive_has_the_account_in_readable_files(cast: Cast, app: Flask) -> None:
    furnish(cast)
    archive = exported(cast, app)
    names = archive.namelist()
    readme = archive.read("README.txt").decode()
    for name in names:
        shown = "records/<name>.jsonl" if name.startswith("records/") else name
        shown = "files/<id>/<name>" if name.startswith("files/") else shown
        assert shown in readme or shown == "README.txt", f"{shown} is not in the README"
    account = json.loads(archive.read("account.json"))
    assert (account["slug"], account["id"]) == ("acme", cast.alice.account_id)
    users = {one["email"]: one for one in lines(archive, "users")}
    assert users[cast.alice.email]["role"] == "admin"
    assert {one["name"] for one in lines(archive, "groups")} >= {"pii_access"}
    members = {one["user_id"] for one in lines(archive, "group_members")}
    assert cast.alice.id in members
    assert {one["name"] for one in lines(archive, "roles")} >= {"admin"}
    definitions = json.loads(archive.read("collections.json"))["collections"]
    for one in definitions:
        stored = cast.alice.get(f"records/{one['name']}?limit=100").json
        if "items" in stored:
            found = {row["id"]: row for row in lines(archive, f"records/{one['name']}")}
            assert found.keys() >= {row["id"] for row in stored["items"]}
            for row in stored["items"]:
                same = {n: v for n, v in row.items() if n in found[row["id"]]}
                assert {n: found[row["id"]][n] for n in same} == same
    for file in lines(archive, "files"):
        assert len(archive.read(file["path"])) == file["size"]
    log = lines(archive, "audit_log")
    exported_log = cast.alice.get("account/audit-logs/export").get_data()
    assert log == [json.loads(line) for line in exported_log.splitlines()], "as she may see it"
    events = lines(archive, "security_log")
    assert [one["number"] for one in events] == list(range(1, len(events) + 1))
    assert {one["user_id"] for one in events} >= {cast.alice.id}
    settings = json.loads(archive.read("settings.json"))
    assert settings.get("webhooks"), "furnish makes one"


def test_archive_has_no_secret_of_the_account(cast: Cast, app: Flask) -> None:
    furnish(cast)
    key = cast.alice.post("api-keys", {"name": "robot"}).json["key"]
    body = {"url": "https://hooks.example.com/z", "events": ["create"]}
    make_collection(cast.root, "letters")
    webhook = cast.alice.post(
        "webhooks", body | {"collection": "letters", "headers": {"X-Key": "top-secret-header"}}
    ).json
    archive = exported(cast, app)
    everything = b"\n".join(archive.read(name) for name in archive.namelist())
    secrets = [PASSWORD, key, key.rpartition("_")[2], webhook["secret"], "top-secret-header"]
    with app.app_context():
        for model, column in (
            (User, User.password_hash),
            (ApiKey, ApiKey.key_hash),
            (SignInSession, SignInSession.token_hash),
            (Webhook, Webhook.secret),
        ):
            mine = model.account_id == cast.alice.account_id
            found = db.session.scalars(sa.select(column).where(mine))
            secrets += [value for value in found if value]
    assert len(secrets) > 6
    for secret in secrets:
        assert secret.encode() not in everything, secret


def test_archive_is_noted_as_a_read_of_personal_data(cast: Cast, app: Flask) -> None:
    make_collection(cast.root, "customers", CUSTOMERS)
    make_record(cast.alice, "customers", email="zoe@example.org")
    archive = exported(cast, app)
    assert lines(archive, "records/customers")[0]["email"] == "zoe@example.org"
    assert len(reads(cast.alice, path="bundle")) == 2, "as it is ordered and as it is fetched"


def test_archive_has_nothing_of_other_accounts(cast: Cast, app: Flask) -> None:
    furnish(cast)
    make_collection(cast.root, "shared", CUSTOMERS)
    make_record(cast.charlie, "shared", email="max@globex.example")
    archive = exported(cast, app)
    everything = b"\n".join(archive.read(name) for name in archive.namelist())
    for mark in ("max@globex.example", cast.charlie.id, cast.charlie.account_id):
        assert mark.encode() not in everything


def test_attributes_of_the_operator_alone_are_left_out(cast: Cast, app: Flask) -> None:
    of_operator = {"visible_to": "superadmin", "writable_by": "superadmin"}
    fields = [{"name": "team", "type": "text"}, {"name": "risk", "type": "text", **of_operator}]
    for kind, path in (
        ("users", f"users/{cast.bob.id}"),
        ("accounts", f"accounts/{cast.alice.account_id}"),
    ):
        assert cast.root.put(f"attributes/{kind}", {"fields": fields}).status_code == 200
        values = {"attributes": {"team": "red", "risk": "high"}}
        assert cast.root.patch(path, values).status_code == 200
    archive = exported(cast, app)
    assert json.loads(archive.read("account.json"))["attributes"] == {"team": "red"}
    users = {one["id"]: one for one in lines(archive, "users")}
    assert users[cast.bob.id]["attributes"] == {"team": "red"}


def test_names_of_files_in_an_archive_are_safe_and_unique() -> None:
    tricks = ["../../etc/passwd", "..", "C:\\x\\y.txt", "a\u202egnp.exe", "x/" * 300, ".", "a.txt"]
    made = [archives.entry_name({"id": f"id-{n}", "name": name}) for n, name in enumerate(tricks)]
    assert len({*made}) == len(tricks)
    for number, name in enumerate(made):
        folder, id, rest = name.split("/")
        assert (folder, id) == ("files", f"id-{number}")
        assert rest.strip(". ")
        assert not {"\\", "\u202e", ":"} & {*rest}
        assert len(rest.encode()) <= 200


def test_further_files_are_in_archives_of_their_own(
    cast: Cast, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(cast)
    with app.app_context():
        [row] = db.session.execute(sa.select(FILES).limit(1)).mappings().all()
        db.session.rollback()
        with db.engine.begin() as connection:
            for number in range(3):
                connection.execute(
                    sa.insert(FILES).values({**row, "id": row["id"][:-1] + "xyz"[number]})
                )
    monkeypatch.setattr(readable, "MOST_FILES", 2)
    archive = exported(cast, app)
    found = lines(archive, "files")
    assert len(found) == 4
    lost = [one for one in found if one["path"] is None]
    assert len(lost) == 3, "their bytes do not exist"


@pytest.mark.parametrize(
    "body", [{"format": "zip", "passphrase": PASSPHRASE}, {"format": "tar"}, {"format": None}, {}]
)
def test_wrong_format_or_passphrase_is_refused(cast: Cast, body: dict[str, Any]) -> None:
    assert cast.alice.post("account/export", body).status_code in (400, 422)
