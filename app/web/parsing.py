"""Parses and validates request data with schemas; errors are 422."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, wraps
from typing import Any
from urllib.parse import unquote_to_bytes

import marshmallow as ma
from flask import Request
from webargs.flaskparser import FlaskParser

from app.errors import MAX_LISTED, InvalidValues, Malformed, NotFound, problem
from app.types import JSONObject
from app.web import serialization
from app.web.access import View
from app.web.app import get_request
from app.web.schemas import Schema

MAX_CACHED_QUERY = 200
REPEATED = "Send this parameter once."
MULTIPART: JSONObject = {}
"""Stands for a multipart body, which the view reads, as its files go elsewhere."""
LOCATIONS = {"json": "body", "query": "query", "path": "path", "headers": "header"}


def check_path(request: Request) -> None:
    """Check the ids in a path. Raises Malformed (422), or NotFound for a NUL."""
    rule = request.url_rule
    for name, value in list((request.view_args or {}).items()):
        if "\0" in value:
            raise NotFound
        converter: Any = rule._converters.get(name) if rule else None
        if hasattr(converter, "accepts") and not converter.accepts(value):
            msg = f"Must be {converter.expected}."
            raise Malformed.at("path", name, msg=msg, type="invalid_id")
        if name == "record_id" and request.view_args:
            request.view_args[name] = value.lower()  # ids of records are UUIDs, in any case


def check_query(request: Request, view: Callable[..., object]) -> None:
    """Raise Malformed (422) for undeclared and repeated parameters, NULs and invalid UTF-8.

    Pages ignore unknown parameters, as browsers and links add some. Where every field is a
    parameter, a repeated one of ours is InvalidValues (400).
    """
    if not request.query_string:
        return
    try:
        unquote_to_bytes(request.query_string).decode()
    except UnicodeDecodeError:
        raise Malformed.at("query", msg="Is not valid UTF-8.") from None
    if not getattr(view, "takes_query", True) and request.args:
        raise Malformed(
            [
                _detail(("query", name), "Unknown query parameter.", "unknown")
                for name in request.args
            ]
        )
    for name, value in request.args.items(multi=True):
        if "\0" in name + value:
            name = name.replace("\0", "")
            raise Malformed.at("query", name, msg="Must not contain the NUL character.")
    if getattr(view, "takes_query", False):
        schema: Any = view.query_schema  # type: ignore[attr-defined]
        if not schema.checks_repeated:
            refuse_repeated(request, schema)


def refuse_repeated(request: Request, schema: Schema | None = None) -> None:
    """Raise Malformed (422) for repeated parameters, of which all but one would be dropped.

    With a schema, for those that it declares and that are no lists. Where every field is a
    parameter (`names_fields`), that is InvalidValues (400).
    """
    repeated = {name for name, values in request.args.lists() if len(values) > 1}
    if schema is not None:
        repeated &= {
            field.data_key or name
            for name, field in schema.fields.items()
            if not isinstance(field, ma.fields.List)
        }
    if repeated and schema is not None and schema.names_fields:
        raise InvalidValues([problem(n, "invalid_option", REPEATED) for n in sorted(repeated)])
    if repeated:
        raise Malformed([_detail(("query", n), REPEATED, "repeated") for n in sorted(repeated)])


class Parser(FlaskParser):
    """webargs' parser; reads JSON through `serialization`, and refuses undeclared parameters."""

    DEFAULT_UNKNOWN_BY_LOCATION = {  # noqa: RUF012 - as webargs declares it
        "json": None,
        "query": ma.RAISE,
        "path": ma.RAISE,
    }

    def load_json(self, req: Request, schema: Any) -> object:
        if schema.body_may_be_absent and not req.get_data(cache=True):
            return {}
        value = serialization.parse_body(req, infinite=schema.names_numbers)
        if not isinstance(value, dict):
            raise Malformed.at("body", msg="Must be a JSON object.", type="type")
        return value

    def use_args(self, argmap: object, req: object = None, **options: object) -> Any:
        """Call the view with the parsed data; skips the wrapper that only documents it."""

        def decorate(described: View) -> object:
            view = described.__wrapped__  # type: ignore[attr-defined]

            @wraps(described)
            def run(*args: object, **parts: object) -> object:
                return view(*args, self.parse(argmap, **options), **parts)

            return run

        return decorate

    def parse(self, argmap: Any, req: Any = None, **options: Any) -> object:
        """Parse the request; caches the results of short queries."""
        if options["location"] == "json" and argmap.unknown == ma.INCLUDE and not argmap.fields:
            request = get_request()
            if argmap.takes_files and request.mimetype == "multipart/form-data":
                return MULTIPART
            return self.load_json(request, argmap)  # the view validates the body itself
        text = get_request().query_string
        if options["location"] != "query" or len(text) > MAX_CACHED_QUERY:
            return super().parse(argmap, req, **options)
        return dict(_parsed_query(self, argmap, tuple(options.items()), text))

    def parse_query(self, schema: ma.Schema, options: Iterable[tuple[str, Any]]) -> JSONObject:
        """Parse the query of the current request."""
        arguments: JSONObject = super().parse(schema, **dict(options))
        return arguments

    def handle_error(self, error: Any, req: object, schema: object, **options: object) -> Any:
        """Raise Malformed (422) with marshmallow's messages."""
        found = [
            ((LOCATIONS.get(location, location), *loc), msg)
            for location, messages in error.messages.items()
            for loc, msg in _flat(messages)
        ]
        detail = [_detail(loc, msg, _kind(msg)) for loc, msg in found[:MAX_LISTED]]
        raise Malformed(detail, len(found))


@lru_cache
def _parsed_query(
    parser: Parser, schema: ma.Schema, options: tuple[tuple[str, object], ...], text: bytes
) -> JSONObject:
    return parser.parse_query(schema, options)


def _detail(loc: Sequence[str | int], msg: str, kind: str) -> dict[str, object]:
    return {"loc": [part for part in loc if part != "_schema"], "msg": msg, "type": kind}


def _kind(message: str) -> str:
    if message.startswith("Missing data"):
        return "missing"
    return "unknown" if message.startswith("Unknown field") else "value_error"


def _flat(messages: Any, *loc: str | int) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if not isinstance(messages, dict):
        yield from ((loc, str(message)) for message in messages)
        return
    for key, inner in messages.items():
        if isinstance(inner, dict):
            yield from _flat(inner, *loc, key)
        else:
            yield from (((*loc, key), str(message)) for message in inner)
