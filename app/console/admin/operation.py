"""Schema revisions, health and the development outbox, for superadmins."""

from __future__ import annotations

import re

from flask import Response, render_template

from app import config, db, rest
from app.audit import append
from app.collections import revisions
from app.console.shell import guard, lists
from app.console.shell.blueprint import blueprint
from app.console.shell.lists import PAGE_SIZE
from app.db import disk
from app.errors import NotFound
from app.http.languages import gettext, lazy_gettext
from app.ops import readiness
from app.outbound import mail
from app.rest.access import public

LINK = re.compile(r"(https?://[^\s<>\"]+)")
DATABASES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
CHECKS = {
    "database": lazy_gettext("Database"),
    "migrations": lazy_gettext("Migrations"),
    "disk": lazy_gettext("Disk"),
    "queue": lazy_gettext("Queue"),
}


@blueprint.get("/console/migrations")
@public
@guard.superadmins_only
def show_migrations() -> str:
    """The schema revisions of the service and of collections."""
    listing, revision_list = lists.from_request("console.show_migrations"), revisions.listing()
    part = revision_list["revisions"][listing.skip : listing.skip + PAGE_SIZE]
    listing.with_page((part, revision_list["total"]))
    return render_template(
        "console/operation/migrations.html",
        listing=listing,
        current=revision_list["current_revision"],
        pending=sum(not one["is_applied"] for one in revision_list["revisions"]),
    )


@blueprint.get("/console/health")
@public
@guard.superadmins_only
def show_health() -> str:
    """The health of this process and its main settings."""
    settings = config.current()
    checks = readiness.checks()
    details = {"database": DATABASES[db.connection().dialect.name]}
    facts = {
        gettext("Version"): rest.VERSION,
        gettext("Environment"): settings.env,
        gettext("Address"): settings.base_url,
        gettext("Queue"): gettext("Redis notifies the workers")
        if settings.redis_url
        else gettext("workers poll every second"),
        gettext("Mails"): gettext("written to files")
        if mail.is_saved_to_files()
        else gettext("sent by SMTP"),
        gettext("Audit log"): gettext("on") if append.enabled() else gettext("off"),
    }
    file = db.sqlite_file()
    left = disk.free_bytes(file) if file else None
    if left is not None:
        details["disk"] = gettext("%(size)s free", size=lists.format_size(left))
    return render_template(
        "console/operation/health.html", checks=checks, names=CHECKS, details=details, facts=facts
    )


@blueprint.get("/console/outbox")
@public
@guard.superadmins_only
def show_outbox() -> str:
    """The mails that development writes to files."""
    listing, names = lists.from_request("console.show_outbox"), _names()
    part = [mail.load_saved(name) for name in names[listing.skip : listing.skip + PAGE_SIZE]]
    listing.with_page((part, len(names)))
    return render_template("console/operation/outbox.html", listing=listing)


@blueprint.get("/console/outbox/<name>")
@public
@guard.superadmins_only
def show_mail(name: str) -> str | Response:
    """One such mail and its links to this service."""
    if name not in _names():
        raise NotFound(gettext("No mail with this name."))
    message, home = mail.load_saved(name), config.current().base_url
    parts = [
        {"text": part, "is_link": part.startswith(f"{home}/")} for part in LINK.split(message.text)
    ]
    return render_template("console/operation/mail.html", mail=message, parts=parts)


def _names() -> list[str]:
    # Mailed links give access to accounts, so production never shows them.
    if config.current().production or not mail.is_saved_to_files():
        raise NotFound(gettext("The outbox exists in development only."))
    return mail.saved_names()
