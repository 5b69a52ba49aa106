"""JSON responses."""

from __future__ import annotations

from typing import Any

from flask import Response
from flask.json.provider import JSONProvider

from app.rest import json_input
from app.rest.serialization import dumps, dumps_text

BODILESS = (204, 304)


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
        return dumps_text(obj)

    def loads(self, s: str | bytes, **options: object) -> object:
        """Parse JSON through `json_input`."""
        return json_input.loads(s.encode() if isinstance(s, str) else s)
