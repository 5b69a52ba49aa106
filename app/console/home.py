"""The home page: figures, activity and next steps for this caller."""

from __future__ import annotations

from collections.abc import Sequence

from flask import request

from app import jobs
from app.accounts import tenants
from app.accounts.domains import service as domains
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, User
from app.auth.principal import Principal
from app.collections import definitions
from app.collections import service as collections
from app.console import dashboard
from app.console.shell import charts, lists
from app.console.shell.forms import TemplateContext
from app.console.shell.names import of_operations
from app.console.shell.scopes import AccountScope
from app.db.counts import count_up_to
from app.jobs import workers
from app.ops import backup_runs
from app.web.languages import gettext
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
    shown = [
        charts.linked(
            gettext("Accounts"), lists.format_count(_accounts_but_system()), "show_accounts"
        ),
        charts.linked(gettext("Users"), charts.format_count(User), "show_users"),
        charts.linked(gettext("Collections"), lists.format_number(total), "show_collections"),
        charts.linked(gettext("Records"), _format_sum(list(counts.values())), "show_records_home"),
    ]
    return {
        "figures": shown,
        "collections": [
            {"id": row.id, "name": row.name, "fields": len(row.schema), "records": counts[row.id]}
            for row in rows
        ],
        "instance": _activity(accounts, caller),
        "steps": dashboard.first_steps(caller, has_records=any(counts.values())),
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
    failing = dashboard.failing_webhooks(dashboard.MAX_FAILING, by=caller.acting_in(None))
    failed = dashboard.by_workflow(
        instances.failed_in_accounts(list(names), dashboard.MAX_SCANNED),
        dashboard.MAX_FAILING,
        by=caller,
    )
    of_webhooks = [one.webhook.account_id for one in failing]
    retrying = [one.webhook.account_id for one in failing if one.undelivered.retrying]
    return {
        "accounts": [one for one in accounts if one.id != SYSTEM_ACCOUNT_ID][:MAX_LISTED_ACCOUNTS],
        "names": names,
        "some": len(accounts) if len(accounts) == MAX_COUNTED_ACCOUNTS else None,
        "charts": [
            charts.changes_chart(count_all=count_all),
            charts.deliveries_chart(list(names), count_all=count_all),
            charts.sign_ins_chart(list(names), count_all=count_all),
        ],
        "webhooks": failing,
        "workers": workers.find(),
        "backups": backup_runs.overview(),
        "failed_jobs": count_up_to(
            jobs.TABLE, [jobs.TABLE.c.status == "failed"], lists.MAX_COUNTED
        ),
        "failed": failed,
        "failing_accounts": dict.fromkeys(
            [*of_webhooks, *(one.latest.account_id for one in failed)]
        ),
        "waiting": {id: names[id] for id in retrying if id in names},
    }


def _account_context(caller: Principal) -> TemplateContext:
    if caller.account is None:
        return {"figures": ()}
    scope = AccountScope(caller.account, caller)
    if not caller.is_admin:
        return {"figures": (), "allowed": _allowed_operations(scope), "scope": scope}
    context = dashboard.context(scope)
    return {
        "figures": context["figures"],
        "steps": dashboard.first_steps(caller, has_records=False),
        "dashboard": context,
        "failing_domains": domains.failing(scope.account.id),
    }


def _allowed_operations(scope: AccountScope) -> Sequence[tuple[str, str]]:
    """The collections that the caller may use by the API, and how."""
    allowed = [(one.name, scope.allowed_operations(one)) for one in definitions.get_all()]
    return [(name, of_operations(names)) for name, names in allowed if names]


def _format_sum(numbers: Sequence[int]) -> str:
    is_cut = any(number > lists.MAX_COUNTED for number in numbers)
    counted = sum(min(number, lists.MAX_COUNTED) for number in numbers)
    return f"{lists.format_number(counted)}{'+' if is_cut else ''}"
