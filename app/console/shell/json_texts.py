"""JSON that people type: where and why it is none."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from app.types import JSONObject
from app.web.languages import gettext


@dataclass(frozen=True)
class Fault:
    """What is wrong with a text, and after how many of its characters."""

    message: str
    position: int


def fault(text: str) -> Fault | None:
    """The fault of a text that is no JSON; None if it is, even if it breaks another limit."""
    try:
        orjson.loads(text.encode(errors="replace"))
    except orjson.JSONDecodeError as error:
        message = error.msg.removeprefix("unexpected character, ").removesuffix(" (BOM)")
        where = gettext(
            "Line %(line)s, column %(column)s: %(message)s.",
            line=error.lineno,
            column=error.colno,
            message=message,
        )
        return Fault(where, error.pos)
    return None


def place(text: str) -> JSONObject:
    """The position of a text's fault, for the problem of its field."""
    found = fault(text)
    return {"position": found.position} if found else {}
