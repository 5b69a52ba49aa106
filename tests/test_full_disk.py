"""A disk that is full: told by /ready and doctor, and no reason to keep out who can free some."""

from __future__ import annotations

import re

import pytest
from flask import Flask

from app.db import disk
from tests.builders import PASSWORD, Caller, Cast, make_collection, make_record
from tests.console.browser import Browser, is_out, sign_in

LOGIN = {"account": "acme", "email": "alice@acme.example", "password": PASSWORD}


@pytest.fixture
def database() -> str:
    return "sqlite"


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes are free, as the test says."""
    bytes_left = [1 << 30]
    monkeypatch.setattr(disk, "space", lambda file: disk.Space(bytes_left[-1], 1 << 40))
    return bytes_left


def test_full_disk_allows_only_sign_in_and_deletion(
    cast: Cast, alice: Caller, left: list[int]
) -> None:
    make_collection(cast.root)
    record = make_record(alice, title="a")
    left.append(disk.LOW_BYTES - 1)
    path = f"records/posts/{record['id']}"
    for refused in (
        alice.post("records/posts", {"title": "a"}),
        alice.patch(path, {"title": "b"}),
        alice.post("records/posts/import", data="title\na\n", content_type="text/csv"),
        alice.post("auth/register", {"account_name": "New", "email": "n@n.example"}),
    ):
        assert refused.status_code in (422, 503)
    assert alice.post("records/posts", {"title": "a"}).json["message"] == disk.FULL
    signed_in = alice.post("auth/login", LOGIN)
    assert signed_in.status_code == 200
    renewal = {"refresh_token": signed_in.json["refresh_token"]}
    assert alice.post("auth/refresh", renewal).status_code == 200
    assert alice.get(path).status_code == 200
    assert alice.delete(path).status_code == 204
    left.append(1 << 30)
    assert alice.post("records/posts", {"title": "a"}).status_code == 201


def test_full_disk_allows_console_sign_in_and_deletion(
    app: Flask, cast: Cast, left: list[int]
) -> None:
    left.append(disk.LOW_BYTES - 1)
    client = app.test_client()
    assert sign_in(client, cast.alice).status_code == 303
    assert not is_out(client)
    deleting = [
        rule.rule
        for rule in app.url_map.iter_rules()
        if rule.rule.startswith("/console/") and re.search("/(delete|remove)$", rule.rule)
    ]
    assert len(deleting) > 4
    assert all(disk.is_essential("POST", path) for path in deleting)
    for path in ("reauthenticate", "sso/start/auth_providers/google", "sso/finish"):
        assert disk.is_essential("POST", f"/console/{path}")


def test_console_health_page_shows_free_disk(app: Flask, cast: Cast, left: list[int]) -> None:
    root = Browser(app, cast.root)
    left.append(2048 * disk.MIB)
    assert "2 GiB of 1 TiB free" in root.get("health").text
    left.append(disk.LOW_BYTES - disk.MIB)
    page = root.get("health").text
    assert 'class="state bad">full</span>' in page
    assert ">less than 16 MiB free; 15 MiB of 1 TiB free<" in page


def test_full_disk_blocks_sign_in_settings(app: Flask, cast: Cast, left: list[int]) -> None:
    new = f"sso/{cast.alice.account_id}/new/auth_providers/google"
    form = {"display_name": "Google", "priority": "0", "client_id": "a", "client_secret": "b"}
    admin = Browser(app, cast.alice)
    left.append(disk.LOW_BYTES - disk.MIB)  # the database has free pages of its own
    assert admin.send(new, **form).status_code == 503
    left.append(1 << 30)
    assert admin.send(new, **form).status_code == 303


def test_full_disk_counts_free_space_within_database(
    cast: Cast, alice: Caller, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root)
    left.append(disk.LOW_BYTES - 1)
    assert alice.post("records/posts", {"title": "a"}).status_code == 503
    monkeypatch.setattr(disk, "_unused", lambda connection: 2)
    assert alice.post("records/posts", {"title": "a"}).status_code == 201
