"""What a login costs: as much time for the unknown as for the known, and a bounded memory."""

from __future__ import annotations

import gc
import time
from statistics import median

import pytest
from flask import Flask

from app.auth import passwords
from tests.builders import PASSWORD, Caller, make_account, make_user

ROUNDS, PAIRS = 8, 20

pytestmark = pytest.mark.usefixtures("real_hashes")


def seconds(caller: Caller, email: str) -> float:
    """How long a failing login takes, on the wall."""
    body = {"account": "acme", "email": email, "password": "Wrong-horse-1"}
    begun = time.perf_counter()
    assert caller.post("auth/login", body).status_code == 401
    return time.perf_counter() - begun


@pytest.mark.timing
def test_login_time_of_known_and_unknown_users_is_equal(app: Flask, anyone: Caller) -> None:
    make_user(app, make_account(app, "acme"), "ann@acme.example")
    known, unknown = list[float](), list[float]()
    gc.disable()  # its pauses would fall to whichever is asked at the time
    try:
        for _ in range(ROUNDS):
            # In pairs, each first in turn: whatever else this machine does meets both alike.
            for number in range(PAIRS):
                asked = [("ann@acme.example", known), ("nobody@acme.example", unknown)]
                for email, times in asked if number % 2 else reversed(asked):
                    times.append(seconds(anyone, email))
            apart = abs(median(known) / median(unknown) - 1)
            if apart < 0.05:
                break
    finally:
        gc.enable()
    assert apart < 0.05, (median(known), median(unknown))
    assert median(unknown) > hashing() / 2, "the hash is really computed"


def test_password_hash_has_owasp_parameters(app: Flask) -> None:
    with app.app_context():
        user = make_user(app, make_account(app, "acme"), "ann@acme.example")
    for stored in (user.password_hash, passwords._dummy()):
        assert (stored or "").startswith("$argon2id$v=19$m=19456,t=2,p=1$")


def hashing() -> float:
    """How long one hash takes."""
    begun = time.perf_counter()
    passwords.hash(PASSWORD)
    return time.perf_counter() - begun
