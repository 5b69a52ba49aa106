"""JSON as responses and stored instances have it: timestamps in RFC 3339, in UTC."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson
from flask import Response
from flask.json.provider import JSONProvider

from app import clock
from app.web import json_input

BODILESS = (204, 304)


def dumps(value: object) -> bytes:
    """Serialize a value to JSON."""
    return orjson.dumps(value, default=_default, option=orjson.OPT_PASSTHROUGH_DATETIME)


def dumps_text(value: object) -> str:
    """Serialize a value to JSON text, to store it."""
    return dumps(value).decode()


def loads(text: str) -> Any:
    """Parse stored JSON; `json_input` parses what clients send."""
    return orjson.loads(text)


def plain(value: object) -> Any:
    """Return a value after a JSON round trip."""
    return orjson.loads(dumps(value))


def _default(value: object) -> str:
    if isinstance(value, datetime):
        return clock.iso(value)
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
    """Flask's JSON provider: orjson out, `json_input` in."""

    def dumps(self, obj: object, **options: object) -> str:
        return dumps_text(obj)

    def loads(self, s: str | bytes, **options: object) -> object:
        """Parse JSON through `json_input`."""
        return json_input.parse(s.encode() if isinstance(s, str) else s)
