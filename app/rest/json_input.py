"""The one door for JSON: what passes is finite, bounded, and fit for every database.

The standard library's parser takes far more than we can store or answer: nesting without end,
numbers of any length, NaN, lone surrogates, NUL. All of that is refused here, before any schema.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import re2
from flask import Request
from werkzeug.exceptions import RequestEntityTooLarge

from app.errors import Malformed, UnsupportedMediaType

MAX_DEPTH = 32
MAX_PROPERTIES = 10_000  # of one object
MAX_VALUES = 200_000  # in one body, or in one record of a file
LARGEST_INTEGER = 2**63
CONTAINERS = (dict, list)
DIGITS_OF_INTEGER = 40  # zeros before it included; int() takes a time that is quadratic in them
TOO_MANY = f"The JSON has more than {MAX_VALUES:,} values."
OUT_OF_RANGE = "Numbers are IEEE doubles, or whole numbers of 64 bits: this one is out of range."
JSON_TYPE = re.compile(r"application/(json|[a-z0-9.+-]+\+json)$")
SPACE = " \t\r\n"
ARRAY = re.compile(r'[ \t\r\n]*(\{[ \t\r\n]*"records"[ \t\r\n]*:[ \t\r\n]*)?\[[ \t\r\n]*')
COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
CLOSING = re.compile(r"[ \t\r\n]*\]")
SUSPICIOUS_ESCAPE = re.compile(r"\\u(0000|[dD][89a-fA-F])")
# Whether any number may be no integer of 64 bits and no double; a text may look so, too.
SUSPICIOUS_NUMBER = re2.compile(rb"[0-9]{19}|[eE]\+?[0-9]{3}")
# Matches wherever a quote stands, also where the text is cut off: so it never starts over.
STRING = r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)'
STRINGS = re.compile(STRING.encode(), re.DOTALL)
TOKEN = re.compile(STRING + r"|[\[\]{},]", re.DOTALL)


class _Refused(ValueError):
    pass


def body(request: Request, *, infinite: bool = False) -> Any:
    """The request's JSON body. Raises Malformed (422), UnsupportedMediaType (415), or 413.

    `infinite` as `loads` takes it.
    """
    raw = read_body(request)
    if not raw:
        raise Malformed.at("body", msg="A JSON body is required.", type="missing")
    if not JSON_TYPE.match(request.mimetype):
        raise UnsupportedMediaType
    return loads(raw, infinite=infinite)


def read_body(request: Request) -> bytes:
    """The request's body, a text in UTF-8. Raises UnsupportedMediaType (415), or 413."""
    raw = request.get_data(cache=True)
    # Of a body without a length werkzeug reads as much as is allowed, and says nothing of the rest.
    if request.content_length is None and len(raw) == request.max_content_length:
        raise RequestEntityTooLarge
    if request.mimetype_params.get("charset", "utf-8").lower() not in ("utf-8", "utf8"):
        raise UnsupportedMediaType
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("Compressed bodies are not read.")
    return raw


def loads(raw: bytes, *, infinite: bool = False) -> Any:
    """Parse JSON text from outside. Raises Malformed with what is wrong.

    A number that no double holds is refused, or where `infinite` is true becomes an infinity, which
    the field that it is for refuses by its name.
    """
    with _refusing():
        text = raw.decode("utf-8")
        # What stands in texts is left out of the count only where it would be too much.
        if _signs(raw) > MAX_VALUES and _signs(STRINGS.sub(b"", raw, 2 * MAX_VALUES)) > MAX_VALUES:
            raise _Refused(TOO_MANY)
        value = _decoder(raw, infinite=infinite).decode(text)
        _check(value, escapes=bool(SUSPICIOUS_ESCAPE.search(text)))
    return value


def _signs(raw: bytes) -> int:
    # As many as there are values, or one less.
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def _decoder(raw: bytes, *, infinite: bool) -> json.JSONDecoder:
    if not SUSPICIOUS_NUMBER.search(raw):
        return PLAIN  # calls nothing for each number
    return INFINITE if infinite else FINITE


def iter_records(raw: bytes) -> Iterator[tuple[int, Any]]:
    """The elements of an array, or of the `records` of an object, with the lines they start at.

    One at a time, so that a large body is never in memory as objects. Numbers that no double holds
    are infinities. Raises Malformed.
    """
    with _refusing():
        text = raw.decode("utf-8-sig")
        opened = ARRAY.match(text)
    if opened is None:
        loads(text.encode())
        msg = 'Must be an array of objects, or {"records": [...]}.'
        raise Malformed.at("body", msg=msg, type="type")
    escapes, decoder = bool(SUSPICIOUS_ESCAPE.search(text)), _decoder(raw, infinite=True)
    line, counted, at = 1, 0, opened.end()
    while not (closed := CLOSING.match(text, at)):
        line, counted = line + text.count("\n", counted, at), at
        with _refusing():
            _check_count(text, at)
            value, at = decoder.raw_decode(text, at)
            _check(value, escapes=escapes)
            at = _next(text, at)
        yield line, value
    if text[closed.end() :].strip(SPACE) != ("}" if opened[1] else ""):
        raise Malformed.at("body", msg="Something follows the array.", type="json")


def _next(text: str, at: int) -> int:
    # Behind an element: where the next one starts, or the bracket that ends the array.
    found = COMMA.match(text, at)
    if found is None and not CLOSING.match(text, at):
        raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
    if found is not None and CLOSING.match(text, found.end()):
        raise json.JSONDecodeError("Expecting value", text, found.end())
    return found.end() if found else at


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError:
        raise Malformed.at("body", msg="The body is not valid UTF-8.", type="json") from None
    except RecursionError:
        msg = f"The JSON is nested deeper than {MAX_DEPTH} levels."
        raise Malformed.at("body", msg=msg, type="json") from None
    except _Refused as error:
        raise Malformed.at("body", msg=str(error), type="json") from None
    except ValueError as error:
        msg = f"The body is not valid JSON: {error}."
        raise Malformed.at("body", msg=msg, type="json") from None


def is_serializable(value: Any) -> bool:
    """Whether JSON can write every number of a value: it is finite, or has at most 64 bits."""
    return all(
        _is_writable(item)
        for level in _levels([value])
        for one in level
        for item in (one.values() if isinstance(one, dict) else one)
        if item.__class__ in (int, float)
    )


def _is_writable(number: float) -> bool:
    if isinstance(number, int):
        return -LARGEST_INTEGER <= number < LARGEST_INTEGER
    return math.isfinite(number)


def number(digits: str) -> int | float:
    """The number that digits stand for: an integer of 64 bits, else a double, or an infinity."""
    if len(digits) <= DIGITS_OF_INTEGER:
        with suppress(ValueError):
            value = int(digits)
            if -LARGEST_INTEGER <= value < LARGEST_INTEGER:
                return value
    return float(digits)


def _finite(digits: str) -> int | float:
    return _checked(number(digits))


def _finite_float(digits: str) -> float:
    return _checked(float(digits))


def _checked(value: float) -> float:
    if not math.isfinite(value):
        raise _Refused(OUT_OF_RANGE)
    return value


def _constant(name: str) -> Any:
    raise _Refused(f"{name} is not JSON.")


PLAIN = json.JSONDecoder(parse_constant=_constant)
FINITE = json.JSONDecoder(parse_int=_finite, parse_float=_finite_float, parse_constant=_constant)
INFINITE = json.JSONDecoder(parse_int=number, parse_float=float, parse_constant=_constant)


def _check_count(text: str, start: int) -> None:
    """Refuse a value of too many parts before it is made into objects."""
    values = strings = depth = 0
    for token in TOKEN.finditer(text, start):
        sign = text[token.start()]
        if sign == '"':
            strings += 1
        elif sign in "]}":
            depth -= 1
        else:
            values += 1
            depth += sign != ","
        if values > MAX_VALUES or strings > 2 * MAX_VALUES:
            raise _Refused(TOO_MANY)
        if depth <= 0:
            return


def _check(value: Any, *, escapes: bool) -> None:
    if escapes and isinstance(value, str):
        _check_text(value)
    for depth, level in enumerate(_levels(value), 1):
        if depth == MAX_DEPTH and any(level):
            raise _Refused(f"The JSON is nested deeper than {MAX_DEPTH} levels.")
        for item in level:
            if isinstance(item, dict) and len(item) > MAX_PROPERTIES:
                raise _Refused(f"An object has more than {MAX_PROPERTIES:,} properties.")
            if escapes:
                _check_texts(item)


def _check_texts(item: dict[str, Any] | list[Any]) -> None:
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


def depth(value: Any) -> int:
    """How deep the innermost value stands; one that is no object or list, at 1."""
    return max((depth + any(level) for depth, level in enumerate(_levels(value), 1)), default=1)


def _levels(value: Any) -> Iterator[list[dict[str, Any] | list[Any]]]:
    """The objects and lists of a value, level by level: few of many values are such."""
    level = [value] if isinstance(value, CONTAINERS) else []
    while level:
        yield level
        level = [
            child
            for one in level
            for child in (one.values() if isinstance(one, dict) else one)
            if isinstance(child, CONTAINERS)
        ]
