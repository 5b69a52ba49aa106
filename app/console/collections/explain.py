"""Explains the rules to superadmins: may this caller access this record, and why."""

from __future__ import annotations

from flask import request

from app import rules
from app.auth import principal as principals
from app.auth import service as auth
from app.collections import service as collections
from app.collections import trials
from app.collections.definitions import Definition
from app.console.collections import listing
from app.console.collections.listing import COLLECTION, load
from app.console.shell import checks, forms, navigation
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.checks import Excerpt, highlight
from app.console.shell.forms import Form, Page
from app.console.shell.names import OPERATION_NAMES
from app.db import versioned_cache
from app.errors import AppError, InvalidValues, Malformed, NotFound, problem
from app.records import explain as decisions
from app.records.explain import WRITE_OPERATIONS, Question
from app.records.routes import explain as explain_routes
from app.rules import OPERATIONS
from app.types import JSONMapping, JSONObject
from app.web import serialization
from app.web.app import UuidPath
from app.web.languages import gettext, lazy_gettext

EXPLAIN = f"{COLLECTION}/explain"
USER, NOBODY = "user", "nobody"
CALLERS = {USER: lazy_gettext("a user"), NOBODY: lazy_gettext("an anonymous caller")}
MAX_DATA_LENGTH = 20_000
DATA_NOT_ALLOWED = lazy_gettext("Only creating and updating take data.")
RECORD_NOT_ALLOWED = lazy_gettext(
    "A new record does not exist yet. Leave either this or the record empty."
)
INVALID_JSON = lazy_gettext('Enter a JSON object, such as {"title": "A"}.')
RECORD_NOT_FOUND = lazy_gettext(
    "No record with this id in this account. Records of other accounts are never visible."
)
INVALID_OPTION = lazy_gettext("Choose one of the options.")
# Texts by reason. The page marks the deciding clause, so that they do not quote it.
OUTCOMES = {
    "holds": lazy_gettext("The marked part holds and decides."),
    "does not hold": lazy_gettext("The marked part does not hold and decides."),
    "holds for the record as it is": lazy_gettext(
        "The marked part holds for the record as it is and decides."
    ),
    "does not hold for the record as it is": lazy_gettext(
        "The marked part does not hold for the record as it is and decides."
    ),
    "holds for the record as it would be": lazy_gettext(
        "The marked part holds for the record as it would be and decides."
    ),
    "does not hold for the record as it would be": lazy_gettext(
        "The marked part does not hold for the record as it would be and decides."
    ),
}


@page(EXPLAIN, role=SUPERADMIN, retry_stale=True)
def show_explain(collection_id: str) -> Page:
    operation = request.args.get("operation") or "view"
    record_id = request.args.get("record_id", "")[:36]
    values = {"operation": operation, "who": USER, "record_id": record_id}
    values["account"] = navigation.current_code()
    return _page(collection_id, Form(values))


@page(EXPLAIN, "POST", role=SUPERADMIN, retry_stale=True)
def explain(collection_id: str) -> Page:
    """The decision for a caller, and optionally a record."""
    return _answer(
        collection_id, forms.submitted("operation", "who", "account", "email", "record_id", "data")
    )


def _answer(collection_id: str, form: Form) -> Page:
    try:
        with versioned_cache.reloading():
            return _page(collection_id, form, _explain(load(collection_id)[1], form))
    except AppError as error:
        if isinstance(error, NotFound) and form["record_id"]:
            wrong = problem("record_id", "invalid_reference", str(RECORD_NOT_FOUND))
            error = InvalidValues([wrong])
        return _page(collection_id, form.with_error(error))


@page("/console/explain/<explain_id>", role=SUPERADMIN, retry_stale=True)
def show_denial(explain_id: str) -> Page:
    """The decision for a refused request, by the `explain_id` of its response."""
    denial = explain_routes.read_denial(explain_id)
    caller = trials.load_caller(denial.user_id) if denial.user_id else None
    values = {
        "operation": denial.operation,
        "who": USER if caller else NOBODY,
        "account": caller.home.account_code if caller and caller.home else "",
        "email": (caller.email if caller else None) or "",
        "record_id": denial.record_id or "",
    }
    collection, form = collections.find(denial.collection), Form(values)
    return _answer(collection.id, form)


def _explain(collection: Definition, form: Form) -> JSONObject:
    needed = ("account", "email") if form["who"] != NOBODY else ()
    form.validated(needed, account=200, email=320, record_id=36, data=MAX_DATA_LENGTH)
    _check(form)
    account_id = _account(form["account"]) if form["account"] else None
    subject = rules.Subject() if form["who"] == NOBODY else _subject(form)
    record_id = form["record_id"].lower() or None
    question = Question(form["operation"], subject, account_id, record_id, _data(form))
    try:
        return decisions.explain(collection, question)
    except InvalidValues as error:
        raise InvalidValues([_form_problem(detail) for detail in error.details]) from error


def _form_problem(detail: JSONMapping) -> JSONObject:
    """A problem of the question, at the form's field."""
    if detail["field"] == decisions.ACCOUNT:
        return problem("account", detail["code"], detail["message"])
    message = f"{detail['field'].removeprefix('data.')}: {detail['message']}"
    return problem("data", "invalid_json", message)


def _check(form: Form) -> None:
    problems = []
    if form["operation"] not in OPERATIONS:
        problems.append(problem("operation", "invalid_option", str(INVALID_OPTION)))
    if form["who"] not in CALLERS:
        problems.append(problem("who", "invalid_option", str(INVALID_OPTION)))
    if form["record_id"] and not UuidPath.accepts(form["record_id"]):
        message = gettext("This is not a record id.")
        problems.append(problem("record_id", "invalid_reference", message))
    if problems:
        raise InvalidValues(problems)


def _data(form: Form) -> JSONObject | None:
    if not form["data"]:
        return None
    if form["operation"] not in WRITE_OPERATIONS:
        raise InvalidValues([problem("data", "invalid_option", str(DATA_NOT_ALLOWED))])
    if form["operation"] == "create" and form["record_id"]:
        raise InvalidValues([problem("data", "invalid_option", str(RECORD_NOT_ALLOWED))])
    try:
        data = serialization.parse(form["data"].encode())
    except Malformed as error:
        place = checks.place(form["data"])
        wrong = problem("data", "invalid_json", str(INVALID_JSON), **place)
        raise InvalidValues([wrong]) from error
    if not isinstance(data, dict):
        raise InvalidValues([problem("data", "invalid_json", str(INVALID_JSON))])
    return data


def _account(reference: str) -> str:
    account = principals.reload_active_account(reference)
    if account is None:
        message = gettext("No active account with this id.")
        raise InvalidValues([problem("account", "invalid_reference", message)])
    return account.id


def _subject(form: Form) -> rules.Subject:
    user = auth.find_user(form["account"], form["email"])
    if user is None or not user.is_active:
        message = gettext("This account has no active user with this address.")
        raise InvalidValues([problem("email", "invalid_reference", message)])
    return principals.rule_caller(trials.load_caller(user.id))


def _page(collection_id: str, form: Form, explanation: JSONObject | None = None) -> Page:
    _, collection = load(collection_id)
    return form.render(
        "console/collections/explain.html",
        collection=collection,
        account_label=listing.account_label(form["account"]),
        record_label=listing.record_label(collection, form["account"], form["record_id"]),
        operations=OPERATION_NAMES,
        operation_names=OPERATION_NAMES,
        callers=CALLERS,
        explanation=explanation,
        rule=_excerpt(explanation) if explanation else None,
        outcome=_outcome(explanation) if explanation and explanation["clause"] else None,
    )


def _outcome(explanation: JSONObject) -> str:
    reason: str = explanation["reason"]
    return OUTCOMES[reason.removeprefix(f"`{explanation['clause']['text']}` ").removesuffix(".")]


def _excerpt(explanation: JSONObject) -> Excerpt:
    """The rule with the deciding clause marked, or the one that it depends on."""
    rule, clause = explanation["rule"] or "", explanation["clause"]
    if clause:
        return highlight(rule, clause["text"], clause["position"])
    part = explanation.get("depends_on") or ""
    return highlight(rule, part, max(rule.find(part), 0))
