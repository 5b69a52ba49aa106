"""An extension with a handler of every kind that runs by itself; each notes what it has done."""

from __future__ import annotations

import os
from typing import Any

from app.extend import (
    Caller,
    after_create,
    after_delete,
    after_update,
    before_create,
    on,
    periodic,
    workflow_step,
)
from app.extensions import jobs
from app.jobs import worker
from app.workflows.engine import external_steps

# What a killed worker holds is free soon: tests do not wait for minutes.
jobs.LEASE_SECONDS = worker.LEASE_SECONDS = external_steps.OWN_SECONDS = int(
    os.environ.get("SHOP_LEASE", "2")
)


def note(caller: Caller, title: str) -> None:
    """Note what was done, so that it can be counted."""
    caller.records("notes").create({"title": title})


@before_create("orders")
def reserve(caller: Caller, record: dict[str, Any]) -> None:
    """Write in the transaction of the order."""
    note(caller, f"reserve {record['title']}")


@after_create("orders")
def ship(caller: Caller, record: dict[str, Any]) -> None:
    """Write two records and change the order."""
    note(caller, f"ship {record['title']}")
    note(caller, f"bill {record['title']}")
    caller.records("orders").update(record["id"], {"state": "shipped"})


@after_update("orders")
def follow(caller: Caller, old: dict[str, Any], record: dict[str, Any]) -> None:
    """Hear what another handler has changed."""
    note(caller, f"follow {record['title']}")
    caller.records("orders").delete(record["id"])


@after_delete("orders")
def forget(caller: Caller, record: dict[str, Any]) -> None:
    """Hear the end."""
    note(caller, f"forget {record['title']}")


@on("records.create")
def hear(caller: Caller, event: dict[str, Any]) -> None:
    """Hear new orders, and no notes."""
    if event["data"]["collection"] == "orders":
        note(caller, f"hear {event['data']['record_id']}")


@periodic("0 3 1 1 *", accounts=True)
def count(caller: Caller) -> None:
    """Note one line for each run."""
    with caller.as_operator("counts") as operator:
        note(operator, f"count {caller.idempotency_key}")


@workflow_step("charge")
def charge(caller: Caller, input: dict[str, Any]) -> dict[str, str]:
    """Note what was charged."""
    note(caller, f"charge {input['title']}")
    return {"title": input["title"]}
