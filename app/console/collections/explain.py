"""For superadmins: would this caller get at this record, and which part of the rule decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import request

from app import rules
from app.auth import principal as principals
from app.auth import service as auth
from app.collections import access, trials
from app.collections.definition import Definition
from app.console.collections.listing import ONE_COLLECTION, found
from app.console.shell import forms, guard
from app.console.shell.blueprint import blueprint
from app.console.shell.excerpts import Excerpt, within
from app.console.shell.forms import Form, Page
from app.db import versioned_cache
from app.errors import AppError, InvalidValues, Malformed, NotFound, problem
from app.records import explain as decisions
from app.records.explain import WRITING, Question
from app.rest import json_input
from app.rest.access import public
from app.rest.converters import UuidPath
from app.rules import OPERATIONS

EXPLAIN = f"{ONE_COLLECTION}/explain"
USER, NOBODY = "user", "nobody"
CALLERS = {USER: "a user", NOBODY: "somebody who has not signed in"}
LONGEST_DATA = 20_000
UNSENT = "Only creating and updating send something."
NEW = "A new record is not there yet: leave the record or this empty."
NO_OBJECT = 'This is no JSON object, such as {"title": "A"}.'
FOREIGN = "There is no such record in this account; those of other accounts are never seen."


@blueprint.get(EXPLAIN)
@public
@guard.for_superadmins
def show_explain(collection_id: str) -> Page:
    """The form to ask with."""
    operation = request.args.get("operation") or "view"
    record_id = request.args.get("record_id", "")[:36]
    asked = {"operation": operation, "who": USER, "record_id": record_id}
    return _page(collection_id, Form(asked))


@blueprint.post(EXPLAIN)
@public
@guard.for_superadmins
def explain(collection_id: str) -> Page:
    """What decides, for a caller and perhaps a record."""
    form = forms.sent("operation", "who", "account", "email", "record_id", "data")
    try:
        with versioned_cache.reloading():
            return _page(collection_id, form, _told(found(collection_id)[1], form))
    except NotFound:
        if not form["record_id"]:
            raise
        wrong = [problem("record_id", "invalid_reference", FOREIGN)]
        return _page(collection_id, form.refused(InvalidValues(wrong)))
    except AppError as error:
        return _page(collection_id, form.refused(error))


def _told(collection: Definition, form: Form) -> dict[str, Any]:
    needed = ("account", "email") if form["who"] != NOBODY else ()
    form.checked(needed, account=200, email=320, record_id=36, data=LONGEST_DATA)
    _check(form)
    account_id = _account(form["account"]) if form["account"] else None
    asker = rules.Asker() if form["who"] == NOBODY else _asker(form)
    record_id = form["record_id"].lower() or None
    asked = Question(form["operation"], asker, account_id, record_id, _data(form))
    try:
        return decisions.explain(collection, asked)
    except InvalidValues as error:
        raise InvalidValues([_beside(one) for one in error.details]) from error


def _beside(wrong: Mapping[str, Any]) -> dict[str, Any]:
    """A problem of the question, at the form's field."""
    if wrong["field"] == decisions.ACCOUNT:
        return problem("account", wrong["code"], wrong["message"])
    told = f"{wrong['field'].removeprefix('data.')}: {wrong['message']}"
    return problem("data", "invalid_json", told)


def _check(form: Form) -> None:
    wrong = []
    if form["operation"] not in OPERATIONS:
        wrong.append(problem("operation", "invalid_option", "Choose one of these."))
    if form["who"] not in CALLERS:
        wrong.append(problem("who", "invalid_option", "Choose one of these."))
    if form["record_id"] and not UuidPath.accepts(form["record_id"]):
        wrong.append(problem("record_id", "invalid_reference", "This is no id of a record."))
    if wrong:
        raise InvalidValues(wrong)


def _data(form: Form) -> dict[str, Any] | None:
    if not form["data"]:
        return None
    if form["operation"] not in WRITING:
        raise InvalidValues([problem("data", "invalid_option", UNSENT)])
    if form["operation"] == "create" and form["record_id"]:
        raise InvalidValues([problem("data", "invalid_option", NEW)])
    try:
        data = json_input.loads(form["data"].encode())
    except Malformed as error:
        raise InvalidValues([problem("data", "invalid_json", NO_OBJECT)]) from error
    if not isinstance(data, dict):
        raise InvalidValues([problem("data", "invalid_json", NO_OBJECT)])
    return data


def _account(reference: str) -> str:
    account = principals.reload_active_account(reference)
    if account is None:
        message = "There is no such active account."
        raise InvalidValues([problem("account", "invalid_reference", message)])
    return account.id


def _asker(form: Form) -> rules.Asker:
    user = auth.find_user(form["account"], form["email"])
    if user is None or not user.is_active:
        message = "The account has no active user with this address."
        raise InvalidValues([problem("email", "invalid_reference", message)])
    return access.rule_caller(trials.caller_of(user.id))


def _page(collection_id: str, form: Form, said: dict[str, Any] | None = None) -> Page:
    return form.page(
        "console/collections/explain.html",
        collection=found(collection_id)[1],
        operations=OPERATIONS,
        callers=CALLERS,
        said=said,
        rule=_marked(said) if said else None,
        outcome=_outcome(said) if said and said["clause"] else None,
    )


def _outcome(said: dict[str, Any]) -> str:
    """What is said of the part that decides, which the page marks instead of quoting it."""
    reason: str = said["reason"]
    return reason.removeprefix(f"`{said['clause']['text']}` ").removesuffix(".")


def _marked(said: dict[str, Any]) -> Excerpt:
    """The rule with what decides, or what it depends on, marked."""
    rule, clause = said["rule"] or "", said["clause"]
    if clause:
        return within(rule, clause["text"], clause["position"])
    part = said.get("depends_on") or ""
    return within(rule, part, max(rule.find(part), 0))
