"""Builders of test data, and the callers of tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from json import dumps
from typing import Any

import sqlalchemy as sa
from flask import Flask
from werkzeug.test import TestResponse

from app import clock
from app.accounts import service as accounts
from app.accounts.models import ADMIN, EDITOR, PII_GROUP, SYSTEM_ACCOUNT_ID, VIEWER, Role, User
from app.auth import passwords, tokens
from app.db import db, transaction

PASSWORD = "Correct-horse-1"
OPEN = dict.fromkeys(
    ("list_rule", "view_rule", "create_rule", "update_rule", "delete_rule"), "true"
)


class Caller:
    """An API client that sends JSON and a user's token."""

    def __init__(self, app: Flask, user: User | None = None, **headers: str) -> None:
        self.app, self.headers = app, headers
        if user is not None:
            self.id, self.email = user.id, user.email
            self.account_id, self.slug = user.account_id, user.account.slug
            self.headers = {"Authorization": f"Bearer {token_of(app, user)}", **headers}

    def __call__(
        self,
        method: str,
        path: str,
        json: Any = None,
        headers: Mapping[str, str] = {},
        **options: Any,
    ) -> TestResponse:
        """Send a request; paths without a leading slash are relative to the API."""
        url = path if path.startswith("/") else f"/api/v1/{path}"
        if json is not None:
            options |= {"data": dumps(json), "content_type": "application/json"}
        client = self.app.test_client(use_cookies=False)
        return client.open(url, method=method, headers={**self.headers, **headers}, **options)

    def get(self, path: str, **options: Any) -> TestResponse:
        """GET."""
        return self("GET", path, **options)

    def post(self, path: str, json: Any = None, **options: Any) -> TestResponse:
        """POST."""
        return self("POST", path, json, **options)

    def put(self, path: str, json: Any = None, **options: Any) -> TestResponse:
        """PUT."""
        return self("PUT", path, json, **options)

    def patch(self, path: str, json: Any = None, **options: Any) -> TestResponse:
        """PATCH."""
        return self("PATCH", path, json, **options)

    def delete(self, path: str, **options: Any) -> TestResponse:
        """DELETE."""
        return self("DELETE", path, **options)

    def acting_in(self, account: str) -> Caller:
        """The same caller with an X-Account-ID."""
        other = Caller(self.app, **{**self.headers, "X-Account-ID": account})
        other.__dict__ |= {k: v for k, v in self.__dict__.items() if k not in ("app", "headers")}
        return other


@dataclass
class Cast:
    """The callers of the tests."""

    alice: Caller
    bob: Caller
    charlie: Caller
    root: Caller


@lru_cache
def password_hash() -> str:
    """The hash of PASSWORD, cached."""
    return passwords.hash(PASSWORD)


def token_of(app: Flask, user: User) -> str:
    """An access token of a user."""
    with app.app_context():
        return tokens.access(user, authenticated_at=clock.now())


def make_account(app: Flask, slug: str, name: str | None = None) -> str:
    """A new account; returns its id."""
    with app.app_context():
        return accounts.create_account(name or slug.title(), slug).id


def make_user(
    app: Flask, account_id: str, email: str, role: str = VIEWER, *, verified: bool = True
) -> User:
    """A new user whose password is PASSWORD."""
    with app.app_context(), transaction():
        user = accounts.create_user(
            account_id, email=email, password_hash=password_hash(), role=role
        )
        if verified:
            accounts.mark_verified(user)
        return user


def change_user(app: Flask, user_id: str, **values: Any) -> None:
    """Change columns of a user and increment its version."""
    with app.app_context(), transaction() as session:
        user = session.query(User).filter_by(id=user_id).one()
        for name, value in values.items():
            setattr(user, name, value)
        user.version += 1


def change_passwords(app: Flask) -> None:
    """Hash all passwords again."""
    with app.app_context(), transaction() as session:
        for account_id in session.scalars(sa.select(User.account_id).distinct()).all():
            mine = sa.update(User).where(User.account_id == account_id)
            session.execute(mine.values(password_hash=password_hash()))


def make_cast(app: Flask) -> Cast:
    """The cast of every test."""
    return cast_of(app, make_people(app))


def open_console(app: Flask, *roles: str) -> None:
    """Let the users of these roles open the console."""
    with app.app_context(), transaction() as session:
        named = sa.update(Role).where(Role.name.in_(roles))
        session.execute(named.values(console=True, updated_at=Role.updated_at))


def make_people(app: Flask) -> list[User]:
    """Create the users of the cast: alice, bob, charlie and root; all of them open the console."""
    open_console(app, VIEWER, EDITOR)
    acme, globex = make_account(app, "acme"), make_account(app, "globex")
    alice = make_user(app, acme, "alice@acme.example", ADMIN)
    bob = make_user(app, acme, "bob@acme.example", VIEWER)
    charlie = make_user(app, globex, "charlie@globex.example", ADMIN)
    root = make_user(app, SYSTEM_ACCOUNT_ID, "root@system.example", ADMIN)
    with app.app_context():
        for user in (alice, charlie):
            accounts.join_group(db.session.merge(user), PII_GROUP)
    return [alice, bob, charlie, root]


def cast_of(app: Flask, people: list[User]) -> Cast:
    """The callers for alice, bob, charlie and root."""
    return Cast(*(Caller(app, user) for user in people))


def make_collection(
    root: Caller, name: str = "posts", schema: list[dict[str, Any]] | None = None, **rules: Any
) -> dict[str, Any]:
    """A new collection, open to the signed-in unless rules say otherwise."""
    schema = schema or [{"name": "title", "type": "text"}]
    answer = root.post("collections", {"name": name, "schema": schema, **OPEN, **rules})
    assert answer.status_code == 201, answer.json
    made: dict[str, Any] = answer.json
    return made


def make_drawer(root: Caller) -> dict[str, Any]:
    """A collection whose records hold a file, so that its writers may upload."""
    return make_collection(root, "drawers", [{"name": "content", "type": "file"}])


def changes_of_records(caller: Caller, **query: Any) -> list[dict[str, Any]]:
    """The first page of the change feed, without what says to list a collection again."""
    items = caller.get("changes", query_string=query).json["items"]
    return [one for one in items if one["event"] != "records.reset"]


def make_record(caller: Caller, collection: str = "posts", **fields: Any) -> dict[str, Any]:
    """A new record."""
    answer = caller.post(f"records/{collection}", fields)
    assert answer.status_code == 201, answer.json
    made: dict[str, Any] = answer.json
    return made
