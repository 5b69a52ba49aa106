"""JSON responses."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson
from flask import Response
from flask.json.provider import JSONProvider

from app import clock
from app.rest import json_input

BODILESS = (204, 304)


def json_default(value: object) -> str:
    """Serialize what orjson does not, or would serialize differently."""
    if isinstance(value, datetime):
        return clock.iso(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def dumps(value: object) -> bytes:
    """Serialize a value to JSON, timestamps as RFC 3339 in UTC."""
    return orjson.dumps(value, default=json_default, option=orjson.OPT_PASSTHROUGH_DATETIME)


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
        """Serialize a value."""
        return dumps(obj).decode()

    def loads(self, s: str | bytes, **options: object) -> object:
        """Parse JSON through `json_input`."""
        return json_input.loads(s.encode() if isinstance(s, str) else s)
