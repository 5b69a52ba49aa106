"""Routes, and how each operation is described: by its marks, its arguments and its errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import flask_smorest
from flask import Response

from app.rest import PREFIX, openapi_text
from app.rest.access import Access, View, access_of
from app.rest.parsing import Parser
from app.rest.schemas import Error

# What watches over the service asks as often as it likes.
UNLIMITED = {"Health"}


class Blueprint(flask_smorest.Blueprint):
    """A feature's routes. Each operation documents its errors, those of its marks included."""

    ARGUMENTS_PARSER = Parser()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_an_account: set[str] = set()
        self._prepare_doc_cbks.append(_with_headers)

    def arguments(self, schema: Any, *, location: str = "json", **options: Any) -> Any:
        """Declare a body or query; with `required=False` an absent body counts as an empty one."""
        schema = schema() if isinstance(schema, type) else schema
        schema.body_may_be_absent = not options.get("required", True)
        decorate = super().arguments(schema, location=location, **options)

        def declare(view: View) -> View:
            decorated: Any = decorate(view)
            decorated.takes_query = location == "query" or getattr(view, "takes_query", False)
            decorated.error_codes = set(getattr(view, "error_codes", ())) | {422}
            if location == "json":
                decorated.error_codes |= {413, 415}
            return decorated

        return declare

    def doc(self, **told: Any) -> Any:
        """Tell more of an operation."""
        return _described_by(super().doc(**told))

    def alt_response(self, status: int, response: Any = None, **told: Any) -> Any:
        """Declare another answer."""
        return _described_by(super().alt_response(status, response, **told))

    def response(self, status: int, schema: Any = None, **told: Any) -> Any:
        """Declare an answer; what a view returns is made one, unless it says to be a Response."""
        decorate = super().response(status, schema, **told)
        describe = _described_by(decorate)

        def declare(view: View) -> Any:
            is_whole = view.__annotations__.get("return") == Response.__name__
            return describe(view) if is_whole else decorate(view)

        return declare

    def fails(self, *codes: int) -> Callable[[View], View]:
        """Declare the errors that an operation answers with beside those of its marks."""

        def declare(view: View) -> View:
            view.error_codes = set(getattr(view, "error_codes", ())) | set(codes)  # type: ignore[attr-defined]
            return view

        return declare

    def add_url_rule(
        self, rule: str, endpoint: str | None = None, view_func: Any = None, *args: Any, **kw: Any
    ) -> None:
        """Register a route and describe its errors."""
        path = re.sub(r"<\w+:", "<", rule)  # several views, and converters, may share one path
        if access_of(view_func) is not Access.PUBLIC:
            self._in_an_account.add(path)
        if path in self._in_an_account:
            kw["parameters"] = ["account", *(kw.get("parameters") or ())]
        whole, methods = f"{self.url_prefix or ''}{rule}", kw.get("methods") or ["GET"]
        codes = _codes(view_func, whole, methods) | ({429} if self.name not in UNLIMITED else set())
        super().add_url_rule(rule, endpoint, _described(view_func, whole, codes), *args, **kw)


def _described_by(decorate: Callable[[View], Any]) -> Callable[[View], View]:
    """A decorator of flask-smorest that only describes: no request needs to go through it."""

    def describe(view: View) -> View:
        view._apidoc = decorate(view)._apidoc  # type: ignore[attr-defined]
        return view

    return describe


def _codes(view: Any, rule: str, methods: Sequence[str]) -> set[int]:
    # Any query may be one that is not understood, and any credential or account a wrong one.
    codes = {422, *getattr(view, "error_codes", ())} | ({404} if "<" in rule else set())
    if access_of(view) is Access.PUBLIC:
        return codes
    return codes | {400, 401, 403, 404} | ({409} if _repeatable(rule, methods) else set())


def _repeatable(rule: str, methods: Sequence[str]) -> bool:
    of_api = rule.startswith(f"{PREFIX}/") and not rule.startswith(f"{PREFIX}/auth/")
    return of_api and "POST" in methods


def _described(view: Any, rule: str, codes: set[int]) -> Any:
    view.takes_query = getattr(view, "takes_query", False)
    access, signed_in = access_of(view), access_of(view) is not Access.PUBLIC
    view._apidoc = deepcopy(getattr(view, "_apidoc", {}))
    responses = view._apidoc.setdefault("response", {}).setdefault("responses", {})
    responses.update(
        {code: openapi_text.error_responses(rule, code, Error) for code in sorted(codes)}
    )
    responses[414] = [openapi_text.URI_TOO_LONG]  # the server's own, whatever the operation
    # flask-smorest adds an undescribed 422 of its own to everything with arguments.
    view._apidoc.get("arguments", {}).pop("responses", None)
    schemes = openapi_text.SECURITY_SCHEMES if signed_in else ()
    security: list[dict[str, Any]] = [{name: []} for name in schemes]
    view._apidoc.setdefault("manual_doc", {})["security"] = (
        [{}, *security] if access is Access.ANONYMOUS else security
    )
    view._apidoc["signed_in"] = signed_in
    view._apidoc["repeatable"] = signed_in and _repeatable(rule, ["POST"])
    return view


def _with_headers(doc: Any, told: Any, *, method: str, **known: Any) -> Any:
    """Parameters told of by hand, and headers for all, stand beside those of the arguments."""
    more = [
        *told["manual_doc"].pop("parameters", ()),
        *(openapi_text.SIGNATURE if told["signed_in"] and method in openapi_text.WRITING else ()),
        *(["repeating"] if told["repeatable"] and method == "post" else ()),
    ]
    return {**doc, "parameters": [*doc.get("parameters", ()), *more]} if more else doc
