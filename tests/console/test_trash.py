"""The trash on the console: its page, its buttons, and the option that switches it on."""

from __future__ import annotations

from flask import Flask

from tests.builders import Cast, make_collection, make_record
from tests.console.browser import HOSTILE, Browser, alert, beside
from tests.console.test_schemas import inputs
from tests.files.test_files import upload


def test_trash_page_restores_and_deletes_for_good(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, options={"trash": {"days": 7}})
    made = [make_record(cast.alice, title=title)["id"] for title in ("one", HOSTILE)]
    browser, at = Browser(app, cast.alice), f"records/{cast.alice.account_id}/posts"
    assert "The trash is empty." in browser.get(f"{at}/trash").text
    for id in made:
        browser.send(f"{at}/{id}/delete")
    assert f"/{at}/trash" in browser.get(at).text
    shown = browser.get(f"{at}/trash").text
    assert "stay here for 7 days" in shown
    assert shown.index("&lt;") < shown.index(">one<")  # the latest first, and no markup
    assert "alice@acme.example" in shown
    assert "The record is restored." in browser.done(f"{at}/trash/{made[0]}/restore")
    assert "is deleted for good" in browser.done(f"{at}/trash/{made[1]}/delete")
    assert cast.alice.get("records/posts?trash=true").json["items"] == []
    assert [one["id"] for one in cast.alice.get("records/posts").json["items"]] == [made[0]]
    gone = browser.send(f"{at}/trash/{made[1]}/restore")
    assert (gone.status_code, "not in the trash" in alert(gone)) == (404, True)


def test_trash_page_is_of_those_who_may_delete(app: Flask, cast: Cast) -> None:
    only_admins = "@request.auth.role = 'admin'"
    make_collection(cast.root, options={"trash": {"days": 7}}, delete_rule=only_admins)
    make_collection(cast.root, "notes")
    id = make_record(cast.alice, title="hidden one")["id"]
    cast.alice.delete(f"records/posts/{id}")
    browser, at = Browser(app, cast.bob), f"records/{cast.alice.account_id}"
    assert "/trash" not in browser.get(f"{at}/posts").text
    assert "hidden one" not in browser.get(f"{at}/posts/trash").text
    assert browser.send(f"{at}/posts/trash/{id}/restore").status_code == 403
    assert "This collection has no trash." in browser.get(f"{at}/notes/trash").text


def test_undo_of_a_deletion_takes_the_record_out_of_the_trash(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, options={"trash": {"days": 7}})
    before = make_record(cast.alice, title="one")
    browser, at = Browser(app, cast.alice), f"records/{cast.alice.account_id}/posts"
    browser.send(f"{at}/{before['id']}/delete")
    browser.send(f"{at}/{before['id']}/revive")
    after = cast.alice.get(f"records/posts/{before['id']}").json
    assert after["created_at"] == before["created_at"]
    assert cast.alice.get("records/posts?trash=true").json["items"] == []


def test_editor_switches_the_trash_on_and_off(app: Flask, cast: Cast) -> None:
    made = make_collection(cast.root)
    browser, at = Browser(app, cast.root), f"collections/{made['id']}/schema"
    sent = inputs(browser.get(at).text)
    wrong = browser.send(at, **sent | {"trash_days": "9999"}, do="plan")
    assert "from 1 to 3650" in beside(wrong, "trash_days")
    planned = browser.send(at, **sent | {"trash_days": "14"}, do="plan")
    browser.done(at, **inputs(planned.text), do="apply")
    stored = cast.root.get(f"collections/{made['id']}").json["options"]
    assert stored["trash"] == {"days": 14}
    cast.alice.delete(f"records/posts/{make_record(cast.alice, title='x')['id']}")
    page = browser.get(at).text
    assert inputs(page)["trash_days"] == "14"
    planned = browser.send(at, **inputs(page) | {"trash_days": ""}, do="plan")
    assert "1 record in the trash is deleted for good." in planned.text
    browser.done(at, **inputs(planned.text), do="apply")
    assert "trash" not in cast.root.get(f"collections/{made['id']}").json["options"]


def test_restore_asks_for_what_the_record_lacks(app: Flask, cast: Cast) -> None:
    fields = [{"name": "title", "type": "text", "unique": True}]
    made = make_collection(cast.root, schema=fields, options={"trash": {"days": 7}})
    id = make_record(cast.alice, title="one")["id"]
    cast.alice.delete(f"records/posts/{id}")
    more = [
        {"name": "state", "type": "select", "required": True, "options": {"choices": ["a", "b"]}},
        {"name": "paper", "type": "file", "required": True},
    ]
    assert cast.root.patch(f"collections/{made['id']}", {"schema": more}).status_code == 200
    taken = make_record(cast.alice, title="one", state="a", paper=upload(cast.alice)["id"])
    browser = Browser(app, cast.alice)
    at = f"records/{cast.alice.account_id}/posts/trash/{id}/restore"
    first = browser.send(at)
    assert first.status_code == 400
    assert 'name="f_title"' not in first.text
    assert 'name="new_paper"' in first.text
    assert "This field is required." in beside(first, "f_state")
    file = upload(cast.alice)["id"]
    sent = {"field": ["state", "paper"], "f_state": "b", "f_paper": file}
    clash = browser.send(at, **sent)
    assert clash.status_code == 409
    assert "has this value already" in beside(clash, "f_title")
    assert '<option value="b" selected' in clash.text
    sent |= {"field": ["state", "paper", "title"], "f_title": "two"}
    assert "The record is restored." in browser.done(at, **sent)
    record = cast.alice.get(f"records/posts/{id}").json
    assert (record["title"], record["state"], record["paper"]["id"]) == ("two", "b", file)
    assert taken["title"] == "one"


def test_restore_asks_nobody_for_what_they_may_not_write(app: Flask, cast: Cast) -> None:
    made = make_collection(cast.root, options={"trash": {"days": 7}}, update_rule=None)
    id = make_record(cast.alice, title="one")["id"]
    cast.alice.delete(f"records/posts/{id}")
    more = [{"name": "state", "type": "text", "required": True}]
    assert cast.root.patch(f"collections/{made['id']}", {"schema": more}).status_code == 200
    at = f"records/{cast.alice.account_id}/posts/trash/{id}/restore"
    answer = Browser(app, cast.alice).send(at)
    assert (answer.status_code, "f_state" in answer.text) == (400, False)
    assert "This field is required." in alert(answer)
