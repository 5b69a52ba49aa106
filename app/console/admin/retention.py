"""The retention policy of an account: what it would delete, and saving it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from flask import request
from werkzeug.wrappers import Response as BaseResponse

from app.console.admin.account_settings import ACCOUNT_SETTINGS
from app.console.shell import forms, scopes
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import AccountScope
from app.errors import AppError, InvalidValues, problem
from app.portability.retention import policy as policies
from app.portability.retention import service
from app.portability.retention.policy import MAX_DAYS, MAX_RULES, Policy
from app.portability.retention.service import Plan
from app.types import JSONObject
from app.web.languages import gettext

RETENTION = f"{ACCOUNT_SETTINGS}/retention"
PLACE = re.compile(r"records\[([0-9]+)\]")
NEW_RULES = 1
"""Rows for further rules."""


@page(RETENTION, role=ADMIN)
def show_retention(account_id: str) -> Page:
    scope = scopes.account_scope(account_id)
    policy = policies.of_account(scope.account.id)
    return _page(scope, _form(policy), policy)


@page(RETENTION, "POST", role=ADMIN)
def change_retention(account_id: str) -> Page | BaseResponse:
    """Save the policy, count what it would delete, or show a row for a further rule."""
    scope, form = scopes.account_scope(account_id), _submitted()
    stored = policies.of_account(scope.account.id)
    if request.form.get("more"):
        return _page(scope, _with_rows(form, _count(form) + NEW_RULES), stored)
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
    values = {name: str(getattr(policy, name) or "") for name in policies.LOGS}
    rules = [(rule, found) for rule in policy.records if (found := rule.find())]
    for number, (rule, found) in enumerate(rules):
        values |= {f"rule_{number}": f"{found.name}/{rule.field}", f"days_{number}": str(rule.days)}
    return _with_rows(Form(values), len(rules) + NEW_RULES)


def _submitted() -> Form:
    form = forms.submitted(*policies.LOGS, "rows")
    names = [f"{name}_{number}" for number in range(_count(form)) for name in ("rule", "days")]
    return Form({**form.values, **{name: forms.text(name) for name in names}})


def _count(form: Form) -> int:
    text = form["rows"]
    return min(int(text), MAX_RULES) if re.fullmatch(r"[0-9]{1,3}", text, re.ASCII) else 0


def _with_rows(form: Form, number: int) -> Form:
    form.values["rows"] = str(min(number, MAX_RULES))
    return form


def _rules(form: Form) -> Iterator[int]:
    """The numbers of the rows that are filled in."""
    for number in range(_count(form)):
        if form[f"rule_{number}"] or form[f"days_{number}"]:
            yield number


def _body(form: Form) -> JSONObject:
    logs = {name: _days(name, form[name]) for name in policies.LOGS}
    return {**logs, "records": [_rule(form, number) for number in _rules(form)]}


def _rule(form: Form, number: int) -> JSONObject:
    form.validated((f"rule_{number}", f"days_{number}"))
    days = _days(f"days_{number}", form[f"days_{number}"])
    if not days or days > MAX_DAYS:
        message = gettext("From %(least)s to %(most)s.", least=1, most=MAX_DAYS)
        raise InvalidValues([problem(f"days_{number}", "number_out_of_range", message)])
    collection, _, field = form[f"rule_{number}"].partition("/")
    return {"collection": collection, "days": days, "field": field or None}


def _days(name: str, text: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or len(text) > len(str(MAX_DAYS)):
        raise InvalidValues([problem(name, "invalid_number", gettext("A whole number."))])
    return int(text)


def _with_error(form: Form, error: AppError) -> Form:
    if isinstance(error, InvalidValues):
        rows = list(_rules(form))
        details = [
            {**detail, "field": _place(str(detail["field"]), rows)} for detail in error.details
        ]
        error = InvalidValues(details)
    return form.with_error(error)


def _place(field: str, rows: Sequence[int]) -> str:
    """The input of what is wrong with a rule."""
    match = PLACE.match(field)
    return f"rule_{rows[int(match[1])]}" if match else field


def _page(scope: AccountScope, form: Form, stored: Policy, plan: Plan | None = None) -> Page:
    is_paused = bool(stored.records) and service.holder(scope.account.id, stored) is None
    return form.render(
        "console/settings/retention.html",
        scope=scope,
        plan=plan,
        row_count=_count(form),
        choices=policies.choices(by=scope.by),
        is_paused=is_paused,
        bounds=policies.bounds(),
        max_counted=service.MAX_COUNTED,
    )
