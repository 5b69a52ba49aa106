"""Passwords that everybody tries first are refused, however they are dressed up."""

from __future__ import annotations

import time
from typing import Any

import pytest
from flask import Flask

from app.auth.passwords import is_common
from tests.builders import PASSWORD, Caller, Cast
from tests.mailbox import outbox, run_jobs, token_in

COMMON = [
    "Password1234!",
    "Qwertyuiop1!",
    "Aaaaaaaaaa1!",
    "P@ssw0rd1234!",
    "p4$$W0RD!!!!2026",
    "123Password!!",
    "P-a-s-s-w-o-r-d-1",
    "PasswordPassword1!",
    "Welcome2026!!",
    "Adm1n1strat0r!1",
    "Abcdefgh1234!",
    "Zyxwvutsrq1!",
    "Asdfghjkl123!",
    "1Qaz2wsx3edc!",
    "Abcabcabc123!",
    "Passw\uff4frd1234!",
]
FINE = ["Correct-horse-7-battery", "Better-horse-2", "Aa1-x8sjKqpEw0d9s", "Grün-Esel-9-Zaun"]
OWN = ["Alice-alice-1!", "Acme-2026-acme!", "Alice-Password-1"]


@pytest.mark.parametrize("password", [*COMMON, *OWN])
def test_password_that_is_common_is_too_weak(alice: Caller, password: str) -> None:
    body = {"current_password": PASSWORD, "new_password": password}
    answer = alice.post("auth/change-password", body)
    assert answer.status_code == 400
    (problem,) = answer.json["details"]
    assert (problem["field"], problem["code"]) == ("new_password", "password_too_weak")
    assert "is too common" in problem["message"]


@pytest.mark.parametrize("password", [PASSWORD, *FINE])
def test_password_that_is_uncommon_is_accepted(alice: Caller, password: str) -> None:
    body = {"current_password": PASSWORD, "new_password": password}
    assert alice.post("auth/change-password", body).status_code == 200


def test_common_password_is_refused_by_every_route(app: Flask, anyone: Caller, cast: Cast) -> None:
    weak = "Password1234!"
    token = cast.alice.post("invitations", {"email": "dora@acme.example"}).json["token"]
    anyone.post("auth/forgot-password", {"account": "acme", "email": cast.bob.email})
    run_jobs(app)
    (reset,) = [mail for mail in outbox(app) if mail["To"] == cast.bob.email]
    new = {"email": "new@acme.example", "password": weak}
    doors: list[tuple[Caller, str, dict[str, Any]]] = [
        (anyone, "auth/register", {**new, "account_name": "New"}),
        (anyone, f"invitations/{token}/accept", {"password": weak}),
        (anyone, "auth/reset-password", {"token": token_in(reset), "new_password": weak}),
        (cast.root, f"users/{cast.bob.id}/password", {"new_password": weak}),
        (cast.root, "users", {**new, "account_id": cast.bob.account_id}),
    ]
    for caller, path, body in doors:
        method = "PUT" if path.startswith("users/") else "POST"
        answer = caller(method, path, body)
        assert answer.status_code == 400, path
        assert "is too common" in answer.json["details"][0]["message"], path


@pytest.mark.timing
@pytest.mark.parametrize("text", ["a" * 128, "Ab1-" * 32, "qwerty" * 21, "\ufdfa" * 128])
def test_common_password_check_takes_under_20_ms(text: str) -> None:
    is_common(text)
    begun = time.thread_time()
    for _ in range(10):
        is_common(text, ["x" * 254] * 4)
    assert (time.thread_time() - begun) / 10 < 0.02
