"""Sample data for a first look: an account with two collections and their records."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from flask import flash, redirect, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.accounts import tenants
from app.auth import principal as principals
from app.collections import definitions, table
from app.collections import service as collections
from app.console.shell import guard
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import redirect_with_notice
from app.errors import NotFound
from app.records import service as records
from app.rules import OPERATIONS
from app.types import JSONObject
from app.web.languages import gettext

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
