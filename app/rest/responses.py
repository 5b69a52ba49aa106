"""Answers in JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson
from flask import Response
from flask.json.provider import JSONProvider

from app import clock
from app.rest import json_input

BODILESS = (204, 304)


def json_default(value: Any) -> Any:
    """The JSON form of a value that orjson does not know, or would write in another form."""
    if isinstance(value, datetime):
        return clock.iso(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def dumps(value: Any) -> bytes:
    """JSON text in UTF-8, with timestamps in the one format."""
    return orjson.dumps(value, default=json_default, option=orjson.OPT_PASSTHROUGH_DATETIME)


def json_response(value: Any, status: int = 200) -> Response:
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
        return json_input.loads(s.encode() if isinstance(s, str) else s)
