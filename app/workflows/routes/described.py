"""JSON schemas of triggers, steps and actions, which the service validates (400)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.collections.schema import COLLECTION_NAME
from app.types import JSONObject
from app.workflows.language.checks import MAX_STEPS
from app.workflows.language.definition import ACTIONS, EVENTS, OWN_STEPS, PROPERTIES
from app.workflows.triggers import matching

TEXT: JSONObject = {"type": "string"}
TRIGGER_PROPERTIES: dict[str, JSONObject] = {
    "event": {**TEXT, "enum": [*EVENTS], "description": "Required for the type event."},
    "collection": {
        **TEXT,
        "pattern": f"^{COLLECTION_NAME.pattern}$",
        "description": "Only events of this collection.",
    },
    "condition": {**TEXT, "minLength": 1, "description": "Only events for which this holds."},
    "cron": {
        **TEXT,
        "description": "Required for the type schedule: five fields, or @hourly, @daily, @weekly"
        " or @monthly.",
    },
    "timezone": {**TEXT, "description": "Of the schedule, such as Europe/Berlin; UTC if absent."},
    "token": {**TEXT, "readOnly": True, "description": "The credential of callers."},
}


# Types it loosely: generators would name its type as that of `trigger_type`.
STARTED_BY: JSONObject = {"description": "What starts it; `trigger_type` has its type."}


def trigger(types: Sequence[str]) -> JSONObject:
    """Return the schema of a trigger of one of these types."""
    names = {name for type_ in types for name in matching.PROPERTIES[type_]}
    properties = {name: TRIGGER_PROPERTIES[name] for name in sorted(names)}
    return {
        "required": ["type"],
        "properties": {"type": {**TEXT, "enum": [*types]}, **properties},
        "additionalProperties": False,
    }


def _typed(types: Iterable[str], **properties: JSONObject) -> JSONObject:
    return {
        "required": [*properties, "type"],
        "properties": {**properties, "type": {**TEXT, "enum": [*types]}},
    }


STEP = _typed((*PROPERTIES, *OWN_STEPS), name=TEXT)
STEPS: JSONObject = {"maxItems": MAX_STEPS}
ACTION = _typed(ACTIONS)
