"""How each route is called with what belongs to an account: path, query and body.

Bodies and query parameters come from the API description, so a new operation is called as its
example says. What a parameter of a path stands for is told here, and a route with another is not
covered: the check says so, and fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any
from urllib.parse import urlencode

from flask import Flask
from werkzeug.routing import AnyConverter, Rule

from app.collections import definition as definitions
from app.collections.definition import Definition
from app.isolation import bodies, record_calls
from app.isolation.rows import RESUMED
from app.isolation.tenants import THINGS, Tenant
from app.rest import PREFIX
from app.rest.openapi import api

PART = re.compile(r"<(?:[^<>]*:)?(\w+)>")
READING = ("GET",)
OF_A_COLLECTION = {"collection", "collection_id", "collection_name", "record_id"}
SHARED = {
    "category": "auth_providers",
    "provider": "google",
    "provider_name": "google",
    "role_id": "1",
    "entry_id": "1",
    "moment": RESUMED,
    "filename": "x",
    "token": "x",
}
# Not called, each with the reason.
EXEMPT = {
    ("POST", f"{PREFIX}/auth/register"): "founds an account of its own",
    ("POST", f"{PREFIX}/admin/configuration/test-connection"): "asks a provider; reads no account",
    ("POST", f"{PREFIX}/auth/logout"): "ends what the check is signed in by",
    ("POST", "/console/sign-out"): "ends what the check is signed in by",
}


@dataclass(frozen=True)
class Call:
    """A request, and the route that it is of."""

    method: str
    route: str
    path: str
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def reads(self) -> bool:
        """Whether it changes nothing by its method."""
        return self.method in READING

    @property
    def of_api(self) -> bool:
        """Whether it takes tokens, and not the console's cookie."""
        return not self.route.startswith("/console")


class Unknown(Exception):
    """A route that nobody says how to call."""


def described() -> Mapping[str, object]:
    """The paths of the API description."""
    paths: Mapping[str, object] = api.spec.to_dict()["paths"]
    return paths


@dataclass
class Book:
    """How the routes of an application are called."""

    app: Flask
    paths: Mapping[str, Any]
    collections: list[Definition]

    @classmethod
    def of(cls, app: Flask) -> Book:
        """The routes as they are now."""
        return cls(app, described(), definitions.get_all())

    def routes(self, only: str = "") -> Iterator[tuple[str, Rule]]:
        """Every route and method whose path begins as a pattern says.

        Where there are no collections, there are no records to reach either.
        """
        for rule in sorted(self.app.url_map.iter_rules(), key=lambda one: one.rule):
            if not self.collections and _names_collection(rule):
                continue
            for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
                if re.match(only, rule.rule) and (method, rule.rule) not in EXEMPT:
                    yield method, rule

    def calls(self, method: str, rule: Rule, of: Tenant, own: Tenant) -> Iterator[Call]:
        """The route with what belongs to `of`: alone, and within what is the caller's own."""
        for path in self._paths(rule, of, own, method):
            if method in READING:
                counted = "?functions=count()" if rule.rule.endswith("/aggregate") else ""
                yield Call(method, rule.rule, path + counted)
            else:
                for body in self._bodies(method, rule, path, of, own):
                    yield Call(method, rule.rule, path, body, self._headers(rule, of))

    def queries(self, rule: Rule, of: Tenant, own: Tenant) -> Iterator[Call]:
        """A list of the caller's own, asked with what belongs to `of`."""
        for path, one in self._filled(rule, own):
            named = self._declared(rule)
            asked = [{name: value} for name in named if (value := _queried(name, of)) is not None]
            if one and _of_records(rule):
                asked += list(record_calls.queries(rule.rule, one, of))
            for query in asked:
                yield Call("GET", rule.rule, f"{path}?{urlencode(query)}")

    def _paths(self, rule: Rule, of: Tenant, own: Tenant, method: str) -> Iterator[str]:
        names = [name for name in PART.findall(rule.rule) if name in {*THINGS, "record_id"}]
        yield from (path for path, _ in self._filled(rule, of))
        if len(names) > 1 and of is not own:
            yield from (path for path, _ in self._filled(rule, of, {names[0]: own}))
        elif names and method not in READING and self._refers(rule, method):
            yield from (path for path, _ in self._filled(rule, own))

    def _refers(self, rule: Rule, method: str) -> bool:
        example = self._operation(rule, method).get("requestBody", {})
        return any(f"'{name}'" in repr(example) for name in THINGS if name != "account_id")

    def _filled(
        self, rule: Rule, of: Tenant, instead: Mapping[str, Tenant] = {}
    ) -> Iterator[tuple[str, Definition | None]]:
        names = PART.findall(rule.rule)
        in_collections = bool(OF_A_COLLECTION & set(names)) or _names_collection(rule)
        choices = {
            n: sorted(c.items) for n, c in rule._converters.items() if isinstance(c, AnyConverter)
        }
        for one in (self.collections if in_collections else ()) or (None,):
            for chosen in product(*choices.values()):
                picked = dict(zip(choices, chosen, strict=True))
                parts = {
                    n: picked.get(n) or _part(rule, n, instead.get(n, of), one, picked)
                    for n in names
                }
                yield _path(rule, parts), one

    def _operation(self, rule: Rule, method: str) -> Mapping[str, Any]:
        path = PART.sub(r"{\1}", rule.rule)
        found: Mapping[str, object] = self.paths.get(path, {}).get(method.lower(), {})
        return found

    def _declared(self, rule: Rule) -> list[str]:
        shared = self.paths.get(PART.sub(r"{\1}", rule.rule), {}).get("parameters", ())
        given = [*shared, *self._operation(rule, "GET").get("parameters", ())]
        return [one["name"] for one in given if one.get("in") == "query"]

    def _bodies(
        self, method: str, rule: Rule, path: str, of: Tenant, own: Tenant
    ) -> Iterator[object]:
        if _of_records(rule):
            one = next((d for d in self.collections if f"/{d.name}" in path), None)
            yield from record_calls.bodies(method, rule.rule, one, of, own)
            return
        content = self._operation(rule, method).get("requestBody", {}).get("content", {})
        example = content.get("application/json", {}).get("example")
        yield bodies.body(method, rule.rule.removeprefix(PREFIX), example, of)

    def _headers(self, rule: Rule, of: Tenant) -> dict[str, str]:
        used = rule.rule == f"{PREFIX}/groups"
        return {"Idempotency-Key": f"{of.mark}-idempotency_keys-key"} if used else {}


def _path(rule: Rule, parts: Mapping[str, str]) -> str:
    return PART.sub(lambda found: parts[found[1]], rule.rule)


def _of_records(rule: Rule) -> bool:
    return rule.rule.startswith(f"{PREFIX}/records/")


def _names_collection(rule: Rule) -> bool:
    in_console = "/records/" in rule.rule and "name" in PART.findall(rule.rule)
    return in_console or _of_records(rule)


def _part(
    rule: Rule, name: str, of: Tenant, one: Definition | None, picked: Mapping[str, str]
) -> str:
    if name in OF_A_COLLECTION or (name == "name" and _names_collection(rule)):
        return _of_collection(name, of, one)
    if name == "workflow_id" and picked.get("kind") == "hook":
        return of.id_of("hooks")
    if name in THINGS:
        return of.id_of(THINGS[name])
    if name == "account_code":
        return of.code
    if name == "name" and rule.rule.startswith("/console/outbox"):
        return "x"
    if name not in SHARED:
        raise Unknown(f"nothing is known of <{name}>")
    return SHARED[name]


def _of_collection(name: str, of: Tenant, one: Definition | None) -> str:
    if name == "record_id":
        return of.id_of(one.table_name if one else "records")
    if one is None:
        return of.id_of("collections") if name == "collection_id" else "none"
    return one.id if name == "collection_id" else one.name


def _queried(name: str, of: Tenant) -> str | None:
    if name in THINGS:
        return of.id_of(THINGS[name])
    if name == "limit":
        return "100"
    return of.mark if name in ("search", "table_name", "record_id") else None
