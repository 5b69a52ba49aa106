"""Requests made up from the API description, and whether the answers are as it says."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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

from app.db import db
from tests import services

CHECKS = [
    schemathesis.checks.not_a_server_error,
    conformance.status_code_conformance,
    conformance.content_type_conformance,
    conformance.response_headers_conformance,
    conformance.response_schema_conformance,
]
SIGNATURE = ("X-ES-Username", "X-ES-Password", "X-ES-Reason")
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

    def operation(self, label: str, requests: Sequence[Request], times: int, kept: Kept) -> None:
        """Send the requests of an operation, to what was there at the beginning."""
        callers = self.random.sample(sorted(self.callers), len(self.callers))
        changed = False
        for turn in range(times):
            if changed and turn % len(callers) == 0:
                kept.restore()
            caller = callers[turn % len(callers)]
            request = requests[(turn + turn // len(callers)) % len(requests)]
            worked = self._send(label, caller, request)
            changed = changed or (worked and not label.startswith("GET "))
        if changed:
            kept.restore()

    def _send(self, label: str, caller: str, request: Request) -> bool:
        case = self._aimed(request)
        response = case.call(app=self.app, headers=self.callers[caller])
        worked: bool = response.status_code < 400
        self.sent[label, caller] += 1
        self.answered[request.fits, response.status_code // 100] += 1
        if worked:
            self.done.add(label)
        try:
            case.validate_response(response, checks=CHECKS)
        except FailureGroup as group:
            for fault in group.exceptions:
                name = f"{label} as {caller}: {response.status_code} {type(fault).__name__}"
                self.faults.setdefault(name, f"{fault}\n{case!r}\n{response.text}")
        return worked

    def _aimed(self, request: Request) -> Any:
        """The request, often at what there is, and seldom with a header that alone fails it."""
        case = request.case.derive()
        for name in ("Authorization", "X-API-Key", "Cookie"):
            case.headers.pop(name, None)
        if self._chance(7, 8):
            for name in ("X-Account-ID", *SIGNATURE):
                case.headers.pop(name, None)
        if request.fits:
            case.body = self._meant(case)
        for values in (case.path_parameters, case.query):
            values |= {name: self._one(name, values) for name in values if self._meets(name)}
        return case

    def _meant(self, case: Any) -> Any:
        """The body, or the description's example of one, with what there is in it."""
        told = case.operation.definition.raw.get("requestBody", {}).get("content", {})
        example = told.get(case.media_type, {}).get("example")
        body = example if example is not None and self._chance(1, 2) else case.body
        if not isinstance(body, dict):
            return body
        return body | {name: self._one(name, body) for name in body if self._meets(name)}

    def _meets(self, name: str) -> bool:
        return name in self.known and self._chance(3, 4)

    def _one(self, name: str, beside: Mapping[str, Any]) -> Any:
        return self.random.choice(self.known[name])

    def _chance(self, of: int, among: int) -> bool:
        return self.random.randrange(among) < of


class Kept:
    """All of an application's database as it is now."""

    def __init__(self, app: Flask) -> None:
        self._app = app
        with app.app_context():
            db.session.remove()
            self._engine = db.engine
        self._name = str(self._engine.url.database)
        self._server = services.Postgres()
        self._on_sqlite = self._engine.dialect.name == "sqlite"
        self._file = sqlite3.connect(":memory:")
        if self._on_sqlite:
            with self._opened() as opened:
                opened.backup(self._file)
        else:
            self._copy(self._name, f"{self._name}_kept")

    def restore(self) -> None:
        """Make the database what it was, with what the application remembers of it forgotten."""
        with self._app.app_context():
            db.session.remove()
        if self._on_sqlite:
            with self._opened() as opened:
                self._file.backup(opened)
        else:
            self._copy(f"{self._name}_kept", self._name)
        self._app.extensions.pop("atrium.caches", None)

    def _copy(self, name: str, other: str) -> None:
        self._engine.dispose()
        self._server.drop_database(other)
        self._server.create_database(other, template=name)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        pooled = self._engine.raw_connection()
        try:
            yield pooled.driver_connection
        finally:
            pooled.close()
