"""A process that changes a collection's schema over and over, to be killed in the middle."""

from __future__ import annotations

import itertools
from multiprocessing.connection import Connection
from typing import Any

from app import config, create_app
from app.collections import service, updates
from app.collections.changes import Proposal

TITLE = {"name": "title", "type": "text"}
STEPS: list[list[dict[str, Any]]] = [
    [{"name": "title", "required": True, "default": "none"}],
    [{"name": "n", "unique": True}],
    [{"name": "title", "options": {"index": True}}],
    [{"name": "n", "unique": False, "options": {"index": True}}],
    [{"name": "title", "required": False, "default": None, "options": {}}],
]


def change(settings: config.Config, told: Connection) -> None:
    """Change `posts` until killed; tells when it starts, and when something changed."""
    app = create_app(settings)
    with app.app_context():
        made = service.find("posts")
        schema = made.schema
        told.send("ready")
        for number in itertools.count(len(schema)):
            more = {"name": f"more_{number}", "type": "text", "default": "x"}
            added = [[more]] if number < 60 else []
            for step in [*added, *STEPS]:
                schema, before = (
                    updates.update(made.id, Proposal(step, partial=True), {}).schema,
                    schema,
                )
                if schema != before:  # the process before may have been killed behind the step
                    told.send("changed")
