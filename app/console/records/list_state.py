"""The filter, sort order, columns and page of the list that led to a page, for the way back.

They travel as `back`: the query string of the list.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import parse_qsl, urlencode, urlsplit

from flask import flash, redirect, request, url_for
from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Response as BaseResponse

from app.console.shell.lists import UrlArgs
from app.console.shell.scopes import CollectionScope

MAX_LENGTH = 2_000  # characters; longer ones are not kept
MAX_PARAMETERS = 200
DELETED = "deleted"
# What is of a moment, and no state of the list.
OMITTED = (DELETED, "back", "edit", "focus")


def of_list(scope: CollectionScope, address: str) -> UrlArgs:
    """The arguments of `url_for` for pages that the list with this address leads to."""
    return {**scope.url_args, "back": _encode(parse_qsl(urlsplit(address).query))}


def of_page(scope: CollectionScope) -> UrlArgs:
    """The same for pages that lead back to the list which led to this one."""
    return {**scope.url_args, "back": _given()}


def list_url(scope: CollectionScope, **params: str) -> str:
    """The address of the list that led to this page."""
    query = "&".join(filter(None, (_given(), urlencode(params))))
    address = url_for("console.show_records", **scope.url_args)
    return f"{address}?{query}" if query else address


def list_args() -> MultiDict[str, str]:
    """The arguments of the list that led to this page; empty if it is not known."""
    return MultiDict(parse_qsl(_given() or ""))


def on_page(scope: CollectionScope, page: int) -> UrlArgs:
    """The arguments for pages that another page of the same list leads to."""
    others = [(name, value) for name, value in list_args().items(multi=True) if name != "page"]
    return {**scope.url_args, "back": _encode([*others, *([("page", str(page))] * (page > 1))])}


def redirect_to_list(notice: str, scope: CollectionScope, **params: str) -> BaseResponse:
    """Redirect to the list that led to this page, with a notice."""
    flash(notice)
    return redirect(list_url(scope, **params), 303)


def _given() -> str | None:
    if request.endpoint == "console.change_row":  # the list itself
        return _encode(request.args.items(multi=True))
    try:
        pairs = parse_qsl(
            request.args.get("back", "")[: MAX_LENGTH + 1], max_num_fields=MAX_PARAMETERS
        )
    except ValueError:
        return None
    return _encode(pairs)


def _encode(pairs: Iterable[tuple[str, str]]) -> str | None:
    kept = [(name, value) for name, value in pairs if name not in OMITTED]
    query = urlencode(kept)
    return query if query and len(query) <= MAX_LENGTH else None
