"""What keeps pages up to date: tickets for streams, and how soon a page asks again."""

from __future__ import annotations

import re

from flask import Flask

from app.realtime import connections
from tests.builders import Cast, make_collection, make_record
from tests.console.browser import Browser, asks_to_sign_in, sign_out, without_console
from tests.realtime.clients import Events, until
from tests.realtime.conftest import serving
from tests.receivers import receiving
from tests.webhooks.delivering import deliver, make_webhook
from tests.workflows.running import create, make_workflow, start, work


def tickets_of(account_id: str) -> str:
    """Where a page gets its ticket for a stream of an account."""
    return f"accounts/{account_id}/stream-tickets"


def test_console_stream_ticket_is_bound_to_account_and_session(app: Flask, cast: Cast) -> None:
    acme = cast.alice.account_id
    with serving(app) as port:
        for caller in (cast.alice, cast.root):
            browser = Browser(app, caller)
            answer = browser.send(tickets_of(acme))
            assert (answer.status_code, list(answer.json)) == (201, ["ticket"])
            assert answer.headers["Cache-Control"] == "no-store"
            left = browser.send(tickets_of(acme)).json["ticket"]
            stream = Events(port, f"ticket={answer.json['ticket']}")
            assert stream.status == 200
            (found,) = (one.credential for one in connections.registry.all())
            assert (found.user_id, found.account_id) == (caller.id, acme)
            sign_out(browser.client)
            assert b"event: message" not in stream.ended()
            assert Events(port, f"ticket={left}").status == 401
            stream.socket.close()
            until(lambda: not connections.registry.all())


def test_console_stream_ticket_requires_console_and_csrf_token(app: Flask, cast: Cast) -> None:
    acme = tickets_of(cast.alice.account_id)
    assert without_console(app, cast).send(acme).status_code == 403
    assert Browser(app, cast.bob).send(acme).status_code == 201
    assert Browser(app, cast.charlie).send(acme).status_code == 404
    assert asks_to_sign_in(Browser(app).send(acme))
    admin = Browser(app, cast.alice)
    assert admin.client.post(f"/console/{acme}").status_code == 400
    assert admin.get(acme).status_code == 405


def test_console_notice_waits_for_next_opened_page(app: Flask, cast: Cast) -> None:
    admin = Browser(app, cast.alice)
    home = f"workflows/{cast.alice.account_id}/instances"
    assert admin.send(f"{home}/resume").status_code == 303
    refreshed = admin.client.get(f"/console/{home}", headers={"X-Requested-With": "XMLHttpRequest"})
    pages = [refreshed.text, admin.get(home).text, admin.get(home).text]
    assert ["No instance has failed." in page for page in pages] == [False, True, False]


def test_console_pages_with_unfinished_work_refresh_every_5_seconds(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    admin, account = Browser(app, cast.alice), cast.alice.account_id
    with receiving(lambda request: (200, "thanks")) as receiver:
        webhook = make_webhook(cast.alice, receiver.url, collection="posts")["id"]
        make_record(cast.alice)
        delivery = cast.alice.get(f"webhooks/{webhook}/deliveries").json["items"][0]["id"]
        instance = start(cast.alice, make_workflow(cast.alice, [create("one")]))
        pages = [
            f"webhooks/{account}/deliveries",
            f"webhooks/{account}/{webhook}/deliveries/{delivery}",
            f"workflows/{account}/instances",
            f"workflows/{account}/instances/{instance}",
        ]
        assert [seconds(admin, page) for page in pages] == [5, 5, 5, 5]
        work(app)
        deliver(app)
        assert [seconds(admin, page) for page in pages[:3]] == [30, 30, 30]
        assert "data-refresh" not in admin.get(pages[3]).text  # what has ended stays as it is


def seconds(browser: Browser, page: str) -> int:
    """After how many seconds a page asks again."""
    (found,) = re.findall(r'data-refresh="(\d+)"', browser.get(page).text)
    return int(found)


def test_console_record_list_streams_from_shown_change(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    account = cast.alice.account_id
    for browser in (Browser(app, cast.alice), Browser(app, cast.root)):
        for _ in range(2):
            make_record(cast.alice)
            newest = cast.alice.get("changes").json["next"]
            page = browser.get(f"records/{account}/posts").text
            assert f'data-since="{newest}"' in page
            assert 'data-stream="/api/v1/realtime/subscribe?collections=posts"' in page
            assert f'data-tickets="/console/{tickets_of(account)}"' in page
