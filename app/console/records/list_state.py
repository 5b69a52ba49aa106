"""The filter, sort order, columns and page of the list that led to a page, for the way back.

They travel as `back`: the query string of the list. The ids of records that were just deleted
together travel in the form cookie, as an address is too short for them, until the list that offers
to undo it shows them.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from urllib.parse import parse_qsl, urlencode, urlsplit
from uuid import UUID

from flask import flash, redirect, request, session, url_for
from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Response as BaseResponse

from app.console.shell.lists import UrlArgs
from app.console.shell.scopes import CollectionScope

MAX_LENGTH = 2_000  # characters; longer ones are not kept
MAX_PARAMETERS = 200
DELETED = "deleted"
ID_BYTES = 16
# Parameters of the query string that a link back leaves out: they are no state of the list.
OMITTED = (DELETED, "back", "edit", "focus")


def args_from_list(scope: CollectionScope, address: str) -> UrlArgs:
    """The arguments of `url_for` for pages opened from the list with this address."""
    return {**scope.url_args, "back": _encode(parse_qsl(urlsplit(address).query))}


def args_from_page(scope: CollectionScope) -> UrlArgs:
    """The arguments for pages opened from this one, which return to the same list."""
    return {**scope.url_args, "back": _query_of_list()}


def list_url(scope: CollectionScope, **params: str) -> str:
    """The address of the list that led to this page."""
    query = "&".join(filter(None, (_query_of_list(), urlencode(params))))
    address = url_for("console.show_records", **scope.url_args)
    return f"{address}?{query}" if query else address


def list_args() -> MultiDict[str, str]:
    """The arguments of the list that led to this page; empty if it is not known."""
    return MultiDict(parse_qsl(_query_of_list() or ""))


def args_on_page(scope: CollectionScope, page: int) -> UrlArgs:
    """The arguments for pages opened from another page of the same list."""
    args = [(name, value) for name, value in list_args().items(multi=True) if name != "page"]
    if page > 1:
        args.append(("page", str(page)))
    return {**scope.url_args, "back": _encode(args)}


def redirect_to_list(notice: str, scope: CollectionScope, **params: str) -> BaseResponse:
    """Redirect to the list that led to this page, with a notice."""
    flash(notice)
    return redirect(list_url(scope, **params), 303)


def remember_deleted(scope: CollectionScope, ids: Iterable[str]) -> None:
    """Store the ids for the next list of the collection."""
    packed = urlsafe_b64encode(b"".join(UUID(id).bytes for id in ids)).decode()
    session[DELETED] = {
        "account": scope.account.id,
        "collection": scope.collection.id,
        "ids": packed,
    }


def pop_deleted(scope: CollectionScope) -> Sequence[str]:
    """Remove and return the ids that are stored for this list; none when a script refreshes it."""
    stored = session.get(DELETED)
    is_refresh = request.headers.get("X-Requested-With") == "XMLHttpRequest"
    if is_refresh or not isinstance(stored, dict):  # a former release stored a list
        return ()
    if (stored["account"], stored["collection"]) != (scope.account.id, scope.collection.id):
        return ()
    del session[DELETED]
    raw = urlsafe_b64decode(stored["ids"])
    return [str(UUID(bytes=raw[n : n + ID_BYTES])) for n in range(0, len(raw), ID_BYTES)]


def _query_of_list() -> str | None:
    """The query string of the list that led to this page; None if it is not known."""
    if request.endpoint == "console.change_row":  # posted to the list's own address
        return _encode(request.args.items(multi=True))
    try:
        pairs = parse_qsl(
            request.args.get("back", "")[: MAX_LENGTH + 1], max_num_fields=MAX_PARAMETERS
        )
    except ValueError:
        return None
    return _encode(pairs)


def _encode(pairs: Iterable[tuple[str, str]]) -> str | None:
    query = urlencode([(name, value) for name, value in pairs if name not in OMITTED])
    return query if query and len(query) <= MAX_LENGTH else None
