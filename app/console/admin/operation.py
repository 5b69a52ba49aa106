"""For superadmins: revisions of the schema, the health of this process, mails in development."""

from __future__ import annotations

import re

from flask import Response, render_template

from app import config, db, rest
from app.audit import append
from app.collections import revisions
from app.console.shell import guard, lists
from app.console.shell.blueprint import blueprint
from app.console.shell.lists import SIZE
from app.db import disk
from app.errors import NotFound
from app.ops import readiness
from app.outbound import mail
from app.rest.access import public

LINK = re.compile(r"https?://[^\s<>\"]+")
DATABASES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


@blueprint.get("/console/migrations")
@public
@guard.for_superadmins
def show_migrations() -> str:
    """The revisions of the schema: the service's own, and those that collections brought."""
    listing, found = lists.asked_for("console.show_migrations"), revisions.listing()
    part = found["revisions"][listing.skip : listing.skip + SIZE]
    listing.holding((part, found["total"]))
    return render_template(
        "console/operation/migrations.html", listing=listing, current=found["current_revision"]
    )


@blueprint.get("/console/health")
@public
@guard.for_superadmins
def show_health() -> str:
    """Whether what this process needs is there, and what it works with."""
    settings, checks = config.current(), readiness.checks()
    facts = {
        "Version": rest.VERSION,
        "Environment": settings.env,
        "Address": settings.base_url,
        "Database": DATABASES[db.connection().dialect.name],
        "Queue": "Redis wakes the workers" if settings.redis_url else "workers look every second",
        "Mails": "written to files" if mail.is_saved_to_files() else "sent by SMTP",
        "Audit log": "on" if append.enabled() else "off",
    }
    file = db.sqlite_file()
    left = disk.free_bytes(file) if file else None
    if left is not None:
        facts["Free on the disk"] = f"{left // disk.MIB:,} MiB"
    return render_template("console/operation/health.html", checks=checks, facts=facts)


@blueprint.get("/console/outbox")
@public
@guard.for_superadmins
def show_outbox() -> str:
    """The mails that development writes to files instead of sending them."""
    listing, names = lists.asked_for("console.show_outbox"), _names()
    part = [mail.load_saved(name) for name in names[listing.skip : listing.skip + SIZE]]
    listing.holding((part, len(names)))
    return render_template("console/operation/outbox.html", listing=listing)


@blueprint.get("/console/outbox/<name>")
@public
@guard.for_superadmins
def show_mail(name: str) -> str | Response:
    """One such mail, and the links of this service in it."""
    if name not in _names():
        raise NotFound("There is no such mail.")
    shown, home = mail.load_saved(name), config.current().base_url
    links = [one for one in LINK.findall(shown.text) if one.startswith(f"{home}/")]
    return render_template("console/operation/mail.html", mail=shown, links=links)


def _names() -> list[str]:
    # Links in mails open accounts: nobody else reads them where there is something to protect.
    if config.current().production or not mail.is_saved_to_files():
        raise NotFound("Mails are kept for reading in development only.")
    return mail.saved_names()
