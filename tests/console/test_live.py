"""What keeps pages up to date: tickets for streams, and how soon a page asks again."""

from __future__ import annotations

from flask import Flask

from app.realtime import connections
from tests.builders import Cast
from tests.console.browser import Browser, asks_to_sign_in, sign_out
from tests.realtime.clients import Events, until
from tests.realtime.conftest import serving


def tickets_of(account_id: str) -> str:
    """Where a page gets its ticket for a stream of an account."""
    return f"accounts/{account_id}/stream-tickets"


def test_a_stream_of_the_console_is_of_the_pages_account_and_ends_with_the_session(
    app: Flask, cast: Cast
) -> None:
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


def test_tickets_are_for_admins_of_the_account_with_a_form_token(app: Flask, cast: Cast) -> None:
    acme = tickets_of(cast.alice.account_id)
    assert Browser(app, cast.bob).send(acme).status_code == 403
    assert Browser(app, cast.charlie).send(acme).status_code == 404
    assert asks_to_sign_in(Browser(app).send(acme))
    admin = Browser(app, cast.alice)
    assert admin.client.post(f"/console/{acme}").status_code == 400
    assert admin.get(acme).status_code == 405
