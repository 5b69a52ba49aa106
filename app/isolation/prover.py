"""The check itself: every route as the other account, and what its answers must not tell.

Each request is sent twice, with what is the victim's and with what is nobody's: the answers must
be the same but for what was sent. What belongs to the caller is read before and after the victim
gets its things: it must be the same, to the last total. And the victim's rows must not change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import structlog
from flask import Flask
from werkzeug.routing import Rule
from werkzeug.test import TestResponse

from app import config, db, jobs
from app.accounts.models import ADMIN
from app.isolation import callers, filling, records
from app.isolation.callers import Caller
from app.isolation.calls import Book, Call, Unknown
from app.isolation.tenants import Tenant

# What differs from one answer to the next, whoever asks for whatever.
PASSING = re.compile(
    rb'(?<=name="csrf_token" value=")[^"]+|(?<=name="as" value=")[^"]+'
    rb'|unique\d{7}|(state|nonce|code_challenge)=[^&"]+'
    rb"|\d\d:\d\d(:\d\d(\.\d+)?)?|\d+ (second|minute)s? ago"
)
OWN_HEADERS = {"X-Correlation-ID", "Date", "Set-Cookie", "Content-Length", "ETag"}
# What tells of the whole instance, and of no account.
UNSTEADY = ("/metrics", "/health", "/live", "/ready")
LONGEST_EXCERPT = 60


@dataclass(frozen=True)
class Finding:
    """Something that leaked, or a route that is not covered."""

    method: str
    route: str
    caller: str
    told: str

    def __str__(self) -> str:
        return f"{self.method} {self.route} as {self.caller}: {self.told}"


@dataclass
class Report:
    """What was done, and what was found."""

    routes: int = 0
    requests: int = 0
    tables: int = 0
    collections: int = 0
    leaks: list[Finding] = field(default_factory=list)
    uncovered: list[Finding] = field(default_factory=list)


def prove(app: Flask, only: str = "") -> Report:
    """Try the routes that begin as a pattern says, with two accounts that are removed again."""
    victim, stranger = Tenant("victim"), Tenant("stranger")
    with _quietly(app):
        try:
            filling.fill(stranger)
            proof = Proof(app, victim, stranger, only)
            proof.run()
        finally:
            db.db.session.rollback()
            filling.remove([victim, stranger])
            app.extensions.pop("atrium.caches", None)
    return proof.report


@contextmanager
def _quietly(app: Flask) -> Iterator[None]:
    """Without limits, form tokens, jobs or a line in the log for each request."""
    kept, processors = config.current(), structlog.get_config()["processors"]
    methods = app.config.get("WTF_CSRF_METHODS")
    with ExitStack() as after:
        after.callback(app.extensions.__setitem__, "atrium.config", kept)
        after.callback(app.config.__setitem__, "WTF_CSRF_METHODS", methods)
        after.callback(processors.remove, _drop)
        after.enter_context(jobs.discard_enqueued())
        unlimited = replace(kept, login_rate_limit="off", rate_limit="off")
        app.extensions["atrium.config"] = unlimited
        app.config["WTF_CSRF_METHODS"] = set()
        processors.insert(0, _drop)
        yield


def _drop(logger: object, method: str, event: object) -> object:
    raise structlog.DropEvent


class Proof:
    """One run of the check."""

    def __init__(self, app: Flask, victim: Tenant, stranger: Tenant, only: str) -> None:
        self.app, self.victim, self.stranger = app, victim, stranger
        self.nobody = Tenant("nobody")
        records.imagine(self.nobody)
        self.book, self.report = Book.of(app), Report()
        self.rules = list(self.book.routes(only))
        self.own = callers.of_tenant(app, stranger)

    def run(self) -> None:
        """All of it, in the order that tells most: reads first, then what changes something."""
        before = [(call, self._told(call, self.stranger)) for call in self._own_reads()]
        filling.fill(self.victim)
        self._control()
        untouched = filling.state(self.victim)
        for call, told in before:
            self._compare_own(call, told)
        # Reads first: afterwards what was copied from the victim is the stranger's own.
        for method, rule in sorted(self.rules, key=lambda one: one[0] != "GET"):
            self._try(method, rule)
        self._compare_state(untouched)
        self.report.routes = len(self.rules)
        self.report.tables = len(filling.owned())
        self.report.collections = len(self.book.collections)

    def _own_reads(self) -> Iterator[Call]:
        for method, rule in self.rules:
            if method == "GET" and not rule.rule.startswith(UNSTEADY):
                yield from self._calls(method, rule, self.stranger)
                yield from self._queries(rule, self.stranger)

    def _calls(self, method: str, rule: Rule, of: Tenant, own: Tenant | None = None) -> list[Call]:
        try:
            return list(self.book.calls(method, rule, of, own or of))
        except Unknown as unknown:
            found = Finding(method, rule.rule, "anybody", str(unknown))
            if found not in self.report.uncovered:
                self.report.uncovered.append(found)
            return []

    def _queries(self, rule: Rule, of: Tenant) -> list[Call]:
        try:
            return list(self.book.queries(rule, of, self.stranger))
        except Unknown:
            return []  # as the calls say

    def _endpoint(self, call: Call) -> str:
        endpoint: str = next(rule.endpoint for _, rule in self.rules if rule.rule == call.route)
        return endpoint

    def _send(self, caller: Caller, call: Call) -> TestResponse:
        self.report.requests += 1
        return caller.send(call)

    def _admin(self, call: Call) -> Caller:
        return self.own[ADMIN if call.of_api else f"console {ADMIN}"]

    def _told(self, call: Call, of: Tenant) -> tuple[object, ...]:
        return _gist(self._send(self._admin(call), call), of)

    def _control(self) -> None:
        """The victim itself must be shown its things, else the check would be blind there."""
        theirs = callers.of_tenant(self.app, self.victim)
        for method, rule in self.rules:
            if method != "GET" or callers.is_public(self.app, rule.endpoint):
                continue
            for call in self._calls(method, rule, self.victim):
                answer = self._send(theirs[ADMIN if call.of_api else f"console {ADMIN}"], call)
                if answer.status_code >= 400 and answer.status_code != 403:
                    told = f"even the account's own admin gets {answer.status_code}"
                    self._uncovered(call, ADMIN, told)

    def _compare_own(self, call: Call, told: tuple[object, ...]) -> None:
        answer = self._send(self._admin(call), call)
        self._search(call, self._admin(call), answer)
        if _gist(answer, self.stranger) != told:
            self._leak(call, self._admin(call), "changes as the other account gets its things")

    def _try(self, method: str, rule: Rule) -> None:
        of_api = not rule.rule.startswith("/console")
        people = [one for one in self.own.values() if one.of_api is of_api]
        hers = self._calls(method, rule, self.victim, self.stranger)
        none = self._calls(method, rule, self.nobody, self.stranger)
        for call, twin in zip(hers, none, strict=True):
            self._twice(self._admin(call), call, twin)
            # Who may not call it at all is told so whatever the path says: once is enough.
            others = [*people, *self._naming(rule)] if call is hers[0] else people
            for caller in others:
                if caller is not self._admin(call) and (call.reads or "viewer" not in caller.name):
                    self._search(call, caller, self._send(caller, call))
        if method == "GET":
            asked = zip(
                self._queries(rule, self.victim), self._queries(rule, self.nobody), strict=True
            )
            for call, twin in asked:
                self._twice(self._admin(call), call, twin)

    def _naming(self, rule: Rule) -> list[Caller]:
        if rule.rule.startswith("/console") or callers.is_public(self.app, rule.endpoint):
            return []
        found = callers.naming(self.app, self.own[ADMIN], self.victim)
        # Collections may be open to all, in whichever account.
        may = callers.is_open(self.app, rule.endpoint)
        return [one for one in found if not (may and one.name.startswith("nobody"))]

    def _twice(self, caller: Caller, call: Call, twin: Call) -> None:
        answer, other = self._send(caller, call), self._send(caller, twin)
        self._search(call, caller, answer)
        if call.route.startswith(UNSTEADY):
            return
        hers, none = _gist(answer, self.victim), _gist(other, self.nobody)
        written = not call.reads and answer.status_code < 300
        if hers[:1] != none[:1] if written else hers != none:
            told = f"answers {answer.status_code} otherwise than the {other.status_code} for none"
            self._leak(call, caller, told)
        refused = answer.status_code in (400, 422) and not call.reads and call.of_api
        # What refers to the victim's is refused; else the request must have been understood.
        refused = refused and not callers.is_public(self.app, self._endpoint(call))
        if refused and not _sent(replace(call, path=""), caller, self.victim):
            self._uncovered(call, caller.name, f"not understood: {answer.get_data(as_text=True)}")

    def _search(self, call: Call, caller: Caller, answer: TestResponse) -> None:
        text = answer.get_data(as_text=True)
        text += "\n".join(f"{name}: {value}" for name, value in answer.headers)
        for sent in sorted(_sent(call, caller, self.victim), key=len, reverse=True):
            text = text.replace(sent, "")
        for needle in self.victim.needles:
            at = text.find(needle)
            if at >= 0:
                start = max(0, at - LONGEST_EXCERPT)
                excerpt = text[start : at + len(needle) + LONGEST_EXCERPT]
                self._leak(call, caller, f"tells {excerpt!r}")
                return
        if answer.status_code >= 500:
            self._uncovered(call, caller.name, f"breaks with {answer.status_code}")

    def _compare_state(self, before: dict[str, str]) -> None:
        after = filling.state(self.victim)
        for table in sorted(before):
            if after[table] != before[table]:
                told = f"rows of the other account in {table} changed"
                self.report.leaks.append(Finding("ANY", "any of these routes", "somebody", told))

    def _leak(self, call: Call, caller: Caller, told: str) -> None:
        self.report.leaks.append(Finding(call.method, call.route, caller.name, told))

    def _uncovered(self, call: Call, caller: str, told: str) -> None:
        found = Finding(call.method, call.route, caller, told[:300])
        if found not in self.report.uncovered:
            self.report.uncovered.append(found)


def _sent(call: Call, caller: Caller, victim: Tenant) -> set[str]:
    """What is the victim's in a request: an answer may repeat it."""
    text = f"{call.path} {call.body} {call.headers} {caller.headers}"
    marks = re.findall(rf"{victim.mark}[\w.@-]*", text)
    ids = re.findall(rf"[0-9a-f-]{{24}}{victim.tail}", text)
    others = [one for one in (victim.account_id, *map(str, victim.numbers)) if one in text]
    return {*marks, *ids, *others}


def _gist(answer: TestResponse, of: Tenant) -> tuple[object, ...]:
    """What of an answer must not depend on whose things were asked for."""
    headers = sorted(
        (name, _plain(value.encode(), of))
        for name, value in answer.headers
        if name not in OWN_HEADERS
    )
    return (answer.status_code, _plain(answer.get_data(), of), headers)


def _plain(text: bytes, of: Tenant) -> bytes:
    text = re.sub(rf"[0-9a-f-]{{24}}{of.tail}".encode(), b"<known>", text)
    for known in (of.mark, of.account_id, *map(str, of.numbers)):
        text = text.replace(known.encode(), b"<known>")
    return PASSING.sub(b"", text)
