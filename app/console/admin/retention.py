"""The retention policy of an account: what it would delete, and saving it."""

from __future__ import annotations

import re

from flask import request
from werkzeug.wrappers import Response as BaseResponse

from app.console.admin.account_settings import ACCOUNT_SETTINGS
from app.console.shell import forms
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import AccountScope
from app.errors import AppError, InvalidValues, problem
from app.portability.retention import policy as policies
from app.portability.retention import service
from app.portability.retention.policy import MAX_DAYS, MAX_RULES
from app.portability.retention.service import Plan
from app.types import JSONObject
from app.web.languages import gettext

RETENTION = f"{ACCOUNT_SETTINGS}/retention"
PLACE = re.compile(r"records\[([0-9]+)\]")
NEW_RULES = 1
"""Rows for further rules."""


class RetentionForm(Form):
    """The days of each log, and a row of inputs per rule for records."""

    @property
    def count(self) -> int:
        """The number of rows."""
        return forms.row_count(self["rows"], MAX_RULES)

    def with_rows(self, number: int) -> RetentionForm:
        self.values["rows"] = str(min(number, MAX_RULES))
        return self

    @property
    def filled(self) -> list[int]:
        """The rows that are filled in."""
        return [n for n in range(self.count) if self[f"rule_{n}"] or self[f"days_{n}"]]

    def body(self) -> JSONObject:
        """The policy that the form submits. Raises InvalidValues."""
        logs = {log.value: self._days(log) for log in policies.Log}
        return {**logs, "records": [self._rule(n) for n in self.filled]}

    def _rule(self, n: int) -> JSONObject:
        self.validated((f"rule_{n}", f"days_{n}"))
        days = self._days(f"days_{n}")
        if not days or days > MAX_DAYS:
            message = gettext("From %(least)s to %(most)s.", least=1, most=MAX_DAYS)
            raise InvalidValues([problem(f"days_{n}", "number_out_of_range", message)])
        collection, _, field = self[f"rule_{n}"].partition("/")
        return {"collection": collection, "days": days, "field": field or None}

    def _days(self, name: str) -> int | None:
        text = self[name]
        if not text:
            return None
        if not text.isdecimal() or len(text) > len(str(MAX_DAYS)):
            raise InvalidValues([problem(name, "invalid_number", gettext("A whole number."))])
        return int(text)

    def with_error(self, error: AppError) -> RetentionForm:
        """The form with the messages of an error; those of a rule are at its row."""
        for detail in error.extra.get("details") or ():
            if match := PLACE.match(str(detail["field"])):
                detail["field"] = f"rule_{self.filled[int(match[1])]}"
        super().with_error(error)
        return self


@page(RETENTION, role=ADMIN)
def show_retention(
    scope: AccountScope, form: RetentionForm | None = None, plan: Plan | None = None
) -> Page:
    stored = policies.of_account(scope.account.id)
    if form is None:
        values = {name: str(days or "") for name, days in stored.log_days.items()}
        rules = [(rule, found) for rule in stored.records if (found := rule.find_collection())]
        for n, (rule, found) in enumerate(rules):
            values |= {f"rule_{n}": f"{found.name}/{rule.field}", f"days_{n}": str(rule.days)}
        form = RetentionForm(values).with_rows(len(rules) + NEW_RULES)
    is_paused = bool(stored.records) and service.holder(scope.account.id, stored) is None
    return form.render(
        "console/settings/retention.html",
        scope=scope,
        plan=plan,
        row_count=form.count,
        choices=policies.choices(by=scope.by),
        is_paused=is_paused,
        bounds=policies.bounds(),
        max_counted=service.MAX_COUNTED,
    )


@page(RETENTION, "POST", role=ADMIN, form_page=show_retention)
def change_retention(scope: AccountScope) -> Page | BaseResponse:
    """Save the policy, count what it would delete, or show a row for a further rule."""
    form = forms.submitted(*policies.Log, "rows", kind=RetentionForm)
    names = [f"{name}_{n}" for n in range(form.count) for name in ("rule", "days")]
    form.values |= {name: forms.text(name) for name in names}
    if request.form.get("more"):
        return show_retention(scope, form.with_rows(form.count + NEW_RULES))
    policy = policies.parse(form.body(), by=scope.by)
    if request.form.get("plan"):
        return show_retention(scope, form, service.plan(policy, by=scope.by))
    policies.save(policy, by=scope.by)
    notice = gettext("Saved. It takes effect within the hour.")
    return redirect_with_notice(notice, "console.show_retention", account_id=scope.account.id)
