"""Pages of the audit log, its chains, and the history of a record."""

from __future__ import annotations

import re

import pytest
from flask import Flask

from tests.audit.chains import entries
from tests.builders import PASSWORD, Cast, make_collection, make_record
from tests.console.browser import HOSTILE, Browser, alert

TITLE = [{"name": "title", "type": "text"}]


def test_the_log_is_filtered_looked_at_and_exported(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=TITLE)
    made = make_record(cast.alice, title=HOSTILE)
    browser = Browser(app, cast.root)
    page = browser.get(f"audit?table_name=col_posts&record_id={made['id']}").text
    assert "2 entries" in page
    assert "<script>alert" not in page
    (entry, *_) = re.findall(r"/console/audit/(\d+)", page)
    one = browser.get(f"audit/{entry}").text
    assert made["id"] in one
    assert "<script>alert" not in one
    assert "No matches" in browser.get("audit?operation=DELETE").text
    assert "is not a date" in browser.get("audit?from_date=yesterday").text
    file = browser.get("audit/export/csv?table_name=col_posts")
    assert file.headers["Content-Disposition"] == "attachment; filename=audit-log.csv"
    assert len(file.text.strip().splitlines()) >= 3
    assert browser.get("audit/999999999999").status_code == 404
    assert browser.get("audit/nonsense").status_code == 404


def test_chains_are_shown_and_verified_as_it_goes_on(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=TITLE)
    make_record(cast.alice, title="x")
    browser = Browser(app, cast.root)
    assert cast.alice.account_id in browser.get("audit/chains").text
    answer = browser.send("audit/verify")
    assert answer.status_code == 200
    assert answer.is_streamed
    assert re.search(r"All \d+ chains are intact: \d+ entries", answer.text)
    assert "All 1 chains" in browser.send("audit/verify", account_id=cast.alice.account_id).text


@pytest.mark.parametrize("path", ["audit", "audit/1", "audit/chains", "audit/export/csv"])
def test_the_log_is_for_superadmins(app: Flask, cast: Cast, path: str) -> None:
    assert Browser(app, cast.alice).get(path).status_code == 403


def test_a_record_is_taken_back_to_what_it_was(app: Flask, cast: Cast) -> None:
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
    assert Browser(app, cast.bob).get(path).status_code == 403


def test_records_are_signed_in_forms(app: Flask, cast: Cast) -> None:
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
def test_a_password_is_signed_with_as_it_was_chosen(cast: Cast, password: str) -> None:
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


def test_what_turns_out_to_need_a_signature_asks_for_it(app: Flask, cast: Cast) -> None:
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
