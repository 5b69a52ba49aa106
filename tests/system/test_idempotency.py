"""Requests with a key whose process is killed."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.web import idempotency
from tests.builders import Caller
from tests.test_idempotency import (
    KEY,
    REPLAYED,
    age,
    posts,  # noqa: F401
    total,
)


def dies(app: Flask, caller: Caller, moment: str) -> None:
    """Send the request in a process that is killed at a moment of its end."""
    finish = idempotency.save_response

    def kill(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def killed(*arguments: Any) -> None:
        if moment == "before the answer is kept":
            kill()
        if moment == "before both are committed":
            sa.event.listen(db.db.engine, "commit", kill)
        finish(*arguments)
        kill()

    child = os.fork()
    if not child:
        try:
            db.dispose_after_fork(app)
            idempotency.save_response = killed
            caller.post("records/posts", {"title": "a"}, headers=KEY)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("moment", "kept"),
    [
        ("before the answer is kept", False),
        ("before both are committed", False),
        ("before it is sent", True),
    ],
)
def test_idempotency_key_after_kill_keeps_change_and_answer_together(
    app: Flask, alice: Caller, posts: Any, moment: str, *, kept: bool
) -> None:
    dies(app, alice, moment)
    assert total(alice) == kept
    early = alice.post("records/posts", {"title": "a"}, headers=KEY)
    assert early.status_code == (201 if kept else 409)
    age(app, 61)
    again = alice.post("records/posts", {"title": "a"}, headers=KEY)
    assert (again.status_code, REPLAYED in again.headers, total(alice)) == (201, kept, 1)
