"""flask-smorest's blueprint; documents each operation by its marks, arguments and errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import flask_smorest
from flask import Response

from app.types import JSONObject
from app.web import PREFIX, openapi_text
from app.web.access import AccessLevel, View, access_of
from app.web.examples import example_of
from app.web.parsing import Parser
from app.web.schemas import Schema

# Monitors are not rate-limited.
UNLIMITED = {"Health"}


class Blueprint(flask_smorest.Blueprint):  # type: ignore[misc]
    """The routes of a feature. Operations document their errors, including those of marks."""

    ARGUMENTS_PARSER = Parser()

    def __init__(self, *args: object, deprecated: bool = False, **options: object) -> None:
        """A blueprint; `deprecated` marks its operations so in the description."""
        super().__init__(*args, **options)
        self._in_an_account: set[str] = set()
        self._undescribed: list[Callable[[], None]] = []
        self._prepare_doc_cbks.insert(0, _with_examples)
        self._prepare_doc_cbks += [_with_access, _with_headers, _with_operation_id]
        self._prepare_doc_cbks += [_as_deprecated] if deprecated else []

    def arguments(self, schema: Any, *, location: str = "json", **options: object) -> Any:
        """Declare a body or query; with `required=False` a missing body counts as empty."""
        schema = schema() if isinstance(schema, type) else schema
        schema.body_may_be_absent = not options.get("required", True)
        decorate = super().arguments(schema, location=location, **options)

        def declare(view: View) -> object:
            decorated: Any = decorate(view)
            decorated.takes_query = location == "query" or getattr(view, "takes_query", False)
            earlier = getattr(view, "query_schema", None)
            decorated.query_schema = schema if location == "query" else earlier
            decorated.error_codes = set(getattr(view, "error_codes", ())) | {422}
            if location == "json":
                decorated.error_codes |= {413, 415}
            return decorated

        return declare

    def doc(self, **options: object) -> Any:
        """Add to the description of an operation."""
        return _described_by(super().doc(**options))

    def alt_response(self, status: int, response: object = None, **options: object) -> Any:
        """Declare a further response."""
        return _described_by(super().alt_response(status, response, **options))

    def response(self, status: int, schema: object = None, **options: object) -> Any:
        """Declare the response; serializes a view's result unless it is annotated as Response.

        An `example` has what differs from the example of the schema.
        """
        decorate = super().response(status, schema, **options)
        describe = _described_by(decorate)

        def declare(view: View) -> object:
            returns_response = view.__annotations__.get("return") == Response.__name__
            return describe(view) if returns_response else decorate(view)

        return declare

    def fails(self, *codes: int) -> Callable[[View], View]:
        """Declare further errors of an operation."""

        def declare(view: View) -> View:
            view.error_codes = set(getattr(view, "error_codes", ())) | set(codes)  # type: ignore[attr-defined]
            return view

        return declare

    def add_url_rule(
        self,
        rule: str,
        endpoint: str | None = None,
        view_func: Any = None,
        *args: object,
        **kw: Any,
    ) -> None:
        """Register a route and document its errors."""
        path = re.sub(r"<\w+:", "<", rule)  # views with different converters may share a path
        if access_of(view_func).level is not AccessLevel.PUBLIC:
            self._in_an_account.add(path)
        full_rule, methods = f"{self.url_prefix or ''}{rule}", kw.get("methods") or ["GET"]
        kw["parameters"] = [
            *(["account"] if path in self._in_an_account else ()),
            *openapi_text.path_parameters(full_rule),
            *(kw.get("parameters") or ()),
        ]
        codes = {429} if self.name not in UNLIMITED else set()
        name = endpoint or view_func.__name__
        self._undescribed.append(partial(_describe, view_func, full_rule, methods, codes, name))
        view_func.takes_query = getattr(view_func, "takes_query", False)
        super().add_url_rule(rule, endpoint, view_func, *args, **kw)

    def _store_endpoint_docs(self, *args: object, **options: object) -> None:
        # Later, as most processes describe nothing.
        store = super()._store_endpoint_docs
        self._undescribed.append(partial(store, *args, **options))

    def register_views_in_doc(self, *args: object, **options: object) -> None:
        """Add the operations to the description."""
        while self._undescribed:
            self._undescribed.pop(0)()
        super().register_views_in_doc(*args, **options)


def _described_by(decorate: Callable[[View], object]) -> Callable[[View], View]:
    """Keep only the documentation of a flask-smorest decorator; requests skip its wrapper."""

    def describe(view: View) -> View:
        view._apidoc = decorate(view)._apidoc  # type: ignore[attr-defined]
        return view

    return describe


def _codes(view: View, rule: str, methods: Sequence[str]) -> set[int]:
    # Any query, credential or account may be invalid.
    codes = {422, *getattr(view, "error_codes", ())} | ({404} if "<" in rule else set())
    if access_of(view).level is AccessLevel.PUBLIC:
        return codes
    return codes | {400, 401, 403, 404} | ({409} if _repeatable(rule, methods) else set())


def _repeatable(rule: str, methods: Sequence[str]) -> bool:
    of_api = rule.startswith(f"{PREFIX}/") and not rule.startswith(f"{PREFIX}/auth/")
    return of_api and "POST" in methods


def _describe(
    view: Any, rule: str, methods: Sequence[str], further: set[int], operation_id: str
) -> None:
    """Add the errors and the access of a route to the documentation of its view."""
    codes = _codes(view, rule, methods) | further
    access = access_of(view)
    signed_in = access.level is not AccessLevel.PUBLIC
    view._apidoc = deepcopy(getattr(view, "_apidoc", {}))
    responses = view._apidoc.setdefault("response", {}).setdefault("responses", {})
    # 414 is the server's own, whatever the operation.
    responses.update(
        {code: [openapi_text.error_name(rule, code)] for code in sorted({414, *codes})}
    )
    # flask-smorest adds an undescribed 422 of its own to everything with arguments.
    view._apidoc.get("arguments", {}).pop("responses", None)
    schemes = openapi_text.SECURITY_SCHEMES if signed_in else ()
    security: list[JSONObject] = [{name: []} for name in schemes]
    view._apidoc.setdefault("manual_doc", {})["security"] = (
        [*security, {}] if access.level is AccessLevel.ANONYMOUS else security
    )
    view._apidoc["access"] = access
    view._apidoc["repeatable"] = signed_in and _repeatable(rule, ["POST"])
    view._apidoc["operation_id"] = operation_id
    view._apidoc["methods"] = methods


def _with_access(doc: JSONObject, doc_info: JSONObject, **options: object) -> JSONObject:
    """Begin the description with who may call the operation."""
    docstring = doc_info["docstring"]
    parts = (
        openapi_text.access_sentences(doc_info["access"], doc_info["methods"]),
        docstring.get("description"),
    )
    if any(parts):
        docstring["description"] = " ".join(filter(None, parts))
    return doc


def _with_examples(doc: JSONObject, doc_info: JSONObject, **options: object) -> JSONObject:
    """Derive the examples of bodies; of a response, all that `example` does not tell."""
    for body in doc_info.get("arguments", {}).get("parameters", ()):
        if body["in"] == "json":
            body.setdefault("example", example_of(body["schema"]))
    for responses in doc_info["response"]["responses"].values():
        for response in responses:
            schema = response.get("schema") if isinstance(response, dict) else None
            if isinstance(schema, Schema) and "examples" not in response:
                given = response.setdefault("example", example_of(schema))
                if isinstance(given, dict):
                    response["example"] = example_of(schema) | given
    return doc


def _as_deprecated(doc: JSONObject, *args: object, **options: object) -> JSONObject:
    return {**doc, "deprecated": True}


def _with_headers(
    doc: JSONObject, doc_info: JSONObject, *, method: str, **options: object
) -> JSONObject:
    """Add manually documented parameters, and common headers, to those of the arguments."""
    signed_in = doc_info["access"].level is not AccessLevel.PUBLIC
    is_signed = signed_in and method in openapi_text.WRITING
    more = [
        *doc_info["manual_doc"].pop("parameters", ()),
        *(openapi_text.SIGNATURE if is_signed else ()),
        *(["repeating"] if doc_info["repeatable"] and method == "post" else ()),
    ]
    return {**doc, "parameters": [*doc.get("parameters", ()), *more]} if more else doc


def _with_operation_id(
    doc: JSONObject, doc_info: JSONObject, *, method: str, **options: object
) -> JSONObject:
    """Name the operation by its endpoint; the PUT of a view with two methods is marked."""
    is_second = method == "put" and len(doc_info["methods"]) > 1
    return doc | {"operationId": f"{doc_info['operation_id']}{'_by_put' if is_second else ''}"}
