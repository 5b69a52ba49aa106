"""The endpoints of extensions as routes of the API: `/api/v1/x/{extension}/...`."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import Any

import marshmallow as ma
import orjson
from flask import Flask, Response

from app.auth import guard
from app.extensions import answering, endpoints, registry
from app.extensions.registry import Handler, Kind
from app.extensions.running import Misuse
from app.types import JSONObject
from app.web import EXTENSIONS, openapi
from app.web.access import READ_METHODS
from app.web.app import get_g
from app.web.blueprint import Blueprint
from app.web.openapi import OF_EXTENSIONS, api
from app.web.schemas import Schema
from app.web.serialization import dumps, json_response


class UnfitAnswer(Misuse):
    """An answer that does not fit the schema that its endpoint declares."""


def init_app(app: Flask) -> None:
    """Add the endpoints of the loaded extensions."""
    openapi.packages.update({one.package: name for name, one in registry.EXTENSIONS.items()})
    found = (one for handlers in registry.of(Kind.ENDPOINT).values() for one in handlers)
    in_order = sorted(found, key=lambda one: list(registry.EXTENSIONS).index(one.extension))
    for name, handlers in groupby(in_order, key=lambda one: one.extension):
        blueprint = Blueprint(
            f"{OF_EXTENSIONS}{name}",
            __name__,
            url_prefix=f"{EXTENSIONS}/{name}",
            description=f"Endpoints of the extension {name}.",
        )
        for handler in handlers:
            _add(blueprint, handler)
        api.register_blueprint(blueprint)


def _add(blueprint: Blueprint, handler: Handler) -> None:
    options = handler.options
    method, answer = options["method"], _schema(options["answer"])
    body, query = _schema(options["body"]), _schema(options["query"])
    status = options["status"] or (204 if answer is None else 200)
    is_read = method in READ_METHODS or options["access"].reads

    @guard.optimistic
    def view(*parsed: JSONObject, **parts: str) -> Response:
        arguments = iter(parsed)  # that of the outermost decorator comes first
        sent, by = next(arguments) if body else None, get_g().principal
        named = endpoints.arguments(options["path"], parts)
        named |= {"query": next(arguments)} if query else {}
        then = partial(_response, schema=answer, status=status)
        response: Response = answering.answer(
            handler, by, sent, reads=is_read, named=named, then=then
        )
        return response

    # Its own statements need not look at rights: the guard verifies them before it runs.
    view.checks_versions = False  # type: ignore[attr-defined]
    name = handler.function.__name__
    view.__name__, view.__doc__ = name, handler.function.__doc__ or f"{method} {options['path']}"
    described: Any = options["access"](view)
    described = blueprint.response(status, answer)(described)
    if query:
        described = blueprint.arguments(query, location="query")(described)
    if body:
        described = blueprint.arguments(body)(described)
    described = blueprint.fails(400, 403)(described)
    id = f"x_{handler.extension}_{name}"
    blueprint.add_url_rule(options["path"], id, described, methods=[method])


def _schema(given: Any) -> Schema | None:
    schema: Schema | None = given() if isinstance(given, type) else given
    return schema


def _response(result: object, schema: Schema | None, status: int) -> Response:
    """The response with what a handler returned. Raises UnfitAnswer, which quotes no values."""
    if schema is None:
        if result is not None:
            raise UnfitAnswer("It returns a value, but declares no answer.")
        return Response(status=status)
    text = dumps(schema.dump(result))
    # Dumping checks little: what is missing or of another type must not reach a client.
    reader: Schema = type(schema)(many=schema.many, unknown=ma.EXCLUDE)
    if problems := reader.validate(orjson.loads(text), partial=[*reader.load_only]):
        raise UnfitAnswer(f"Its answer does not fit {type(schema).__name__}: {_names(problems)}.")
    return json_response(orjson.Fragment(text), status)


def _names(problems: Any, path: str = "") -> str:
    if not isinstance(problems, dict):
        return path
    return ", ".join(_names(inner, f"{path}.{name}".strip(".")) for name, inner in problems.items())
