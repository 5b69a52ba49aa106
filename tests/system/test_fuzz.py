"""Whoever sends whatever to any operation: the answer is one that the description tells of."""

from __future__ import annotations

import os
import secrets
import socket
from collections import Counter
from random import Random
from typing import Any

import pytest
from flask import Flask

from app.outbound import address_policy
from app.web.access import public
from app.web.serialization import dumps
from tests import fuzzed, fuzzing, states
from tests.builders import Caller, Cast
from tests.test_openapi import described, operations

SEED = 7
JSON = {"Content-Type": "application/json"}
ERROR = '{"error": "rate_limited", "message": "Wait."}'
__all__ = ["described"]


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
    monkeypatch.setattr(address_policy, "_resolve", look_up)


def tried(app: Flask, cast: Cast, made: int, times: int, seed: int) -> fuzzing.Run:
    """Send every operation so many requests, of so many that are made up, and look at it all."""
    answer = Caller(app).get("/openapi.json")
    run = fuzzing.Run(app, fuzzed.callers(app, cast), fuzzed.known(app, cast), Random(seed))
    kept = states.Furnished(app, "furnished")
    for label, requests in fuzzing.made_up(answer.text, made, seed).items():
        run.operation(label, requests, times, kept)
    assert run.faults == {}, "\n\n".join(f"{name}\n{run.faults[name]}" for name in run.faults)
    named = [name for name, _ in operations(answer.json)]
    assert Counter(label for label, _ in run.sent.elements()) == dict.fromkeys(named, times)
    return run


@pytest.mark.parametrize(
    ("path", "answer", "fault"),
    [
        ("/live", ("{}", 500, JSON), "ServerError"),
        ("/live", ("{}", 418, JSON), "UndefinedStatusCode"),
        ("/live", ("ok", 200, {"Content-Type": "text/plain"}), "UndefinedContentType"),
        ("/live", ('{"status": 1}', 200, JSON), "JsonSchemaError"),
        ("/metrics", (ERROR, 429, JSON | {"Retry-After": "soon"}), "JsonSchemaError"),
        ("/live", ('{"status": "' + "x" * 2**21 + '"}', 200, JSON), "Amplification"),
    ],
)
def test_fuzz_detects_undescribed_response(
    described: Flask, monkeypatch: pytest.MonkeyPatch, path: str, answer: Any, fault: str
) -> None:
    description = described.test_client().get("/openapi.json").json
    description["paths"] = {path: description["paths"][path]}
    rule = next(one for one in described.url_map.iter_rules() if one.rule == path)
    monkeypatch.setitem(described.view_functions, rule.endpoint, public(lambda: answer))
    ((label, requests),) = fuzzing.made_up(dumps(description).decode(), 1, SEED).items()
    run = fuzzing.Run(described, {"nobody": {}}, {}, Random(SEED))
    run.operation(label, requests, 1, None)
    assert fault in " ".join(run.faults)


def test_fuzz_few_requests_to_every_operation(app: Flask, cast: Cast, alone: None) -> None:
    run = tried(app, cast, made=2, times=2, seed=SEED)
    assert {caller for _, caller in run.sent} == run.callers.keys()
    assert run.share_done() > 0.1


@pytest.mark.slow
def test_fuzz_thousands_of_requests_by_every_caller(
    app: Flask, cast: Cast, alone: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten thousand on each database; FUZZ_SEED in the environment repeats those of another run."""
    seed = int(os.environ.get("FUZZ_SEED") or secrets.randbelow(2**32))
    with capsys.disabled():
        print(f"FUZZ_SEED={seed}")  # noqa: T201
    run = tried(app, cast, made=24, times=60, seed=seed)
    assert run.sent.total() >= 10_000
    met = {(label, caller) for label, _ in run.sent for caller in run.callers}
    assert run.sent.keys() == met
    assert run.share_done() > 0.15
    assert len(run.done) > 0.85 * len({label for label, _ in run.sent})
