"""The retention policy of an account: what it would delete, and saving it."""

from __future__ import annotations

import re

from flask import request
from werkzeug.wrappers import Response as BaseResponse

from app.console.admin.account_settings import ACCOUNT_SETTINGS
from app.console.shell import forms, guard, scopes
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import AccountScope
from app.errors import AppError, InvalidValues, problem
from app.http.languages import gettext
from app.rest.access import public
from app.retention import policy as policies
from app.retention import service
from app.retention.policy import MAX_DAYS, MAX_RULES, Policy
from app.retention.service import Plan
from app.types import JSONObject

RETENTION = f"{ACCOUNT_SETTINGS}/retention"
LINE = re.compile(r"(\w+)\s*=\s*([0-9]{1,5})(?:\s+(\w+))?", re.ASCII)
MAX_TEXT = 10_000


@blueprint.get(RETENTION)
@public
@guard.admins_only
def show_retention(account_id: str) -> Page:
    """The retention policy of an account."""
    scope = scopes.account_scope(account_id)
    policy = policies.of_account(scope.account.id)
    return _page(scope, _form(policy), policy)


@blueprint.post(RETENTION)
@public
@guard.admins_only
def change_retention(account_id: str) -> Page | BaseResponse:
    """Save the policy, or count what it would delete."""
    scope, form = scopes.account_scope(account_id), forms.submitted(*policies.LOGS, "records")
    stored = policies.of_account(scope.account.id)
    try:
        policy = policies.check(_body(form), by=scope.by)
        if request.form.get("plan"):
            return _page(scope, form, stored, service.plan(policy, by=scope.by))
        policies.save(policy, by=scope.by)
    except AppError as error:
        return _page(scope, _with_error(form, error), stored)
    notice = gettext("Saved. It takes effect within the hour.")
    return redirect_with_notice(notice, "console.show_retention", account_id=scope.account.id)


def _form(policy: Policy) -> Form:
    logs = {name: str(getattr(policy, name) or "") for name in policies.LOGS}
    rules = ((rule, rule.find()) for rule in policy.records)
    lines = [f"{found.name} = {rule.days} {rule.field}" for rule, found in rules if found]
    return Form({**logs, "records": "\n".join(lines)})


def _body(form: Form) -> JSONObject:
    logs = {name: _days(name, form[name]) for name in policies.LOGS}
    form.validated(records=MAX_TEXT)  # cut off, a line could be another rule
    lines = [line.strip() for line in form["records"].splitlines() if line.strip()]
    matches = [LINE.fullmatch(line) for line in lines[:MAX_RULES]]
    found = [match for match in matches if match and 1 <= int(match[2]) <= MAX_DAYS]
    if len(found) < len(lines):
        message = gettext("One line per collection: its name, an equals sign, the days.")
        raise InvalidValues([problem("records", "pattern_mismatch", message)])
    records = [{"collection": m[1], "days": int(m[2]), "field": m[3]} for m in found]
    return {**logs, "records": records}


def _days(name: str, text: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or len(text) > len(str(MAX_DAYS)):
        raise InvalidValues([problem(name, "invalid_number", gettext("A whole number."))])
    return int(text)


def _with_error(form: Form, error: AppError) -> Form:
    if isinstance(error, InvalidValues):
        details = [
            {**detail, "field": str(detail["field"]).partition("[")[0]} for detail in error.details
        ]
        error = InvalidValues(details)
    return form.with_error(error)


def _page(scope: AccountScope, form: Form, stored: Policy, plan: Plan | None = None) -> Page:
    is_paused = bool(stored.records) and service.holder(scope.account.id, stored) is None
    return form.render(
        "console/settings/retention.html",
        scope=scope,
        plan=plan,
        is_paused=is_paused,
        bounds=policies.bounds(),
        max_counted=service.MAX_COUNTED,
    )
