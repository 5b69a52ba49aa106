"""Whatever is sent to any operation, by whomever: the answer is one that the description tells of."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import pytest
from flask import Flask

from app import targets
from app.accounts.models import EDITOR
from tests import builders, fuzzing
from tests.builders import PASSWORD, Caller, Cast
from tests.console import furnished
from tests.workflows import running

SEED = 7
# What of the account there is, by the names that parameters and properties have for its id.
LISTS = {
    "user_id": "account/users",
    "group_id": "groups",
    "key_id": "api-keys",
    "invitation": "invitations",
    "webhook_id": "webhooks",
    "workflow_id": "workflows",
    "hook_id": "hooks",
    "configuration_id": "admin/configuration",
    "session_id": "auth/sessions",
}
WHOLE = {"collection_id": "collections", "account_id": "accounts", "entry_id": "audit-logs"}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def callers(app: Flask, cast: Cast) -> dict[str, dict[str, str]]:
    """Every kind of caller, by what it sends along."""
    alice, root = cast.alice, cast.root
    editor = builders.make_user(app, alice.account_id, "ed@acme.example", EDITOR)
    scopes = {"collections": ["books", "posts"], "operations": ["list", "create"]}
    keys = [
        alice.post("api-keys", {"name": name, **more}).json["key"]
        for name, more in (("whole", {}), ("scoped", {"scopes": scopes}))
    ]
    return {
        "nobody": {},
        "nobody in acme": {"X-Account-ID": "acme"},
        "a bad credential": bearer("x.y.z"),
        "a viewer": cast.bob.headers,
        "an editor": bearer(builders.token_of(app, editor)),
        "an admin": alice.headers,
        "an admin of another account": cast.charlie.headers,
        "an API key": bearer(keys[0]),
        "a scoped API key": {"X-API-Key": keys[1]},
        "a superadmin": root.headers,
        "a superadmin in acme": root.headers | {"X-Account-ID": "acme"},
        "a superadmin everywhere": root.headers | {"X-Account-ID": "*"},
    }


def ids(caller: Caller, path: str) -> list[Any]:
    """The ids of what a list has."""
    answer = caller.get(path)
    assert answer.status_code == 200, (path, answer.json)
    found = answer.json["items"] if isinstance(answer.json, dict) else answer.json
    assert found, path
    return [item["id"] for item in found]


def known(app: Flask, cast: Cast) -> dict[str, list[Any]]:
    """What acme has of everything, by the names that requests have for it."""
    made, alice = furnished.furnish(app, cast), cast.alice
    signing_in = {"account": "acme", "email": alice.email}
    session = Caller(app).post("auth/login", signing_in | {"password": PASSWORD}).json
    hooked = running.make_workflow(alice, [running.create("one")], {"type": "webhook"})
    found = {name: ids(alice, path) for name, path in LISTS.items()}
    found |= {name: ids(cast.root, path) for name, path in WHOLE.items()}
    return found | {
        "collection": ["books", "posts", "closed"],
        "collection_name": ["books", "posts", "closed"],
        "record_id": [*ids(alice, "records/books"), *ids(alice, "records/posts")],
        "delivery_id": [made["delivery_id"]],
        "instance_id": [made["instance_id"]],
        "role_id": [1, 2, 3],
        "category": ["auth_providers", "saml_providers"],
        "provider": ["google", "okta"],
        "provider_name": ["google", "okta"],
        "token": [made["reset_token"], hooked["trigger"]["token"]],
        "invitation": [*found["invitation"], made["token"]],
        "refresh_token": [session["refresh_token"]],
        "account": ["acme"],
        "email": [alice.email, "new@acme.example", "another@new.example"],
        "password": [PASSWORD],
        "current_password": [PASSWORD],
        "new_password": [f"{PASSWORD}2"],
    }


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made up may name any host: none of them is asked."""
    real = socket.create_connection

    def connect(address: tuple[str, int], *rest: Any, **options: Any) -> Any:
        if address[0] not in ("127.0.0.1", "::1"):
            raise ConnectionRefusedError
        return real(address, *rest, **options)

    def look_up(host: str, port: int) -> list[str]:
        raise socket.gaierror

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(targets, "_resolve", look_up)


def fuzzed(app: Flask, cast: Cast, made: int, times: int, seed: int) -> fuzzing.Run:
    """Send so many requests of each operation, of so many that are made up."""
    description = Caller(app).get("/openapi.json").text
    run = fuzzing.Run(app, callers(app, cast), known(app, cast), Random(seed))
    kept = fuzzing.Kept(app)
    for label, requests in fuzzing.made_up(description, made, seed).items():
        run.operation(label, requests, times, kept)
    return run


def check(run: fuzzing.Run, operations: int) -> None:
    """Nothing was wrong, and all of it was tried."""
    assert run.faults == {}, "\n\n".join(f"{name}\n{run.faults[name]}" for name in run.faults)
    labels = {label for label, _ in run.sent}
    assert len(labels) == operations
    assert run.sent.keys() == {(label, caller) for label in labels for caller in run.callers}


def test_a_few_requests_by_every_caller(app: Flask, cast: Cast, alone: None) -> None:
    run = fuzzed(app, cast, made=3, times=12, seed=SEED)
    check(run, operations_of(app))


@pytest.mark.slow
def test_thousands_of_requests(app: Flask, cast: Cast, alone: None) -> None:
    seed = secrets.randbelow(2**32)
    print(f"seed {seed}")
