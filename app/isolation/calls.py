"""Builds calls of each route with an account's ids: path, query and body.

Bodies and query parameters come from the API description, so a new operation is called as in its
example. Path parameters are defined here; the check fails for routes with an unknown one.

Those for records are made of the definition of their collection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import count, product
from typing import Any
from urllib.parse import urlencode

from flask import Flask
from werkzeug.routing import AnyConverter, Rule

from app.accounts.models import ADMIN
from app.collections import definitions
from app.collections.definitions import Definition, ViewDefinition
from app.collections.fields import PEOPLE
from app.db import Base
from app.extensions import tables
from app.isolation.rows import RESUMED, STEPS
from app.isolation.tenants import MAIL_DOMAIN, Tenant, table_by_parameter, trash_name
from app.rules import Type
from app.web import EXTENSIONS, PREFIX, examples
from app.web.app import IntegerPath, UuidPath
from app.web.openapi import api

PARAMETER = re.compile(r"<(?:[^<>]*:)?(\w+)>")
READ_METHODS = ("GET",)
SCIM, DIRECTORY = "/scim/", "directory"
PORTAL = "portal"
OPERATIONS = f"{PREFIX}/batch"
PAGES = ("/console", "/portal", "/welcome")
COLLECTION_IDS = ("collection_id", "definition_id")
COLLECTION_PARAMETERS = {*COLLECTION_IDS, "collection", "collection_name", "record_id"}
RECORDS = f"{PREFIX}/records/<collection>"
OF_VIEWS = (RECORDS, f"{RECORDS}/export", f"{RECORDS}/aggregate")
FIXED_VALUES = {
    "category": "auth_providers",
    "provider": "google",
    "provider_name": "google",
    "role_id": "1",
    "moment": RESUMED,
    "filename": "x",
    "token": "x",
    "explain_id": "x",
    "kind": "invitation",
    "mail_kind": "invitation",
    "language": "en",
    "number": "1",
    "resource_type": "User",
    "color": "0b5fff",
    "template_name": "default",
    "template_job_id": "019a9f00-0000-7000-8000-00000000000a",
    "schema_id": "urn:ietf:params:scim:schemas:core:2.0:User",
}
# Routes not called, with the reason.
EXEMPT = {
    ("POST", f"{PREFIX}/auth/register"): "creates its own account",
    (
        "POST",
        f"{PREFIX}/admin/configuration/test-connection",
    ): "sends a request to a provider; reads no account",
    ("POST", f"{PREFIX}/account/sso/keys"): "takes no id, and works once",
    ("POST", f"{PREFIX}/account/export"): "takes no id, and runs once at a time",
    ("POST", f"{PREFIX}/auth/saml/logout"): "ends what the check is signed in by",
    ("DELETE", f"{PREFIX}/account/security-log/stream"): "takes no id, and works once",
    ("POST", f"{PREFIX}/account/scim/tokens"): "names no object; an account has two at most",
    ("POST", f"{PREFIX}/auth/logout"): "ends what the check is signed in by",
    ("POST", "/console/sign-out"): "ends what the check is signed in by",
    ("POST", "/welcome/sign-out"): "ends what the check is signed in by",
    ("POST", f"{PREFIX}/auth/sessions/end-others"): "ends what the check is signed in by",
    ("POST", "/console/profile/sessions/end-others"): "ends what the check is signed in by",
    ("POST", "/welcome/profile/sessions/end-others"): "ends what the check is signed in by",
    ("GET", f"{PREFIX}/realtime/subscribe"): "a stream, which needs a real connection",
    ("GET", f"{PREFIX}/realtime/ws"): "a stream, which needs a real connection",
}
_counter = count(1)


@dataclass(frozen=True)
class Call:
    """A request and its route."""

    method: str
    route: str
    path: str
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def reads(self) -> bool:
        """Whether the method is safe."""
        return self.method in READ_METHODS

    @property
    def of_api(self) -> bool:
        """Whether it is an API route, not a page."""
        return not self.route.startswith(PAGES)

    @property
    def main_caller(self) -> str:
        """The name of the caller who may most."""
        if self.route.startswith(SCIM):
            return DIRECTORY
        if self.route.startswith("/portal"):
            return PORTAL
        return ADMIN if self.of_api else f"console {ADMIN}"


class UnknownParameter(Exception):
    """Raised for a route with an unknown path parameter."""


def description_paths() -> Mapping[str, object]:
    paths: Mapping[str, object] = api.spec.to_dict()["paths"]
    return paths


@dataclass
class RouteBook:
    """Builds the calls for the routes of an application."""

    app: Flask
    paths: Mapping[str, Any]
    collections: list[Definition]
    """Those of records."""
    views: list[ViewDefinition]

    @classmethod
    def of(cls, app: Flask) -> RouteBook:
        """Load the application's current routes and collections."""
        every = definitions.get_all(with_views=True)
        views = [one for one in every if isinstance(one, ViewDefinition)]
        return cls(app, description_paths(), [one for one in every if one.view is None], views)

    def routes(self, pattern: str = "") -> Iterator[tuple[str, Rule]]:
        """Yield each route and method whose path matches a pattern from its start.

        Skips the routes of records if there are no collections.
        """
        for rule in sorted(self.app.url_map.iter_rules(), key=lambda one: one.rule):
            if not self.collections and _names_collection(rule):
                continue
            for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
                if re.match(pattern, rule.rule) and (method, rule.rule) not in EXEMPT:
                    yield method, rule

    def calls(self, method: str, rule: Rule, owner: Tenant, caller: Tenant) -> Iterator[Call]:
        """Yield calls of the route with the owner's ids, alone and below the caller's objects."""
        if is_of_extension(rule):
            yield from self._calls_of_extension(method, rule, owner, caller)
            return
        # One group's creation meets a stored key of the owner (`Idempotency-Key`).
        is_repeated = rule.rule == f"{PREFIX}/groups"
        key = {"Idempotency-Key": f"{owner.mark}-idempotency_keys-key"} if is_repeated else {}
        for path in self._paths(rule, owner, caller, method):
            if method in READ_METHODS:
                query = "?functions=count()" if rule.rule.endswith("/aggregate") else ""
                yield Call(method, rule.rule, path + query)
            else:
                for body in self._bodies(method, rule, path, owner, caller):
                    yield Call(method, rule.rule, path, body, key)

    def queries(self, rule: Rule, owner: Tenant, caller: Tenant) -> Iterator[Call]:
        """Yield queries of the caller's own lists with the owner's ids and marks."""
        if is_of_extension(rule):
            for table in self._tables_for(rule):
                path = _path_of_extension(rule, table, caller)
                required, every = self._query_of_extension(rule, table, owner)
                for name, text in every.items():
                    sent = urlencode(required | {name: text})
                    yield Call("GET", rule.rule, f"{path}?{sent}")
            return
        for path, definition in self._paths_with_ids(rule, caller):
            shared = self.paths.get(PARAMETER.sub(r"{\1}", rule.rule), {}).get("parameters", ())
            parameters = [*shared, *self._operation(rule, "GET").get("parameters", ())]
            names = [
                parameter["name"] for parameter in parameters if parameter.get("in") == "query"
            ]
            queries = [
                {name: value} for name in names if (value := _query_value(name, owner)) is not None
            ]
            if definition and _is_record_route(rule):
                queries += list(record_queries(rule.rule, definition, owner))
            for query in queries:
                yield Call("GET", rule.rule, f"{path}?{urlencode(query)}")

    def _tables_for(self, rule: Rule) -> list[str]:
        """The tables of whose rows a route of an extension may want ids; nothing says which."""
        own = tables.prefix_of(rule.rule.partition("/x/")[2].partition("/")[0])
        of_extension = [name for name in Base.metadata.tables if name.startswith(own)]
        return [*(one.table_name for one in self.collections), *of_extension] or ["records"]

    def _calls_of_extension(
        self, method: str, rule: Rule, owner: Tenant, caller: Tenant
    ) -> Iterator[Call]:
        content = self._operation(rule, method).get("requestBody", {}).get("content", {})
        example = content.get("application/json", {}).get("example")
        accounts = (owner, caller) if "account_id" in rule.arguments else (owner,)
        calls = dict[str, Call]()
        for table, of in product(self._tables_for(rule), accounts):
            path = _path_of_extension(rule, table, owner, {"account_id": of})
            if method in READ_METHODS:
                required, _ = self._query_of_extension(rule, table, owner)
                path += f"?{urlencode(required)}" if required else ""
            body = _with_ids(_adapted(example, owner), owner.id_of(table)) if example else None
            # One call for all tables if no id stands in it.
            key = f"{path} {_with_ids(example, table)}"
            calls.setdefault(key, Call(method, rule.rule, path, body))
        yield from calls.values()

    def _query_of_extension(
        self, rule: Rule, table: str, owner: Tenant
    ) -> tuple[dict[str, str], dict[str, str]]:
        """The required parameters of a query, and all of them."""
        required, every = dict[str, str](), dict[str, str]()
        for parameter in self._operation(rule, "GET").get("parameters", ()):
            if parameter.get("in") == "query":
                name, schema = parameter["name"], parameter.get("schema", {})
                texts = {"integer": "1", "number": "1", "boolean": "true", "string": owner.mark}
                text = texts.get(str(schema.get("type")))
                text = owner.id_of(table) if schema.get("format") == "uuid" else text
                value = _query_value(name, owner) or schema.get("enum", [text])[0]
                if value is not None:
                    every[name] = value
                    required |= {name: value} if parameter.get("required") else {}
        return required, every

    def _paths(self, rule: Rule, owner: Tenant, caller: Tenant, method: str) -> Iterator[str]:
        names = [
            name
            for name in PARAMETER.findall(rule.rule)
            if name in {*table_by_parameter(), "record_id"}
        ]
        yield from (path for path, _ in self._paths_with_ids(rule, owner))
        if "portal_id" in rule.arguments and owner is not caller:
            # The session is the caller's own, what it is asked for the owner's.
            own = {"portal_id": caller}
            yield from (path for path, _ in self._paths_with_ids(rule, owner, own))
            return
        if len(names) > 1 and owner is not caller:
            yield from (path for path, _ in self._paths_with_ids(rule, owner, {names[0]: caller}))
        elif names and method not in READ_METHODS and self._body_has_ids(rule, method):
            yield from (path for path, _ in self._paths_with_ids(rule, caller))

    def _body_has_ids(self, rule: Rule, method: str) -> bool:
        example = self._operation(rule, method).get("requestBody", {})
        return any(
            f"'{name}'" in repr(example) for name in table_by_parameter() if name != "account_id"
        )

    def _paths_with_ids(
        self, rule: Rule, owner: Tenant, overrides: Mapping[str, Tenant] = {}
    ) -> Iterator[tuple[str, Definition | None]]:
        names = PARAMETER.findall(rule.rule)
        in_collections = bool(COLLECTION_PARAMETERS & set(names)) or _names_collection(rule)
        choices = {
            n: sorted(c.items) for n, c in rule._converters.items() if isinstance(c, AnyConverter)
        }
        for definition in self._reached(rule) if in_collections else (None,):
            for combination in product(*choices.values()):
                values = dict(zip(choices, combination, strict=True))
                parts = {
                    n: values.get(n)
                    or _parameter_value(rule, n, overrides.get(n, owner), definition, values)
                    for n in names
                }
                yield _path(rule, parts), definition

    def _reached(self, rule: Rule) -> Sequence[Definition | None]:
        """The collections that a route leads to; none of them if there are none."""
        if "/trash" in rule.rule:
            return [one for one in self.collections if one.trash_days]
        views = self.views if rule.rule in OF_VIEWS else []
        if rule.rule == f"{RECORDS}/<record_id>":  # where it has the id of what is read
            views = [one for one in self.views if not (one.is_grouped or one.view["where"])]
        return [*self.collections, *views] or [None]

    def _operation(self, rule: Rule, method: str) -> Mapping[str, Any]:
        path = PARAMETER.sub(r"{\1}", rule.rule)
        operation: Mapping[str, object] = self.paths.get(path, {}).get(method.lower(), {})
        return operation

    def _bodies(
        self, method: str, rule: Rule, path: str, owner: Tenant, caller: Tenant
    ) -> Iterator[object]:
        if _is_record_route(rule):
            known = (*self.collections, *self.views)
            definition = next((one for one in known if f"/{one.name}" in path), None)
            yield from record_bodies(method, rule.rule, definition, owner, caller)
            return
        if rule.rule == OPERATIONS:
            for definition in self.collections:
                yield from operation_bodies(definition, owner, caller)
            return
        content = self._operation(rule, method).get("requestBody", {}).get("content", {})
        example = content.get("application/json", {}).get("example")
        yield example_body(method, rule.rule.removeprefix(PREFIX), example, owner)


def _path(rule: Rule, parts: Mapping[str, str]) -> str:
    return PARAMETER.sub(lambda match: parts[match[1]], rule.rule)


def _is_record_route(rule: Rule) -> bool:
    return rule.rule.startswith(f"{PREFIX}/records/")


def is_of_extension(rule: Rule) -> bool:
    """Whether an extension answers, of whose ids and values nothing is known but their form."""
    return "/x/" in rule.rule and rule.rule.startswith((EXTENSIONS, "/console"))


def _path_of_extension(
    rule: Rule, table: str, owner: Tenant, overrides: Mapping[str, Tenant] = {}
) -> str:
    """The path with the id of the owner's row, in the place of each that no name tells more of."""
    by_kind = {UuidPath: owner.id_of(table), IntegerPath: FIXED_VALUES["number"]}
    text = f"{owner.mark}-text"
    parts = {
        name: overrides.get(name, owner).id_of(table_by_parameter()[name])
        if name in table_by_parameter()
        else by_kind.get(type(rule._converters[name]), text)
        for name in PARAMETER.findall(rule.rule)
    }
    return _path(rule, parts)


def _names_collection(rule: Rule) -> bool:
    in_console = "/records/" in rule.rule and "name" in PARAMETER.findall(rule.rule)
    return in_console or _is_record_route(rule)


def _id_name(definition: Definition | None, *, in_trash: bool = False) -> str:
    """What a tenant knows a record's id by; those of a view have the ids of what it reads."""
    if isinstance(definition, ViewDefinition):
        definition = definition.base
    if definition is None:
        return "records"
    return trash_name(definition) if in_trash else definition.table_name


def _parameter_value(
    rule: Rule, name: str, owner: Tenant, definition: Definition | None, values: Mapping[str, str]
) -> str:
    if name in COLLECTION_PARAMETERS or (name == "name" and _names_collection(rule)):
        if name == "record_id":
            return owner.id_of(_id_name(definition, in_trash="/trash/" in rule.rule))
        if definition is None:
            return owner.id_of("collections") if name in COLLECTION_IDS else "none"
        return definition.id if name in COLLECTION_IDS else definition.name
    if name == "workflow_id" and values.get("kind") == "hook":
        return owner.id_of("hooks")
    if name in table_by_parameter():
        return owner.id_of(table_by_parameter()[name])
    if name == "portal_id":
        return owner.id_of(PORTAL)
    if name == "account_code":
        return owner.code
    if name == "entry_id":
        return owner.audit_entry
    if name == "name" and rule.rule.startswith("/console/outbox"):
        return "x"
    if name not in FIXED_VALUES:
        raise UnknownParameter(f"unknown path parameter <{name}>: add it to app/isolation/calls.py")
    return FIXED_VALUES[name]


def _query_value(name: str, owner: Tenant) -> str | None:
    if name in table_by_parameter():
        return owner.id_of(table_by_parameter()[name])
    if name == "limit":
        return "100"
    if name == "ids":
        return owner.id_of("users")
    return owner.mark if name in ("search", "table_name", "record_id") else None


def example_body(method: str, route: str, example: object, tenant: Tenant) -> object:
    """Build a request body: from BODIES, or from the description's example."""
    build = BODIES.get((method, route))
    return build(tenant) if build else _adapted(example, tenant)


def _unique() -> str:
    # Occurs in no other request.
    return f"unique{next(_counter):07d}"


def _adapted(example: object, tenant: Tenant, name: str = "") -> object:
    if isinstance(example, dict):
        return {key: _adapted(value, tenant, key) for key, value in example.items()}
    if isinstance(example, list):
        return [_adapted(value, tenant, name) for value in example]
    if name in table_by_parameter():
        return tenant.id_of(table_by_parameter()[name])
    if name == "email":
        return f"{_unique()}@{MAIL_DOMAIN}"
    if name == "domain":
        return f"{_unique()}.{MAIL_DOMAIN}"
    if name == "account":
        return _unique()
    return _unique() if name == "name" else example


def _with_ids(value: Any, id: str) -> Any:
    """A body with this id in the place of each that stands in the example."""
    if isinstance(value, dict):
        return {name: _with_ids(one, id) for name, one in value.items()}
    if isinstance(value, list):
        return [_with_ids(one, id) for one in value]
    return id if value in (examples.UUID, examples.USER_ID) else value


def _webhook(tenant: Tenant) -> object:
    address = f"https://{MAIL_DOMAIN}/"
    return {"url": address, "collection": "none", "events": ["create"], "enabled": False}


def _workflow(tenant: Tenant) -> object:
    return {"name": _unique(), "trigger": {"type": "manual"}, "steps": STEPS}


def _hook(tenant: Tenant) -> object:
    config = {"collection": "none", "record_id": tenant.id_of("users")}
    action = {"type": "delete_record", "config": config}
    return {"name": _unique(), "trigger": {"type": "manual"}, "actions": [action]}


def _scim_user(tenant: Tenant) -> object:
    return {"userName": f"{_unique()}@{MAIL_DOMAIN}"}


def _scim_group(tenant: Tenant) -> object:
    return {"displayName": _unique(), "members": [{"value": tenant.id_of("users")}]}


def _scim_patch(tenant: Tenant) -> object:
    return {"Operations": [{"op": "replace", "path": "externalId", "value": _unique()}]}


def _scim_members(tenant: Tenant) -> object:
    members = [{"value": tenant.id_of("users")}]
    return {"Operations": [{"op": "add", "path": "members", "value": members}]}


def _scim_search(tenant: Tenant) -> object:
    return {"filter": f'id eq "{tenant.id_of("users")}" or externalId co "{tenant.mark}"'}


# Bodies that differ from the description's examples, so that nothing is sent, and names refer to
# the account's objects.
BODIES: dict[tuple[str, str], Callable[[Tenant], object]] = {
    ("POST", "/webhooks"): _webhook,
    ("POST", "/workflows"): _workflow,
    ("POST", "/hooks"): _hook,
    ("PUT", "/account/retention"): lambda tenant: {"deliveries_days": 7},
    ("POST", "/account/retention/plan"): lambda tenant: {"deliveries_days": 7},
    ("POST", "/scim/v2/.search"): _scim_search,
    ("POST", "/scim/v2/Users/.search"): _scim_search,
    ("POST", "/scim/v2/Groups/.search"): _scim_search,
    ("POST", "/scim/v2/Users"): _scim_user,
    ("PUT", "/scim/v2/Users/<user_id>"): _scim_user,
    ("PATCH", "/scim/v2/Users/<user_id>"): _scim_patch,
    ("POST", "/scim/v2/Groups"): _scim_group,
    ("PUT", "/scim/v2/Groups/<group_id>"): _scim_group,
    ("PATCH", "/scim/v2/Groups/<group_id>"): _scim_members,
    ("POST", "/invitations"): lambda tenant: {
        "email": f"{_unique()}@{MAIL_DOMAIN}",
        "groups": [f"{tenant.mark}-groups-name"],
    },
    ("POST", "/auth/change-password"): lambda tenant: {
        "current_password": tenant.mark,
        "new_password": "Correct-horse-1",
    },
}


def record_queries(route: str, definition: Definition, owner: Tenant) -> Iterator[dict[str, str]]:
    """Yield the queries of a list or record: each parameter, and each value as a filter."""
    if route.endswith("<record_id>"):
        yield from ({"expand": name} for name in ("created_by", *_record_references(definition)))
        return
    if not route.endswith(("<collection>", "/export", "/aggregate")):
        return
    base = {"functions": "count()"} if route.endswith("/aggregate") else {}
    for name, text in _record_filters(definition, owner).items():
        yield {**base, name: text}
    yield {**base, "filter": f'id == "{owner.id_of(_id_name(definition))}"'}
    # What is closed is closed to `@any` as well, and views always are.
    if definition.rules.get("list_rule") is not None and definition.view is None:
        yield {
            **base,
            "filter": f'@any({definition.name}, id = "{owner.id_of(definition.table_name)}")',
        }
        yield {**base, "filter": f"@count({definition.name}, id IS NOT NULL) <= 1"}
    for name, spec in definition.fields.items():
        if spec.leads_to == PEOPLE:
            yield {**base, "filter": f'{name}.name ~ "{owner.mark}%"'}
    yield from ({**base, **query} for query in _record_parameters(route, definition))


def _record_parameters(route: str, definition: Definition) -> Iterator[dict[str, str]]:
    names = [name for name, spec in definition.fields.items() if spec.filterable]
    if route.endswith("/aggregate"):
        yield {}
        yield from ({"group_by": name} for name in (*names, *_record_paths(definition)))
        numeric = (Type.NUMBER, Type.DECIMAL)
        numbers = [name for name in names if definition.fields[name].rule_type in numeric]
        yield from ({"functions": f"sum({n}),min({n}),max({n}),avg({n})"} for n in numbers)
        return
    yield from ({"sort": f"-{name}"} for name in (*names, *_record_paths(definition)))
    if route.endswith("/export"):
        yield from ({"format": kind} for kind in ("json", "jsonl", "csv", "zip"))
    else:
        if definition.trash_days:
            yield from ({"trash": "true", **more} for more in ({}, {"cursor": ""}))
        yield {"cursor": "", "limit": "1"}
        yield from ({"expand": name} for name in _record_references(definition))


def _record_references(definition: Definition) -> list[str]:
    own = definition.name.lower()
    referring = [
        f"{other.name}_via_{name}"
        for other in definitions.get_all()
        for name, field in other.fields.items()
        if (field.collection or "").lower() == own
    ]
    return [*definition.references, *referring]


def _record_paths(definition: Definition) -> Iterator[str]:
    """Names behind the references of records: of people, and of other records."""
    yield "created_by.name"
    for name in definition.references.keys() - definition.lists.keys():
        target = definition.followed(name)
        if isinstance(target, Definition):
            yield from (f"{name}.{one}" for one, spec in target.fields.items() if spec.filterable)
        else:
            yield f"{name}.name"


def _record_filters(definition: Definition, owner: Tenant) -> dict[str, str]:
    row = owner.records.get(definition.name, {})
    names = [
        name
        for name, spec in definition.fields.items()
        if spec.filterable and not isinstance(row.get(name), bool | date)
    ]
    system = [name for name in ("id", "account_id", "created_by") if name in definition.system]
    return {name: str(row.get(name) or owner.mark) for name in (*system, *names)}


def record_bodies(
    method: str, route: str, definition: Definition | None, owner: Tenant, caller: Tenant
) -> Iterator[object]:
    """Yield bodies: the owner's record, and the same with the caller's own references."""
    if definition is None or definition.view is not None or route.endswith("/restore"):
        yield {"audit_id": 1} if definition and route.endswith("/restore") else {}
        return
    row, id = (
        _sendable(definition, owner.records[definition.name]),
        owner.id_of(definition.table_name),
    )
    references = definition.references
    caller_row = _sendable(definition, caller.records[definition.name])
    # Values are free, but references must be the caller's own.
    for body in [row, row | {name: caller_row[name] for name in references}][
        : 2 if references else 1
    ]:
        if route.endswith("/batch"):
            body = {"POST": {"records": [body]}, "PATCH": {"records": [{"id": id, "data": body}]}}
            yield body.get(method, {"ids": [id]})
        else:
            yield [body] if route.endswith("/import") else body


def operation_bodies(
    definition: Definition, owner: Tenant, caller: Tenant
) -> Iterator[Mapping[str, object]]:
    """Yield batches of one operation on the owner's record, or with the values of it."""
    named = {"collection": definition.name}
    changed = {**named, "id": owner.id_of(definition.table_name)}
    for body in record_bodies("PUT", "", definition, owner, caller):
        for method in ("POST", "PATCH", "PUT"):
            target = named if method == "POST" else changed
            yield {"operations": [{"method": method, **target, "body": body}]}
    yield {"operations": [{"method": "DELETE", **changed}]}


def _sendable(definition: Definition, row: Mapping[str, object]) -> dict[str, object]:
    """The stored fields of a record as JSON; fields with choices have the first one."""
    chosen = {n: spec.example for n, spec in definition.fields.items() if "choices" in spec.options}
    plain = {name: row[name] for name in definition.fields if name not in definition.unwritten}
    return {n: v.isoformat() if isinstance(v, date) else v for n, v in (plain | chosen).items()}
