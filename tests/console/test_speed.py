"""How soon pages begin where there is much of everything, on SQLite: by the processor's time."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.console.shell.access import SUPERADMIN
from tests.builders import Cast
from tests.console import furnished
from tests.console.browser import Browser

pytestmark = pytest.mark.slow
MANY = 100_000
SECONDS, TRIES = 0.06, 7
# A row many times, with ids that go on in the order of time; further columns by table.
NEW_ID = "printf('01a9%04x-%04x-7000-8000-%012x', i >> 16, i & 65535, i)"
MOMENT = "strftime('%Y-%m-%dT%H:%M:%S.000000Z', 'now', '-' || ((:many - i) * 20) || ' seconds')"
BOB = "(SELECT id FROM users WHERE email = 'bob@acme.example')"
MULTIPLIED: Mapping[str, Mapping[str, str]] = {
    "col_books": {"id": NEW_ID, "title": "'title ' || i", "created_at": MOMENT, "pages": "i"},
    "users": {"id": NEW_ID, "email": "'u' || i || '@x.example'", "email_key": "'u' || i"},
    "sessions": {"id": NEW_ID, "token_hash": NEW_ID, "created_at": MOMENT, "user_id": BOB},
    "webhook_deliveries": {"id": NEW_ID, "created_at": MOMENT},
    "workflow_instances": {"id": NEW_ID, "created_at": MOMENT},
    "jobs": {"id": NEW_ID, "due_at": MOMENT},
    "api_keys": {"id": NEW_ID, "key_hash": NEW_ID, "name": "'key ' || i"},
    "invitations": {"id": NEW_ID, "email": "'i' || i || '@x.example'", "token_hash": NEW_ID},
    "groups": {"id": NEW_ID, "name": "'group ' || i", "name_key": "'group ' || i"},
    "audit_changes": {
        **dict.fromkeys(("first_id", "last_id"), "1000000 + i"),
        "entries": "1",
        "occurred_at": MOMENT,
        "record_id": NEW_ID,
    },
}
# What is asked beyond what the pages' own addresses ask.
ASKED = {
    "show_records": ("page=3", "sort=title", "sort=-pages", "field_0=pages&op_0=%3D&value_0=7777"),
    "show_search": ("search=title+5", "search=nowhere", "search=title&account=acme"),
    "show_audit_log": ("page=3", "operation=CREATE", "table_name=col_posts", "person=anonymous"),
    "show_deliveries": ("page=3", "status=failed", "event=records.delete"),
    "show_instances": ("page=3", "status=failed", "status=running"),
    "show_users": ("page=3", "search=u5"),
    "show_team": ("page=3", "search=nobody"),
    "show_jobs": ("page=3", "status=failed", "kind=auth.send_invitation"),
    "show_invitations": ("status=pending",),
}
NO_PAGES = ("start", "sign_in", "start_sso", "finish_sso", "test_provider", "made_key", "export_")
NO_PAGES += ("choose_records", "download_", "open_portal")


def multiply(table: str, columns: Mapping[str, str], account_id: str) -> None:
    """Copy the newest row of an account in a table many times."""
    every = [one["name"] for one in sa.inspect(db.connection()).get_columns(table)]
    values = ", ".join(columns.get(name, name) for name in every)
    first = "first_id" if "first_id" in every else "id"
    db.db.session.execute(
        sa.text(
            f"INSERT INTO {table} ({', '.join(every)})"  # noqa: S608
            " WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :many)"
            f" SELECT {values} FROM n, (SELECT * FROM {table} WHERE account_id = :account"
            f" ORDER BY {first} DESC LIMIT 1)"
        ),
        {"many": MANY, "account": account_id},
    )


@pytest.mark.parametrize("database", ["sqlite"])
def test_console_pages_first_byte_time_with_many_rows(
    app: Flask, cast: Cast, admin: Browser, superadmin: Browser, database: str
) -> None:
    pages = furnished.addresses(app, furnished.furnish(app, cast))
    with app.app_context(), db.transaction():
        for table, columns in MULTIPLIED.items():
            multiply(table, columns, cast.alice.account_id)
    slow = {}
    for browser, closed in ((admin, SUPERADMIN), (superadmin, None)):
        for endpoint, path in pages.items():
            name = endpoint.removeprefix("console.")
            role = app.view_functions[endpoint].page.role  # type: ignore[attr-defined]
            if name.startswith(NO_PAGES) or role is closed:
                continue
            for one in (path, *(f"{path}?{asked}" for asked in ASKED.get(name, ()))):
                taken = min(cpu_time(browser, one) for _ in range(TRIES))
                print(f"{taken * 1000:7.1f} ms  {'admin' if closed else 'superadmin'} {one}")  # noqa: T201
                if taken >= SECONDS:
                    slow[one] = round(taken * 1000)
    assert slow == {}


def cpu_time(browser: Browser, path: str) -> float:
    """What the processor takes until a page is there."""
    begun = time.process_time()
    answer = browser.client.get(path, follow_redirects=True)
    taken = time.process_time() - begun
    assert answer.status_code in (200, 404), (answer.status_code, path)
    return taken
