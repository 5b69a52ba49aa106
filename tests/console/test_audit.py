"""Pages of the audit log, its chains, and the history of a record."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from html import unescape
from pathlib import Path

import pytest
import time_machine
from flask import Flask

from app import clock, db
from app.audit import append, exports
from app.audit.chain import verify
from app.console.admin import audit_names
from app.console.admin.audit_columns import LABELS
from app.context import tenancy
from app.db import Base
from app.ids import new_id
from tests.audit.chains import entries, verified
from tests.audit.test_coverage import audited_tables
from tests.builders import PASSWORD, Caller, Cast, make_collection, make_record, make_user
from tests.console.browser import HOSTILE, Browser, alert, without_console
from tests.sql import statements

TITLE = [{"name": "title", "type": "text"}]


def test_console_audit_log_filter_entry_and_export(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=TITLE)
    made = make_record(cast.alice, title=HOSTILE)
    browser = Browser(app, cast.root)
    page = browser.get(f"audit?table_name=col_posts&record_id={made['id']}").text
    assert "1 change." in page
    assert "<script>alert" not in page
    (entry,) = re.findall(r"/console/audit/(\d+)", page)
    one = browser.get(f"audit/{entry}").text
    assert made["id"] in one
    (number,) = re.findall(r"<summary>(\d+) fields?</summary>", page)
    assert one.count('<th scope="row">') == int(number)
    assert "<script>alert" not in one
    assert "No matches" in browser.get("audit?operation=DELETE").text
    assert "is not a date" in browser.get("audit?from_date=yesterday").text
    file = browser.get("audit/export/csv?table_name=col_posts")
    assert file.headers["Content-Disposition"] == "attachment; filename=audit-log.csv"
    assert len(file.text.strip().splitlines()) >= 3
    assert browser.get("audit/999999999999").status_code == 404
    assert browser.get("audit/nonsense").status_code == 404


def test_console_audit_entry_shows_chain_verification(app: Flask, cast: Cast) -> None:
    cast.alice.post("account/scim/tokens")
    browser, acme = Browser(app, cast.root), cast.alice.account_id
    listed = browser.get("audit?account=acme&table_name=scim_tokens").text
    (entry,) = re.findall(r"/console/audit/([0-9]+)", listed)
    page = browser.get(f"audit/{entry}").text
    assert "not verified yet" in page
    assert re.search(r'Token hash</th>\s*<td[^>]*><span class="text-secondary">hidden<', page)
    assert "The chain is intact" in browser.send("audit/verify", account_id=acme).text
    page = browser.get(f"audit/{entry}").text
    assert "Last verified on" in page
    assert "not verified yet" not in page
    with time_machine.travel(clock.now() + timedelta(seconds=2), tick=True):
        cast.alice.post("groups", {"name": "finance"})
    newest = re.findall(r"/console/audit/([0-9]+)", browser.get("audit?account=acme").text)[0]
    page = Browser(app, cast.alice).get(f"audit/{newest}").text
    assert "This entry is newer than the last verification." in page
    assert "Verify the chain" not in page, "only superadmins verify"


@pytest.mark.parametrize(
    ("who", "query"),
    [
        ("alice", ""),
        ("root", ""),
        ("root", "account=acme"),
        ("alice", "table_name=groups"),
        ("alice", "table_name=groups&operation=CREATE&person=alice@acme.example"),
    ],
)
def test_console_audit_entry_links_to_neighbours_in_list(
    app: Flask, cast: Cast, who: str, query: str
) -> None:
    with app.app_context(), db.transaction():
        acme, values, moment = cast.alice.account_id, [("name", None, "x")], clock.now()
        for _ in range(3):
            target = ("CREATE", "groups", new_id())
            append.record(append.Change(acme, target, values, occurred_at=moment))
    for caller in (cast.alice, cast.charlie, cast.alice):
        caller.post("groups", {"name": new_id()})
    browser = Browser(app, getattr(cast, who))
    listed = re.findall(r'href="/console/(audit/[0-9]+[^"]*)"', browser.get(f"audit?{query}").text)
    assert len(listed) > 1
    seen, turned, target = list[str](), list[str](), listed[0]
    for rel, path in (("next", seen), ("prev", turned)):
        while target not in path:
            path.append(target)
            page = browser.get(unescape(target)).text
            found = re.findall(rf'rel="{rel}" href="/console/([^"]*)"', page)
            assert f'<a href="/console/audit{"?" if query else ""}' in page
            target = found[0] if found else target
    assert seen == listed
    assert turned == listed[::-1]


def test_console_audit_column_labels_cover_every_audited_column() -> None:
    audited = {
        column.name
        for table, tracked in audited_tables().items()
        for column in Base.metadata.tables[table].columns
        if tracked.includes(column.name)
    }
    assert audited - {"id"} == LABELS.keys()


def test_console_audit_changes_are_grouped_by_day(app: Flask, cast: Cast) -> None:
    noon = clock.now().replace(hour=12, minute=0)
    with app.app_context(), db.transaction():
        for days in (1, 1, 9):
            moment, values = noon - timedelta(days=days), [("name", None, "x")]
            acme = cast.alice.account_id
            target = ("CREATE", "groups", new_id())
            append.record(append.Change(acme, target, values, occurred_at=moment))
    page = Browser(app, cast.alice).get("audit").text
    day = noon - timedelta(days=9)
    headings = re.findall(r"<h2[^>]* data-day>(.*?)</h2>", page)
    assert headings == ["Today", "Yesterday", f"{day:%A, %B} {day.day}, {day.year}"]


def blocks(page: str) -> list[str]:
    """The changes on a page as words, without tags."""
    found = re.findall(r'<article class="change".*?</article>', page, re.DOTALL)
    return [unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", one))).strip() for one in found]


def test_console_audit_change_is_one_block_with_display_names(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=TITLE)
    target = {"name": "post", "type": "reference", "collection": "posts"}
    make_collection(cast.root, "notes", [{"name": "text", "type": "text"}, target])
    first, second = (make_record(cast.alice, title=title)["id"] for title in ("Old", "New"))
    note = make_record(cast.alice, "notes", text="Mine", post=first)["id"]
    cast.alice.patch(f"records/notes/{note}", {"text": "Ours", "post": second})
    group = cast.alice.post("groups", {"name": "finance"}).json["id"]
    cast.alice.post(f"groups/{group}/members", {"user_id": cast.bob.id})
    cast.alice.delete(f"records/notes/{note}")
    page = Browser(app, cast.alice).get("audit").text
    deleted, member, made, changed, created, *_ = blocks(page)
    assert created.startswith("Record of notes Mine created alice@acme.example")
    assert "text Ours post New" in deleted
    assert "text Mine Ours post Old New" in changed
    assert "bob@acme.example in finance created" in member
    assert made.startswith("Group finance created")
    for id in (first, second, note, group, cast.bob.id):
        assert id not in " ".join(blocks(page))
    assert f'href="/console/records/{cast.alice.account_id}/posts/{second}"' in page


def test_console_audit_change_marks_differing_words(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=TITLE)
    made = make_record(cast.alice, title="The old man and the sea")
    cast.alice.patch(f"records/posts/{made['id']}", {"title": "The young man and the sea"})
    browser = Browser(app, cast.alice)
    (entry, *_) = re.findall(r"/console/audit/(\d+)", browser.get("audit").text)
    for path in ("audit", f"audit/{entry}"):
        page = browser.get(path).text
        assert "The <mark>old</mark> man" in page, path
        assert "The <mark>young</mark> man" in page, path


def test_console_audit_time_values_are_exact(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=[{"name": "due", "type": "datetime"}])
    made = make_record(cast.alice, due="2026-01-31T10:00:05.000000Z")
    browser = Browser(app, cast.alice)
    (entry, *_) = re.findall(r"/console/audit/(\d+)", browser.get("audit").text)
    history = f"records/{cast.alice.account_id}/posts/{made['id']}/history"
    for path in ("audit", f"audit/{entry}", history):
        page = browser.get(path).text
        assert 'Z" data-exact>2026-01-31 10:00:05 UTC</time>' in page, path


def test_console_audit_filters_accept_names(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=TITLE)
    make_record(cast.alice, title="by Alice")
    by_bob = make_record(cast.bob, title="by Bob")["id"]
    cast.bob.patch(f"records/posts/{by_bob}", {"title": "by Bob again"})
    browser = Browser(app, cast.alice)

    def shown(query: str) -> int:
        return len(blocks(browser.get(f"audit?{query}").text))

    assert shown("person=bob@acme.example") == 2
    assert shown(f"person={cast.bob.id}&operation=UPDATE") == 1
    assert shown(f"table_name=col_posts&record_id={by_bob}") == 2
    assert shown("table_name=col_posts&operation=CREATE") == 2
    assert shown("to_date=2020-01-01T00:00") == 0
    page = browser.get("audit?person=root@localhost").text
    assert "Nobody in this account has this address." in page
    assert browser.get("audit/export/csv?person=nobody@x.example").status_code == 404
    team, user = (
        b.get(path).text
        for b, path in (
            (browser, f"team/users/{cast.bob.id}"),
            (Browser(app, cast.root), f"users/{cast.bob.id}"),
        )
    )
    for member in (team, user):
        (activity,) = re.findall(r'href="/console/(audit[?][^"]*)">Activity', member)
        assert f"person={cast.bob.id}" in activity


def test_console_audit_log_of_superadmin_per_account(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=TITLE)
    make_record(cast.alice, title="of Acme")
    make_record(cast.charlie, title="of Globex")
    browser = Browser(app, cast.root)
    for reference in ("acme", "ACME", cast.alice.account_id):
        page = browser.get(f"audit?account={reference}&table_name=col_posts").text
        assert "of Acme" in page
        assert "of Globex" not in page
    both = browser.get("audit?table_name=col_posts").text
    assert "of Acme" in both
    assert "of Globex" in both
    assert "There is no account" in browser.get("audit?account=nowhere").text
    file = browser.get("audit/export/jsonl?account=globex").text
    assert {json.loads(line)["account_id"] for line in file.splitlines()} == {
        cast.charlie.account_id
    }


@pytest.mark.parametrize("reference", ["globex", "system", "*"])
def test_console_audit_log_of_admin_shows_own_account_only(
    app: Flask, cast: Cast, reference: str
) -> None:
    make_collection(cast.root, schema=TITLE)
    make_record(cast.alice, title="of Acme")
    id = make_record(cast.charlie, title="of Globex")["id"]
    browser = Browser(app, cast.alice)
    foreign = (reference, cast.charlie.account_id)
    for account, record in ((one, record) for one in foreign for record in ("", id)):
        query = f"account={account}&account_id={account}&record_id={record}"
        page = browser.get(f"audit?{query}").text
        assert "of Globex" not in page
        assert "globex" not in page.replace(f'"{account}"', "")
        file = browser.get(f"audit/export/jsonl?{query}").text
        assert {json.loads(line)["account_id"] for line in file.splitlines()} <= {
            cast.alice.account_id
        }
    theirs = entries(cast.root, account_id=cast.charlie.account_id)[0]["id"]
    assert browser.get(f"audit/{theirs}").status_code == 404
    mine = entries(cast.root, account_id=cast.alice.account_id)[0]["id"]
    assert browser.get(f"audit/{mine}").status_code == 200


HIDDEN_FROM_ADMINS = {
    "closed to view": {"view_rule": None},
    "closed to update": {"update_rule": None},
    "of others": {"view_rule": "@owns_record()", "update_rule": "@owns_record()"},
    "viewed by others": {"view_rule": "@owns_record()"},
    "a field that is not listed": {"view_fields": ["other"]},
}


@pytest.mark.parametrize("rules", HIDDEN_FROM_ADMINS.values(), ids=HIDDEN_FROM_ADMINS)
def test_console_audit_log_hides_values_that_rules_hide(
    app: Flask, cast: Cast, rules: dict[str, object]
) -> None:
    fields = [{"name": "title", "type": "text"}, {"name": "other", "type": "text"}]
    make_collection(cast.root, schema=fields)
    id = make_record(cast.bob, title="a secret", other="x")["id"]
    cast.bob.patch(f"records/posts/{id}", {"title": "no more"})
    gone = make_record(cast.bob, title="a secret that is gone")["id"]
    assert cast.bob.delete(f"records/posts/{gone}").status_code == 204
    assert cast.root.put("collections/posts/rules", rules).status_code == 200
    entry = next(e["id"] for e in entries(cast.root, record_id=id) if e["new_value"] == "a secret")
    for caller, is_shown in ((cast.alice, False), (cast.root, True)):
        browser = Browser(app, caller)
        for path in (f"audit?record_id={id}", f"audit/{entry}", "audit/export/jsonl", "audit"):
            answer = browser.get(path)
            assert answer.status_code == 200
            assert ("a secret" in answer.text) is is_shown, path


def test_console_audit_log_shows_values_of_own_records(app: Flask, cast: Cast) -> None:
    own = {"view_rule": "@owns_record()", "update_rule": "@owns_record()"}
    make_collection(cast.root, schema=TITLE, list_rule="@owns_record()", **own)
    make_record(cast.alice, title="mine alone")
    make_record(cast.bob, title="a secret")
    page = Browser(app, cast.alice).get("audit").text
    assert "mine alone" in page
    assert "a secret" not in page


def test_console_audit_log_personal_values_need_pii_access(app: Flask, cast: Cast) -> None:
    personal = [{"name": "mail", "type": "email", "pii": True, "mask_type": "email"}]
    make_collection(cast.root, schema=personal)
    make_record(cast.alice, mail="felix@home.example")
    cast.alice.post("invitations", {"email": "new@acme.example"})
    other = Caller(app, make_user(app, cast.alice.account_id, "ann@acme.example", "admin"))
    for caller, shown in ((cast.alice, "felix@home.example"), (other, "f***@home.example")):
        browser = Browser(app, caller)
        for path in ("audit?table_name=col_posts", "audit/export/jsonl?table_name=col_posts"):
            text = browser.get(path).text
            assert shown in text
            assert ("felix" in text) is ("felix" in shown)
    exported = Browser(app, other).get("audit/export/jsonl?table_name=invitations").text
    assert "new@acme.example" not in exported


def test_console_audit_export_with_hidden_values_verifies(
    app: Flask, cast: Cast, tmp_path: Path
) -> None:
    make_collection(cast.root, schema=TITLE, view_rule=None)
    make_record(cast.bob, title="a secret")
    file = tmp_path / "log.jsonl"
    file.write_bytes(Browser(app, cast.alice).get("audit/export/jsonl").data)
    report = verify.verify_export(exports.read(file))
    assert (report["valid"], report["values_masked"] > 0) == (True, True)


def test_console_audit_log_statements_do_not_grow_with_changes(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=TITLE, view_rule="@owns_record() || title = 'x'")
    target = {"name": "post", "type": "reference", "collection": "posts"}
    make_collection(cast.root, "notes", [target])
    browser, counts = Browser(app, cast.alice), []
    for many in (2, 10):
        for _ in range(many):
            make_record(cast.alice, "notes", post=make_record(cast.alice, title="x")["id"])
        browser.get("audit")  # fills caches
        with statements(app) as sent:
            page = browser.get("audit").text
        assert len(blocks(page)) >= 2 * many
        counts.append(len(sent))
    assert counts[1] <= counts[0] < 25


def test_console_audit_log_omits_large_values(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=TITLE)
    make_record(cast.alice, title="large " * 20_000)
    (block, *_) = blocks(Browser(app, cast.alice).get("audit?table_name=col_posts").text)
    assert "title too large to show here" in block


def test_console_audit_chains_verification_is_streamed(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=TITLE)
    make_record(cast.alice, title="x")
    browser = Browser(app, cast.root)
    assert cast.alice.account_id in browser.get("audit/chains").text
    answer = browser.send("audit/verify")
    assert answer.status_code == 200
    assert answer.is_streamed
    assert re.search(r"All \d+ chains are intact: \d+ entries", answer.text)
    of_acme = browser.send("audit/verify", account_id=cast.alice.account_id).text
    assert "The chain is intact" in of_acme
    assert ">Acme</a>" in of_acme


@pytest.mark.parametrize("path", ["audit", "audit/1", "audit/chains", "audit/export/csv"])
def test_console_audit_access_per_role(app: Flask, cast: Cast, path: str) -> None:
    assert Browser(app, cast.bob).get(path).status_code == 403
    assert Browser(app, cast.alice).get("audit/chains").status_code == 403


def test_console_record_history_restores_state(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=TITLE)
    id = make_record(cast.alice, title="first")["id"]
    cast.alice.patch(f"records/posts/{id}", {"title": HOSTILE})
    browser = Browser(app, cast.alice)
    place = f"/console/records/{cast.alice.account_id}/posts/{id}"
    record = browser.client.get(f"/console/records/{cast.alice.account_id}/posts/{id}")
    target = re.search(r'href="(/console/[^"]*/history)"', record.text)
    assert target, (place, record.text)
    path = target[1].removeprefix("/console/")
    page = browser.get(path).text
    assert "first" in page
    assert "<script>alert" not in page
    (audit_id,) = re.findall(r'name="audit_id" value="(\d+)"', page)
    assert browser.send(path, audit_id=audit_id).status_code == 303
    assert cast.alice.get(f"records/posts/{id}").json["title"] == "first"
    assert browser.send(path, audit_id="x").status_code == 404
    assert browser.send(path, audit_id="1" * 18).status_code == 404
    assert Browser(app, cast.charlie).get(path).status_code == 404
    assert without_console(app, cast).get(path).status_code == 403


def test_console_record_forms_ask_for_signature(app: Flask, cast: Cast) -> None:
    posts = make_collection(cast.root, schema=TITLE)
    editor = f"collections/{posts['id']}/schema"
    superadmin = Browser(app, cast.root)
    form = {"rows": "1", "version": "1", "require_signature": "true"}
    planned = superadmin.send(editor, **form, do="plan").text
    assert "Apply plan" in planned
    seen = re.search(r'name="planned" value="([0-9a-f]+)"', planned)
    assert seen
    superadmin.done(editor, **form, planned=seen[1], do="apply")
    assert cast.root.get("collections/posts").json["options"] == {"require_signature": True}
    assert re.search(r'name="require_signature"[^>]* checked', superadmin.get(editor).text)
    browser, place = Browser(app, cast.alice), f"records/{cast.alice.account_id}/posts"
    assert 'name="es_password"' in browser.get(f"{place}/new").text
    new = {"f_title": "first", "do": "save", "es_username": cast.bob.email, "es_reason": "why"}
    for password, status, message in (("", 400, "Sign with"), ("wrong", 401, "is invalid")):
        refused = browser.send(f"{place}/new", **new, es_password=password)
        assert (refused.status_code, message in alert(refused)) == (status, True)
        assert 'value="why"' in refused.text
    signed = {**new, "es_password": PASSWORD}
    browser.done(f"{place}/new", **signed)
    (made,) = cast.alice.get("records/posts").json["items"]
    one = f"{place}/{made['id']}"
    browser.done(one, **{**signed, "f_title": "second"})
    first = entries(cast.root, table_name="col_posts")[0]["id"]
    assert browser.send(f"{one}/history", audit_id=first).status_code == 400
    browser.done(f"{one}/history", **{**signed, "audit_id": first})
    assert cast.alice.get(f"records/posts/{made['id']}").json["title"] == "first"
    assert browser.send(f"{one}/delete").status_code == 400
    browser.done(f"{one}/delete", **signed)
    told = entries(cast.root, table_name="col_posts")
    assert {entry["operation"] for entry in told} == {"CREATE", "UPDATE", "DELETE"}
    assert {(e["es_username"], e["es_reason"]) for e in told} == {(cast.bob.email, "why")}


@pytest.mark.parametrize("password", [" Correct-horse-1 ", "Correct-horse-1Ã©"])
def test_console_signature_password_is_used_unchanged(cast: Cast, password: str) -> None:
    make_collection(cast.root, schema=TITLE, options={"require_signature": True})
    body = {"password": password}
    assert cast.root.put(f"users/{cast.bob.id}/password", body).status_code == 200
    signed = {"es_username": cast.bob.email, "es_password": password, "es_reason": "cost: 5Â£"}
    browser, new = Browser(cast.bob.app, cast.alice), f"records/{cast.alice.account_id}/posts/new"
    browser.done(new, **signed, f_title="first", do="save")
    told = entries(cast.root, table_name="col_posts")
    assert {(one["es_username"], one["es_reason"]) for one in told} == {
        (cast.bob.email, "cost: 5Â£")
    }


def test_console_deletion_that_needs_signature_asks_for_it(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=TITLE)
    to_posts = {"name": "post", "type": "reference", "collection": "posts", "on_delete": "cascade"}
    notes = make_collection(cast.root, "notes", [to_posts])
    post = make_record(cast.alice, title="x")["id"]
    make_record(cast.alice, "notes", post=post)
    demand = {"options": {"require_signature": True}}
    assert cast.root.patch(f"collections/{notes['id']}", demand).status_code == 200
    browser, one = Browser(app, cast.alice), f"records/{cast.alice.account_id}/posts/{post}"
    assert 'name="es_password"' not in browser.get(one).text
    refused = browser.send(f"{one}/delete")
    assert (refused.status_code, "Sign it" in alert(refused)) == (428, True)
    assert 'name="es_password"' in refused.text
    signed = {"es_username": cast.alice.email, "es_password": PASSWORD, "es_reason": "tidying"}
    browser.done(f"{one}/delete", **signed)
    assert cast.alice.get("records/notes").json["total"] == 0


def test_console_audit_table_labels_cover_every_audited_table() -> None:
    assert audited_tables().keys() <= audit_names.nouns().keys()


@pytest.mark.parametrize("database", ["postgresql"])  # SQLite has one writer
def test_console_audit_entry_omits_interleaved_changes_of_other_accounts(
    app: Flask, cast: Cast
) -> None:
    make_collection(cast.root)
    assert verified(cast.root)["valid"]  # seals the changes
    step = "ALTER SEQUENCE audit_log_ids INCREMENT BY {}"
    with app.app_context(), tenancy.as_owner(), db.transaction():
        db.connection().exec_driver_sql(step.format(2))
    make_record(cast.alice, title="of acme")
    assert verified(cast.root)["valid"]
    ids = "SELECT max(last_id) FROM audit_changes"
    with app.app_context(), tenancy.as_owner(), db.transaction():
        newest = db.connection().exec_driver_sql(ids).scalar_one()
        db.connection().exec_driver_sql(f"SELECT setval('audit_log_ids', {newest - 3})")
    make_record(cast.charlie, title="of globex")
    entries = cast.root.get("audit-logs?table_name=col_posts&limit=100").json["items"]
    owner = {entry["id"]: entry["account_id"] for entry in entries}
    crossed = [id for id in owner if owner.get(id + 1, owner[id]) != owner[id]]
    assert len(crossed) > 1
    for id in crossed:
        page = Browser(app, cast.root).get(f"audit/{id}").text
        own = "of acme" if owner[id] == cast.alice.account_id else "of globex"
        assert ("of acme" in page) + ("of globex" in page) == 1, id
        assert own in page
