"""The home page: figures, activity and next steps for this caller; sample data for a first look."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from flask import flash, redirect, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock, jobs
from app.accounts import tenants
from app.accounts.domains import service as domains
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, User
from app.auth import principal as principals
from app.auth.principal import Principal
from app.collections import definitions, table
from app.collections import service as collections
from app.console import dashboard
from app.console.shell import charts, guard, lists
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import TemplateContext, redirect_with_notice
from app.console.shell.names import of_operations
from app.console.shell.scopes import AccountScope
from app.db.counts import count_up_to
from app.errors import NotFound
from app.jobs import queue
from app.ops import backup_runs
from app.records import service as records
from app.rules import OPERATIONS
from app.types import JSONObject
from app.web.languages import gettext
from app.workflows import instances

NOT_CLOSED = (Account.closed_at.is_(None),)
MAX_COUNTED_ACCOUNTS, MAX_LISTED_ACCOUNTS = 100, 8  # in the figures; in the list
NAME, SLUG = "Sample company", "sample"
OPEN = dict.fromkeys((f"{name}_rule" for name in OPERATIONS), "true")
STATUSES = ("planned", "in progress", "done")
PROJECTS: Sequence[JSONObject] = (
    {"name": "Website", "budget": 12_000, "active": True},
    {"name": "Mobile app", "budget": 48_000, "active": True},
    {"name": "Archive", "budget": 3_500, "active": False},
)
TASKS = (
    ("Draft the sitemap", "done", 0, -9),
    ("Choose a typeface", "done", 0, -6),
    ("Write the first page", "in progress", 0, 2),
    ("Measure loading times", "planned", 0, 14),
    ("Sketch the sign-in", "done", 1, -12),
    ("Test on small phones", "in progress", 1, 1),
    ("Write release notes", "planned", 1, 21),
    ("Submit to the stores", "planned", 1, 30),
    ("Scan the contracts", "in progress", 2, 5),
    ("Name the folders", "planned", 2, 8),
)
"""Title, status, number of the project, days until it is due."""


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
        "workers": queue.find_workers(),
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
    allowed = [
        (one.name, scope.allowed_operations(one)) for one in definitions.get_all(with_views=True)
    ]
    return [(name, of_operations(names)) for name, names in allowed if names]


def _format_sum(numbers: Sequence[int]) -> str:
    is_cut = any(number > lists.MAX_COUNTED for number in numbers)
    counted = sum(min(number, lists.MAX_COUNTED) for number in numbers)
    return f"{lists.format_number(counted)}{'+' if is_cut else ''}"


@page("/console/sample", "POST", role=SUPERADMIN, retry_stale=True)
def load_sample() -> BaseResponse:
    """Create the sample account, its collections and records, in an instance without any."""
    if definitions.get_all():
        return redirect_with_notice(gettext("There are collections already."), "console.show_home")
    account_id = _load()
    flash(
        gettext(
            "Here is the data of “%(name)s”. Close the account when you need it no longer.",
            name=NAME,
        )
    )
    return redirect(url_for("console.show_record_collections", account_id=account_id), 303)


@table.schema_change
def _load() -> str:
    # One transaction: a process that is killed leaves no half of it.
    account_id = tenants.create(NAME, SLUG).id
    for name, fields in (("projects", _project_fields()), ("tasks", _task_fields())):
        collections.create(name, fields, OPEN)
    account = principals.reload_active_account(account_id)
    if account is None:
        raise NotFound
    by = guard.require_caller().acting_in(account)
    projects = [records.create("projects", dict(values), by=by)["id"] for values in PROJECTS]
    for title, status, project, days in TASKS:
        due = (clock.now() + timedelta(days=days)).date().isoformat()
        task = {"title": title, "status": status, "project": projects[project], "due": due}
        records.create("tasks", task, by=by)
    return account_id


def _project_fields() -> list[JSONObject]:
    return [
        {"name": "name", "type": "text", "required": True, "unique": True},
        {"name": "budget", "type": "number"},
        {"name": "active", "type": "boolean"},
    ]


def _task_fields() -> list[JSONObject]:
    return [
        {"name": "title", "type": "text", "required": True},
        {"name": "status", "type": "select", "options": {"choices": list(STATUSES)}},
        {"name": "due", "type": "date"},
        {"name": "project", "type": "reference", "collection": "projects"},
    ]
