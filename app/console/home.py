"""The home page: figures, activity and next steps for this caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flask import request

from app.accounts import tenants
from app.accounts.models import Account, User
from app.auth.principal import Principal
from app.collections import service as collections
from app.collections.models import Collection
from app.console import attention, checklist, dashboard
from app.console.shell import charts, lists
from app.console.shell.forms import TemplateContext
from app.console.shell.scopes import AccountScope
from app.db.counts import count_up_to
from app.http.languages import gettext
from app.workflows import instances

NOT_CLOSED = (Account.closed_at.is_(None),)
MAX_COUNTED_ACCOUNTS, MAX_LISTED_ACCOUNTS = 100, 8  # in the figures; in the list


def context(caller: Principal) -> TemplateContext:
    """The template variables of the home page."""
    return _instance_context(caller) if caller.is_superadmin else _account_context(caller)


def _instance_context(caller: Principal) -> TemplateContext:
    rows, total = collections.page(0, MAX_COUNTED_ACCOUNTS)
    counts = collections.record_counts(rows, lists.MAX_COUNTED)
    accounts = _newest_accounts()
    figures = {
        gettext("Accounts"): lists.format_count(
            count_up_to(Account, NOT_CLOSED, lists.MAX_COUNTED + 1) - 1
        ),
        gettext("Users"): _format_count(User),
        gettext("Collections"): lists.format_number(total),
        gettext("Records"): _format_sum(list(counts.values())),
    }
    return {
        "figures": figures,
        "collections": [
            {"id": row.id, "name": row.name, "fields": len(row.schema), "records": counts[row.id]}
            for row in rows
        ],
        "instance": _activity(accounts, caller),
        "steps": checklist.steps(caller, has_records=any(counts.values())),
    }


def _accounts_but_system() -> int:
    return count_up_to(Account, NOT_CLOSED, lists.MAX_COUNTED + 1) - 1


def _newest_accounts() -> Sequence[Account]:
    params = {"skip": 0, "limit": MAX_COUNTED_ACCOUNTS}
    return tenants.page(params)[0]


def _activity(accounts: Sequence[Account], caller: Principal) -> TemplateContext:
    """Activity in the newest accounts, and failures in all."""
    count_all = request.args.get("count") == "all"
    names = {account.id: account.name for account in accounts}
    failing = attention.failing_webhooks(dashboard.MAX_FAILING, by=caller.acting_in(None))
    return {
        "accounts": accounts[:MAX_LISTED_ACCOUNTS],
        "names": names,
        "some": len(accounts) if len(accounts) == MAX_COUNTED_ACCOUNTS else None,
        "charts": [
            charts.changes_chart(count_all=count_all),
            charts.deliveries_chart(list(names), count_all=count_all),
            charts.sign_ins_chart(list(names), count_all=count_all),
        ],
        "webhooks": failing,
        "failed": attention.by_workflow(
            instances.failed_in_accounts(list(names), attention.MAX_SCANNED), dashboard.MAX_FAILING
        ),
    }


def _account_context(caller: Principal) -> TemplateContext:
    figures = {
        gettext("People"): _format_count(User, User.account_id == caller.account_id),
        gettext("Collections"): _format_count(Collection),
    }
    context: TemplateContext = {
        "figures": figures,
        "collections": [],
        "has_collections": bool(count_up_to(Collection, (), 1)),
    }
    if caller.is_admin and caller.account:
        context["steps"] = checklist.steps(caller, has_records=False)
        context["dashboard"] = dashboard.context(AccountScope(caller.account, caller))
    return context


def _format_count(model: Any, *where: Any) -> str:
    return lists.format_count(count_up_to(model, where, lists.MAX_COUNTED))


def _format_sum(numbers: Sequence[int]) -> str:
    is_cut = any(number > lists.MAX_COUNTED for number in numbers)
    counted = sum(min(number, lists.MAX_COUNTED) for number in numbers)
    return f"{lists.format_number(counted)}{'+' if is_cut else ''}"
