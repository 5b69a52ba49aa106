"""The workflows and hooks of an account.

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
from app.auth import owners, tokens
from app.auth import principal as principals
from app.auth.principal import Principal
from app.db import errors
from app.db.types import json_equal
from app.errors import Conflict, InvalidValues, NotFound, problem
from app.ids import new_id
from app.types import JSONMapping, JSONObject
from app.webhooks import versions as listeners
from app.workflows import versions
from app.workflows.language import (
    checks,
    definition,
    missing,
    named_texts,
    recipients,
    step_headers,
)
from app.workflows.models import (
    ACTIVE,
    INSTANCES,
    SUBSCRIPTIONS,
    WORKFLOW,
    Trigger,
    Workflow,
    WorkflowVersion,
)
from app.workflows.triggers import matching, schedules, start

Body = JSONMapping
# Steps keep their owner's rights, so they would outlive the key.
NO_KEYS = "API keys cannot create or change workflows and hooks. Sign in as a user."
TRIGGERING = ("trigger", "condition")  # decide when the steps run


def page(
    filters: Body, skip: int, limit: int, *, by: Principal, kind: str | None = WORKFLOW
) -> tuple[list[Workflow], int]:
    """The workflows of the account, oldest first, and the total; of all kinds without one."""
    conditions = [*_visible(by), *([Workflow.kind == kind] if kind else [])]
    for name in ("trigger_type", "enabled"):
        if filters.get(name) is not None:
            conditions.append(getattr(Workflow, name) == filters[name])
    total = db.db.session.scalar(
        sa.select(sa.func.count()).select_from(Workflow).where(*conditions)
    )
    query = sa.select(Workflow).where(*conditions).order_by(Workflow.id).offset(skip).limit(limit)
    return list(db.db.session.scalars(query)), total or 0


def get(workflow_id: str, *, by: Principal, kind: str = WORKFLOW) -> Workflow:
    """One workflow. Raises NotFound."""
    return _require(db.db.session.scalar(_query(workflow_id, by, kind)), kind)


def create(body: Body, *, by: Principal, kind: str = WORKFLOW, id: str | None = None) -> Workflow:
    """Create a workflow. Raises InvalidValues, Conflict."""
    refuse_key(by)
    account_id, user_id = by.require_account_id(), by.require_user_id()
    home_id, owner_id = owners.choose(account_id, body.get("owner_id"), by=by)
    values = _validated(body, None, by, kind)
    conflict = errors.conflict_on_unique(
        "workflows", "id", "id", f"A {kind} with this id already exists."
    )
    with conflict, db.transaction() as session:
        listeners.outdate(account_id)
        limit = config.current().workflows_per_account
        conditions = (Workflow.account_id == account_id, Workflow.kind == kind)
        query = sa.select(sa.func.count()).select_from(Workflow).where(*conditions)
        if (db.db.session.scalar(query) or 0) >= limit:
            message = f"An account may have at most {limit} {kind}s."
            raise Conflict(message, error="limit_reached")
        workflow = Workflow(
            account_id=account_id,
            id=id or new_id(),
            kind=kind,
            version=1,
            created_by=user_id,
            owner_id=owner_id,
            owner_home=home_id,
            **values,
        )
        _update_token(workflow)
        session.add(workflow)
        _save_version(workflow)
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

    Sending steps makes the caller the owner, unless a service user is, or `takes_over` says
    otherwise. Raises NotFound, InvalidValues, Forbidden.
    """
    refuse_key(by)
    takes_over = "owner_id" in body or ("steps" in body if takes_over is None else takes_over)
    # DNS look-ups happen outside the transaction.
    _validated(body, get(workflow_id, by=by, kind=kind), by, kind)
    with changing(workflow_id, by, kind) as workflow:
        values = _validated(body, workflow, by, kind)
        run_settings = {name: values[name] for name in (*TRIGGERING, "steps") if name in values}
        changed = {name for name, value in run_settings.items() if _is_new(workflow, name, value)}
        if not takes_over and changed & set(TRIGGERING):
            versions.check_view(workflow, values.get("trigger", workflow.trigger), by)
        owner = (workflow.owner_home, workflow.owner_id)
        if takes_over:
            present = workflow.owner_id if workflow.owner_home == workflow.account_id else None
            named = body.get("owner_id")
            owner = owners.choose(workflow.account_id, named, by=by, present=present)
        new_owner = owner != (workflow.owner_home, workflow.owner_id)
        for name, value in values.items():
            setattr(workflow, name, value)
        _update_token(workflow)
        if new_owner:
            workflow.owner_home, workflow.owner_id = owner
        if new_owner or changed:
            workflow.version += 1
            _save_version(workflow)
        _after_change(workflow)
    return workflow


def refuse_key(by: Principal) -> None:
    """Raise Forbidden for API keys, but those of the operator, who names a service user."""
    if not by.is_operator_key:
        by.refuse_key(NO_KEYS)


def preview(
    body: Body, current: Workflow | None, *, by: Principal, kind: str = WORKFLOW
) -> Workflow:
    """The workflow that saving the body would store. Raises InvalidValues."""
    by.refuse_key(NO_KEYS)
    values = {"steps": [], "trigger": {}, **_validated(body, current, by, kind)}
    return Workflow(account_id=by.require_account_id(), id=new_id(), kind=kind, **values)


def restore_version(
    workflow_id: str, number: int, *, by: Principal, kind: str = WORKFLOW
) -> Workflow:
    """Save the steps of an earlier version as the newest; the caller becomes their owner.

    A service user stays the owner. Header values come along, each to the address that it was saved
    for. Raises NotFound,
    InvalidValues, Forbidden.
    """
    workflow = get(workflow_id, by=by, kind=kind)
    version = versions.get(workflow.account_id, workflow.id, number)
    if version is None:
        raise NotFound("There is no such version.")
    steps = step_headers.comparable(version.steps)
    return change(workflow_id, {"steps": steps}, by=by, kind=kind)


def follow_names(
    account_id: str,
    workflow_id: str,
    texts: Body,
    *,
    recipient: tuple[str, str, str] | None = None,
) -> None:
    """Store conditions and filters in which names have changed, in the open transaction.

    And recipients of mails: a kind, its former and its new name.

    The owner stays, as the steps do what they did. Running instances of the present version go on
    with the new one, whose steps are the same but for these names.
    """
    listeners.outdate(account_id)
    own = (Workflow.account_id == account_id, Workflow.id == workflow_id)
    query = sa.select(Workflow).where(*own).execution_options(populate_existing=True)
    workflow = db.db.session.scalars(query).one()
    steps = named_texts.replaced(workflow.steps, texts)
    steps = recipients.renamed(steps, *recipient) if recipient else steps
    if named_texts.TRIGGER in texts:
        workflow.trigger = {**workflow.trigger, "condition": texts[named_texts.TRIGGER]}
    workflow.condition = texts.get(named_texts.CONDITION, workflow.condition)
    former = workflow.version
    workflow.version, workflow.updated_at = former + 1, clock.now()
    before = named_texts.find({}, None, workflow.steps)
    workflow.steps = steps
    _save_version(workflow)
    running = sa.update(INSTANCES).where(
        INSTANCES.c.account_id == account_id,
        INSTANCES.c.workflow_id == workflow_id,
        INSTANCES.c.version == former,
        INSTANCES.c.status.in_(ACTIVE),
    )
    ids = (
        db.connection().scalars(running.returning(INSTANCES.c.id).values(version=former + 1)).all()
    )
    for place, text in before.items():
        if texts.get(place, text) != text and ids:
            waiting = sa.update(SUBSCRIPTIONS).where(
                SUBSCRIPTIONS.c.account_id == account_id,
                SUBSCRIPTIONS.c.instance_id.in_(ids),
                SUBSCRIPTIONS.c.condition == text,
            )
            db.connection().execute(waiting.values(condition=texts[place]))


def toggle(
    workflow_id: str, enabled: bool | None, *, by: Principal, kind: str = WORKFLOW
) -> Workflow:
    """Enable or disable a workflow; without `enabled`, switch it."""
    with changing(workflow_id, by, kind) as workflow:
        workflow.enabled = (not workflow.enabled) if enabled is None else enabled
        _after_change(workflow)
    return workflow


def delete(workflow_id: str, *, by: Principal, kind: str = WORKFLOW) -> None:
    """Delete a workflow; a job removes its instances."""
    with changing(workflow_id, by, kind) as workflow:
        schedules.forget(workflow.account_id, workflow.id)
        db.db.session.delete(workflow)
        job_payload = {"workflow_id": workflow.id}
        jobs.enqueue("workflows.remove", job_payload, account_id=workflow.account_id)


def trigger(
    workflow_id: str,
    body: Body,
    *,
    by: Principal,
    kind: str = WORKFLOW,
    holds_pii: bool = False,
) -> str:
    """Start an instance by hand; returns its id. Raises NotFound, Conflict, LimitReached."""
    by.require_account_id()
    with db.transaction() as session:
        workflow = _require(session.scalar(_with_shared_lock(_query(workflow_id, by, kind))), kind)
        if not workflow.enabled:
            raise Conflict(f"The {kind} is disabled.", error="disabled")
        return _start(workflow, body, Trigger.MANUAL, holds_pii=holds_pii)


def trigger_by_token(token: str, body: Body) -> str:
    """Start an instance by the workflow's token; returns its id.

    Raises NotFound, LimitReached.
    """
    with db.transaction() as session:
        code = token.partition("-")[0] if token.isprintable() else ""
        # By itself, as Citus locks no row of an account that a subquery finds.
        account_id = session.scalar(sa.select(Account.id).where(Account.account_code == code))
        has_token = (Workflow.account_id == account_id, Workflow.token_key == _digest(token))
        found = sa.select(Workflow).where(*has_token, Workflow.enabled)
        workflow = session.scalar(_with_shared_lock(found)) if account_id else None
        if workflow is None or principals.reload_active_account(workflow.account_id) is None:
            raise NotFound("No workflow with this token.")
        return _start(workflow, body, Trigger.WEBHOOK)


def trigger_with_token(workflow: Workflow) -> JSONObject:
    """The trigger, with its token if it has one."""
    try:
        token = crypto.decrypt(workflow.token) if workflow.token else None
    except InvalidToken:  # its key was removed from the settings
        token = None
    return {**workflow.trigger, "token": token} if token else dict(workflow.trigger)


def _start(workflow: Workflow, body: Body, trigger_type: str, *, holds_pii: bool = False) -> str:
    return start.start(start.row(workflow, dict(body), trigger_type, holds_pii=holds_pii))


def _validated(body: Body, current: Workflow | None, by: Principal, kind: str) -> JSONObject:
    values, problems = {k: v for k, v in body.items() if k != "owner_id"}, list[Any]()
    if "name" in values and (unreadable := accounts.label_problem(values["name"])):
        problems.append(unreadable)
    if "trigger" in values:
        trigger = matching.normal(values["trigger"])
        problems += matching.problems(trigger) + _token_problems(trigger, current)
        values["trigger"] = {name: value for name, value in trigger.items() if name != "token"}
        values["trigger_type"] = trigger.get("type")
    if "steps" in values:
        steps, stored = definition.normal(values["steps"]), current.steps if current else []
        problems += checks.problems(steps) or step_headers.problems(steps, stored)
        if not problems and kind == WORKFLOW:
            problems += missing.unfit(steps, by)
        values["steps"] = steps if problems else step_headers.encrypted(steps, stored)
    problems = problems or named_texts.problems(values, current)
    if problems:
        raise InvalidValues(problems)
    return values


def _token_problems(trigger: Body, current: Workflow | None) -> list[JSONObject]:
    sent_token = trigger.get("token")
    current_token = trigger_with_token(current).get("token") if current else None
    if sent_token is None or sent_token == current_token:
        return []
    message = "The service generates the token."
    return [problem("trigger.token", "field_read_only", message)]


def _is_new(workflow: Workflow, name: str, value: Any) -> bool:
    current = getattr(workflow, name)
    if name == "steps":
        value, current = step_headers.comparable(value), step_headers.comparable(current)
    return not json_equal(value, current)


def _update_token(workflow: Workflow) -> None:
    if workflow.trigger_type != Trigger.WEBHOOK:
        workflow.token = workflow.token_key = None
    elif not workflow.token:
        code = sa.select(Account.account_code).where(Account.id == workflow.account_id)
        token = tokens.random_token(db.db.session.scalars(code).one())
        workflow.token, workflow.token_key = crypto.encrypt(token), _digest(token)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _save_version(workflow: Workflow) -> None:
    series = definition.parse_series(workflow.steps)
    db.db.session.add(
        WorkflowVersion(
            account_id=workflow.account_id,
            workflow_id=workflow.id,
            version=workflow.version,
            steps=workflow.steps,
            awaits=definition.awaited(series),
            owner_id=workflow.owner_id,
            owner_home=workflow.owner_home,
            saved_at=clock.now(),
        )
    )


@contextmanager
def changing(workflow_id: str, by: Principal, kind: str) -> Iterator[Workflow]:
    """A workflow in a transaction that serializes its changes. Raises NotFound."""
    account_id = by.require_account_id()
    with db.transaction() as session:
        query = _query(workflow_id, by, kind)
        _require(session.scalar(query), kind)
        listeners.outdate(account_id)
        # Reload: another transaction may have changed or deleted it before we got the lock.
        yield _require(session.scalar(query.execution_options(populate_existing=True)), kind)
        session.flush()


def _after_change(workflow: Workflow) -> None:
    workflow.updated_at = clock.now()
    schedules.plan(workflow)


def _visible(by: Principal) -> list[Any]:
    return [] if by.account_id is None else [Workflow.account_id == by.account_id]


def _query(workflow_id: str, by: Principal, kind: str) -> sa.Select[Workflow]:
    conditions = (Workflow.id == workflow_id.lower(), Workflow.kind == kind)
    return sa.select(Workflow).where(*conditions, *_visible(by))


def _with_shared_lock(query: sa.Select[Workflow]) -> sa.Select[Workflow]:
    """The query with a lock that prevents deletion until the transaction ends."""
    return query.with_for_update(read=True, key_share=True)


def _require(workflow: Workflow | None, kind: str) -> Workflow:
    if workflow is None:
        raise NotFound(f"No {kind} with this id.")
    return workflow


@events.subscribe(events.AccountClosed)
def _remove_later(event: events.AccountClosed) -> None:
    listeners.outdate(event.account_id)
    schedules.forget(event.account_id)
    statement = sa.delete(Workflow).where(Workflow.account_id == event.account_id)
    db.connection().execute(statement)
    jobs.enqueue("workflows.remove", {"workflow_id": None}, account_id=event.account_id)
