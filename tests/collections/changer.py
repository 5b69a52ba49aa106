"""A process that changes a collection's schema over and over, to be killed in the middle."""

from __future__ import annotations

import itertools
from typing import Any

from app import create_app
from app.collections import service, updates

TITLE = {"name": "title", "type": "text"}
STEPS: list[list[dict[str, Any]]] = [
    [{"name": "title", "required": True, "default": "none"}],
    [{"name": "n", "unique": True}],
    [{"name": "title", "options": {"index": True}}],
    [{"name": "n", "unique": False, "options": {"index": True}}],
    [{"name": "title", "required": False, "default": None, "options": {}}],
]


def main() -> None:
    """Change `posts` until killed; says when it starts, and each change."""
    app = create_app()
    with app.app_context():
        made = service.find("posts")
        print("ready", flush=True)  # noqa: T201 - read by the test
        for number in itertools.count(len(made.schema)):
            more = {"name": f"more_{number}", "type": "text", "default": "x"}
            added = [[more]] if number < 60 else []
            for step in [*added, *STEPS]:
                updates.update(made.id, step, {}, partial=True)
                print("changed", flush=True)  # noqa: T201 - read by the test


if __name__ == "__main__":
    main()
