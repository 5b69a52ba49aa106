"""The indexes of a collection as text: a line each, such as `unique: title, -created_at`."""

from __future__ import annotations

from collections.abc import Sequence

from app.types import JSONMapping, JSONObject

UNIQUE = "unique:"


def parse(text: str) -> list[JSONObject]:
    """The index definitions of lines; blank ones are ignored."""
    return [_parse_line(line.strip()) for line in text.splitlines() if line.strip()]


def render(specs: Sequence[JSONMapping]) -> str:
    return "\n".join(map(render_line, specs))


def render_line(spec: JSONMapping) -> str:
    fields = ", ".join(spec["fields"])
    return f"{UNIQUE} {fields}" if spec["unique"] else fields


def _parse_line(line: str) -> JSONObject:
    names = (name.strip() for name in line.removeprefix(UNIQUE).split(","))
    return {"fields": [name for name in names if name], "unique": line.startswith(UNIQUE)}
