"""The dashboard of an account: activity, failures, recent changes and the first steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from flask import current_app, render_template, request, url_for

from app import clock, db
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, User
from app.audit import entries as audit
from app.audit import recent
from app.audit.append import CREATE, DELETE
from app.auth.models import ApiKey
from app.auth.principal import Principal
from app.collections import definitions, totals
from app.collections import table as tables
from app.collections.definitions import ByFormerName, Definition
from app.collections.models import Collection
from app.console.admin import audit_names
from app.console.records import display, references, writers
from app.console.shell import charts, guard, lists, navigation, scopes
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.charts import Figure
from app.console.shell.forms import TemplateContext
from app.console.shell.scopes import AccountScope
from app.context import shown_accounts
from app.db import Base
from app.rules import OPERATIONS
from app.web.languages import gettext, lazy_gettext
from app.webhooks import log, resend
from app.webhooks import service as webhooks
from app.webhooks.models import Webhook
from app.webhooks.resend import Selection, Undelivered
from app.workflows import instances
from app.workflows.instances import FailedInstance

MAX_SCANNED = 100
"""The newest failed instances that are grouped."""

MAX_FAILING = 5
MAX_NAMED = 5
MAX_RECENT, MAX_CHANGES = 8, 60
VERBS = {CREATE: lazy_gettext("created"), DELETE: lazy_gettext("deleted")}
CHANGED = lazy_gettext("changed")
Row = tuple[str, str]  # table, id


@dataclass(frozen=True)
class CollectionVisibility:
    """The collections that the caller may list completely (`opened`), and the others (`closed`)."""

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
def show_dashboard(scope: AccountScope) -> str:
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
        "webhooks": failing_webhooks(MAX_FAILING, by=scope.by),
        "failed": by_workflow(instances.failed(MAX_SCANNED, by=scope.by), MAX_FAILING, by=scope.by),
        "has_webhooks": has_webhooks(account_id),
        "changes": changes(scope, visibility.opened),
        "ask": scopes.ASK_SUPERADMINS,
    }


def _figures(scope: AccountScope, records: int) -> Sequence[Figure]:
    at, account_id = scope.url_args, scope.account.id
    team_at = at if guard.require_caller().is_superadmin else {}
    people, webhooks = User.account_id == account_id, Webhook.account_id == account_id
    home = "show_record_collections"
    return [
        charts.linked(gettext("People"), charts.format_count(User, people), "show_team", **team_at),
        charts.linked(gettext("Collections"), charts.format_count(Collection), home, **at),
        charts.linked(gettext("Records"), lists.format_number(records), home, **at),
        charts.linked(
            gettext("Webhooks"), charts.format_count(Webhook, webhooks), "show_webhooks", **at
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


@dataclass
class FailedWorkflow:
    """The failed instances of one workflow, the newest of them first."""

    latest: FailedInstance
    reason: str | None
    """The error of the newest."""
    count: int = 0


@dataclass(frozen=True)
class FailingWebhook:
    """A webhook that fails or is disabled, and how many deliveries it did not receive."""

    webhook: Webhook
    undelivered: Undelivered
    reason: str | int | None
    """The error or the status of the newest attempt that failed."""


def failing_webhooks(limit: int, *, by: Principal) -> Sequence[FailingWebhook]:
    """Failing and disabled webhooks, longest failing first."""
    found, everything = webhooks.failing(limit, by=by), Selection(resend.EARLIEST, clock.now())
    numbers = resend.count_undelivered(found, everything, lists.MAX_COUNTED)
    reasons = log.latest_failures(found)
    return [
        FailingWebhook(webhook, number, reasons.get(webhook.id))
        for webhook, number in zip(found, numbers, strict=True)
    ]


def by_workflow(
    failed: Iterable[FailedInstance], limit: int, *, by: Principal
) -> Sequence[FailedWorkflow]:
    """Failed instances, newest first, grouped by their workflow."""
    groups: dict[tuple[str, str], FailedWorkflow] = {}
    for instance in failed:
        key = (instance.account_id, instance.workflow_id)
        if key not in groups:
            shown_accounts.note(instance.account_id)
            reason = instances.visible_error(instance, by)
            groups[key] = FailedWorkflow(instance, reason)
        groups[key].count += 1
    return list(groups.values())[:limit]


@dataclass(frozen=True)
class Step:
    """A step, its page, and whether it is done."""

    name: str
    help: str
    url: str
    is_done: bool


def first_steps(caller: Principal, *, has_records: bool) -> Sequence[Step]:
    """The steps for an admin; none once all are done."""
    found = list(_instance_steps(has_records) if caller.is_superadmin else _steps(caller))
    return [] if all(step.is_done for step in found) else found


def _instance_steps(has_records: bool) -> Iterator[Step]:
    collections = definitions.get_all()
    ruled = any(one.rules.get(f"{name}_rule") for one in collections for name in OPERATIONS)
    account = next(iter(navigation.recent_accounts()), None)
    closed = next(iter(collections), None)
    yield Step(
        gettext("Define a collection"),
        gettext(
            "A table with typed fields, shared by all accounts; each account has its own records."
        ),
        url_for("console.show_new_collection"),
        bool(collections),
    )
    yield Step(
        gettext("Write its rules"),
        gettext("Who may list, view, create, update and delete its records."),
        url_for("console.show_rules", collection_id=closed.id)
        if closed
        else url_for("console.show_collections"),
        ruled,
    )
    yield Step(
        gettext("Create an account"),
        gettext("A customer with users of its own."),
        url_for("console.show_new_account"),
        _exists(Account, Account.id != SYSTEM_ACCOUNT_ID, Account.closed_at.is_(None)),
    )
    yield Step(
        gettext("Enter a record"),
        gettext("In the console, or by the REST API."),
        url_for("console.show_record_collections", account_id=account.id)
        if account
        else url_for("console.show_records_home"),
        has_records,
    )


def _steps(caller: Principal) -> Iterator[Step]:
    account_id = caller.require_account_id()
    yield Step(
        gettext("Invite people"),
        gettext("Colleagues get a mail with a link."),
        url_for("console.show_invite"),
        _exists(User, User.account_id == account_id, User.id != caller.user_id),
    )
    yield Step(
        gettext("Create an API key"),
        gettext("Your programs read and write records with it."),
        url_for("console.show_new_key"),
        _exists(ApiKey, ApiKey.account_id == account_id),
    )
    yield Step(
        gettext("Set up a webhook"),
        gettext("Your programs are notified of changes."),
        url_for("console.show_new_webhook", account_id=account_id),
        has_webhooks(account_id),
    )


def has_webhooks(account_id: str) -> bool:
    return _exists(Webhook, Webhook.account_id == account_id)


def _exists(model: Any, *where: Any) -> bool:
    return bool(db.db.session.scalar(sa.select(sa.exists(sa.select(model.id).where(*where)))))


@dataclass(frozen=True)
class Change:
    """Successive changes of one user to rows of one kind."""

    what: str
    verb: str
    who: str
    when: datetime
    """The time of the last of them."""
    row: Row | None
    """The changed row, if it is only one."""
    target: str | None
    """Its page, or the list of several."""
    list_target: str | None
    count: int = 1
    name: str | None = None

    def is_like(self, other: Change) -> bool:
        """Whether the same user did the same to things of the same kind."""
        return (self.what, self.verb, self.who) == (other.what, other.verb, other.who)

    def plus(self, older: Change) -> Change:
        if self.row == older.row:
            return replace(self, count=self.count + 1)
        return replace(self, count=self.count + 1, row=None, target=self.list_target)


def changes(scope: AccountScope, collections: Sequence[Definition]) -> list[Change]:
    """The newest changes, those in a row that are alike as one; of records, only `collections`'."""
    by_table, found = ByFormerName(collections), list[Change]()
    for row in recent.changes(scope.account.id, MAX_CHANGES):
        collection = by_table.find(row.table_name, row.occurred_at)
        if collection is None and row.table_name.startswith(tables.PREFIX):
            continue
        change = _change(scope, collection, row)
        if found and found[-1].is_like(change):
            found[-1] = found[-1].plus(change)
        else:
            found.append(change)
    shown = found[:MAX_RECENT]
    names = _names(scope, collections, [one.row for one in shown if one.row])
    return [replace(one, name=names.get(one.row)) if one.row else one for one in shown]


def _change(scope: AccountScope, collection: Definition | None, row: Any) -> Change:
    verb = str(VERBS.get(row.operation, CHANGED))
    actor = writers.acting(row.user_email or row.user_id, writers.means(audit.named(row._mapping)))
    if collection is None:
        label, target = _list_link(scope, row)
        own = (row.table_name, row.record_id)
        return Change(label, verb, actor, row.occurred_at, own, target, target)
    url_args = {**scope.url_args, "name": collection.name}
    target = all_records = url_for("console.show_records", **url_args)
    if row.operation != DELETE and row.record_id:
        target = url_for("console.show_record", record_id=row.record_id, **url_args)
    what = gettext("Record of %(collection)s", collection=collection.name)
    own = (collection.table_name, row.record_id)
    return Change(what, verb, actor, row.occurred_at, own, target, all_records)


def _names(
    scope: AccountScope, collections: Sequence[Definition], rows: Sequence[Row]
) -> dict[Row, str]:
    """The names of rows that still exist, in one statement."""
    ids = defaultdict[str, list[str]](list)
    for table, id in rows:
        ids[table].append(id)
    records = (one for one in collections if one.table_name in ids)
    queries = {
        one.table_name: references.label_query(one, ids[one.table_name], scope.by)
        for one in records
    }
    for table in ids.keys() - {"accounts"}:
        name = audit_names.name_column(table)
        if name is not None and not audit_names.is_shared(table):
            queries[table] = _name_query(table, name, ids[table], scope.account.id)
    found = [
        query.add_columns(sa.literal(table).label("of"))
        for table, query in queries.items()
        if query is not None
    ]
    named = db.connection().execute(sa.union_all(*found)) if found else ()
    return {(row.of, row.id): display.shorten(row.label) for row in named if row.label}


def _name_query(
    table: str, name: sa.ColumnElement[Any], ids: Sequence[str], account_id: str
) -> sa.Select[Any]:
    columns = Base.metadata.tables[table].c
    query = sa.select(columns.id, name.label("label"))
    return query.where(columns.account_id == account_id, columns.id.in_(ids))


def _list_link(scope: AccountScope, row: Any) -> tuple[str, str | None]:
    table: str = row.table_name
    noun = None if audit_names.is_shared(table) else audit_names.nouns().get(table)
    label = str(noun.singular) if noun else table.replace("_", " ").capitalize()
    if noun is None or noun.list_page is None:
        return label, None
    # Some pages name the account also in one's own.
    rules = current_app.url_map.iter_rules(noun.list_page)
    own = (
        {"account_id": scope.account.id} if all("account_id" in r.arguments for r in rules) else {}
    )
    return label, url_for(noun.list_page, **{**scope.url_args, **own})
