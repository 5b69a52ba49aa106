"""The one door for JSON: what passes is finite, bounded, and fit for every database.

The standard library's parser takes far more than we can store or answer: nesting without end,
numbers of any length, NaN, lone surrogates, NUL. All of that is refused here, before any schema.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask import Request
from werkzeug.exceptions import RequestEntityTooLarge

from app.errors import Malformed, UnsupportedMediaType

MAX_DEPTH = 32
MAX_PROPERTIES = 1000
MAX_DIGITS = 40
LARGEST_INTEGER = 2**63
JSON_TYPE = re.compile(r"application/(json|[a-z0-9.+-]+\+json)$")
SPACE = " \t\r\n"
ARRAY = re.compile(r'[ \t\r\n]*(\{[ \t\r\n]*"records"[ \t\r\n]*:[ \t\r\n]*)?\[[ \t\r\n]*')
COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
CLOSING = re.compile(r"[ \t\r\n]*\]")
SUSPICIOUS_ESCAPE = re.compile(r"\\u(0000|[dD][89a-fA-F])")


class _Refused(ValueError):
    pass


def body(request: Request) -> Any:
    """The request's JSON body. Raises Malformed (422), UnsupportedMediaType (415), or 413."""
    raw = bytes_of(request)
    if not raw:
        raise Malformed.at("body", msg="A JSON body is required.", type="missing")
    if not JSON_TYPE.match(request.mimetype):
        raise UnsupportedMediaType
    return loads(raw)


def bytes_of(request: Request) -> bytes:
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


def loads(raw: bytes) -> Any:
    """Parse JSON text from outside. Raises Malformed with what is wrong."""
    with _told():
        text = raw.decode("utf-8")
        value = DECODER.decode(text)
        _check(value, escapes=bool(SUSPICIOUS_ESCAPE.search(text)))
    return value


def items(raw: bytes) -> Iterator[tuple[int, Any]]:
    """The elements of an array, or of the `records` of an object, with the lines they start at.

    One at a time, so that a large body is never in memory as objects. Raises Malformed.
    """
    with _told():
        text = raw.decode("utf-8-sig")
        opened = ARRAY.match(text)
    if opened is None:
        loads(text.encode())
        msg = 'Must be an array of objects, or {"records": [...]}.'
        raise Malformed.at("body", msg=msg, type="type")
    escapes = bool(SUSPICIOUS_ESCAPE.search(text))
    line, counted, at = 1, 0, opened.end()
    while not (closed := CLOSING.match(text, at)):
        line, counted = line + text.count("\n", counted, at), at
        with _told():
            value, at = DECODER.raw_decode(text, at)
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
def _told() -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError:
        raise Malformed.at("body", msg="The body is not valid UTF-8.", type="json") from None
    except RecursionError:
        raise Malformed.at("body", msg="The JSON is nested too deeply.", type="json") from None
    except _Refused as error:
        raise Malformed.at("body", msg=str(error), type="json") from None
    except ValueError as error:
        msg = f"The body is not valid JSON: {error}."
        raise Malformed.at("body", msg=msg, type="json") from None


def fits(value: Any) -> bool:
    """Whether every whole number in a value is one of 64 bits, as our answers can carry them."""
    return all(
        -LARGEST_INTEGER <= item < LARGEST_INTEGER for item, _ in _walk(value) if type(item) is int
    )


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _Refused(f"A number has more than {MAX_DIGITS} digits.")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _Refused("A number is out of range.")
    return value


def _constant(name: str) -> Any:
    raise _Refused(f"{name} is not JSON.")


DECODER = json.JSONDecoder(parse_int=_integer, parse_float=_float, parse_constant=_constant)


def _check(value: Any, *, escapes: bool) -> None:
    for item, depth in _walk(value):
        if depth > MAX_DEPTH:
            raise _Refused(f"The JSON is nested deeper than {MAX_DEPTH} levels.")
        if isinstance(item, dict):
            if len(item) > MAX_PROPERTIES:
                raise _Refused(f"An object has more than {MAX_PROPERTIES} properties.")
            if escapes:
                for key in item:
                    _check_text(key)
        elif escapes and isinstance(item, str):
            _check_text(item)


def _check_text(text: str) -> None:
    if "\0" in text:
        raise _Refused("A text contains the NUL character.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _Refused("A text contains a lone surrogate.") from None


def depth(value: Any) -> int:
    """How deep the innermost value stands; one that is no object or list, at 1."""
    return max(depth for _, depth in _walk(value))


def _walk(value: Any) -> Iterator[tuple[Any, int]]:
    stack = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        yield item, depth
        if isinstance(item, dict):
            stack.extend((child, depth + 1) for child in item.values())
        elif isinstance(item, list):
            stack.extend((child, depth + 1) for child in item)
