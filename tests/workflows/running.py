"""What tests of workflows share: making one, carrying out what is due, and moving time."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from flask import Flask

from app import db
from app.db.functions import database_now
from app.workflows.dispatch import Dispatcher
from app.workflows.models import INSTANCES, LOGS, SCHEDULES
from tests.builders import Caller

MANUAL = {"type": "manual"}


def action(name: str, action_type: str, **config: Any) -> dict[str, Any]:
    """A step that acts."""
    others = {key: config.pop(key) for key in ("next",) if key in config}
    step = {"name": name, "type": "action", "action_type": action_type, "config": config}
    return {**step, **others}


def create(name: str, title: str = "x", **others: Any) -> dict[str, Any]:
    """A step that makes a record of posts."""
    return {**action(name, "create_record", collection="posts", data={"title": title}), **others}


def make_workflow(
    owner: Caller, steps: list[dict[str, Any]], trigger: dict[str, Any] = MANUAL, **others: Any
) -> dict[str, Any]:
    """A new workflow of the caller's account."""
    body = {"name": "flow", "trigger": trigger, "steps": steps, **others}
    answer = owner.post("workflows", body)
    assert answer.status_code == 201, answer.json
    made: dict[str, Any] = answer.json
    return made


def start(owner: Caller, workflow: dict[str, Any], body: Any = None) -> str:
    """Start a workflow by hand; returns the instance's id."""
    answer = owner.post(f"workflows/{workflow['id']}/trigger", body or {})
    assert answer.status_code == 202, answer.json
    return str(answer.json["instance_id"])


def work(app: Flask, *, seconds: float = 20) -> None:
    """Carry out what is due until nothing is, as a worker would."""
    with app.app_context():
        woken = threading.Event()
        dispatcher = Dispatcher(woken)
        end = time.monotonic() + seconds
        dispatcher.turn()
        while dispatcher.busy or _is_any_due():
            assert time.monotonic() < end, "instances do not come to an end"
            woken.wait(0.02)
            woken.clear()
            dispatcher.turn()
        db.db.session.remove()


def _is_any_due() -> bool:
    due = sa.select(INSTANCES.c.id).where(INSTANCES.c.due_at <= database_now())
    return db.connection().execute(due.limit(1)).first() is not None


def ran(app: Flask, owner: Caller, workflow: dict[str, Any], body: Any = None) -> dict[str, Any]:
    """An instance that was started by hand and carried out as far as it goes."""
    id = start(owner, workflow, body)
    work(app)
    return instance(owner, id)


def instance(owner: Caller, id: str) -> dict[str, Any]:
    """An instance with its logs."""
    answer = owner.get(f"workflow-instances/{id}")
    assert answer.status_code == 200, answer.json
    found: dict[str, Any] = answer.json
    return found


def outputs(found: dict[str, Any]) -> dict[str, Any]:
    """The outputs of an instance's steps by name."""
    return {name: one["output"] for name, one in found["context"].get("steps", {}).items()}


def statuses(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and status of every step that the log tells of."""
    return [(log["step_name"], log["status"]) for log in found["step_logs"]]


def rows(app: Flask, table: Any = INSTANCES) -> list[Any]:
    """All rows of a table of workflows as stored, oldest first."""
    with app.app_context():
        return list(db.connection().execute(sa.select(table).order_by(table.c.id)))


def logs(app: Flask) -> list[Any]:
    """All logs as stored, oldest first."""
    return rows(app, LOGS)


def let_pass(app: Flask, seconds: int) -> None:
    """Move everything that instances and schedules wait for so far into the past."""
    with app.app_context(), db.transaction() as session:
        for row in session.execute(sa.select(INSTANCES)).all():
            mine = (INSTANCES.c.account_id == row.account_id, INSTANCES.c.id == row.id)
            if row.due_at:
                position = _earlier(row.position, seconds)
                due = row.due_at - timedelta(seconds=seconds)
                session.execute(
                    sa.update(INSTANCES).where(*mine).values(due_at=due, position=position)
                )
        for row in session.execute(sa.select(SCHEDULES)).all():
            mine = (SCHEDULES.c.workflow_id == row.workflow_id,)
            earlier = row.next_at - timedelta(seconds=seconds)
            session.execute(sa.update(SCHEDULES).where(*mine).values(next_at=earlier))


def _earlier(position: str, seconds: int) -> str:
    from app import clock
    from app.web import serialization

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(one) for one in value]
        if not isinstance(value, dict):
            return value
        found = {name: moved(one) for name, one in value.items()}
        for name in ("until", "deadline"):
            if name in found:
                then = clock.parse(found[name]) - timedelta(seconds=seconds)
                found[name] = clock.iso(then)
        return found

    return serialization.dumps_text(moved(serialization.loads(position)))
