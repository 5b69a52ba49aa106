"""An account comes back from its bundle, here and elsewhere, and no other one notices."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from flask import Flask

from app import clock
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.audit import sealing as changes
from app.audit.chain import cut
from app.audit.log import AUDIT
from app.audit.security_log import sealing
from app.audit.security_log.log import SECURITY
from app.auth import principal
from app.context import tenancy
from app.db import db, reencryption
from app.portability.bundle import importing, tables
from app.webhooks import headers
from app.webhooks.models import Webhook
from app.workflows.language import step_headers
from app.workflows.models import Workflow
from tests.audit.chains import entries, verified
from tests.builders import (
    PASSWORD,
    Caller,
    Cast,
    make_collection,
    make_record,
    make_user,
    open_console,
)
from tests.bundle.accounts import PAPER, export, furnish, hashes, import_, run, view
from tests.conftest import make_app, settings_for
from tests.databases import DATABASES
from tests.mailbox import run_jobs
from tests.records import test_together as together
from tests.records.test_trash import in_trash, put_away, restored

pytestmark = pytest.mark.needs_servers

ROOT = ("--as", "root@system.example")


@pytest.fixture
def other(app: Flask, database: str, tmp_path: Path) -> Iterator[Flask]:
    """An instance with a superadmin, the same roles and the other database."""
    kind = next(one for one in DATABASES if one != database)
    folder = tmp_path / "other"
    folder.mkdir()
    made = make_app(settings_for(kind, folder))
    make_user(made, SYSTEM_ACCOUNT_ID, "root@system.example", "admin")
    open_console(made, "viewer", "editor")
    yield made
    with made.app_context():
        db.session.remove()
        db.engine.dispose()


def caller_of(app: Flask, account_id: str, email: str) -> Caller:
    """A user of an instance, by address."""
    with app.app_context(), tenancy.across_accounts():
        user = db.session.query(User).filter_by(account_id=account_id, email=email).one()
        assert principal.for_user(user.account_id, user.id)
        return Caller(app, user)


def paper_of(caller: Caller) -> bytes:
    """The file of an account's first post."""
    post = caller.get("records/posts?sort=title").json["items"][0]
    return caller.get(f"files/{post['paper']['id']}").data


def trusted(refusal: str) -> str:
    """The key that a refused import names."""
    return refusal.split("--trust ")[1].strip().removesuffix(".")


def security_log(caller: Caller) -> list[dict[str, Any]]:
    """The entries of an account's security log, oldest first, after verifying that it is whole."""
    found = caller.get("account/security-log/verify").json
    assert (found["valid"], found["checkpoint"]["entry_id"]) == (True, found["checked"]), found
    lines = caller.get("account/security-log/export?format=jsonl").text.splitlines()
    return [json.loads(line) for line in lines]


def remove(cast: Cast, app: Flask) -> None:
    """Delete acme, with all its data."""
    assert cast.root.delete(f"accounts/{cast.alice.account_id}").status_code == 204
    run_jobs(app)
    assert cast.alice.get("records/posts").status_code == 401


def test_bundle_import_concurrent_with_another_keeps_its_files(
    cast: Cast, app: Flask, other: Flask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(cast)
    file = export(app, tmp_path)
    key = trusted(import_(other, file, *ROOT).output)
    write, results = importing._Import._write, list[int]()

    def write_later(self: importing._Import) -> None:
        if not results:
            results.append(-1)
            first = Thread(
                target=lambda: results.append(import_(other, file, *ROOT, "--trust", key).exit_code)
            )
            first.start()
            first.join()
        write(self)

    monkeypatch.setattr(importing._Import, "_write", write_later)
    assert import_(other, file, *ROOT, "--trust", key).exit_code == 1
    assert results == [-1, 0]
    moved = caller_of(other, cast.alice.account_id, cast.alice.email)
    assert paper_of(moved) == PAPER


def test_bundle_has_what_its_rules_name(
    cast: Cast, app: Flask, other: Flask, tmp_path: Path
) -> None:
    assert cast.root.post("roles", {"name": "agent"}).status_code == 201
    member = "@has_role(agent) || @any(members, user = @request.auth.id)"
    texts = {"member": member, "unused": "true"}
    assert cast.root.put("rules/fragments", texts).status_code == 200
    make_collection(cast.root, "members", [{"name": "user", "type": "text"}])
    make_collection(cast.root, list_rule="@rule(member)")
    make_record(cast.alice, title="a")
    file = export(app, tmp_path)
    key = trusted(import_(other, file, *ROOT).output)
    options = (*ROOT, "--trust", key)
    with other.app_context(), tenancy.across_accounts():
        root = Caller(other, db.session.query(User).filter_by(email="root@system.example").one())
    assert root.put("rules/fragments", {"member": "true"}).status_code == 200
    refused = import_(other, file, *options)
    assert (refused.exit_code, "fragment member" in refused.output) == (1, True)
    assert root.put("rules/fragments", {}).status_code == 200
    for slug in ("acme", "again"):
        done = import_(other, file, *options, "--slug", slug)
        assert done.exit_code == 0, done.output
        assert root.get("rules/fragments").json == {"member": member}
        assert root.get("collections/names").json["names"] == ["members", "posts"]


@pytest.mark.long
@pytest.mark.usefixtures("real_scrypt")
def test_bundle_import_restores_deleted_account(cast: Cast, app: Flask, tmp_path: Path) -> None:
    furnish(cast)
    before, others = view(cast.alice), (cast.charlie.account_id, SYSTEM_ACCOUNT_ID)
    logged = security_log(cast.alice)
    file = export(app, tmp_path)
    make_record(cast.alice, title="later")
    remove(cast, app)
    rows_of_others = hashes(app, *others)
    result = import_(app, file, *ROOT)
    assert result.exit_code == 0, result.output
    assert hashes(app, *others) == rows_of_others
    assert view(cast.alice) == before
    assert paper_of(cast.alice) == PAPER
    assert run(app, "audit", "verify").exit_code == 0
    later = security_log(cast.alice)
    assert (later[: len(logged)], len(later) > len(logged)) == (logged, True)
    assert make_record(cast.alice, title="new")["title"] == "new"
    run_jobs(app)  # none of the deletion is left
    assert cast.alice.get("records/posts").json["total"] == 3
    assert run(app, "audit", "verify").exit_code == 0


def test_bundle_import_moves_account_between_databases(
    cast: Cast, app: Flask, other: Flask, tmp_path: Path
) -> None:
    furnish(cast)
    before, logged = view(cast.alice), security_log(cast.alice)
    file = export(app, tmp_path)
    refused = import_(other, file)
    assert refused.exit_code == 1
    assert "signed by another instance" in refused.output
    result = import_(other, file, "--trust", trusted(refused.output))
    assert result.exit_code == 0, result.output
    assert run(other, "audit", "verify").exit_code == 0
    there = caller_of(other, cast.alice.account_id, cast.alice.email)
    assert view(there) == before
    assert paper_of(there) == PAPER
    moved_log = security_log(there)
    assert moved_log[: len(logged)] == logged
    new = [(one["id"], one["operation"]) for one in moved_log[len(logged) :]]
    assert new[-1] == (len(moved_log), "account.created")
    with other.app_context(), tenancy.across_accounts():
        assert reencryption.undecryptable() == []  # the other instance has another key
        stored = db.session.query(Webhook).one().headers
        assert headers.decrypted(stored) == {"X-Token": "secret header"}
        steps = step_headers.comparable(db.session.query(Workflow).one().steps)
        assert steps[0]["config"]["headers"] == {"X-Token": "secret header"}
    sign_in = {"account": "acme", "email": cast.alice.email, "password": PASSWORD}
    assert Caller(other).post("auth/login", sign_in).status_code == 200
    make_record(there, title="third")
    assert run(other, "audit", "verify").exit_code == 0
    moved = view(there)
    back = export(other, tmp_path, name="back.bundle")
    remove(cast, app)
    refused = import_(app, back, *ROOT)
    result = import_(app, back, *ROOT, "--slug", "acme-back", "--trust", trusted(refused.output))
    assert result.exit_code == 0, result.output
    assert "under a new id" in result.output  # the chains went apart
    account_id = result.output.split("(")[1].split(")")[0]
    home = caller_of(app, account_id, cast.alice.email)
    posts, moved_posts = (one["records/posts?sort=title"]["items"] for one in (view(home), moved))
    assert posts == [{**post, "account_id": account_id} for post in moved_posts]
    assert run(app, "audit", "verify").exit_code == 0


@pytest.mark.long
def test_moved_records_show_the_same_behind_each_door(
    cast: Cast, app: Flask, other: Flask, tmp_path: Path
) -> None:
    made = together.furnish(cast.root, cast.alice)
    put_away(cast.alice, "notes", made["second"])
    before, away = together.seen(cast.alice, made), in_trash(cast.alice, "notes")
    file = export(app, tmp_path)
    result = import_(other, file, "--trust", trusted(import_(other, file).output))
    assert result.exit_code == 0, result.output
    there = caller_of(other, cast.alice.account_id, cast.alice.email)
    assert (together.seen(there, made), in_trash(there, "notes")) == (before, away)
    assert make_record(there, "notes", title="made there xylophone")["number"] == "B-004"
    assert restored(there, "notes", made["second"]).status_code == 200
    moved, back = together.seen(there, made), export(other, tmp_path, name="back.bundle")
    remove(cast, app)
    options = (*ROOT, "--slug", "acme-back")
    refused = import_(app, back, *ROOT)
    result = import_(app, back, *options, "--trust", trusted(refused.output))
    assert result.exit_code == 0, result.output
    home = caller_of(app, result.output.split("(")[1].split(")")[0], cast.alice.email)
    assert together.seen(home, made) == moved
    assert in_trash(home, "notes") == []
    assert make_record(home, "notes")["number"] == "B-005"


def test_bundle_import_of_account_with_cut_logs(
    cast: Cast, app: Flask, other: Flask, tmp_path: Path
) -> None:
    furnish(cast)
    with app.app_context():
        assert cut.cut(AUDIT, cast.alice.account_id, clock.now()) > 0
        sealing.seal(cast.alice.account_id)
        assert cut.cut(SECURITY, cast.alice.account_id, clock.now()) > 0
    make_record(cast.alice, title="later")
    before, file = view(cast.alice), export(app, tmp_path)
    refused = import_(other, file)
    result = import_(other, file, "--trust", trusted(refused.output))
    assert result.exit_code == 0, result.output
    moved = caller_of(other, cast.alice.account_id, cast.alice.email)
    assert view(moved) == before
    verified = moved.get("account/security-log/verify").json
    assert (verified["valid"], verified["start"]["removed"] > 0) == (True, True)
    for instance in (app, other):
        assert run(instance, "audit", "verify").exit_code == 0
    remove(cast, app)
    result = import_(app, file, *ROOT)
    assert result.exit_code == 0, result.output
    assert run(app, "audit", "verify").exit_code == 0


def test_bundle_clone_has_new_ids_and_no_credentials(
    cast: Cast, app: Flask, tmp_path: Path
) -> None:
    furnish(cast)
    before = hashes(app, *(one.account_id for one in (cast.alice, cast.charlie)))
    users = {one["id"] for one in cast.alice.get("account/users").json["items"]}
    result = run(app, "account", "clone", "acme", "acme-copy", *ROOT)
    assert result.exit_code == 0, result.output
    assert hashes(app, *(one.account_id for one in (cast.alice, cast.charlie))) == before
    account_id = result.output.split("(")[1].split(")")[0]
    copy = caller_of(app, account_id, cast.alice.email)
    assert {one["id"] for one in copy.get("account/users").json["items"]}.isdisjoint(users)
    posts, copied = (
        one.get("records/posts?sort=title").json["items"] for one in (cast.alice, copy)
    )
    for post, its_copy in zip(posts, copied, strict=True):
        assert (its_copy["id"], its_copy["title"]) == (post["id"], post["title"])
        assert its_copy["created_by"] == copy.id
        assert its_copy["owner"] == (copy.id if post["owner"] else None)
        assert its_copy["readers"] == ([copy.id] if post["readers"] else None)
        assert its_copy["authors"] == post["authors"]
    for path in ("webhooks", "workflows"):
        assert [one["enabled"] for one in copy.get(path).json["items"]] == [False]
    assert copy.get("api-keys").json["total"] == 0
    assert run(app, "audit", "verify").exit_code == 0
    again = run(app, "account", "clone", "acme", "globex", *ROOT)
    assert (again.exit_code, "The slug globex is taken" in again.output) == (1, True)


def test_bundled_rows_follow_the_rows_that_they_refer_to() -> None:
    written = [table.name for table in (*tables.included(), *tables.logs())]
    orders = [(bundle.is_log, bundle.order) for bundle in tables.bundled().values()]
    assert len(orders) == len({*orders})
    for table in tables.included():
        referred = {key.referred_table.name for key in table.foreign_key_constraints}
        for name in referred & {*written} - {table.name}:
            assert written.index(name) < written.index(table.name), (table.name, name)


def test_bundle_export_during_writes_has_an_audit_entry_of_each_record(
    cast: Cast, app: Flask, other: Flask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(cast)
    settle, begin, written = changes.settle, changes.snapshot, list[str]()

    def write() -> None:
        written.append(make_record(cast.alice, title="meanwhile")["id"])

    def settle_before_write(account_id: str | None) -> None:
        settle(account_id)
        if not written:
            write()

    def begin_after_write() -> Any:
        # On SQLite nobody else writes before the first one.
        if len(written) > 1 or app.extensions["atrium.engine"].dialect.name != "sqlite":
            thread = threading.Thread(target=write)  # or it would be part of the sealing
            thread.start()
            thread.join()
        else:
            written.append(written[0])
        return begin()

    monkeypatch.setattr(changes, "settle", settle_before_write)
    monkeypatch.setattr(changes, "snapshot", begin_after_write)
    file = export(app, tmp_path)
    monkeypatch.undo()
    *written, too_late = written
    assert len(written) == 2
    key = trusted(import_(other, file, *ROOT).output)
    assert import_(other, file, *ROOT, "--trust", key).exit_code == 0
    account_id = cast.alice.account_id
    moved = caller_of(other, account_id, cast.alice.email)
    root = caller_of(other, SYSTEM_ACCOUNT_ID, ROOT[1])
    ids = {post["id"] for post in moved.get("records/posts?limit=100").json["items"]}
    query = {"account_id": account_id, "table_name": "col_posts", "operation": "CREATE"}
    told = {entry["record_id"] for entry in entries(root, **query)}
    assert [one in ids for one in [*written, too_late]] == [True, True, False]
    assert too_late not in ids
    assert ids == told
    assert verified(root, account_id)["valid"]
