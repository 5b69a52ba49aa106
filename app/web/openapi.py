"""The flask-smorest extension, which serves /openapi.json; Swagger UI at /docs, ReDoc at /redoc."""

from __future__ import annotations

import gzip
import threading
import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from typing import Any

import click
import flask_smorest
from flask import Blueprint, Flask, Response, make_response, render_template, request
from flask.cli import with_appcontext
from flask_smorest.spec import MarshmallowPlugin, openapi_cli

from app.types import JSONObject
from app.web.access import public
from app.web.app import IntegerPath, LargeIntegerPath, UuidPath, loaded
from app.web.fields import (
    DateTime,
    Id,
    Timestamp,
    describe_alternatives,
    describe_sizes,
    required_by_service,
)
from app.web.schemas import ErrorBody
from app.web.serialization import json_response

blueprint = Blueprint("apidocs", __name__)
OF_EXTENSIONS = "x_"
"""What the names of their blueprints begin with."""
packages: dict[str, str] = {}
"""The packages of the extensions that endpoints come from, with the extensions' names."""

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "data:",  # the icons in both style sheets
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}

# ReDoc inserts two <style> elements: an empty one, filled by script, and one for its scroll bars.
# The policy allows these two by hash, not inline styles in general. The hashes belong to the
# vendored version (static/vendor/README.md). ReDoc's search runs in a worker from a blob.
REDOC_POLICY = POLICY | {
    "style-src": (
        "'self' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
        " 'sha256-QMIg+bpjm3JdElJ388KYke01izlUW0UoNOeKjpMxdgc='"
    ),
    "worker-src": "blob:",
}


class Api(flask_smorest.Api):  # type: ignore[misc]
    """flask-smorest with our error schema; builds the description on first use."""

    ERROR_SCHEMA = ErrorBody
    DEFAULT_ERROR_RESPONSE_NAME = ""
    _undescribed: list[flask_smorest.Blueprint] = []  # noqa: RUF012 - set by init_app
    _describing = threading.RLock()

    def init_app(self, app: Flask, **options: object) -> None:
        """Serve the description."""
        self._undescribed = []
        names = MarshmallowPlugin(schema_name_resolver=_schema_name)
        super().init_app(app, spec_kwargs={"marshmallow_plugin": names, **options})
        self.register_field(Timestamp, "string", "date-time")
        self.register_field(DateTime, "string", "date-time")
        self.register_field(Id, "string", "uuid")
        self.register_converter(UuidPath, lambda path: {"type": "string", "format": "uuid"})
        self.ma_plugin.converter.add_parameter_attribute_function(required_by_service)
        self.ma_plugin.converter.add_attribute_function(describe_alternatives)
        self.ma_plugin.converter.add_attribute_function(describe_sizes)
        for numbers in (IntegerPath, LargeIntegerPath):
            bounds = {"type": "integer", "minimum": 0, "maximum": numbers.largest}
            self.register_converter(numbers, lambda path, bounds=bounds: bounds)

    def register_blueprint(self, blueprint: flask_smorest.Blueprint) -> None:
        """Register a blueprint; describes it later, as all together take half a second."""
        self._app.extensions["flask-smorest"]["blp_name_to_api"][blueprint.name] = self
        self._app.register_blueprint(blueprint)
        self._undescribed.append(blueprint)

    @property
    def spec(self) -> Any:
        """Return the description of all blueprints."""
        with self._describing:
            blueprints, self._undescribed = self._undescribed, []
            for blueprint in blueprints:
                options = {"name": blueprint.name, "parameters": None}
                with warnings.catch_warnings():
                    if blueprint.name.startswith(OF_EXTENSIONS):
                        # Schemas of the same name are numbered.
                        warnings.simplefilter("ignore", UserWarning)
                    blueprint.register_views_in_doc(self, self._app, self._spec, **options)
                self._spec.tag({"name": blueprint.name, "description": blueprint.description})
        return self._spec

    @spec.setter
    def spec(self, empty: Any) -> None:
        self._spec = empty

    with_collections: Callable[[JSONObject], JSONObject]
    """Adds the collections that the caller may see; set by `create_app`."""

    @public
    def _openapi_json(self) -> Response:
        spec = self.spec.to_dict()
        # The schema of flask-smorest's own pagination, which no operation uses.
        spec["components"]["schemas"].pop("PaginationMetadata", None)
        # By name, and not as modules happen to be imported.
        spec["components"]["schemas"] = dict(sorted(spec["components"]["schemas"].items()))
        if request.args.get("collections", "0") not in ("1", "true"):
            response = json_response(spec)
            response.vary.add("Accept-Encoding")
            if request.accept_encodings["gzip"] > 0:
                response.set_data(_gzip(response.get_data()))
                response.headers["Content-Encoding"] = "gzip"
            return response
        response = json_response(self.with_collections(deepcopy(spec)))
        response.headers["Cache-Control"] = "private, no-cache"
        return response


def _schema_name(schema: Any) -> str:
    """The name of a schema; of an extension's, behind that of the extension."""
    named = schema if isinstance(schema, type) else type(schema)
    name = named.__name__.removesuffix("Schema") or named.__name__
    for package, extension in packages.items():
        if f"{named.__module__}.".startswith(f"{package}."):
            name = f"{extension.title().replace('_', '')}{name}"
            return f"{name}Patch" if getattr(schema, "partial", None) else name
    return name


@lru_cache(2)
def _gzip(description: bytes) -> bytes:
    return gzip.compress(description, mtime=0)


api = Api()
"""The extension that `create_app` binds."""


commands = click.Group(
    "openapi", openapi_cli.commands, help=openapi_cli.help, callback=with_appcontext(loaded)
)
"""flask-smorest's commands, which read what it describes."""


@blueprint.get("/docs")
@public
def swagger() -> Response:
    """Render Swagger UI."""
    return _page("apidocs/swagger.html", POLICY)


@blueprint.get("/redoc")
@public
def redoc() -> Response:
    """Render ReDoc."""
    return _page("apidocs/redoc.html", REDOC_POLICY)


def _page(template: str, policy: dict[str, str]) -> Response:
    response = make_response(render_template(template))
    directives = [f"{name} {value}" for name, value in policy.items()]
    response.headers["Content-Security-Policy"] = "; ".join(directives)
    response.headers["Referrer-Policy"] = "no-referrer"
    return response
