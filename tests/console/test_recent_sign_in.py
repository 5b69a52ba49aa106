"""The console asks for the password again, before what needs a recent sign-in."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import time_machine
from flask import Flask

from app import clock
from tests.builders import PASSWORD, Cast, change_user
from tests.console.browser import Browser, alert, beside, token

UNSENT = re.compile(r'name="unsent" value="([^"]+)"')


def later(minutes: float = 16) -> Any:
    return time_machine.travel(clock.now() + timedelta(minutes=minutes))


def test_console_reauthentication_keeps_form_input(cast: Cast, admin: Browser) -> None:
    with later():
        asks = admin.send("keys/new", name="nightly import", description="Every night.")
        assert (asks.status_code, "Confirm that it is you" in asks.text) == (403, True)
        assert cast.alice.email in asks.text
        (kept,) = UNSENT.findall(asks.text)
        wrong = admin.send("reauthenticate", password="Wrong-horse-1", unsent=kept)
        assert (wrong.status_code, bool(beside(wrong, "password"))) == (400, True)
        (kept,) = UNSENT.findall(wrong.text)
        form = {"csrf_token": token(admin.client), "password": PASSWORD, "unsent": kept}
        answer = admin.client.post("/console/reauthenticate", data=form)
        assert (answer.status_code, answer.headers["Location"]) == (307, "/console/keys/new")
        shown = admin.client.post("/console/keys/new", data=form)
        assert "Nothing is saved yet" in alert(shown)
        assert "nightly import" in shown.text
        assert "svc_sk_" in admin.done("keys/new", name="nightly import")


def test_console_reauthentication_asks_to_repeat_button(cast: Cast, superadmin: Browser) -> None:
    path = f"users/{cast.bob.id}"
    with later():
        data = {"csrf_token": token(superadmin.client), "new_password": "Better-horse-2"}
        headers = {"Referer": f"http://localhost/console/{path}"}
        asks = superadmin.client.post(f"/console/{path}/password", data=data, headers=headers)
        assert (asks.status_code, UNSENT.findall(asks.text)) == (403, [])
        assert f'name="next" value="/console/{path}"' in asks.text
        page = superadmin.done("reauthenticate", password=PASSWORD, next=f"/console/{path}")
        assert "Now repeat your last action." in page
        superadmin.done(f"{path}/password", new_password="Better-horse-2")
        elsewhere = superadmin.send("reauthenticate", password=PASSWORD, next="//evil.example")
        assert elsewhere.headers["Location"] == "/console"


def test_console_reauthentication_without_password_asks_to_sign_in_again(
    app: Flask, cast: Cast, admin: Browser
) -> None:
    change_user(app, cast.alice.id, password_hash=None)
    with later():
        for asks in (
            admin.send("profile", name="", email="a@acme.example"),
            admin.send("reauthenticate", password=PASSWORD),
        ):
            assert (asks.status_code, "sign out and sign in again" in asks.text) == (403, True)
