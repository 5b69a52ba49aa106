"""The steps of a workflow version (immutable, so cached) and their owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app import db
from app.auth import principal as principals
from app.auth.principal import Principal
from app.collections import definitions, masking
from app.context import tenancy
from app.db import versioned_cache
from app.db.types import json_equal
from app.errors import Forbidden, NotFound
from app.types import JSONMapping
from app.workflows.language import definition, step_headers
from app.workflows.language.definition import Series, Written
from app.workflows.models import INSTANCES, VERSIONS, Trigger, Workflow, WorkflowVersion

MAX_LISTED = 100
OWNER_GONE = "The workflow's owner lost access. An admin must save the workflow again."
SEES_LESS = (
    "The owner may see more of the triggering records than you. Save the steps as well to become"
    " the owner."
)
NOT_ADMIN = "The workflow's owner is no longer an admin. Only admins may send requests and mails."


@dataclass(frozen=True)
class Version:
    """The steps that an instance runs."""

    account_id: str
    workflow_id: str
    steps: Sequence[Written]
    series: Series
    owner_id: str
    owner_home: str

    def owner(self) -> Principal:
        """The principal of the steps, as of now. Raises Forbidden.

        If the owner may no longer act, the user who last saved exactly these steps: rights never
        apply to steps that their user has not seen.
        """
        try:
            return owner(self.account_id, self.owner_home, self.owner_id)
        except Forbidden:
            return owner(self.account_id, *self.latest_owner())

    def latest_owner(self) -> tuple[str, str]:
        """Account and id of the user who last saved exactly these steps."""
        query = sa.select(Workflow.owner_home, Workflow.owner_id, Workflow.steps).where(
            Workflow.account_id == self.account_id, Workflow.id == self.workflow_id
        )
        row = db.connection().execute(query).first()
        if row is None or not json_equal(
            step_headers.comparable(row.steps), step_headers.comparable(self.steps)
        ):
            return self.owner_home, self.owner_id
        return row.owner_home, row.owner_id


def owner(account_id: str, home: str, user_id: str) -> Principal:
    """A user acting in an account. Raises Forbidden if that is no longer possible."""
    principal = principals.for_user(home, user_id)
    if principal is None or (home != account_id and not principal.is_superadmin):
        raise Forbidden(OWNER_GONE)
    return principal if home == account_id else principals.choose_account(principal, account_id)


def current_owner(account_id: str, home: str, user_id: str) -> Principal:
    """The result of `owner`, verified against the database. Raises Forbidden."""
    try:
        principal = owner(account_id, home, user_id)
        with tenancy.scoped_to(principal.tenancy):
            versioned_cache.verify(principal.version_checks)
    except (Forbidden, versioned_cache.Stale):
        with versioned_cache.reloading():
            return owner(account_id, home, user_id)
    return principal


def check_view(workflow: Workflow, trigger: JSONMapping, by: Principal) -> None:
    """Check that the caller may change the trigger of another owner's steps. Raises Forbidden.

    Conditions reveal what the owner sees of an event, so they need at least the owner's view.
    """
    if trigger.get("type") != Trigger.EVENT or by.is_superadmin:
        return
    try:
        owner_now = current_owner(workflow.account_id, workflow.owner_home, workflow.owner_id)
    except Forbidden:
        return
    sees_more = masking.masks_for(by) and not masking.masks_for(owner_now)
    if owner_now.is_superadmin or (sees_more and _may_be_personal(trigger.get("collection"))):
        raise Forbidden(SEES_LESS)


def _may_be_personal(collection: str | None) -> bool:
    try:
        return not collection or bool(definitions.get_current(collection).personal)
    except NotFound:
        return True  # created later, perhaps with personal fields


def uses(account_id: str, workflow_id: str, limit: int) -> dict[int, sa.Row[*tuple[Any, ...]]]:
    """The number and the last start of instances by version, of a workflow's newest `limit`."""
    mine = (INSTANCES.c.account_id == account_id, INSTANCES.c.workflow_id == workflow_id)
    columns = (INSTANCES.c.version, INSTANCES.c.created_at)
    newest = sa.select(*columns).where(*mine).order_by(INSTANCES.c.id.desc()).limit(limit)
    found = newest.subquery()
    figures = (sa.func.count().label("number"), sa.func.max(found.c.created_at).label("last_at"))
    query = sa.select(found.c.version, *figures).group_by(found.c.version)
    return {row.version: row for row in db.connection().execute(query)}


def name_of(account_id: str, workflow_id: str) -> str | None:
    """The present name of a workflow; None if it is deleted."""
    mine = (Workflow.account_id == account_id, Workflow.id == workflow_id)
    with tenancy.in_account(account_id):
        return db.connection().scalar(sa.select(Workflow.name).where(*mine))


def saved(account_id: str, workflow_id: str) -> dict[int, sa.Row[*tuple[Any, ...]]]:
    """Owner and time of each of the newest MAX_LISTED stored versions, newest first."""
    mine = (VERSIONS.c.account_id == account_id, VERSIONS.c.workflow_id == workflow_id)
    query = sa.select(VERSIONS.c.version, VERSIONS.c.owner_id, VERSIONS.c.saved_at).where(*mine)
    newest = query.order_by(VERSIONS.c.version.desc()).limit(MAX_LISTED)
    return {row.version: row for row in db.connection().execute(newest)}


def get(account_id: str, workflow_id: str, version: int) -> Version | None:
    """A version of a workflow; None if it is removed."""
    key = (account_id, workflow_id, version)
    return versioned_cache.cache("workflow_versions").get(key, lambda: _load(key))


def _load(key: tuple[str, str, int]) -> Version | None:
    row = db.db.session.get(WorkflowVersion, key)
    if row is None:
        return None
    series = definition.parse_series(row.steps)
    return Version(row.account_id, row.workflow_id, row.steps, series, row.owner_id, row.owner_home)
