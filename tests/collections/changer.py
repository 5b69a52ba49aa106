"""A process that changes a collection over and over, to be killed in the middle."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from app import config, create_app
from app.collections import service, updates
from app.collections.changes import Proposal
from app.ids import new_id

NAMES = ("posts", "papers")
TITLE = {"name": "title", "type": "text"}
STEPS: list[list[dict[str, Any]]] = [
    [{"name": "title", "required": True, "default": "none"}],
    [{"name": "n", "unique": True}],
    [{"name": "title", "options": {"index": True}}],
    [{"name": "n", "unique": False, "options": {"index": True}}],
    [{"name": "title", "required": False, "default": None, "options": {}}],
]


def renaming(name: str) -> list[Proposal]:
    """A field that comes, gets another name and goes, while the collection has another name."""
    new = {"name": f"came_{name}", "type": "text", "default": "x"}
    steps = [new, {"name": f"goes_{name}", "rename_from": new["name"]}]
    return [
        Proposal(steps[:1], partial=True, name=NAMES[1]),
        Proposal(steps[1:], partial=True),
        Proposal(removed=[steps[1]["name"]], name=NAMES[0]),
    ]


def change(settings: config.Config, reports: Any) -> None:
    """Change the collection until killed; reports when it starts, and when something changed."""
    app = create_app(settings)
    with app.app_context():
        made = service.find(service.names()[0])
        schema = made.schema
        reports.send("ready")
        for number in itertools.count(len(schema)):
            more = {"name": f"more_{number}", "type": "text", "default": "x"}
            added = [[more]] if number < 60 else []
            steps = [Proposal(step, partial=True) for step in [*added, *STEPS]]
            for step in [*renaming(new_id()[-12:]), *steps]:
                plan = updates.plan(made.id, step)
                planned = replace(step, plan_hash=plan["plan_hash"])
                row, _ = updates.update(made.id, planned, {})
                schema, before = row.schema, schema
                if schema != before:  # the process before may have been killed behind the step
                    reports.send("changed")
