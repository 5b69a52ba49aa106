"""The edge of the API: blueprints, schemas, who may call a view, paging, and answers in JSON.

A view needs a signed-in caller unless it is marked otherwise, and takes only the query parameters
that it declares. The marks are read by `auth.guard` and by the API description alike.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from enum import Enum
from functools import lru_cache, wraps
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import flask_smorest
import marshmallow as ma
import orjson
from flask import Flask, Request, Response, request
from flask.json.provider import JSONProvider
from webargs.flaskparser import FlaskParser
from werkzeug.exceptions import HTTPException
from werkzeug.routing import BaseConverter

from app import clock, description, errors, json_gate
from app.errors import Malformed
from app.here import asked

View = TypeVar("View", bound=Callable[..., Any])

PREFIX = "/api/v1"
VERSION = "0.1.0"
LARGEST_SKIP = 2**31 - 1
LARGEST_ROLE_ID = 2**31 - 1
LONGEST_KEPT_QUERY = 200
BODILESS = (204, 304)
TEXT = {"type": "string"}
# What watches over the service asks as often as it likes.
UNLIMITED = {"Health"}


class Access(Enum):
    """Who may call a view."""

    PUBLIC = "public"  # credentials are not looked at
    ANONYMOUS = "anonymous"  # nobody need be signed in, but a bad credential is refused
    SIGNED_IN = "signed in"
    ACCOUNT_ADMIN = "admin of the account"
    SUPERADMIN = "superadmin"


def allow(access: Access) -> Callable[[View], View]:
    """Mark who may call a view; without the mark it takes a signed-in caller."""

    def mark(view: View) -> View:
        view.access = access  # type: ignore[attr-defined]
        return view

    return mark


public = allow(Access.PUBLIC)
account_admin = allow(Access.ACCOUNT_ADMIN)
superadmin = allow(Access.SUPERADMIN)


def of_any_account(view: View) -> View:
    """Mark a view that has to look across accounts: what is sent tells whose it is about."""
    view.of_any_account = True  # type: ignore[attr-defined]
    return view


def shows_secret(
    view: View, where: Callable[[Mapping[str, Any]], bool] = lambda answer: True
) -> View:
    """Mark a view of whose answers some (`where`) are shown once only: not kept to be repeated."""
    view.shows_secret = where  # type: ignore[attr-defined]
    return view


def access_of(view: Callable[..., Any]) -> Access:
    """Who may call this view."""
    return getattr(view, "access", Access.SIGNED_IN)


def plain(value: Any) -> Any:
    """The JSON form of a value that orjson does not know, or would write in another form."""
    if isinstance(value, datetime):
        return clock.iso(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def dumps(value: Any) -> bytes:
    """JSON text in UTF-8, with timestamps in the one format."""
    return orjson.dumps(value, default=plain, option=orjson.OPT_PASSTHROUGH_DATETIME)


def respond(value: Any, status: int = 200) -> Response:
    """An answer whose body needs no schema: a record, whose shape its collection knows."""
    return _Answer(dumps(value), status, content_type="application/json")


class _Answer(Response):
    """An answer whose headers are complete and whose body is one text: it goes out as it is."""

    def get_wsgi_response(self, environ: Any) -> Any:
        if environ["REQUEST_METHOD"] == "HEAD" or self.status_code in BODILESS or self._on_close:
            return super().get_wsgi_response(environ)
        return self.response, self.status, list(self.headers)


class Json(JSONProvider):
    """orjson for every answer."""

    def dumps(self, obj: Any, **options: Any) -> str:
        """JSON text of an answer."""
        return dumps(obj).decode()

    def loads(self, s: str | bytes, **options: Any) -> Any:
        """JSON from outside, through the gate."""
        return json_gate.loads(s.encode() if isinstance(s, str) else s)


class Schema(ma.Schema):
    """The parent of every schema: refuses properties that it does not know."""

    class Meta:
        """Fields in the order of their declaration; nothing unknown."""

        unknown = ma.RAISE

    body_may_be_absent = False


def _text_problem(value: str) -> None:
    if "\0" in value:
        raise ma.ValidationError("Must not contain the NUL character.")


class Text(ma.fields.String):
    """A string of bounded length."""

    def __init__(self, *, shortest: int = 0, longest: int = 1000, **options: Any) -> None:
        length = ma.validate.Length(min=shortest or None, max=longest)
        super().__init__(validate=[length, _text_problem], **options)


class Whole(ma.fields.Integer):
    """A whole number within bounds; from a query also as text."""

    def __init__(self, low: int, high: int, **options: Any) -> None:
        super().__init__(strict=True, validate=ma.validate.Range(low, high), **options)

    def _deserialize(self, value: Any, *args: Any, **options: Any) -> Any:
        if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,19}", value):
            value = int(value)
        if type(value) is not int:
            raise self.make_error("invalid", input=value)
        return super()._deserialize(value, *args, **options)


class Flag(ma.fields.Boolean):
    """Exactly true or false: 1 and 0 are numbers."""

    def _deserialize(self, value: Any, *args: Any, **options: Any) -> bool:
        if not isinstance(value, bool):
            raise self.make_error("invalid", input=value)
        return value


class Timestamp(ma.fields.Field[datetime]):
    """A moment in the one format."""

    def _serialize(self, value: Any, *args: Any, **options: Any) -> Any:
        return clock.iso(value) if value is not None else None


class Moment(ma.fields.Field[datetime]):
    """A moment from outside: ISO 8601, UTC where it has no offset."""

    def _deserialize(self, value: Any, *args: Any, **options: Any) -> datetime:
        try:
            return clock.parse(value)
        except (TypeError, ValueError):
            raise ma.ValidationError("Must be an ISO 8601 date and time.") from None


class Message(Schema):
    """An answer that is a sentence."""

    message = ma.fields.String(required=True)


class ValidationDetail(Schema):
    """One place of a request that does not fit the documented shape."""

    loc = ma.fields.List(
        ma.fields.Raw(metadata={"type": ["string", "integer"]}),
        required=True,
        metadata={"description": "Where: body, query, path or header first, then the names."},
    )
    msg = ma.fields.String(required=True)
    type = ma.fields.String(required=True)


class Problem(Schema):
    """One value that breaks a domain rule."""

    field = ma.fields.String(allow_none=True)
    message = ma.fields.String(required=True)
    code = ma.fields.String(required=True)
    position = ma.fields.Integer()
    index = ma.fields.Integer(
        metadata={"description": "In a batch: the place of the record, from 0."}
    )
    line = ma.fields.Integer(
        metadata={"description": "In an import: the line of the file, from 1."}
    )


class Error(Schema):
    """Every error: a stable code and a sentence; 422 adds `detail`, 400 may add `details`."""

    error = ma.fields.String(required=True)
    message = ma.fields.String(required=True)
    detail = ma.fields.List(ma.fields.Nested(ValidationDetail))
    details = ma.fields.List(ma.fields.Nested(Problem))
    field = ma.fields.String()
    id = ma.fields.String(
        metadata={
            "description": "Of what was `already_done` under an Idempotency-Key: what was made."
        }
    )
    count = ma.fields.Integer(
        metadata={"description": "Of an import: how many problems there are in all."}
    )


class PageArgs(Schema):
    """Where in a list to start, and how much of it to return."""

    default_limit, largest_limit = 25, 100

    skip = Whole(0, LARGEST_SKIP, metadata={"description": "How many items to pass over."})
    limit = Whole(1, 100, metadata={"description": "How many items to return."})
    page = Whole(1, LARGEST_SKIP, metadata={"description": "The page, from 1, instead of skip."})
    page_size = Whole(1, 100, metadata={"description": "Another name for limit."})

    @ma.post_load
    def settle(self, args: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Turn page and page_size into skip and limit."""
        size = args.pop("page_size", None)
        limit = args.get("limit") or size or self.default_limit
        page = args.pop("page", None)
        skip = (page - 1) * limit if page and "skip" not in args else args.get("skip", 0)
        return args | {"skip": skip, "limit": limit}


class OffsetArgs(PageArgs):
    """Paging, also by offset."""

    default_limit = 50

    offset = Whole(0, LARGEST_SKIP, metadata={"description": "Another name for skip."})

    @ma.post_load
    def settle_offset(self, args: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Take offset for skip."""
        offset = args.pop("offset", None)
        return args if offset is None else args | {"skip": offset}


def page_of(items: Sequence[Any], total: int | None, args: Mapping[str, Any]) -> dict[str, Any]:
    """A list's answer (contract section 1)."""
    skip, limit = args["skip"], args["limit"]
    return {
        "items": items,
        "total": total,
        "skip": skip,
        "limit": limit,
        "page": skip // limit + 1,
        "page_size": limit,
        "total_pages": None if total is None else -(-total // limit),
    }


def page_schema(item: type[Schema]) -> type[Schema]:
    """The schema of a list of `item`."""
    fields: dict[str, Any] = {
        "items": ma.fields.List(ma.fields.Nested(item), required=True),
        "total": ma.fields.Integer(required=True, allow_none=True),
    }
    for name in ("skip", "limit", "page", "page_size"):
        fields[name] = ma.fields.Integer(required=True)
    fields["total_pages"] = ma.fields.Integer(required=True, allow_none=True)
    made: type[Schema] = type(f"{item.__name__}Page", (Schema,), fields)
    made.__doc__ = f"A page of a list of {item.__name__}."
    return made


class UuidPath(BaseConverter):
    """A path segment that must be a UUID; checked once the caller is known (422)."""

    expected = "a UUID"

    @staticmethod
    def accepts(text: str) -> bool:
        """Whether the text is a UUID in its usual form."""
        try:
            return str(uuid.UUID(text)) == text.lower()
        except ValueError:
            return False


class IntegerPath(BaseConverter):
    """A path segment that must be a whole number; checked once the caller is known (422)."""

    expected = "a whole number"

    @staticmethod
    def accepts(text: str) -> bool:
        """Whether the text is a whole number that the database can hold."""
        return re.fullmatch(r"[0-9]{1,10}", text) is not None and int(text) <= LARGEST_ROLE_ID


class LargeIntegerPath(BaseConverter):
    """A path segment that must be a whole number of up to 64 bits (422)."""

    expected = "a whole number"

    @staticmethod
    def accepts(text: str) -> bool:
        """Whether the text is a whole number that the database can hold."""
        return re.fullmatch(r"[0-9]{1,19}", text) is not None and int(text) < 2**63


def check_path(request: Request) -> None:
    """Refuse ids of the wrong form. Raises Malformed (422), or NotFound for a NUL."""
    rule = request.url_rule
    for name, value in (request.view_args or {}).items():
        if "\0" in value:
            raise errors.NotFound
        converter: Any = rule._converters.get(name) if rule else None
        if hasattr(converter, "accepts") and not converter.accepts(value):
            msg = f"Must be {converter.expected}."
            raise Malformed.at("path", name, msg=msg, type="invalid_id")


def check_query(request: Request, view: Callable[..., Any]) -> None:
    """Refuse parameters of an operation that declares none, NUL, and what is not UTF-8 (422).

    Pages ignore the parameters that they do not know, as browsers and links add some.
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


LOCATIONS = {"json": "body", "query": "query", "path": "path", "headers": "header"}


class Parser(FlaskParser):
    """webargs behind the JSON gate, refusing what a schema does not declare."""

    DEFAULT_UNKNOWN_BY_LOCATION = {  # noqa: RUF012 - as webargs declares it
        "json": None,
        "query": ma.RAISE,
        "path": ma.RAISE,
    }

    def load_json(self, req: Request, schema: Any) -> Any:
        """The JSON body, through the gate."""
        if schema.body_may_be_absent and not req.get_data(cache=True):
            return {}
        value = json_gate.body(req)
        if not isinstance(value, dict):
            raise Malformed.at("body", msg="Must be a JSON object.", type="type")
        return value

    def use_args(self, argmap: Any, req: Any = None, **options: Any) -> Any:
        """Have a view called with what a request sends, past the step that describes it."""

        def decorate(described: View) -> Any:
            view = described.__wrapped__  # type: ignore[attr-defined]

            @wraps(described)
            def run(*args: Any, **parts: Any) -> Any:
                return view(*args, self.parse(argmap, **options), **parts)

            return run

        return decorate

    def parse(self, argmap: Any, req: Any = None, **options: Any) -> Any:
        """What a request sends, as a schema makes it; of a short query not twice."""
        if options["location"] == "json" and argmap.unknown == ma.INCLUDE and not argmap.fields:
            return self.load_json(asked(), argmap)  # somebody else knows what it must be
        text = asked().query_string
        if options["location"] != "query" or len(text) > LONGEST_KEPT_QUERY:
            return super().parse(argmap, req, **options)
        return dict(_parsed_query(self, argmap, tuple(options.items()), text))

    def parsed(self, schema: Any, options: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """What the query of this request sends."""
        found: dict[str, Any] = super().parse(schema, **dict(options))
        return found

    def handle_error(self, error: Any, req: Any, schema: Any, **options: Any) -> Any:
        """Turn marshmallow's messages into the contract's 422."""
        detail = [
            _detail((LOCATIONS.get(location, location), *loc), msg, _kind(msg))
            for location, messages in error.messages.items()
            for loc, msg in _flat(messages)
        ]
        raise Malformed(detail)


@lru_cache
def _parsed_query(
    parser: Parser, schema: Any, options: tuple[tuple[str, Any], ...], text: bytes
) -> dict[str, Any]:
    return parser.parsed(schema, options)


def _detail(loc: Sequence[Any], msg: str, kind: str) -> dict[str, Any]:
    return {"loc": [part for part in loc if part != "_schema"], "msg": msg, "type": kind}


def _kind(message: str) -> str:
    if message.startswith("Missing data"):
        return "missing"
    return "unknown" if message.startswith("Unknown field") else "value_error"


def _flat(messages: Any, *loc: Any) -> list[tuple[tuple[Any, ...], str]]:
    if isinstance(messages, dict):
        return [pair for key, inner in messages.items() for pair in _flat(inner, *loc, key)]
    return [(loc, str(message)) for message in messages]


class Api(flask_smorest.Api):
    """flask-smorest with the contract's error shape, which describes views once somebody asks."""

    ERROR_SCHEMA = Error
    DEFAULT_ERROR_RESPONSE_NAME = ""
    _undescribed: list[flask_smorest.Blueprint] = []  # noqa: RUF012 - set by init_app
    _describing = threading.RLock()

    def init_app(self, app: Flask, **options: Any) -> None:
        """Serve the description of an application."""
        self._undescribed = []
        super().init_app(app, **options)
        self.register_field(Timestamp, "string", "date-time")
        self.register_field(Moment, "string", "date-time")
        self.register_converter(UuidPath, lambda path: {"type": "string", "format": "uuid"})
        for numbers in (IntegerPath, LargeIntegerPath):
            self.register_converter(numbers, lambda path: {"type": "integer", "minimum": 0})

    def register_blueprint(self, blueprint: flask_smorest.Blueprint) -> None:
        """Serve a blueprint. It takes half a second to describe them all: most never need it."""
        self._app.extensions["flask-smorest"]["blp_name_to_api"][blueprint.name] = self
        self._app.register_blueprint(blueprint)
        self._undescribed.append(blueprint)

    @property
    def spec(self) -> Any:
        """The description of all that is registered."""
        with self._describing:
            blueprints, self._undescribed = self._undescribed, []
            for one in blueprints:
                about = {"name": one.name, "parameters": None}
                one.register_views_in_doc(self, self._app, self._spec, **about)
                self._spec.tag({"name": one.name, "description": one.description})
        return self._spec

    @spec.setter
    def spec(self, empty: Any) -> None:
        """Begin a description."""
        self._spec = empty

    def handle_http_exception(self, error: HTTPException) -> Response:
        """The framework's own errors, in our shape."""
        return errors.answer_http(error)

    with_collections: Callable[[dict[str, Any]], dict[str, Any]]
    """Adds what a signed-in caller may know of the collections; set by who knows them."""

    @public
    def _openapi_json(self) -> Response:
        told = self.spec.to_dict()
        # flask-smorest describes its own paging, which no operation here uses.
        told["components"]["schemas"].pop("PaginationMetadata", None)
        if request.args.get("collections", "0") not in ("1", "true"):
            return respond(told)
        response = respond(self.with_collections(deepcopy(told)))
        response.headers["Cache-Control"] = "private, no-cache"
        return response


class Blueprint(flask_smorest.Blueprint):
    """A feature's routes. Each operation documents its errors, those of its marks included."""

    ARGUMENTS_PARSER = Parser()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_an_account: set[str] = set()
        self._prepare_doc_cbks.append(_with_headers)

    def arguments(self, schema: Any, *, location: str = "json", **options: Any) -> Any:
        """Declare a body or query; with `required=False` an absent body counts as an empty one."""
        schema = schema() if isinstance(schema, type) else schema
        schema.body_may_be_absent = not options.get("required", True)
        decorate = super().arguments(schema, location=location, **options)

        def declare(view: View) -> View:
            decorated: Any = decorate(view)
            decorated.takes_query = location == "query" or getattr(view, "takes_query", False)
            decorated.error_codes = set(getattr(view, "error_codes", ())) | {422}
            if location == "json":
                decorated.error_codes |= {413, 415}
            return decorated

        return declare

    def doc(self, **told: Any) -> Any:
        """Tell more of an operation."""
        return _described_by(super().doc(**told))

    def response(self, status: int, schema: Any = None, **told: Any) -> Any:
        """Declare an answer; what a view returns is made one, unless it says to be a Response."""
        decorate = super().response(status, schema, **told)
        describe = _described_by(decorate)

        def declare(view: View) -> Any:
            is_whole = view.__annotations__.get("return") == Response.__name__
            return describe(view) if is_whole else decorate(view)

        return declare

    def fails(self, *codes: int) -> Callable[[View], View]:
        """Declare the errors that an operation answers with beside those of its marks."""

        def declare(view: View) -> View:
            view.error_codes = set(getattr(view, "error_codes", ())) | set(codes)  # type: ignore[attr-defined]
            return view

        return declare

    def add_url_rule(
        self, rule: str, endpoint: str | None = None, view_func: Any = None, *args: Any, **kw: Any
    ) -> None:
        """Register a route and describe its errors."""
        path = re.sub(r"<\w+:", "<", rule)  # several views, and converters, may share one path
        if access_of(view_func) is not Access.PUBLIC:
            self._in_an_account.add(path)
        if path in self._in_an_account:
            kw["parameters"] = ["account", *(kw.get("parameters") or ())]
        whole, methods = f"{self.url_prefix or ''}{rule}", kw.get("methods") or ["GET"]
        codes = _codes(view_func, whole, methods) | ({429} if self.name not in UNLIMITED else set())
        super().add_url_rule(rule, endpoint, _described(view_func, whole, codes), *args, **kw)


def _described_by(decorate: Callable[[View], Any]) -> Callable[[View], View]:
    """A decorator of flask-smorest that only describes: no request needs to go through it."""

    def describe(view: View) -> View:
        view._apidoc = decorate(view)._apidoc  # type: ignore[attr-defined]
        return view

    return describe


def _codes(view: Any, rule: str, methods: Sequence[str]) -> set[int]:
    # Any query may be one that is not understood, and any credential or account a wrong one.
    codes = {422, *getattr(view, "error_codes", ())} | ({404} if "<" in rule else set())
    if access_of(view) is Access.PUBLIC:
        return codes
    return codes | {400, 401, 403, 404} | ({409} if _repeatable(rule, methods) else set())


def _repeatable(rule: str, methods: Sequence[str]) -> bool:
    of_api = rule.startswith(f"{PREFIX}/") and not rule.startswith(f"{PREFIX}/auth/")
    return of_api and "POST" in methods


def _described(view: Any, rule: str, codes: set[int]) -> Any:
    view.takes_query = getattr(view, "takes_query", False)
    access, signed_in = access_of(view), access_of(view) is not Access.PUBLIC
    view._apidoc = deepcopy(getattr(view, "_apidoc", {}))
    responses = view._apidoc.setdefault("response", {}).setdefault("responses", {})
    responses.update({code: description.failures(rule, code, Error) for code in sorted(codes)})
    # flask-smorest adds an undescribed 422 of its own to everything with arguments.
    view._apidoc.get("arguments", {}).pop("responses", None)
    schemes = description.SECURITY_SCHEMES if signed_in else ()
    security: list[dict[str, Any]] = [{name: []} for name in schemes]
    view._apidoc.setdefault("manual_doc", {})["security"] = (
        [{}, *security] if access is Access.ANONYMOUS else security
    )
    view._apidoc["signed_in"] = signed_in
    view._apidoc["repeatable"] = signed_in and _repeatable(rule, ["POST"])
    return view


def _with_headers(doc: Any, told: Any, *, method: str, **known: Any) -> Any:
    """Parameters told of by hand, and headers for all, stand beside those of the arguments."""
    more = [
        *told["manual_doc"].pop("parameters", ()),
        *(description.SIGNATURE if told["signed_in"] and method in description.WRITING else ()),
        *(["repeating"] if told["repeatable"] and method == "post" else ()),
    ]
    return {**doc, "parameters": [*doc.get("parameters", ()), *more]} if more else doc
