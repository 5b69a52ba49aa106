"""The collections of this instance, their fields, rules and references, for superadmins."""

from __future__ import annotations

from collections.abc import Sequence

from flask import redirect, render_template, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import tenants
from app.auth import principal as principals
from app.auth.principal import AccountRef
from app.collections import definitions, service, totals, view_service
from app.collections.definitions import Definition, ViewDefinition
from app.collections.fields import Field
from app.collections.models import Collection
from app.console.collections import diagram, rules_form
from app.console.collections.diagram import Reference
from app.console.people import user_lists
from app.console.records import references
from app.console.shell import guard, lists, names, navigation
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page
from app.console.shell.names import OPERATION_NAMES
from app.console.shell.navigation import INSTANCE, MenuItem, RecentAccount
from app.db import versioned_cache
from app.rules import OPERATIONS
from app.types import JSONObject
from app.web.languages import gettext, lazy_gettext

MAX_OPTIONS = 10
Options = dict[str, list[JSONObject]]

COLLECTION = "/console/collections/<uuid:collection_id>"
MAX_ACCOUNTS = 10  # whose records a collection's page links to
MAX_DRAWN, MAX_LISTED = 300, 1_000  # collections and references of a diagram
MAX_TEXT = 60  # characters of an option
# Texts of the options of a field; the others are in columns of their own.
OPTION_TEXTS = {
    "min_length": lazy_gettext("at least %(value)s characters"),
    "max_length": lazy_gettext("at most %(value)s characters"),
    "pattern": lazy_gettext("pattern %(value)s"),
    "min": lazy_gettext("at least %(value)s"),
    "max": lazy_gettext("at most %(value)s"),
    "integer": lazy_gettext("whole numbers"),
    "mask": lazy_gettext("mask %(value)s"),
    "max_bytes": lazy_gettext("at most %(value)s bytes"),
    "max_files": lazy_gettext("at most %(value)s files"),
    "prefix": lazy_gettext("prefix %(value)s"),
    "digits": lazy_gettext("%(value)s digits"),
    "precision": lazy_gettext("%(value)s digits"),
    "scale": lazy_gettext("%(value)s of them behind the point"),
    "max_items": lazy_gettext("at most %(value)s entries"),
}
ON_DELETE = {
    "restrict": lazy_gettext("keeps its target"),
    "cascade": lazy_gettext("deleted with its target"),
    "set_null": lazy_gettext("emptied with its target"),
}
NO_ACCOUNT = lazy_gettext("There is no active account with this slug, code or id.")


@page(
    "/console/collections",
    role=SUPERADMIN,
    menu=MenuItem(INSTANCE, 4, lazy_gettext("Collections"), "database"),
)
def show_collections() -> str:
    listing = lists.from_request("console.show_collections")
    listing.with_page(service.page(listing.skip, lists.PAGE_SIZE, listing.search))
    counted = service.record_counts(listing.items, lists.MAX_COUNTED)
    counts = {id: lists.format_count(number) for id, number in counted.items()}
    return render_template("console/collections/list.html", listing=listing, counts=counts)


@page("/console/collections/diagram", role=SUPERADMIN)
def show_diagram() -> str:
    """All collections and the references between them."""
    collections = definitions.get_all()
    shown = {one.name: one.id for one in collections[:MAX_DRAWN]}
    references = _references(collections)
    return render_template(
        "console/collections/diagram.html",
        diagram=diagram.draw(list(shown), references, _fields(collections[:MAX_DRAWN])),
        ids=shown,
        references=references[:MAX_LISTED],
        hidden=len(collections) - len(shown),
        layout=diagram,
    )


def _fields(collections: Sequence[Definition]) -> dict[str, list[tuple[str, str]]]:
    return {
        one.name: [(field["name"], names.of_type(field["type"])) for field in one.schema]
        for one in collections
    }


@page(COLLECTION, role=SUPERADMIN)
def show_collection(collection_id: str) -> str:
    """One collection with its fields and rules."""
    return _page(collection_id, Form({"account": navigation.current_code()}))[0]


@page(f"{COLLECTION}/records", role=SUPERADMIN)
def choose_records(collection_id: str) -> Page | BaseResponse:
    """Redirect to the records of an account, or to the form for a new one."""
    form = Form({"account": request.args.get("account", "").replace("\0", "").strip()[:100]})
    account = principals.reload_active_account(form["account"]) if form["account"] else None
    if account is None:
        form.errors["account"], form.status = [str(NO_ACCOUNT)], 400
        return _page(collection_id, form)
    page = "new_record" if request.args.get("do") == "new" else "records"
    name = service.find(collection_id).name
    return redirect(url_for(f"console.show_{page}", account_id=account.id, name=name), 303)


def _page(collection_id: str, form: Form) -> Page:
    with versioned_cache.reloading():
        row, collection = load(collection_id)
        base = collection.base if isinstance(collection, ViewDefinition) else collection
        accounts = totals.by_account(base.id, MAX_ACCOUNTS)
        return form.render(
            "console/collections/one.html",
            collection=collection,
            records=service.record_counts([row], lists.MAX_COUNTED)[row.id],
            warnings=view_service.warnings(collection)
            if isinstance(collection, ViewDefinition)
            else (),
            accounts=accounts,
            current=_current_account(accounts),
            fields=[(field, targets(collection, field)) for field in collection.declared.values()],
            option_texts=_option_texts,
            properties=_properties,
            referrers=_referrers(collection),
            indexes=[(", ".join(spec["fields"]), spec["unique"]) for spec in row.indexes],
            operations=OPERATIONS,
            operation_names=OPERATION_NAMES,
            describe_rule=rules_form.describe_rule,
            describe_fields=rules_form.describe_fields,
        )


def _current_account(accounts: Sequence[tuple[str, str, int]]) -> RecentAccount:
    """The chosen account; without a choice that with most records, or the caller's own."""
    caller = guard.require_caller()
    if chosen := navigation.current_account(caller):
        return chosen
    home, _ = caller.home_and_user()
    id, name = accounts[0][:2] if accounts else (home.id, home.name)
    return RecentAccount(id, name)


def _properties(field: Field, collection: Definition) -> list[str]:
    """The properties of a field, in words."""
    words = {
        gettext("required"): field.required,
        gettext("unique"): field.unique,
        gettext("indexed"): field.options.get("index") or field.unique,
        gettext("searchable"): field.searched,
        gettext("personal data, mask: %(mask)s", mask=field.mask_type or "full"): field.pii,
        gettext("read by %(rule)s", rule=field.readable_if): field.readable_if is not None,
        gettext("written by %(rule)s", rule=field.writable_if): field.writable_if is not None,
        gettext("from personal data"): not field.pii and field.name in collection.personal,
    }
    return [word for word, is_true in words.items() if is_true]


def _option_texts(field: Field) -> list[str]:
    """The options and the default of a field in words."""
    options = {name: value for name, value in field.options.items() if value is not False}
    texts = [
        text % {"value": _cut(options[name])}
        for name, text in OPTION_TEXTS.items()
        if name in options
    ]
    if "mime_types" in options:
        texts.append(_cut(", ".join(options["mime_types"])))
    if field.default_expression is not None:
        texts.append(gettext("default %(value)s", value=_cut(field.default_expression)))
    if field.default is not None:
        default: object = field.default
        if isinstance(default, bool):
            default = gettext("yes") if default else gettext("no")
        texts.append(gettext("default %(value)s", value=_cut(default)))
    if field.on_delete:
        texts.append(str(ON_DELETE[field.on_delete]))
    return texts


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def _references(collections: Sequence[Definition]) -> list[Reference]:
    names = {one.name.lower(): one.name for one in collections}
    return [
        Reference(one.name, field.name, names[field.collection.lower()], field.required)
        for one in collections
        for field in one.declared.values()
        if field.collection and field.collection.lower() in names
    ]


def _referrers(collection: Definition) -> list[tuple[Definition, str]]:
    """The collections that refer to this one, each with the name of the field."""
    collections = {one.name: one for one in definitions.get_all()}
    found = _references(list(collections.values()))
    return [(collections[one.source], one.field) for one in found if one.target == collection.name]


def load(collection_id: str) -> tuple[Collection, Definition]:
    """The collection's row and its definition. Raises NotFound."""
    row = service.find(collection_id)
    return row, definitions.from_row(row)


def targets(collection: Definition, field: Field) -> Definition | None:
    """The collection that a reference field points to."""
    return collection.target(field.name) if field.collection else None


@page("/console/accounts/options", role=SUPERADMIN)
def show_account_options() -> Options:
    """Codes and names of active accounts."""
    params = {"skip": 0, "limit": MAX_OPTIONS, "sort_by": "name", "sort_order": "asc"}
    accounts, _ = tenants.page({**params, "search": _text(), "is_active": True})
    return {
        "options": [
            {"id": one.account_code, "label": _label(one.name, one.account_code)}
            for one in accounts
        ]
    }


@page(f"{COLLECTION}/explain/users", role=SUPERADMIN)
def show_user_options(collection_id: str) -> Options:
    """Users of the account that the form names."""
    load(collection_id)
    account = _account()
    return {"options": user_lists.search_options(account.id, _text()) if account else []}


@page(f"{COLLECTION}/explain/records", role=SUPERADMIN, retry_stale=True)
def show_record_options(collection_id: str) -> Options:
    """Records of the collection in the account that the form names."""
    _, collection = load(collection_id)
    account = _account()
    by = guard.require_caller().acting_in(account) if account else None
    hits = references.search(collection, _text(), by) if by else None
    return {"options": [{"id": id, "label": label} for id, label in hits or ()]}


def account_label(reference: str) -> str:
    """The name of the account that a form names; empty if there is none."""
    account = principals.find_active_account(reference) if reference else None
    return _label(account.name, account.account_code) if account else ""


def record_label(collection: Definition, reference: str, record_id: str) -> str:
    """The label of a record that a form names; empty if there is none."""
    account = principals.find_active_account(reference) if reference else None
    if account is None or not record_id:
        return ""
    by = guard.require_caller().acting_in(account)
    return references.labels(collection, [record_id.lower()], by).get(record_id.lower(), "")


def _label(name: str, code: str) -> str:
    return f"{name} ({code})"


def _account() -> AccountRef | None:
    reference = request.args.get("account", "").strip()[:200]
    return principals.reload_active_account(reference) if reference else None


def _text() -> str:
    return request.args.get("text", "").strip()[: lists.MAX_INPUT_LENGTH]
