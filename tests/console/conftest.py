"""Browsers in the hands of the cast, and ids of what belongs to acme."""

from __future__ import annotations

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.builders import PASSWORD, Caller, Cast
from tests.console.browser import Browser


@pytest.fixture
def browser(app: Flask) -> FlaskClient:
    """A client that keeps cookies, as a browser does."""
    return app.test_client()


@pytest.fixture
def admin(app: Flask, cast: Cast) -> Browser:
    """alice's browser."""
    return Browser(app, cast.alice)


@pytest.fixture
def superadmin(app: Flask, cast: Cast) -> Browser:
    """root's browser."""
    return Browser(app, cast.root)


@pytest.fixture
def ids(app: Flask, cast: Cast) -> dict[str, str]:
    """The ids of what belongs to acme."""
    made = {
        "group": cast.alice.post("groups", {"name": "finance"}),
        "invitation": cast.alice.post("invitations", {"email": "dora@acme.example"}),
        "key": cast.alice.post("api-keys", {"name": "import"}),
    }
    login = {"account": "acme", "email": cast.alice.email, "password": PASSWORD}
    Caller(app).post("auth/login", login)
    session = cast.alice.get("auth/sessions").json["items"][0]["id"]
    people = {"alice": cast.alice.id, "bob": cast.bob.id, "acme": cast.alice.account_id}
    return (
        {name: answer.json["id"] for name, answer in made.items()} | people | {"session": session}
    )
