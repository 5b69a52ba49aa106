"""Requests made up from the API description, and whether the answers are as it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from json import loads
from random import Random
from typing import Any

import hypothesis
import schemathesis
from flask import Flask
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks as conformance

from tests.states import State

CHECKS = [
    schemathesis.checks.not_a_server_error,
    conformance.status_code_conformance,
    conformance.content_type_conformance,
    conformance.response_headers_conformance,
    conformance.response_schema_conformance,
]
DOWNLOADS = {
    f"GET /api/v1/files/{path}"
    for path in (
        "{file_id}",
        "link/{token}",
        "{account_id}/{file_id}",
        "download/{account_id}/{file_id}",
    )
} | {"GET /api/v1/product/logo"}
# An answer has no more bytes than so many of every caller's, and so many for each that was sent.
MOST_BYTES, MOST_BYTES_PER_BYTE = 2**20, 40
ALWAYS_LEFT = ("Authorization", "X-API-Key", "Cookie")  # each caller has its own
SIGNATURE = ("X-ES-Username", "X-ES-Password", "X-ES-Passkey", "X-ES-Reason")
OFTEN_LEFT = ("X-Account-ID", *SIGNATURE, "If-Match")
Known = Mapping[str, list[Any]]


@dataclass(frozen=True)
class Request:
    """A request that fits the description, or that does not."""

    case: Any
    fits: bool


@lru_cache
def made_up(description: str, count: int, seed: int) -> dict[str, list[Request]]:
    """So many requests of each operation, half of them such as it does not describe."""
    schema = schemathesis.openapi.from_dict(loads(description))
    schema.config.generation.update(with_security_parameters=False)
    operations = [found.ok() for found in schema.get_all_operations()]
    return {one.label: _requests(one, count, seed) for one in operations}


def _requests(operation: Any, count: int, seed: int) -> list[Request]:
    found: list[Request] = []
    settings = hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    modes = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]

    @hypothesis.seed(seed)
    @settings
    @hypothesis.given(case=hypothesis.strategies.one_of(modes))
    def note(case: Any) -> None:
        found.append(Request(case, case.meta.generation.mode.is_positive))

    note()
    return found


@dataclass
class Run:
    """What is sent to an application, by whom, and what came of it."""

    app: Flask
    callers: Mapping[str, Mapping[str, str]]
    known: Known
    random: Random
    sent: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By operation and caller."""
    answered: Counter[tuple[bool, int]] = field(default_factory=Counter)
    """By whether the request fitted, and the first digit of the status."""
    done: set[str] = field(default_factory=set)
    """The operations that worked at least once."""
    faults: dict[str, str] = field(default_factory=dict)

    def operation(self, label: str, requests: Sequence[Request], times: int, kept: State) -> None:
        """Send the requests of an operation, to what was there at the beginning."""
        callers = self.random.sample(sorted(self.callers), len(self.callers))
        for turn in range(times):
            # What is refused may be noted, too.
            if turn and turn % len(callers) == 0 and not label.startswith("GET "):
                kept.restore()
            request = requests[(turn + turn // len(callers)) % len(requests)]
            self._send(label, callers[turn % len(callers)], request)
        if not label.startswith("GET "):
            kept.restore()

    def share_done(self) -> float:
        """How many of the requests that fit were carried out, whoever sent them."""
        fitting = {first: self.answered[True, first] for first in range(1, 6)}
        return (fitting[2] + fitting[3]) / sum(fitting.values())

    def _send(self, label: str, caller: str, request: Request) -> None:
        case = self._aimed(request)
        response = case.call(app=self.app, headers=self.callers[caller])
        self.sent[label, caller] += 1
        self.answered[request.fits, response.status_code // 100] += 1
        if response.status_code < 400:
            self.done.add(label)
        sent = len(response.request.body or b"") + len(response.request.url)
        if len(response.content) > MOST_BYTES + MOST_BYTES_PER_BYTE * sent:
            name = f"{label} as {caller}: {response.status_code} Amplification"
            self.faults.setdefault(name, f"{len(response.content)} bytes for {sent}\n{case!r}")
        # Streams need a socket, which there is none of here: a described answer.
        checks = CHECKS[1:] if response.status_code == 501 else CHECKS
        if label in DOWNLOADS:  # each file has a type of its own
            checks = [one for one in checks if one is not conformance.content_type_conformance]
        try:
            case.validate_response(response, checks=checks)
        except FailureGroup as group:
            for fault in group.exceptions:
                name = f"{label} as {caller}: {response.status_code} {type(fault).__name__}"
                self.faults.setdefault(name, f"{fault}\n{case!r}\n{response.text}")

    def _aimed(self, request: Request) -> Any:
        """The request, often at what there is, and seldom with headers that may fail it alone."""
        case = request.case.derive()
        for name in ALWAYS_LEFT if self._chance(1, 4) else (*ALWAYS_LEFT, *OFTEN_LEFT):
            case.headers.pop(name, None)
        if request.fits:
            case.body = self._meant(case)
        for values in (case.path_parameters, case.query, case.headers):
            values.update(self._met(values))
        return case

    def _meant(self, case: Any) -> Any:
        """The body, or the description's example of one, with what there is in it."""
        told = case.operation.definition.raw.get("requestBody", {}).get("content", {})
        example = told.get(case.media_type, {}).get("example")
        body = example if example is not None and self._chance(1, 2) else case.body
        return body | self._met(body) if isinstance(body, dict) else body

    def _met(self, values: Mapping[str, Any]) -> dict[str, Any]:
        named = [name for name in values if name in self.known and self._chance(3, 4)]
        return {name: self.random.choice(self.known[name]) for name in named}

    def _chance(self, of: int, among: int) -> bool:
        return self.random.randrange(among) < of
