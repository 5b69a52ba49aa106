"""Every route declares its access, which the guard enforces and the API description states."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask

from app import clock
from app.web.access import AccessLevel, ViewAccess, account_admin
from tests.builders import Caller

ANY_ID = "019a9f00-0000-7000-8000-00000000dead"
RECENT, NO_KEYS = "with a recent sign-in", "not for API keys"
LEVELS = {
    AccessLevel.SIGNED_IN: "For users",
    AccessLevel.ACCOUNT_ADMIN: "For admins",
    AccessLevel.SUPERADMIN: "For superadmins",
}


def operations(app: Flask) -> Iterator[tuple[str, str, ViewAccess, str]]:
    """The method, path, declared access and description of every operation of the API."""
    described = app.test_client().get("/openapi.json").get_json()["paths"]
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<(?:[^<>]*:)?(\w+)>", r"{\1}", rule.rule)
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            operation: dict[str, Any] = described.get(path, {}).get(method.lower())
            if operation:
                access = app.view_functions[rule.endpoint].access  # type: ignore[attr-defined]
                address = re.sub(r"\{\w+\}", ANY_ID, path)
                yield method, address, access, operation.get("description", "")


def test_every_route_declares_its_access(app: Flask) -> None:
    undeclared = {
        rule.rule
        for rule in app.url_map.iter_rules()
        if not isinstance(vars(app.view_functions[rule.endpoint]).get("access"), ViewAccess)
    }
    assert not undeclared


def test_a_recent_sign_in_excludes_api_keys() -> None:
    with pytest.raises(ValueError, match="api_keys=False"):
        account_admin(recent_sign_in=True)


def test_the_description_says_who_may_call(app: Flask) -> None:
    for method, path, access, text in operations(app):
        first = text.partition(". ")[0]
        is_said = access.level in (AccessLevel.ACCOUNT_ADMIN, AccessLevel.SUPERADMIN)
        if is_said or not access.api_keys:
            assert first.startswith(LEVELS[access.level]), (method, path)
        assert (RECENT in first) == access.recent_sign_in, (method, path)
        assert (NO_KEYS in first) == (not access.api_keys), (method, path)
        read_only = access.reads and access.api_keys
        assert ("Read-only API keys may do this." in text) == read_only, (method, path)


def test_the_guard_refuses_before_it_reads_the_body(app: Flask, root: Caller) -> None:
    key = root.post("api-keys", {"name": "program"}).json["key"]
    credential = {"Authorization": root.headers["Authorization"], "X-Account-ID": "acme"}
    client, checked = app.test_client(), 0
    later = time_machine.travel(clock.now() + timedelta(minutes=16), tick=False)
    for method, path, access, _ in operations(app):
        if access.api_keys:
            continue
        sent: dict[str, Any] = {"data": "no JSON", "content_type": "text/plain"}
        by_key = client.open(path, method=method, headers={"X-API-Key": key}, **sent)
        assert (by_key.status_code, by_key.get_json()["error"]) == (403, "forbidden"), path
        if access.recent_sign_in:
            with later:
                late = client.open(path, method=method, headers=credential, **sent)
            refused = (late.status_code, late.get_json()["error"])
            assert refused == (403, "recent_sign_in_required"), path
            checked += 1
    assert checked >= 25
