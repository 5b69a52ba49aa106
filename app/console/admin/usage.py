"""The usage of an account by day, and for superadmins its quotas."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from flask import Response, redirect, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.accounts import tenants
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.accounts.plans import stored as plans
from app.accounts.plans.stored import Limits
from app.accounts.usage import routes, schemas, service
from app.accounts.usage.models import FILE_BYTES, FLOWS, METERS, ROW_BYTES
from app.accounts.usage.service import MeterState, Usage
from app.auth.portals import PortalPage
from app.console.records import writers
from app.console.shell import charts, forms, guard, lists
from app.console.shell.access import ADMIN, SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.navigation import ACCOUNT, MenuItem
from app.console.shell.scopes import AccountScope
from app.errors import InvalidValues, problem
from app.files import uploads
from app.web.languages import gettext, lazy_gettext, ngettext

USAGE = "/console/usage"
ACCOUNT_USAGE = f"{USAGE}/<uuid:account_id>"
NAMES = {
    "requests": lazy_gettext("Requests"),
    "deliveries": lazy_gettext("Deliveries"),
    "workflow_steps": lazy_gettext("Workflow steps"),
    "mails": lazy_gettext("Mails"),
    "records": lazy_gettext("Records"),
    "row_bytes": lazy_gettext("Storage of records"),
    "file_bytes": lazy_gettext("Storage of files"),
}
LIMITS = ("soft", "hard")
PERIODS = {
    "30": lazy_gettext("30 days"),
    "90": lazy_gettext("90 days"),
    "month": lazy_gettext("This month"),
    "last_month": lazy_gettext("Last month"),
}
SIZES = (ROW_BYTES, FILE_BYTES)
NUMBER = re.compile(r"[0-9]{1,20}", re.ASCII)
SIZE = re.compile(rf"([0-9]{{1,20}})\s*({'|'.join(lists.UNITS)})?", re.ASCII | re.IGNORECASE)
POWERS = {unit.lower(): power for power, unit in enumerate(lists.UNITS, 1)}
MOST_UPLOADERS = 100  # at most ten can fill an account
FIELDS = tuple(f"{meter}_{limit}" for meter in METERS for limit in LIMITS)


@dataclass(frozen=True)
class Row:
    """A meter of the table."""

    meter: str
    name: str
    is_daily: bool
    used: str
    soft: str
    hard: str
    percent: int | None
    soft_hint: str
    """The limit that holds while the input is empty."""
    hard_hint: str

    @property
    def is_size(self) -> bool:
        """Whether the meter counts bytes."""
        return self.meter in SIZES

    @property
    def has_limit(self) -> bool:
        """Whether the account is warned or stopped."""
        return bool(self.soft or self.hard)


@page(USAGE, role=ADMIN)
def show_usage_home() -> BaseResponse:
    """Redirect to the usage of the own account."""
    return redirect(url_for("console.show_usage", account_id=guard.own_account_id()))


@page(
    ACCOUNT_USAGE,
    role=ADMIN,
    portal=PortalPage.USAGE,
    menu=MenuItem(ACCOUNT, 2, lazy_gettext("Usage"), "heart-rate-monitor"),
)
def show_usage(scope: AccountScope) -> Page:
    return _page(scope)


def _page(scope: AccountScope, form: Form | None = None) -> Page:
    """The page of admins, which has the form of superadmins, too."""
    usage = _usage(scope)
    rows = _rows(usage.meters)
    waiting = uploads.waiting_by_user(scope.account.id, MOST_UPLOADERS)
    return (form or Form(_values(usage.meters))).render(
        "console/usage.html",
        scope=scope,
        rows=rows,
        periods=PERIODS,
        period=_period(),
        has_today=usage.to_date >= clock.now().date(),
        charts=[(row, charts.usage_chart(row.meter, row.name, usage.items)) for row in rows],
        waiting=waiting,
        terms=_terms(scope.account.id),
        people=writers.names(scope, [{"created_by": one.user_id} for one in waiting]),
        may_change=scope.by.is_superadmin and scope.account.id != SYSTEM_ACCOUNT_ID,
    )


@page(f"{ACCOUNT_USAGE}/csv", role=ADMIN, portal=PortalPage.USAGE)
def export_usage(scope: AccountScope) -> Response:
    """The usage of an account as a CSV file."""
    return routes.csv_response(_usage(scope))


@page(ACCOUNT_USAGE, "POST", role=SUPERADMIN, form_page=_page)
def change_quotas(scope: AccountScope) -> BaseResponse:
    service.change_quotas(scope.account.id, _limits(forms.submitted(*FIELDS)))
    notice = gettext("The quotas are saved.")
    return redirect_with_notice(notice, "console.show_usage", **scope.url_args)


@page(f"{ACCOUNT_USAGE}/uploads/<uuid:user_id>/delete", "POST", role=ADMIN, portal=PortalPage.USAGE)
def delete_uploads(scope: AccountScope, user_id: str) -> BaseResponse:
    """Delete the uploads of a user that no record has taken."""
    count = uploads.discard_of_user(scope.account.id, user_id)
    notice = ngettext(
        "%(count)s upload is deleted.", "%(count)s uploads are deleted.", count, count=count
    )
    return redirect_with_notice(notice, "console.show_usage", **scope.url_args)


def _terms(account_id: str) -> tuple[str | None, str]:
    """The plan of an account, and its flags."""
    account = tenants.get(account_id)
    held = plans.flags(plans.of_account(account.plan), account.flags)
    return account.plan, ", ".join(sorted(held))


def _period() -> str:
    period = request.args.get("period", "")
    return period if period in PERIODS else next(iter(PERIODS))


def _usage(scope: AccountScope) -> Usage:
    """The usage of the account in the period that the query string names."""
    period, today = _period(), clock.now().date()
    first, last = today.replace(day=1), today
    if period == "last_month":
        last = first - timedelta(days=1)
        first = last.replace(day=1)
    elif period != "month":
        first = today - timedelta(days=int(period) - 1)
    return service.usage(scope.account.id, first, last)


def _values(meters: Mapping[str, MeterState]) -> dict[str, str]:
    """The limits of the account itself, without those of the service."""
    return {
        f"{meter}_{limit}": _exact(meter, value)
        for meter, state in meters.items()
        for limit, value in (("soft", state.soft), ("hard", state.hard))
        if state.is_own and value is not None
    }


def _limits(form: Form) -> dict[str, Limits | None]:
    problems, result = list[Any](), dict[str, Limits | None]()
    for meter in METERS:
        soft, hard = (_number(form, f"{meter}_{limit}", problems) for limit in LIMITS)
        is_set = soft is not None or hard is not None
        result[meter] = {"soft": soft, "hard": hard} if is_set else None
    if problems:
        raise InvalidValues(problems)
    return result


def _number(form: Form, name: str, problems: list[Any]) -> int | None:
    text = form[name].strip()
    if not text:
        return None
    is_size = name.rpartition("_")[0] in SIZES
    number = _size(text) if is_size else int(text) if NUMBER.fullmatch(text) else None
    if number is not None and number <= schemas.HIGHEST:
        return number
    message = gettext("Not a whole number.")
    if is_size:
        message = gettext("Enter a whole number of bytes, KiB, MiB, GiB or TiB, such as 5 GiB.")
    problems.append(problem(name, "invalid_type", message))
    return None


def _size(text: str) -> int | None:
    match = SIZE.fullmatch(text)
    return int(match[1]) * 1024 ** POWERS.get((match[2] or "").lower(), 0) if match else None


def _exact(meter: str, number: int) -> str:
    """A limit as its input has it: sizes in the largest unit that loses nothing."""
    if meter not in SIZES or not number:
        return str(number)
    power = max(n for n in range(len(lists.UNITS) + 1) if number % 1024**n == 0)
    return f"{number // 1024**power} {lists.UNITS[power - 1]}" if power else str(number)


def _rows(meters: Mapping[str, MeterState]) -> Sequence[Row]:
    return [
        Row(
            meter,
            str(NAMES[meter]),
            meter in FLOWS,
            _text(meter, state.used),
            _text(meter, state.soft),
            _text(meter, state.hard),
            min(100, state.used * 100 // state.hard) if state.hard else None,
            gettext("none"),
            _hint(meter, state),
        )
        for meter, state in meters.items()
    ]


def _hint(meter: str, state: MeterState) -> str:
    """The limit that holds while an account has none of its own."""
    if state.is_own or state.hard is None:
        return gettext("no limit")
    if state.plan:
        return gettext("%(limit)s (plan)", limit=_text(meter, state.hard))
    return gettext("%(limit)s (service)", limit=_text(meter, state.hard))


def _text(meter: str, number: int | None) -> str:
    if number is None:
        return ""
    return lists.format_size(number) if meter in SIZES else lists.format_number(number)
