"""The API as a whole, and its description."""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import flask_smorest
from flask import Flask, Response, request

from app.rest.access import public
from app.rest.converters import IntegerPath, LargeIntegerPath, UuidPath
from app.rest.fields import DateTime, Timestamp
from app.rest.responses import json_response
from app.rest.schemas import Error


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
        self.register_field(DateTime, "string", "date-time")
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

    with_collections: Callable[[dict[str, Any]], dict[str, Any]]
    """Adds what a signed-in caller may know of the collections; set by who knows them."""

    @public
    def _openapi_json(self) -> Response:
        told = self.spec.to_dict()
        # flask-smorest describes its own paging, which no operation here uses.
        told["components"]["schemas"].pop("PaginationMetadata", None)
        if request.args.get("collections", "0") not in ("1", "true"):
            return json_response(told)
        response = json_response(self.with_collections(deepcopy(told)))
        response.headers["Cache-Control"] = "private, no-cache"
        return response


api = Api()
"""The one that `create_app` binds."""
