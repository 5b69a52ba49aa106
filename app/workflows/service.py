"""The workflows and hooks of an account (contract section 9).

Steps run with the rights of the user who saved them last: taking over a workflow gives no rights
of the previous owner, and changing only the trigger lends it none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from cryptography.fernet import InvalidToken

from app import clock, config, crypto, db, events, jobs
from app.accounts import service as accounts
from app.accounts.models import Account
from app.auth import principal as principals
from app.auth import tokens
from app.auth.principal import Principal
from app.db import errors
from app.db.types import json_equal
from app.errors import Conflict, InvalidValues, NotFound, problem
from app.ids import new_id
from app.types import JSONMapping, JSONObject
from app.webhooks import versions as listeners
from app.workflows import versions
from app.workflows.language import checks, definition, step_headers
from app.workflows.models import MANUAL, WEBHOOK, WORKFLOW, Workflow, WorkflowVersion
from app.workflows.triggers import matching, schedules, start

Body = JSONMapping
# The steps have their sender's rights for good: they would outlive the key.
NO_KEYS = "API keys cannot create or change workflows and hooks. Sign in as a user."
STARTING = ("trigger", "condition")  # what says when the steps are done


def page(
    wanted: Body, skip: int, limit: int, *, by: Principal, kind: str = WORKFLOW
) -> tuple[list[Workflow], int]:
    """The workflows of the account, oldest first, and the total."""
    mine = [*_visible(by), Workflow.kind == kind]
    for name in ("trigger_type", "enabled"):
        if wanted.get(name) is not None:
            mine.append(getattr(Workflow, name) == wanted[name])
    total = db.db.session.scalar(sa.select(sa.func.count()).select_from(Workflow).where(*mine))
    chosen = sa.select(Workflow).where(*mine).order_by(Workflow.id).offset(skip).limit(limit)
    return list(db.db.session.scalars(chosen)), total or 0


def get(workflow_id: str, *, by: Principal, kind: str = WORKFLOW) -> Workflow:
    """One workflow. Raises NotFound."""
    return _found(db.db.session.scalar(_named(workflow_id, by, kind)), kind)


def create(body: Body, *, by: Principal, kind: str = WORKFLOW, id: str | None = None) -> Workflow:
    """Create a workflow. Raises InvalidValues, Conflict."""
    by.refuse_key(NO_KEYS)
    account_id, (home, user_id) = by.require_account_id(), by.home_and_user()
    values = _checked(body, None)
    there = errors.conflict_on_unique(
        "workflows", "id", "id", f"A {kind} with this id already exists."
    )
    with there, db.transaction() as session:
        listeners.outdate(account_id)
        _check_number(account_id, kind)
        workflow = Workflow(
            account_id=account_id,
            id=id or new_id(),
            kind=kind,
            version=1,
            created_by=user_id,
            owner_id=user_id,
            owner_home=home.id,
            **values,
        )
        _settle_token(workflow)
        session.add(workflow)
        _keep_version(workflow)
        session.flush()
        schedules.plan(workflow)
    return workflow


def change(
    workflow_id: str,
    body: Body,
    *,
    by: Principal,
    kind: str = WORKFLOW,
    takes_over: bool | None = None,
) -> Workflow:
    """Change a workflow; omitted properties keep their values.

    Sending steps makes the caller the owner, unless `takes_over` says otherwise. Raises NotFound,
    InvalidValues, Forbidden.
    """
    by.refuse_key(NO_KEYS)
    home, user_id = by.home_and_user()
    takes_over = "steps" in body if takes_over is None else takes_over
    _checked(body, get(workflow_id, by=by, kind=kind))  # out here names of hosts are looked up
    with changing(workflow_id, by, kind) as workflow:
        values = _checked(body, workflow)
        acting = {name: values[name] for name in (*STARTING, "steps") if name in values}
        changed = {name for name, value in acting.items() if _is_new(workflow, name, value)}
        if not takes_over and changed & set(STARTING):
            versions.check_sight(workflow, values.get("trigger", workflow.trigger), by)
        new_owner = takes_over and workflow.owner_id != user_id
        for name, value in values.items():
            setattr(workflow, name, value)
        _settle_token(workflow)
        if new_owner:
            workflow.owner_id, workflow.owner_home = user_id, home.id
        if new_owner or changed:
            workflow.version += 1
            _keep_version(workflow)
        _settle(workflow)
    return workflow


def toggle(
    workflow_id: str, enabled: bool | None, *, by: Principal, kind: str = WORKFLOW
) -> Workflow:
    """Enable or disable a workflow; without `enabled`, switch it."""
    with changing(workflow_id, by, kind) as workflow:
        workflow.enabled = (not workflow.enabled) if enabled is None else enabled
        _settle(workflow)
    return workflow


def delete(workflow_id: str, *, by: Principal, kind: str = WORKFLOW) -> None:
    """Delete a workflow; a job removes its instances."""
    with changing(workflow_id, by, kind) as workflow:
        schedules.forget(workflow.account_id, workflow.id)
        db.db.session.delete(workflow)
        removed = {"workflow_id": workflow.id}
        jobs.enqueue("workflows.remove", removed, account_id=workflow.account_id)


def trigger(workflow_id: str, body: Body, *, by: Principal, kind: str = WORKFLOW) -> str:
    """Start an instance by hand; returns its id. Raises NotFound, Conflict, LimitReached."""
    by.require_account_id()
    with db.transaction() as session:
        workflow = _found(session.scalar(_staying(_named(workflow_id, by, kind))), kind)
        if not workflow.enabled:
            raise Conflict(f"The {kind} is disabled.", error="disabled")
        return _begun(workflow, body, MANUAL)


def trigger_by_token(token: str, body: Body) -> str:
    """Start an instance by the workflow's token; returns its id.

    Raises NotFound, LimitReached.
    """
    with db.transaction() as session:
        code = token.partition("-")[0] if token.isprintable() else ""
        mine = sa.select(Account.id).where(Account.account_code == code).scalar_subquery()
        named = (Workflow.account_id == mine, Workflow.token_key == _digest(token))
        workflow = session.scalar(_staying(sa.select(Workflow).where(*named, Workflow.enabled)))
        if workflow is None or not _is_open(workflow.account_id):
            raise NotFound("No workflow with this token.")
        return _begun(workflow, body, WEBHOOK)


def shown_trigger(workflow: Workflow) -> JSONObject:
    """The trigger, with its token if it has one."""
    try:
        token = crypto.decrypt(workflow.token) if workflow.token else None
    except InvalidToken:  # encrypted with a key that the settings do not name any more
        token = None
    return {**workflow.trigger, "token": token} if token else dict(workflow.trigger)


def _begun(workflow: Workflow, body: Body, trigger_type: str) -> str:
    return start.start(start.row(workflow, dict(body), trigger_type))


def _is_open(account_id: str) -> bool:
    return principals.reload_active_account(account_id) is not None


def _checked(body: Body, before: Workflow | None) -> JSONObject:
    values, found = dict(body), list[Any]()
    if "name" in values and (unreadable := accounts.label_problem(values["name"])):
        found.append(unreadable)
    if "trigger" in values:
        trigger = matching.normal(values["trigger"])
        found += matching.problems(trigger) + _token_problems(trigger, before)
        values["trigger"] = {name: one for name, one in trigger.items() if name != "token"}
        values["trigger_type"] = trigger.get("type")
    if "steps" in values:
        steps, stored = definition.normal(values["steps"]), before.steps if before else []
        found += checks.problems(steps) or step_headers.problems(steps, stored)
        values["steps"] = steps if found else step_headers.encrypted(steps, stored)
    if found:
        raise InvalidValues(found)
    return values


def _token_problems(trigger: Body, before: Workflow | None) -> list[JSONObject]:
    sent = trigger.get("token")
    known = shown_trigger(before).get("token") if before else None
    if sent is None or sent == known:
        return []
    message = "The service generates the token."
    return [problem("trigger.token", "field_read_only", message)]


def _is_new(workflow: Workflow, name: str, value: Any) -> bool:
    before = getattr(workflow, name)
    if name == "steps":
        value, before = step_headers.comparable(value), step_headers.comparable(before)
    return not json_equal(value, before)


def _settle_token(workflow: Workflow) -> None:
    if workflow.trigger_type != WEBHOOK:
        workflow.token = workflow.token_key = None
    elif not workflow.token:
        code = sa.select(Account.account_code).where(Account.id == workflow.account_id)
        token = tokens.random_token(db.db.session.scalars(code).one())
        workflow.token, workflow.token_key = crypto.encrypt(token), _digest(token)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _keep_version(workflow: Workflow) -> None:
    series = definition.series_of(workflow.steps)
    db.db.session.add(
        WorkflowVersion(
            account_id=workflow.account_id,
            workflow_id=workflow.id,
            version=workflow.version,
            steps=workflow.steps,
            awaits=definition.awaited(series),
            owner_id=workflow.owner_id,
            owner_home=workflow.owner_home,
        )
    )


@contextmanager
def changing(workflow_id: str, by: Principal, kind: str) -> Iterator[Workflow]:
    """A workflow in a transaction that serializes its changes. Raises NotFound."""
    account_id = by.require_account_id()
    with db.transaction() as session:
        chosen = _named(workflow_id, by, kind)
        _found(session.scalar(chosen), kind)
        listeners.outdate(account_id)
        # Whoever was waited for may have changed or deleted it.
        yield _found(session.scalar(chosen.execution_options(populate_existing=True)), kind)
        session.flush()


def _settle(workflow: Workflow) -> None:
    workflow.updated_at = clock.now()
    schedules.plan(workflow)


def _check_number(account_id: str, kind: str) -> None:
    limit = config.current().workflows_per_account
    mine = (Workflow.account_id == account_id, Workflow.kind == kind)
    counted = sa.select(sa.func.count()).select_from(Workflow).where(*mine)
    if (db.db.session.scalar(counted) or 0) >= limit:
        message = f"An account may have at most {limit} {kind}s."
        raise Conflict(message, error="limit_reached")


def _visible(by: Principal) -> list[Any]:
    return [] if by.account_id is None else [Workflow.account_id == by.account_id]


def _named(workflow_id: str, by: Principal, kind: str) -> sa.Select[Workflow]:
    which = (Workflow.id == workflow_id.lower(), Workflow.kind == kind)
    return sa.select(Workflow).where(*which, *_visible(by))


def _staying(chosen: sa.Select[Workflow]) -> sa.Select[Workflow]:
    """The same query, with a lock that prevents deletion until the transaction ends."""
    return chosen.with_for_update(read=True, key_share=True)


def _found(workflow: Workflow | None, kind: str) -> Workflow:
    if workflow is None:
        raise NotFound(f"No {kind} with this id.")
    return workflow


@events.subscribe(events.AccountClosed)
def _remove_later(event: events.AccountClosed) -> None:
    listeners.outdate(event.account_id)
    schedules.forget(event.account_id)
    mine = sa.delete(Workflow).where(Workflow.account_id == event.account_id)
    db.connection().execute(mine)
    jobs.enqueue("workflows.remove", {"workflow_id": None}, account_id=event.account_id)
