"""The names of those who created and changed records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from app import db
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.audit import sealing
from app.audit.models import AuditChange
from app.collections import people
from app.console.shell.scopes import AccountScope
from app.context import tenancy
from app.context.actor import ActorKind
from app.types import JSONMapping
from app.web.languages import gettext, lazy_gettext

FIELDS = ("created_by", "updated_by")
KINDS: dict[str, str] = {
    ActorKind.USER: lazy_gettext("User"),
    ActorKind.API_KEY: lazy_gettext("API key"),
    ActorKind.WORKFLOW: lazy_gettext("Workflow"),
    ActorKind.SERVICE: lazy_gettext("Service user"),
    ActorKind.IMPORT: lazy_gettext("Import"),
    ActorKind.EXTENSION: lazy_gettext("Extension"),
    ActorKind.OPERATOR: lazy_gettext("Operator"),
}
ACTORS = {"system": lazy_gettext("System"), "anonymous": lazy_gettext("Anonymous")}


def names(scope: AccountScope, rows: Sequence[JSONMapping]) -> dict[str, str]:
    """The names or addresses of the writers of records, by id; the last ones of deleted users.

    Members see those whom the directory shows them.
    """
    ids = {row[field] for row in rows for field in FIELDS if row.get(field)}
    if not scope.by.is_admin:
        shown = people.labels(scope.by, ids)
        return {id: shown.get(id) or f"…{id[-8:]}" for id in ids}
    users = _users(scope.account.id, ids) if ids else {}
    deleted = ids - users.keys()
    logged = _logged(scope.account.id, deleted) if deleted else {}
    return {
        id: users.get(id) or gettext("%(name)s (deleted)", name=logged.get(id) or "…" + id[-8:])
        for id in ids
    }


def superadmins(ids: Iterable[str]) -> dict[str, str]:
    """The names or addresses of superadmins, by id."""
    return _users(SYSTEM_ACCOUNT_ID, ids)


def actor(change: JSONMapping) -> str:
    """The name of whoever made a change of a record's history."""
    user_id = change["user_id"]
    if user_id in ACTORS:
        return str(ACTORS[user_id])
    name = change["user_name"] or change["user_email"] or f"…{user_id[-8:]}"
    return acting(name, means(change["actor"]))


def means(actor: JSONMapping | None) -> str | None:
    """What acted for a user, in words; None if it is the user."""
    if actor is None or actor["kind"] == ActorKind.USER:
        return None
    kind, name = ActorKind(actor["kind"]), actor["name"]
    if kind in (ActorKind.SERVICE, ActorKind.OPERATOR) or not name:
        return str(KINDS[kind])
    return gettext("%(kind)s “%(name)s”", kind=KINDS[kind], name=name)


def acting(person: str, by: str | None) -> str:
    """The name of a person, with what acted for them."""
    return gettext("%(person)s (%(means)s)", person=person, means=by) if by else person


def _users(account_id: str, ids: Iterable[str]) -> dict[str, str]:
    # Superadmins write, too.
    home = User.account_id.in_((account_id, SYSTEM_ACCOUNT_ID))
    name = sa.func.coalesce(sa.func.nullif(User.name, ""), User.email).label("name")
    with tenancy.across_accounts():
        rows = db.db.session.execute(sa.select(User.id, name).where(home, User.id.in_(ids)))
        return {row.id: row.name for row in rows}


def _logged(account_id: str, ids: Iterable[str]) -> dict[str, str]:
    """The names that the newest changes of users have in the audit log."""
    sealing.settle(account_id)
    name = sa.func.coalesce(sa.func.nullif(AuditChange.user_name, ""), AuditChange.user_email)
    newest = (
        sa.select(AuditChange.user_id, name.label("name"))
        .where(AuditChange.account_id == account_id, AuditChange.user_id == id)
        .order_by(AuditChange.occurred_at.desc(), AuditChange.first_id.desc())
        .limit(1)
        .subquery()
        .select()
        for id in ids
    )
    return {row.user_id: row.name for row in db.db.session.execute(sa.union_all(*newest))}
