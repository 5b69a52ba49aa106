"""The dashboard of an account: activity, failures and recent changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flask import render_template, request

from app.accounts.models import User
from app.collections import definitions, totals
from app.collections.definitions import Definition
from app.collections.models import Collection
from app.console import attention, checklist, recent
from app.console.shell import charts, figures, guard, lists, scopes
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.figures import Figure
from app.console.shell.forms import TemplateContext
from app.console.shell.scopes import AccountScope
from app.web.languages import gettext
from app.webhooks.models import Webhook
from app.workflows import instances

MAX_FAILING = 5
MAX_NAMED = 5


@dataclass(frozen=True)
class CollectionVisibility:
    """Which collections the caller may list completely, and which only in part or not at all."""

    opened: Sequence[Definition]
    closed: Sequence[str]

    @property
    def hidden_names(self) -> str:
        """Some names of hidden collections, for a sentence."""
        rest = len(self.closed) - MAX_NAMED
        return ", ".join(
            [
                *self.closed[:MAX_NAMED],
                *([gettext("%(count)s others", count=rest)] if rest > 0 else []),
            ]
        )


@page("/console/accounts/<uuid:account_id>/dashboard", role=SUPERADMIN)
def show_dashboard(account_id: str) -> str:
    scope = scopes.account_scope(account_id)
    return render_template("console/dashboard.html", **context(scope))


def context(scope: AccountScope) -> TemplateContext:
    """The template variables of an account's dashboard."""
    count_all, visibility = request.args.get("count") == "all", collection_visibility(scope)
    account_id = scope.account.id
    counts = totals.of_account(account_id)
    return {
        "scope": scope,
        "visibility": visibility,
        "counts": counts,
        "figures": _figures(scope, sum(counts.get(one.id, 0) for one in visibility.opened)),
        "charts": [
            charts.records_chart(account_id, visibility.opened, count_all=count_all),
            charts.deliveries_chart([account_id], count_all=count_all),
            charts.sign_ins_chart([account_id], count_all=count_all),
        ],
        "webhooks": attention.failing_webhooks(MAX_FAILING, by=scope.by),
        "failed": attention.by_workflow(
            instances.failed(attention.MAX_SCANNED, by=scope.by), MAX_FAILING, by=scope.by
        ),
        "has_webhooks": checklist.has_webhooks(account_id),
        "changes": recent.changes(scope, visibility.opened),
        "ask": scopes.ASK_SUPERADMINS,
    }


def _figures(scope: AccountScope, records: int) -> Sequence[Figure]:
    at, account_id = scope.url_args, scope.account.id
    team_at = at if guard.require_caller().is_superadmin else {}
    people, webhooks = User.account_id == account_id, Webhook.account_id == account_id
    home = "show_record_collections"
    return [
        figures.linked(
            gettext("People"), figures.format_count(User, people), "show_team", **team_at
        ),
        figures.linked(gettext("Collections"), figures.format_count(Collection), home, **at),
        figures.linked(gettext("Records"), lists.format_number(records), home, **at),
        figures.linked(
            gettext("Webhooks"), figures.format_count(Webhook, webhooks), "show_webhooks", **at
        ),
    ]


def collection_visibility(scope: AccountScope) -> CollectionVisibility:
    """The collections, by whether the rules let the caller list all their records."""
    visible, hidden = [], []
    for collection in definitions.get_all():
        access = scope.access(collection, "list")
        if access is not None and access.condition is None:
            visible.append(collection)
        else:
            hidden.append(collection.name)
    return CollectionVisibility(visible, hidden)
