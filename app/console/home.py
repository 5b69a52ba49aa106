"""What the home page tells: what there is for this caller, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flask import request

from app.accounts import tenants
from app.accounts.models import Account, User
from app.auth.principal import Principal
from app.collections import service as collections
from app.collections.models import Collection
from app.console import dashboard
from app.console.shell import charts, lists
from app.console.shell.scopes import Place
from app.db.counts import count_up_to
from app.webhooks import service as webhooks
from app.workflows import instances

OPEN = (Account.closed_at.is_(None),)
MOST_ACCOUNTS, SHOWN = 100, 8  # whose figures are counted; which are listed


def summary(caller: Principal) -> dict[str, Any]:
    """Figures and next steps for the home page."""
    return _of_instance(caller) if caller.is_superadmin else _of_account(caller)


def _of_instance(caller: Principal) -> dict[str, Any]:
    rows, total = collections.page(0, MOST_ACCOUNTS)
    counts = collections.record_counts(rows, lists.MOST_COUNTED)
    accounts = _newest_accounts()
    figures = {
        "Accounts": lists.told(count_up_to(Account, OPEN, lists.MOST_COUNTED + 1) - 1),
        "Users": _count(User),
        "Collections": f"{total:,}",
        "Records": _sum(list(counts.values())),
    }
    return {
        "figures": figures,
        "collections": [
            {"id": row.id, "name": row.name, "fields": len(row.schema), "records": counts[row.id]}
            for row in rows
        ],
        "instance": _at_work(accounts, caller),
        "told": lists.told,
    }


def _newest_accounts() -> Sequence[Account]:
    asked = {"skip": 0, "limit": MOST_ACCOUNTS}
    return tenants.page(asked)[0]


def _at_work(accounts: Sequence[Account], caller: Principal) -> dict[str, Any]:
    """What happened in the newest accounts, and what fails in any."""
    whole = request.args.get("count") == "all"
    names = {one.id: one.name for one in accounts}
    failing = webhooks.failing(dashboard.MOST_FAILING, by=caller.acting_in(None))
    return {
        "accounts": accounts[:SHOWN],
        "names": names,
        "some": len(accounts) if len(accounts) == MOST_ACCOUNTS else None,
        "charts": [
            charts.of_changes(whole=whole),
            charts.of_deliveries(list(names), whole=whole),
            charts.of_sign_ins(list(names), whole=whole),
        ],
        "webhooks": failing,
        "instances": instances.failed_of(list(names), dashboard.MOST_FAILING),
    }


def _of_account(caller: Principal) -> dict[str, Any]:
    figures = {
        "People": _count(User, User.account_id == caller.account_id),
        "Collections": _count(Collection),
    }
    told = {"figures": figures, "collections": []}
    if caller.is_admin and caller.account:
        told["dashboard"] = dashboard.of(Place(caller.account, caller))
    return told


def _count(model: Any, *where: Any) -> str:
    return lists.told(count_up_to(model, where, lists.MOST_COUNTED))


def _sum(numbers: Sequence[int]) -> str:
    more = any(number > lists.MOST_COUNTED for number in numbers)
    known = sum(min(number, lists.MOST_COUNTED) for number in numbers)
    return f"{known:,}{'+' if more else ''}"
