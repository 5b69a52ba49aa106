"""The values of records as texts."""

from __future__ import annotations

import re

import orjson
from markupsafe import Markup

from app.web.languages import lazy_gettext

YES, NO = lazy_gettext("yes"), lazy_gettext("no")
MAX_LENGTH = 60  # characters of a value in a table


def display(value: object, longest: int = MAX_LENGTH, *, exact: bool = False) -> str:
    """A value of a record for a list; `exact` writes times in full, for evidence."""
    if value is None or isinstance(value, bool):
        return "" if value is None else str(YES if value else NO)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        text = ", ".join(value)
    elif names := _file_names(value):
        text = ", ".join(names)
    else:
        text = json_text(value)
    if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text, re.ASCII):
        moment = f"{text[:10]} {text[11 : 19 if exact else 16]} UTC"
        mark = Markup(" data-exact") if exact else ""
        return Markup('<time datetime="{}"{}>{}</time>').format(text, mark, moment)
    return text if len(text) <= longest else f"{text[:longest]}…"


def _file_names(value: object) -> list[str]:
    """The names of the files of a value; none for other values."""
    files = value if isinstance(value, list) else [value]
    known = [one for one in files if isinstance(one, dict) and one.keys() >= {"name", "sha256"}]
    return [str(one["name"]) for one in known] if len(known) == len(files) else []


def json_text(value: object) -> str:
    """A value in its JSON form."""
    # JSON of a record is passed through unparsed; that of its history has been read.
    is_json = isinstance(value, orjson.Fragment | dict | list)
    return orjson.dumps(value).decode() if is_json else str(value)
