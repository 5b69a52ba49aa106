"""The API tab of a collection: examples in three languages, and requests tried out at once."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from flask import request, session

from app import config
from app.auth import principal as principals
from app.collections.access import Access
from app.collections.definitions import Definition
from app.console.collections import listing, snippets
from app.console.collections.listing import COLLECTION, NO_ACCOUNT, load
from app.console.shell import guard, navigation, scopes
from app.console.shell.access import ADMIN, SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page
from app.console.shell.names import of_operations
from app.console.shell.scopes import AccountScope
from app.errors import AppError, BadRequest
from app.records import service as records
from app.records.store.reads import ListQuery
from app.types import JSONObject
from app.web import serialization
from app.web.app import UuidPath
from app.web.paging import page_body

MAX_ITEMS = 10
MAX_SHOWN = 20_000  # characters of a response
MAX_INPUT = 2_000
INPUTS = ("try", "account", "filter", "sort", "id")
LANGUAGE = "examples"
"""The key of the session for the language of the examples."""
NO_ID = "Enter the id of a record."


@dataclass(frozen=True)
class Tried:
    """The response of a request that was tried out."""

    request: str
    status: int
    text: str
    is_cut: bool


@page(f"{COLLECTION}/api", role=SUPERADMIN, retry_stale=True)
def show_api_examples(collection_id: str) -> Page:
    """The API of a collection, for superadmins acting in any account."""
    _, collection = load(collection_id)
    form = _form()
    form.values["account"] = form["account"] or navigation.current_code()
    scope = scopes.account_or_own_scope(None)
    if form["account"]:
        account = principals.reload_active_account(form["account"])
        if account is None:
            form.errors["account"], form.status = [str(NO_ACCOUNT)], 400
        else:
            scope = scopes.account_scope(account.id)
    return _page(scope, collection, form)


@page("/console/records/<uuid:account_id>/<name>/api", role=ADMIN, retry_stale=True)
def show_api(account_id: str, name: str) -> Page:
    scope = scopes.collection_scope(account_id, name)
    return _page(scope, scope.collection, _form())


def _form() -> Form:
    values = {name: request.args.get(name, "").replace("\0", "").strip() for name in INPUTS}
    return Form({name: value[:MAX_INPUT] for name, value in values.items()})


def _page(scope: AccountScope, collection: Definition, form: Form) -> Page:
    shown, written = (scope.access(collection, name) for name in ("list", "create"))
    calls = snippets.calls(shown, written, _reference_ids(scope, collection, written))
    headers = {}
    if scope.by.is_superadmin and scope.account.id != guard.own_account_id():
        headers = {"X-Account-ID": scope.account.slug}
    base_url = config.current().base_url
    return form.render(
        "console/collections/api.html",
        scope=scope,
        collection=collection,
        allowed=of_operations(scope.allowed_operations(collection)),
        examples=snippets.examples(base_url, collection.name, calls, headers),
        languages=snippets.LANGUAGES,
        code_language=_language(),
        account_label=listing.account_label(form["account"]),
        set_up=snippets.SET_UP,
        conditions=snippets.conditions(shown) if shown else [],
        tried=_try(scope, collection, form) if form["try"] and not form.errors else None,
    )


def _language() -> str:
    """The language of the examples: the chosen one, which the session remembers."""
    if request.args.get("language") in snippets.LANGUAGES:
        session[LANGUAGE] = request.args["language"]
    chosen: str = session.get(LANGUAGE, "")
    return chosen if chosen in snippets.LANGUAGES else next(iter(snippets.LANGUAGES))


def _reference_ids(
    scope: AccountScope, collection: Definition, written: Access | None
) -> dict[str, str]:
    """The id of some record for each reference that the caller may write."""
    if written is None:
        return {}
    single = written.writable - collection.lists.keys()
    targets = {name: collection.target(name) for name in single}
    known = {one.name: one for one in targets.values() if one is not None}
    some = list(known.values())[: snippets.MAX_FIELDS]  # each takes a statement
    ids = {one.name: _newest_id(scope, one) for one in some}
    found = {name: ids.get(one.name) for name, one in targets.items() if one is not None}
    return {name: id for name, id in found.items() if id}


def _newest_id(scope: AccountScope, target: Definition) -> str | None:
    if "view" not in scope.allowed_operations(target):
        return None
    try:
        query = ListQuery(parameters={"fields": ["id"]}, limit=1)
        rows, _ = records.page(target.name, query, by=scope.by)
    except AppError:
        return None
    return rows[0]["id"] if rows else None


def _try(scope: AccountScope, collection: Definition, form: Form) -> Tried:
    """Run a list or a get with the caller's own rights."""
    path = f"/api/v1/records/{collection.name}"
    query = {name: [form[name]] for name in ("filter", "sort") if form[name]}
    is_list = form["try"] == "list"
    shown = f"GET {path}" if is_list else f"GET {path}/{form['id']}"
    try:
        if is_list:
            body = _list(scope, collection, query)
        else:
            if not UuidPath.accepts(form["id"]):
                raise BadRequest(NO_ID)
            body = records.get(collection.name, form["id"].lower(), None, by=scope.by)
        status = 200
    except AppError as error:
        body, status = error.body(), error.status
    text = orjson.dumps(serialization.plain(body), option=orjson.OPT_INDENT_2).decode()
    return Tried(shown, status, text[:MAX_SHOWN], len(text) > MAX_SHOWN)


def _list(scope: AccountScope, collection: Definition, query: dict[str, list[str]]) -> JSONObject:
    page = ListQuery(parameters=query, limit=MAX_ITEMS, count=True, max_total=1_000)
    items, total = records.page(collection.name, page, by=scope.by)
    return page_body(items, total, {"skip": page.skip, "limit": page.limit})
