"""The API tab of a collection: examples in three languages, and requests tried out at once.

The examples read the token and the id of a record from the environment, so that they can be copied
as they are: TOKEN is an access token, RECORD_ID the id of a record.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pprint import pformat
from urllib.parse import urlencode

import orjson
from flask import request, session

from app import config, web
from app.auth import principal as principals
from app.collections.access import Access
from app.collections.definitions import Definition
from app.collections.fields import Field
from app.console.collections import listing
from app.console.collections.listing import COLLECTION, NO_ACCOUNT, load
from app.console.records.references import quote
from app.console.shell import guard, navigation, scopes
from app.console.shell.access import ADMIN, SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page
from app.console.shell.names import of_operations
from app.console.shell.scopes import AccountScope, CollectionScope
from app.errors import AppError, BadRequest
from app.records import service as records
from app.records.store.reads import ListQuery
from app.rules import Type
from app.types import JSONMapping, JSONObject
from app.web import serialization
from app.web.app import UuidPath
from app.web.languages import gettext
from app.web.paging import page_body

MAX_ITEMS = 10
MAX_SHOWN = 20_000  # characters of a response
MAX_INPUT = 2_000
INPUTS = ("try", "account", "filter", "sort", "id")
LANGUAGE = "examples"
"""The key of the session for the language of the examples."""
NO_ID = "Enter the id of a record."
LANGUAGES = {"curl": "curl", "javascript": "JavaScript", "python": "Python"}
SET_UP = {
    "curl": "export TOKEN='…'\nexport RECORD_ID='…'",
    "javascript": 'const token = "…";\nconst recordId = "…";',
    "python": """from os import environ

import requests

token = environ["TOKEN"]
record_id = environ.get("RECORD_ID")""",
}
"""The first lines of the examples."""
MAX_FIELDS = 12  # of a sample record, besides required ones
NO_RECORD = "00000000-0000-7000-8000-000000000000"


@dataclass(frozen=True)
class Tried:
    """The response of a request that was tried out."""

    request: str
    status: int
    text: str
    is_cut: bool


@page(f"{COLLECTION}/api", role=SUPERADMIN, retry_stale=True)
def show_api_examples(scope: AccountScope, collection_id: str) -> Page:
    """The API of a collection, for superadmins acting in any account."""
    _, collection = load(collection_id)
    form = _form()
    form.values["account"] = form["account"] or navigation.current_code()
    if form["account"]:
        account = principals.reload_active_account(form["account"])
        if account is None:
            form.errors["account"], form.status = [str(NO_ACCOUNT)], 400
        else:
            scope = scopes.account_scope(account.id)
    return _page(scope, collection, form)


@page("/console/records/<uuid:account_id>/<name>/api", role=ADMIN, retry_stale=True)
def show_api(scope: CollectionScope) -> Page:
    return _page(scope, scope.collection, _form())


def _form() -> Form:
    values = {name: request.args.get(name, "").replace("\0", "").strip() for name in INPUTS}
    return Form({name: value[:MAX_INPUT] for name, value in values.items()})


def _page(scope: AccountScope, collection: Definition, form: Form) -> Page:
    shown, written = (scope.access(collection, name) for name in ("list", "create"))
    shown_calls = calls(shown, written, _reference_ids(scope, collection, written))
    headers = {}
    if scope.by.is_superadmin and scope.account.id != guard.own_account_id():
        headers = {"X-Account-ID": scope.account.slug}
    base_url = config.current().base_url
    return form.render(
        "console/collections/api.html",
        scope=scope,
        collection=collection,
        allowed=of_operations(scope.allowed_operations(collection)),
        examples=examples(base_url, collection.name, shown_calls, headers),
        languages=LANGUAGES,
        code_language=_language(),
        account_label=listing.account_label(form["account"]),
        set_up=SET_UP,
        conditions=conditions(shown) if shown else [],
        tried=_try(scope, collection, form) if form["try"] and not form.errors else None,
    )


def _language() -> str:
    """The language of the examples: the chosen one, which the session remembers."""
    if request.args.get("language") in LANGUAGES:
        session[LANGUAGE] = request.args["language"]
    chosen: str = session.get(LANGUAGE, "")
    return chosen if chosen in LANGUAGES else next(iter(LANGUAGES))


def _reference_ids(
    scope: AccountScope, collection: Definition, written: Access | None
) -> dict[str, str]:
    """The id of some record for each reference that the caller may write."""
    if written is None:
        return {}
    single = written.writable - collection.lists.keys()
    targets = {name: collection.target(name) for name in single}
    known = {one.name: one for one in targets.values() if one is not None}
    some = list(known.values())[:MAX_FIELDS]  # each takes a statement
    ids = {one.name: _newest_id(scope, one) for one in some}
    found = {name: ids.get(one.name) for name, one in targets.items() if one is not None}
    return {name: id for name, id in found.items() if id}


def _newest_id(scope: AccountScope, target: Definition) -> str | None:
    if "view" not in scope.allowed_operations(target):
        return None
    try:
        query = ListQuery(parameters={"fields": ["id"]}, limit=1)
        rows, _ = records.page(target.name, query, by=scope.by)
    except AppError:
        return None
    return rows[0]["id"] if rows else None


def _try(scope: AccountScope, collection: Definition, form: Form) -> Tried:
    """Run a list or a get with the caller's own rights."""
    path = f"/api/v1/records/{collection.name}"
    query = {name: [form[name]] for name in ("filter", "sort") if form[name]}
    is_list = form["try"] == "list"
    shown = f"GET {path}" if is_list else f"GET {path}/{form['id']}"
    try:
        if is_list:
            body = _list(scope, collection, query)
        else:
            if not UuidPath.accepts(form["id"]):
                raise BadRequest(NO_ID)
            body = records.get(collection.name, form["id"].lower(), None, by=scope.by)
        status = 200
    except AppError as error:
        body, status = error.body(), error.status
    text = orjson.dumps(serialization.plain(body), option=orjson.OPT_INDENT_2).decode()
    return Tried(shown, status, text[:MAX_SHOWN], len(text) > MAX_SHOWN)


def _list(scope: AccountScope, collection: Definition, query: dict[str, list[str]]) -> JSONObject:
    page = ListQuery(parameters=query, limit=MAX_ITEMS, count=True, max_total=1_000)
    items, total = records.page(collection.name, page, by=scope.by)
    return page_body(items, total, {"skip": page.skip, "limit": page.limit})


@dataclass(frozen=True)
class Call:
    title: str
    method: str
    path: str
    query: JSONMapping
    body: JSONMapping | None = None

    @property
    def has_id(self) -> bool:
        """Whether it is about one record."""
        return self.path.endswith("/{id}")


@dataclass(frozen=True)
class Example:
    """A call with its code by language."""

    call: Call
    code: Mapping[str, str]


def examples(
    base_url: str, name: str, calls: Sequence[Call], headers: Mapping[str, str]
) -> list[Example]:
    url = f"{base_url}{web.PREFIX}/records/{name}"
    writers = {"curl": _curl, "javascript": _javascript, "python": _python}
    return [
        Example(call, {lang: write(url, call, headers) for lang, write in writers.items()})
        for call in calls
    ]


def calls(
    shown: Access | None, written: Access | None, references: Mapping[str, str]
) -> list[Call]:
    """The calls of a collection, by access for its list and for its writes.

    `references` has the id of a record for each reference field, where there is one.
    """
    query: JSONObject = {"sort": "-created_at", "limit": 10}
    if shown is not None and (condition := next(iter(conditions(shown)), None)):
        query = {"filter": condition, **query}
    sample = sample_record(written, references) if written is not None else {}
    change = dict(list(sample.items())[:1])
    return [
        Call(gettext("List records"), "GET", "", query),
        Call(gettext("Get a record"), "GET", "/{id}", {}),
        Call(gettext("Create a record"), "POST", "", {}, sample),
        Call(gettext("Update a record"), "PATCH", "/{id}", {}, change),
        Call(gettext("Delete a record"), "DELETE", "/{id}", {}),
    ]


def sample_record(access: Access, references: Mapping[str, str]) -> JSONObject:
    """A plausible record: the required fields, and some of the others."""
    sample: JSONObject = {}
    fields = [f for f in access.definition.fields.values() if f.name in access.writable]
    for field in sorted(fields, key=lambda field: not field.required):
        if field.required or len(sample) < MAX_FIELDS:
            value = references.get(field.name) if field.collection else field.example
            if value is None and field.required:
                value = NO_RECORD if field.collection else "..."
            if value is not None:
                sample[field.name] = value
    return sample


def conditions(access: Access) -> list[str]:
    """Filters over fields of the collection, one per kind of field."""
    found: dict[str, str] = {}
    for name, field in access.comparable.items():
        if name in access.definition.fields and field.type not in found:
            condition = _condition(name, field)
            if condition is not None:
                found[field.type] = condition
    return list(found.values())


def _condition(name: str, field: Field) -> str | None:
    comparisons, value = field.face.comparisons, field.example
    if field.rule_type is Type.LIST:
        entry = next(iter(value), None) if isinstance(value, list) else None
        return f"@contains({name}, {quote(entry)})" if entry else f"{name} != null"
    if field.collection:
        return f"{name} != null"
    if "contains" in comparisons:
        return f"{name} ~ {quote('%a%')}"
    literal = quote(value) if isinstance(value, str) else json.dumps(value)
    operator = next((one for one in (">=", "=") if one in comparisons), None)
    return f"{name} {operator} {literal}" if operator else None


def _shell(text: str) -> str:
    """A word for a shell, in the quotes that need no escapes if there are such."""
    return f'"{text}"' if "'" in text and not set(text) & set('"$\\`!') else shlex.quote(text)


def _curl(url: str, call: Call, headers: Mapping[str, str]) -> str:
    address = f'"{url}/$RECORD_ID"' if call.has_id else shlex.quote(url)
    lines = [f"curl {'' if call.method == 'GET' else f'--request {call.method} '}{address}"]
    lines.append('--header "Authorization: Bearer $TOKEN"')
    lines += [f"--header {_shell(f'{name}: {value}')}" for name, value in headers.items()]
    if call.query:
        lines[0] = lines[0].replace("curl ", "curl --get ", 1)
        lines += [f"--data-urlencode {_shell(f'{k}={v}')}" for k, v in call.query.items()]
    if call.body is not None:
        lines.append("--header 'Content-Type: application/json'")
        body = json.dumps(call.body, ensure_ascii=False, indent=2).replace("\n", "\n  ")
        lines.append(f"--data {shlex.quote(body)}")
    return " \\\n  ".join(lines)


def _javascript(url: str, call: Call, headers: Mapping[str, str]) -> str:
    address = f"{url}/${{recordId}}" if call.has_id else url
    if call.query:
        address += f"?{urlencode(call.query)}"
    shown = {"Authorization": "Bearer ${token}", **headers}
    if call.body is not None:
        shown["Content-Type"] = "application/json"
    lines = [f"const response = await fetch(`{address}`, {{"]
    if call.method != "GET":
        lines.append(f"  method: {json.dumps(call.method)},")
    lines.append("  headers: {")
    for name, value in shown.items():
        text = f"`{value}`" if "${" in value else json.dumps(value)
        lines.append(f"    {json.dumps(name)}: {text},")
    lines.append("  },")
    if call.body is not None:
        body = json.dumps(call.body, ensure_ascii=False, indent=2).replace("\n", "\n  ")
        lines.append(f"  body: JSON.stringify({body}),")
    lines.append("});")
    result = "response.status" if call.method == "DELETE" else "await response.json()"
    return "\n".join([*lines, f"console.log({result});"])


def _python(url: str, call: Call, headers: Mapping[str, str]) -> str:
    address = f'f"{url}/{{record_id}}"' if call.has_id else json.dumps(url)
    shown = "".join(f", {name!r}: {value!r}" for name, value in headers.items())
    lines = [f"response = requests.{call.method.lower()}(", f"    {address},"]
    lines.append(f'    headers={{"Authorization": f"Bearer {{token}}"{shown}}},')
    for name, value in (("params", call.query), ("json", call.body)):
        if value:
            text = pformat(value, sort_dicts=False, width=80).replace("\n", "\n    ")
            lines.append(f"    {name}={text},")
    lines += [")", "response.raise_for_status()"]
    if call.method != "DELETE":
        lines.append("print(response.json())")
    return "\n".join(lines)
