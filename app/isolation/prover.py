"""The check itself: calls every route as another account and looks for leaks.

Each request is sent twice, with the victim's ids and with ids that do not exist: the responses must
be the same except for those ids. The caller's own data is read before and after the victim is
created: it must not change, not even in a total. And the victim's rows must not change.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO

import structlog
from flask import Flask
from werkzeug.routing import Rule
from werkzeug.test import TestResponse

from app import config, db, jobs
from app.accounts.models import ADMIN
from app.console.shell.portal import RULE
from app.extensions import http
from app.isolation import callers, filling
from app.isolation.callers import Caller
from app.isolation.calls import (
    DIRECTORY,
    PAGES,
    SCIM,
    Call,
    RouteBook,
    UnknownParameter,
    is_of_extension,
)
from app.isolation.tenants import Tenant
from app.web import PREFIX

# Parts that differ between any two responses.
VOLATILE = re.compile(
    rb'(?<=name="csrf_token" value=")[^"]+|(?<=name="as" value=")[^"]+'
    rb'|(?<="explain_id":")[^"]+'
    rb'|unique\d{7}|(state|nonce|code_challenge)=[^&"]+'
    rb"|\d\d:\d\d(:\d\d(\.\d+)?)?|\d+ (second|minute)s? ago"
    rb'|(?<="requests":)(\d+|\{[^}]*\})'  # which every request changes
)
VOLATILE_HEADERS = {"X-Correlation-ID", "Date", "Set-Cookie", "Content-Length", "ETag"}
# Routes about the whole instance, not about accounts.
INSTANCE_ROUTES = ("/metrics", "/health", "/live", "/ready")
# The check's own requests are in the account's security log.
CHANGING_ROUTES = (
    *INSTANCE_ROUTES,
    f"{PREFIX}/account/security-log",
    "/console/security-log",
    # What is held of a person has their entries of it.
    f"{PREFIX}/users/<uuid:user_id>/export",
    "/console/profile/export",
    "/console/team/users/<uuid:user_id>/export",
    "/welcome/profile/export",
    # Counts what the check itself sends.
    f"{PREFIX}/account/usage",
    "/console/usage",
    f"{RULE}/security-log",
    f"{RULE}/usage",
)
EXCERPT_CHARACTERS = 60


@dataclass(frozen=True)
class Finding:
    """A leak, or a route that is not covered."""

    method: str
    route: str
    caller: str
    message: str

    def __str__(self) -> str:
        return f"{self.method} {self.route} as {self.caller}: {self.message}"


@dataclass
class Report:
    """The counts and findings of a run."""

    routes: int = 0
    requests: int = 0
    tables: int = 0
    collections: int = 0
    leaks: list[Finding] = field(default_factory=list)
    uncovered: list[Finding] = field(default_factory=list)


def prove(app: Flask, pattern: str = "") -> Report:
    """Check the routes that match a pattern, with two temporary accounts."""
    victim, stranger = Tenant("victim"), Tenant("stranger")
    with _quietly(app):
        try:
            filling.create_tenant(stranger)
            proof = Proof(app, victim, stranger, pattern)
            proof.run()
        finally:
            db.db.session.rollback()
            filling.remove_tenants([victim, stranger])
            app.extensions.pop("atrium.caches", None)
    return proof.report


@contextmanager
def _quietly(app: Flask) -> Iterator[None]:
    """Turn off rate limits, CSRF tokens, jobs and request logs within the block."""
    settings, processors = config.current(), structlog.get_config()["processors"]
    methods = app.config.get("WTF_CSRF_METHODS")
    with ExitStack() as stack:
        stack.callback(app.extensions.__setitem__, "atrium.config", settings)
        stack.callback(app.config.__setitem__, "WTF_CSRF_METHODS", methods)
        stack.callback(processors.remove, _drop)
        stack.enter_context(jobs.discard_enqueued())
        changed = replace(settings, login_rate_limit="off", rate_limit="off")
        app.extensions["atrium.config"] = changed
        app.config["WTF_CSRF_METHODS"] = set()
        processors.insert(0, _drop)
        yield


def _drop(logger: object, method: str, event: object) -> object:
    raise structlog.DropEvent


class Proof:
    """One run of the check."""

    def __init__(self, app: Flask, victim: Tenant, stranger: Tenant, pattern: str) -> None:
        self.app, self.victim, self.stranger = app, victim, stranger
        self.nobody = Tenant("nobody")
        filling.build_records(self.nobody)
        self.book, self.report = RouteBook.of(app), Report()
        self.rules = list(self.book.routes(pattern))
        self.own = callers.for_tenant(app, stranger)
        self.asking = set[str]()
        """Routes of extensions that ask other services, which the check withholds."""

    def run(self) -> None:
        """Run the whole check, reads first."""
        before = []
        for call in self._own_reads():
            answer = self._send(self._admin(call), call)
            before.append((call, _stable_parts(answer, self.stranger)))
        filling.create_tenant(self.victim)
        for tenant in (self.victim, self.stranger):
            filling.plant_memberships(self.victim, tenant)
        self._check_victim_access()
        state_before = filling.digest_tables(self.victim)
        for call, expected in before:
            answer = self._send(self._admin(call), call)
            self._search(call, self._admin(call), answer)
            if _stable_parts(answer, self.stranger) != expected:
                self._leak(call, self._admin(call), "changes when the other account is created")
        # Reads first: data copied from the victim would be the stranger's own afterwards.
        for method, rule in sorted(self.rules, key=lambda one: one[0] != "GET"):
            self._try_route(method, rule)
        after = filling.digest_tables(self.victim)
        for table in sorted(state_before):
            if after[table] != state_before[table]:
                message = f"rows of the other account in {table} changed"
                self.report.leaks.append(
                    Finding("ANY", "any of these routes", "any caller", message)
                )
        self.report.routes = len(self.rules)
        self.report.tables = len(filling.tenant_tables())
        self.report.collections = len(self.book.collections)

    def _own_reads(self) -> Iterator[Call]:
        for method, rule in self.rules:
            if method == "GET" and not rule.rule.startswith(CHANGING_ROUTES):
                yield from self._calls(method, rule, self.stranger)
                yield from self._queries(rule, self.stranger)

    def _calls(
        self, method: str, rule: Rule, owner: Tenant, caller: Tenant | None = None
    ) -> list[Call]:
        try:
            return list(self.book.calls(method, rule, owner, caller or owner))
        except UnknownParameter as error:
            finding = Finding(method, rule.rule, "any caller", str(error))
            if finding not in self.report.uncovered:
                self.report.uncovered.append(finding)
            return []

    def _queries(self, rule: Rule, owner: Tenant) -> list[Call]:
        try:
            return list(self.book.queries(rule, owner, self.stranger))
        except UnknownParameter:
            return []  # `_calls` has reported it

    def _send(self, caller: Caller, call: Call) -> TestResponse:
        self.report.requests += 1
        with http.withholding() as withheld:
            answer = caller.send(call)
        if withheld:
            self.asking.add(call.route)
        return answer

    def _admin(self, call: Call) -> Caller:
        return self.own[call.main_caller]

    def _check_victim_access(self) -> None:
        """Check that the victim itself can read its data; else the check proves nothing."""
        callers_by_name = callers.for_tenant(self.app, self.victim)
        for method, rule in self.rules:
            # Code of one's own may keep what any request brings it.
            is_kept = method == "POST" and is_of_extension(rule)
            if not (method == "GET" or is_kept) or callers.is_public(self.app, rule.endpoint):
                continue
            answers = []
            for call in self._calls(method, rule, self.victim):
                caller = callers_by_name[call.main_caller]
                answer = self._send(caller, call)
                answers.append((call, answer.status_code))
                if is_of_extension(rule):
                    self._search(call, caller, answer, of=self.stranger)
            # Of the ids that an extension is called with, one is that of what it looks for.
            is_answered = is_of_extension(rule) and any(status < 400 for _, status in answers)
            for call, status in () if is_answered or is_kept else answers:
                if status >= 400 and status != 403:
                    self._uncovered(call, ADMIN, f"the account's own admin gets {status}")

    def _try_route(self, method: str, rule: Rule) -> None:
        of_api = not rule.rule.startswith(PAGES)
        people = [item for item in self.own.values() if item.of_api is of_api]
        calls = self._calls(method, rule, self.victim, self.stranger)
        twins = self._calls(method, rule, self.nobody, self.stranger)
        for call, twin in zip(calls, twins, strict=True):
            self._compare_twins(self._admin(call), call, twin)
            # For these callers the response does not depend on the path: once is enough.
            callers_to_try = [*people, *self._naming(rule)] if call is calls[0] else people
            for caller in callers_to_try:
                if caller is not self._admin(call) and (call.reads or "viewer" not in caller.name):
                    self._search(call, caller, self._send(caller, call))
        if method == "GET":
            queries = zip(
                self._queries(rule, self.victim), self._queries(rule, self.nobody), strict=True
            )
            for call, twin in queries:
                self._compare_twins(self._admin(call), call, twin)

    def _naming(self, rule: Rule) -> list[Caller]:
        if rule.rule.startswith(PAGES) or callers.is_public(self.app, rule.endpoint):
            return []
        main = self.own[DIRECTORY if rule.rule.startswith(SCIM) else ADMIN]
        naming_callers = callers.naming_account(self.app, main, self.victim)
        # Collections of any account may be open to anonymous callers.
        is_open = callers.is_open(self.app, rule.endpoint)
        return [
            caller
            for caller in naming_callers
            if not (is_open and caller.name.startswith("nobody"))
        ]

    def _compare_twins(self, caller: Caller, call: Call, twin: Call) -> None:
        answer, twin_answer = self._send(caller, call), self._send(caller, twin)
        self._search(call, caller, answer)
        if call.route.startswith(CHANGING_ROUTES):
            return
        actual, expected = (
            _stable_parts(answer, self.victim),
            _stable_parts(twin_answer, self.nobody),
        )
        written = not call.reads and answer.status_code < 300
        if actual[:1] != expected[:1] if written else actual != expected:
            message = (
                f"the {answer.status_code} differs from the {twin_answer.status_code}"
                " for unknown ids"
            )
            self._leak(call, caller, message)
        refused = answer.status_code in (400, 422) and not call.reads and call.of_api
        endpoint = next(rule.endpoint for _, rule in self.rules if rule.rule == call.route)
        # References to the victim may be refused; any other refusal means an invalid example.
        refused = refused and not callers.is_public(self.app, endpoint)
        if refused and not _sent(replace(call, path=""), caller, self.victim):
            self._uncovered(call, caller.name, f"example refused: {answer.get_data(as_text=True)}")

    def _search(
        self, call: Call, caller: Caller, answer: TestResponse, of: Tenant | None = None
    ) -> None:
        """Look for what another account has, which is the victim's by default."""
        other = of or self.victim
        text = _content(answer).decode(errors="replace")
        text += "\n".join(f"{name}: {value}" for name, value in answer.headers)
        for sent in sorted(_sent(call, caller, other), key=len, reverse=True):
            text = text.replace(sent, "")
        for needle in other.needles:
            position = text.find(needle)
            if position >= 0:
                start = max(0, position - EXCERPT_CHARACTERS)
                excerpt = text[start : position + len(needle) + EXCERPT_CHARACTERS]
                self._leak(call, caller, f"leaks {excerpt!r}")
                return
        if answer.status_code >= 500:
            self._uncovered(call, caller.name, f"fails with {answer.status_code}")

    def _leak(self, call: Call, caller: Caller, message: str) -> None:
        self.report.leaks.append(Finding(call.method, call.route, caller.name, message))

    def _uncovered(self, call: Call, caller: str, message: str) -> None:
        if call.route in self.asking:  # it fails without the answer of another service
            return
        finding = Finding(call.method, call.route, caller, message[:300])
        if finding not in self.report.uncovered:
            self.report.uncovered.append(finding)


def _sent(call: Call, caller: Caller, victim: Tenant) -> set[str]:
    """The victim's values in a request, which the response may repeat."""
    text = f"{call.path} {call.body} {call.headers} {caller.headers}"
    marks = re.findall(rf"{victim.mark}[\w.@-]*", text)
    ids = re.findall(rf"[0-9a-f-]{{24}}{victim.tail}", text)
    values = [value for value in (victim.account_id, *map(str, victim.numbers)) if value in text]
    return {*marks, *ids, *values}


def _stable_parts(answer: TestResponse, owner: Tenant) -> tuple[object, ...]:
    """The parts of a response that must not depend on the owner of the ids."""
    headers = sorted(
        (name, _without_values(value.encode(), owner))
        for name, value in answer.headers
        if name not in VOLATILE_HEADERS
    )
    return (answer.status_code, _without_values(_content(answer), owner), headers)


def _content(answer: TestResponse) -> bytes:
    """The body of a response; of an archive, what is in it."""
    if answer.mimetype != "application/zip":
        return answer.get_data()
    with zipfile.ZipFile(BytesIO(answer.get_data())) as archive:
        return b"\n".join(name.encode() + archive.read(name) for name in archive.namelist())


def _without_values(text: bytes, owner: Tenant) -> bytes:
    text = re.sub(rf"[0-9a-f-]{{24}}{owner.tail}".encode(), b"<known>", text)
    for value in (owner.mark, owner.account_id, *map(str, owner.numbers)):
        text = text.replace(value.encode(), b"<known>")
    return VOLATILE.sub(b"", text)
