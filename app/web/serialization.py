"""JSON out, as responses and stored instances have it, and in, within limits.

Timestamps are written in RFC 3339, in UTC. Of what clients send, the standard library accepts more
than every database can store and we can return: unlimited nesting, numbers of any length, NaN, lone
surrogates, NUL. `parse` refuses all of that before any schema sees it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NoReturn

import orjson
import re2
from flask import Request, Response
from flask.json.provider import JSONProvider
from werkzeug.exceptions import RequestEntityTooLarge

from app import clock
from app.errors import Malformed, UnsupportedMediaType
from app.types import JSONObject

BODILESS = (204, 304)


def dumps(value: object) -> bytes:
    """Serialize a value to JSON."""
    return orjson.dumps(value, default=_default, option=orjson.OPT_PASSTHROUGH_DATETIME)


def dumps_text(value: object) -> str:
    """Serialize a value to JSON text, to store it."""
    return dumps(value).decode()


def loads(text: str) -> Any:
    """Parse stored JSON; `parse` is for what clients send."""
    return orjson.loads(text)


def plain(value: object) -> Any:
    """Return a value after a JSON round trip."""
    return orjson.loads(dumps(value))


def _default(value: object) -> str:
    if isinstance(value, datetime):
        return clock.iso(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def json_response(value: object, status: int = 200) -> Response:
    """Return a JSON response without a schema, such as a record's."""
    return _JsonResponse(dumps(value), status, content_type="application/json")


class _JsonResponse(Response):
    """A response with complete headers and a single body: skips werkzeug's preparation."""

    def get_wsgi_response(self, environ: Any) -> Any:
        if environ["REQUEST_METHOD"] == "HEAD" or self.status_code in BODILESS or self._on_close:
            return super().get_wsgi_response(environ)
        return self.response, self.status, list(self.headers)


class Json(JSONProvider):
    """Flask's JSON provider: orjson out, `parse` in."""

    def dumps(self, obj: object, **options: object) -> str:
        return dumps_text(obj)

    def loads(self, s: str | bytes, **options: object) -> object:
        """Parse what a client sent."""
        return parse(s.encode() if isinstance(s, str) else s)


MAX_DEPTH = 32
MAX_PROPERTIES = 10_000  # of one object
MAX_VALUES = 200_000  # in one body, or in one record of a file
LARGEST_INTEGER = 2**63
CONTAINERS = (dict, list)
DIGITS_OF_INTEGER = 40  # leading zeros included; int() is quadratic in them
TOO_MANY = f"The JSON has more than {MAX_VALUES:,} values."
OUT_OF_RANGE = "A number is out of range: numbers are IEEE doubles or 64-bit integers."
JSON_TYPE = re.compile(r"application/(json|[a-z0-9.+-]+\+json)$")
SPACE = " \t\r\n"
ARRAY = re.compile(r'[ \t\r\n]*(\{[ \t\r\n]*"records"[ \t\r\n]*:[ \t\r\n]*)?\[[ \t\r\n]*')
COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
CLOSING = re.compile(r"[ \t\r\n]*\]")
SUSPICIOUS_ESCAPE = re.compile(r"\\u(0000|[dD][89a-fA-F])")
# Finds numbers that may not be 64-bit integers or doubles; strings may match, too.
SUSPICIOUS_NUMBER = re2.compile(rb"[0-9.]{17}|[eE][+-]?[0-9]{3}")
# Matches at every quote, even in truncated text, so it never backtracks.
STRING = r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)'
STRINGS = re.compile(STRING.encode(), re.DOTALL)
TOKEN = re.compile(STRING + r"|[\[\]{},]", re.DOTALL)


class Rounded(float):
    """A whole double that is not the number that was sent, but the nearest to it."""


class _Refused(ValueError):
    pass


def parse_body(request: Request, *, infinite: bool = False) -> object:
    """Parse the JSON body. Raises Malformed (422), UnsupportedMediaType (415), or 413.

    `infinite` as in `loads`.
    """
    raw = read_body(request)
    if not raw:
        raise Malformed.at("body", msg="A JSON body is required.", type="missing")
    if not JSON_TYPE.match(request.mimetype):
        raise UnsupportedMediaType
    return parse(raw, infinite=infinite)


def read_body(request: Request, *, any_charset: bool = False) -> bytes:
    """Read the body, which must be UTF-8 unless the caller decodes it.

    Raises UnsupportedMediaType (415), or 413.
    """
    raw = request.get_data(cache=True)
    # Without a Content-Length werkzeug reads up to the limit and silently drops the rest.
    if request.content_length is None and len(raw) == request.max_content_length:
        raise RequestEntityTooLarge
    charset = request.mimetype_params.get("charset", "utf-8").lower()
    if not any_charset and charset not in ("utf-8", "utf8"):
        raise UnsupportedMediaType
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("Compressed bodies are not supported.")
    return raw


def parse(raw: bytes, *, infinite: bool = False) -> object:
    """Parse untrusted JSON. Raises Malformed.

    A number beyond the doubles is refused; if `infinite`, it becomes an infinity, which the field's
    validation then refuses by name.
    """
    with REFUSING:
        text = raw.decode("utf-8")
        # Strings are stripped only if the raw count is too high.
        if (
            _count_separators(raw) > MAX_VALUES
            and _count_separators(STRINGS.sub(b"", raw, 2 * MAX_VALUES)) > MAX_VALUES
        ):
            raise _Refused(TOO_MANY)
        value = _decoder(raw, infinite=infinite).decode(text)
        _check(value, escapes=bool(SUSPICIOUS_ESCAPE.search(text)))
    return value


def _count_separators(raw: bytes) -> int:
    # The number of values, or one less.
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def _decoder(raw: bytes, *, infinite: bool) -> json.JSONDecoder:
    if not SUSPICIOUS_NUMBER.search(raw):
        return PLAIN  # without a callback per number
    return INFINITE if infinite else FINITE


def iter_records(raw: bytes) -> Iterator[tuple[int, object]]:
    """Yield the elements of an array, or of an object's `records`, with their line numbers.

    It parses one at a time, so that a large body is never in memory as objects. Numbers beyond the
    doubles become infinities. Raises Malformed.
    """
    with REFUSING:
        text = raw.decode("utf-8-sig")
        opened = ARRAY.match(text)
    if opened is None:
        parse(text.encode())
        msg = 'Must be an array of objects, or {"records": [...]}.'
        raise Malformed.at("body", msg=msg, type="type")
    escapes, decoder = bool(SUSPICIOUS_ESCAPE.search(text)), _decoder(raw, infinite=True)
    line, counted, position = 1, 0, opened.end()
    while not (closed := CLOSING.match(text, position)):
        line, counted = line + text.count("\n", counted, position), position
        with REFUSING:
            _check_count(text, position)
            value, position = decoder.raw_decode(text, position)
            _check(value, escapes=escapes)
            # The start of the next element, or of the closing bracket.
            comma = COMMA.match(text, position)
            if comma is None and not CLOSING.match(text, position):
                raise json.JSONDecodeError("Expecting ',' delimiter", text, position)
            if comma is not None and CLOSING.match(text, comma.end()):
                raise json.JSONDecodeError("Expecting value", text, comma.end())
            position = comma.end() if comma else position
        yield line, value
    if text[closed.end() :].strip(SPACE) != ("}" if opened[1] else ""):
        raise Malformed.at("body", msg="Something follows the array.", type="json")


class _Refusing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and (msg := _refusal(error)) is not None:
            raise Malformed.at("body", msg=msg, type="json") from None


def _refusal(error: BaseException) -> str | None:
    if isinstance(error, UnicodeDecodeError):
        return "The body is not valid UTF-8."
    if isinstance(error, RecursionError):
        return f"The JSON is nested deeper than {MAX_DEPTH} levels."
    if isinstance(error, _Refused):
        return str(error)
    return f"The body is not valid JSON: {error}." if isinstance(error, ValueError) else None


REFUSING = _Refusing()
"""Raises Malformed for what the block cannot parse."""


def is_serializable(value: object) -> bool:
    """Whether every number of a value is finite and fits 64 bits."""
    return all(
        _is_writable(item)
        for level in _levels([value])
        for container in level
        for item in (container.values() if isinstance(container, dict) else container)
        if item.__class__ in (int, float, Rounded)
    )


def _is_writable(number: float) -> bool:
    if isinstance(number, int):
        return -LARGEST_INTEGER <= number < LARGEST_INTEGER
    return math.isfinite(number)


def number(digits: str) -> int | float:
    """Parse a number: a 64-bit integer, else a double, perhaps `Rounded` or an infinity."""
    if len(digits) <= DIGITS_OF_INTEGER:
        with suppress(ValueError):
            value = int(digits)
            if -LARGEST_INTEGER <= value < LARGEST_INTEGER:
                return value
    return _double(digits)


def _double(digits: str) -> float:
    value = float(digits)
    if not value.is_integer():  # nor is an infinity
        return value
    try:
        is_same = Decimal(digits) == Decimal(value)
    except ArithmeticError:  # an exponent of many digits
        is_same = False
    return value if is_same else Rounded(value)


def without_rounding(value: Any) -> Any:
    """A JSON value with ordinary doubles for rounded ones."""
    if isinstance(value, dict):
        return {key: without_rounding(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_rounding(item) for item in value]
    return float(value) if type(value) is Rounded else value


def _finite(digits: str) -> int | float:
    return _checked(without_rounding(number(digits)))


def _finite_float(digits: str) -> float:
    return _checked(float(digits))


def _checked(value: float) -> float:
    if not math.isfinite(value):
        raise _Refused(OUT_OF_RANGE)
    return value


def _constant(name: str) -> NoReturn:
    raise _Refused(f"{name} is not JSON.")


PLAIN = json.JSONDecoder(parse_constant=_constant)
FINITE = json.JSONDecoder(parse_int=_finite, parse_float=_finite_float, parse_constant=_constant)
INFINITE = json.JSONDecoder(parse_int=number, parse_float=_double, parse_constant=_constant)


def _check_count(text: str, start: int) -> None:
    """Refuse a value with too many parts before parsing it."""
    values = strings = depth = 0
    for token in TOKEN.finditer(text, start):
        character = text[token.start()]
        if character == '"':
            strings += 1
        elif character in "]}":
            depth -= 1
        else:
            values += 1
            depth += character != ","
        if values > MAX_VALUES or strings > 2 * MAX_VALUES:
            raise _Refused(TOO_MANY)
        if depth <= 0:
            return


def _check(value: object, *, escapes: bool) -> None:
    if escapes and isinstance(value, str):
        _check_text(value)
    for depth, level in enumerate(_levels(value), 1):
        if depth == MAX_DEPTH:
            raise _Refused(f"The JSON is nested deeper than {MAX_DEPTH} levels.")
        if max(map(len, level)) > MAX_PROPERTIES and any(
            isinstance(item, dict) and len(item) > MAX_PROPERTIES for item in level
        ):
            raise _Refused(f"An object has more than {MAX_PROPERTIES:,} properties.")
        if escapes:
            for item in level:
                _check_texts(item)


def _check_texts(item: JSONObject | list[object]) -> None:
    for part in (*item, *item.values()) if isinstance(item, dict) else item:
        if isinstance(part, str):
            _check_text(part)


def _check_text(text: str) -> None:
    if "\0" in text:
        raise _Refused("A text contains the NUL character.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _Refused("A text contains a lone surrogate.") from None


def depth(value: object) -> int:
    """Return the nesting depth; 1 for a scalar."""
    return 1 + sum(1 for _ in _levels(value))


def _levels(value: object) -> Iterator[list[JSONObject | list[object]]]:
    """The objects and lists of a value that are not empty, level by level."""
    level = [value] if value and isinstance(value, CONTAINERS) else []
    while level:
        yield level
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if child and child.__class__ in CONTAINERS
        ]
