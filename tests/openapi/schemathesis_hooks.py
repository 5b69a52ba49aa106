"""Hooks of Schemathesis: what a JSON schema cannot say, and what a run must leave alone."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import schemathesis
from schemathesis.core import failures
from schemathesis.openapi import checks

KNOWN: dict[str, list[Any]] = json.loads(Path(os.environ["ATRIUM_KNOWN"]).read_text())
# The caller's user and account: without them everything else would be a 401.
OWN = set(os.environ["ATRIUM_OWN"].split())
FURNISHED = {id for ids in KNOWN.values() for id in ids if isinstance(id, str)}
NOBODY = "019a9f00-0000-7000-8000-000000000000"
UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
SIGNATURE = {"X-ES-Username", "X-ES-Password", "X-ES-Reason"}
REMOVALS = ("/erase", "/revoke", "/rotate")
# What a JSON schema cannot say, by the end of the path, with what the refusal has of it.
RULES = (
    ("", '"type":"signature"'),  # all headers of a signature, or none
    ("", '"type":"multipart"'),  # names of parts in UTF-8
    ("", "Not a valid integer."),  # 70.0 is one by JSON Schema
    ("/invitations/{invitation}", "Must be a UUID."),  # where GET takes a token, too
    ("/invitations/{invitation}/resend", "Must be a UUID."),
    ("/collections", '"schema"],"msg":"Missing'),  # or its alias, fields
    ("/collections", "Differs from schema, whose other name it is."),
    ("/collections/{collection_id}", '"schema"],"msg":"Missing'),
    ("/collections/{collection_id}", "Differs from schema, whose other name it is."),
    ("/collections/{collection_id}/plan", '"schema"],"msg":"Missing'),
    ("/collections/{collection_id}/plan", "Differs from schema, whose other name it is."),
    ("/auth/register", '"account_name"],"msg":"Missing'),  # a name or a slug, by any of four names
    ("/users", '"email"],"msg":"Missing'),  # of a person
    ("/users", '"name"],"msg":"Missing'),  # of a service
    ("/users", "A service user has neither an address nor a password."),
    ("/account/export", "A zip archive is not encrypted."),
    ("/account/export", '"passphrase"],"msg":"Missing'),  # of a bundle
    ("/users/{user_id}/password", '"new_password"],"msg":"Missing'),  # or its alias, password
    ("/mfa/verify", '"code"],"msg":"Missing'),  # by the method
    ("/mfa/verify", '"assertion"],"msg":"Missing'),
    ("/undo-email-change", '"code"],"msg":"Missing'),
    ("/undo-email-change", '"assertion"],"msg":"Missing'),
    ("/rules/explain", "Give user_id or auth, not both."),
    ("/rules/explain", "Only create and update send data."),
    ("/records/{collection}", '"type":"repeated"'),  # parts, but of fields with many files
    ("/records/{collection}/{record_id}", '"type":"repeated"'),
    ("/records/{collection}", "The body is not valid JSON"),  # in the part `data` of a form
    ("/records/{collection}/{record_id}", "The body is not valid JSON"),
    ("/records/{collection}/batch", "Must be an array of objects"),  # or `records` and no other
    ("/records/{collection}/batch", '"on"],"msg":"Required with mode=upsert'),
    ("/v1/batch", '"type":"missing"'),  # an id or a body, by the method
    ("/v1/batch", '"type":"unknown"'),
    ("/v1/batch", "Nothing is left to refer to."),
    ("/records/{collection}/import", "The body is not valid JSON"),
    ("/records/{collection}/import", "The file's name must end in"),
    ("/records/{collection}/import", '"loc":["body",'),  # a line of a file
    ("/realtime/subscribe", "Operations are create, update and delete."),  # behind a colon
    ("/deliveries/redeliver", "Cannot be combined with filters."),
    ("/deliveries/redeliver", "Required, unless there are ids."),
)
MADE: defaultdict[str, list[str]] = defaultdict(list)
random = Random(7)


@schemathesis.hook
def before_call(context: Any, case: Any, **options: Any) -> None:
    """Aim at what there is, and remove only what the run has made."""
    if case.meta is None:  # not of any operation
        return
    fits = {place.value: part.mode.is_positive for place, part in case.meta.components.items()}
    if fits.get("path", True):
        case.path_parameters.update(_met(case.path_parameters))
    if case.method == "DELETE" or case.path.endswith(REMOVALS):
        case.path_parameters.update(_spent(case))
    elif case.method not in ("GET", "HEAD"):
        case.path_parameters.update(_without(case, OWN))
    if case.path.endswith("/auth/logout") and isinstance(case.body, dict):
        case.body.pop("all", None)  # which ends the run's own session
    if fits.get("header", True):
        _mend(case.headers)


def _met(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in values.keys() & KNOWN.keys():
        is_uuid = UUID.fullmatch(str(values[name]))
        known = [one for one in KNOWN[name] if not is_uuid or UUID.fullmatch(str(one))]
        if known and random.random() < 0.75:
            yield name, random.choice(known)


def _spent(case: Any) -> dict[str, Any]:
    """Its parameters, of what the run has made if there is any, and of nothing that was there."""
    place, _, rest = case.path.partition("/{")
    name, made = rest.partition("}")[0], MADE[place]
    return _without(case, OWN | FURNISHED) | ({name: made.pop()} if made else {})


def _without(case: Any, spared: set[str]) -> dict[str, Any]:
    values = case.path_parameters.items()
    return {name: NOBODY if value in spared else value for name, value in values}


def _mend(headers: Any) -> None:
    headers.pop("X-ES-Passkey", None)  # there is no authenticator
    if not headers.keys() >= SIGNATURE:
        for name in SIGNATURE:
            headers.pop(name, None)
    if "Idempotency-Key" in headers:  # for one request each
        headers["Idempotency-Key"] = str(random.getrandbits(64))


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    """Note what the run has made."""
    if response.status_code == 201:
        with suppress(ValueError, KeyError, TypeError):
            MADE[case.path].append(response.json()["id"])


@schemathesis.hook
def filter_failure(context: Any, failure: Any, case: Any, response: Any) -> bool:
    """Whether the contract is broken, too."""
    path, kind = case.operation.path, type(failure)
    content_type = response.headers.get("content-type", [""])[0]
    if kind is checks.RejectedPositiveData:
        return not any(path.endswith(end) and text in response.text for end, text in RULES)
    if kind is checks.UndefinedContentType:  # a file has its own
        return not path.startswith(("/api/v1/files/", "/api/v1/product/logo"))
    if kind is checks.JsonSchemaError:  # of a line where there is none, and of a stream
        return not (content_type.startswith("text/event-stream") or not response.content)
    if kind in (checks.AllowHeaderMismatch, checks.UnsupportedMethodResponse):
        # A URL that is too long is refused before its method is read.
        return response.status_code != 414 and not _is_also_an_id(case.operation)
    if kind is failures.AcceptedNegativeData:  # whatever is sent as text is a text
        return case.media_type != "text/csv"
    return True


def _is_also_an_id(operation: Any) -> bool:
    """Whether a path with other methods has a parameter where this one has a word."""
    others = (re.sub("{[^}]+}", "[^/]+", one) for one in operation.schema.raw_schema["paths"])
    return sum(bool(re.fullmatch(other, operation.path)) for other in others) > 1


@schemathesis.serializer("application/x-ndjson", "application/zip")
def serialize(context: Any, value: Any) -> bytes:
    """The bytes of a body."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return value if isinstance(value, bytes) else text.encode()


@schemathesis.deserializer("application/x-ndjson")
def first_line(context: Any, response: Any) -> Any:
    """The first object; that of an empty file fits nothing, which `filter_failure` lets be."""
    return json.loads(response.content.partition(b"\n")[0] or b"null")
