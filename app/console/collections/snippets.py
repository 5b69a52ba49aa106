"""Examples of API calls for a collection, in curl, JavaScript and Python.

They read the token and the id of a record from the environment, so that they can be copied as they
are: TOKEN is an access token, RECORD_ID the id of a record.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pprint import pformat
from urllib.parse import urlencode

from app import web
from app.collections.access import Access
from app.collections.fields import Field
from app.console.records.references import quote
from app.rules import Type
from app.types import JSONMapping, JSONObject
from app.web.languages import gettext

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
        return f"@contains({name}, {quote(next(iter(field.choices)))})"
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
