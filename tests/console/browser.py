"""A browser at the console, and what its pages say."""

from __future__ import annotations

import re
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.builders import PASSWORD, Caller, Cast, make_user

COOKIE = "atrium_console"
FORM_COOKIE = "atrium_form"
TOKEN = re.compile(r'name="csrf_token" value="([^"]+)"')
HOSTILE = '"><script>alert(1)</script>{{123457*9}}<img src=x onerror=alert(1)>'


# By client, with what its cookie says of it.
_tokens: WeakKeyDictionary[FlaskClient, tuple[str, str]] = WeakKeyDictionary()


def token(client: FlaskClient) -> str:
    """A form token of the page that this client would see, or the last one while it is good."""
    known, found = _tokens.get(client, ("", ""))
    if not known or known != _in_cookie(client):
        page = TOKEN.search(client.get("/console/sign-in", follow_redirects=True).text)
        assert page
        found = page[1]
        _tokens[client] = _in_cookie(client), found
    return found


def _in_cookie(client: FlaskClient) -> str:
    sessions: Any = client.application.session_interface
    cookie = client.get_cookie(FORM_COOKIE)
    signed = sessions.get_signing_serializer(client.application)
    return str(signed.loads(cookie.value).get("csrf_token", "")) if cookie else ""


def once(page: str) -> str:
    """What makes the form of a page one that makes a single thing."""
    (drawn,) = re.findall(r'name="as" value="([^"]*)"', page)
    return str(drawn)


def sign_in(client: FlaskClient, caller: Caller, **changes: str) -> TestResponse:
    """Send the sign-in form as this caller would fill it in."""
    form = {"account": caller.slug, "email": caller.email, "password": PASSWORD, **changes}
    return client.post("/console/sign-in", data={"csrf_token": token(client), **form})


def sign_out(client: FlaskClient) -> TestResponse:
    """Press the button in the page's head."""
    return client.post("/console/sign-out", data={"csrf_token": token(client)})


def is_out(client: FlaskClient) -> bool:
    """Whether the home page asks this client to sign in."""
    answer = client.get("/console")
    return answer.status_code == 302 and "/console/sign-in" in answer.headers["Location"]


def asks_to_sign_in(answer: TestResponse) -> bool:
    """Whether nothing else was answered than that somebody has to sign in."""
    if answer.status_code == 302:
        return "/console/sign-in" in answer.headers["Location"]
    return answer.status_code == 401 and "<title>Sign in" in answer.text


def whole(path: str) -> str:
    """A path, of the console unless it begins with a slash."""
    return path if path.startswith("/") else f"/console/{path}"


class Browser:
    """A browser in the hands of a caller, at the console."""

    def __init__(self, app: Flask, caller: Caller | None = None) -> None:
        self.client: FlaskClient = app.test_client()
        if caller:
            assert sign_in(self.client, caller).status_code == 303

    def get(self, path: str) -> TestResponse:
        """Open a page of the console, or that of a whole path."""
        return self.client.get(whole(path))

    def send(self, path: str, **form: object) -> TestResponse:
        """Send a form with its token."""
        data = {"csrf_token": token(self.client), **form}
        return self.client.post(whole(path), data=data)

    def done(self, path: str, **form: object) -> str:
        """Send a form that is accepted; returns the page that follows."""
        answer = self.send(path, **form)
        assert answer.status_code == 303, (answer.status_code, path)
        return self.client.get(answer.headers["Location"]).text


def alert(answer: TestResponse) -> str:
    """What the page says in alarm."""
    found = re.search(r'role="alert">([^<]*)<', answer.text)
    return found[1] if found else ""


def beside(answer: TestResponse, name: str) -> str:
    """What the page says beside a field."""
    found = re.search(rf'id="{name}-error">([^<]*)<', answer.text)
    return found[1] if found else ""


def without_console(app: Flask, cast: Cast) -> Browser:
    """The browser of a user of acme whose role opens the console no more."""
    role = cast.root.post("roles", {"name": f"member{next(_numbers)}", "console": True}).json
    email = f"{role['name']}@acme.example"
    user = make_user(app, cast.alice.account_id, email, role["name"])
    browser = Browser(app, Caller(app, user))
    assert cast.root.patch(f"roles/{role['id']}", {"console": False}).status_code == 200
    return browser


_numbers = count()
