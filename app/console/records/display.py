"""Records, their values and operations as texts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import orjson
from markupsafe import Markup

from app.collections.access import Access
from app.types import JSONMapping
from app.web.languages import lazy_gettext

OPERATION_NAMES = {
    "list": lazy_gettext("list"),
    "view": lazy_gettext("view"),
    "create": lazy_gettext("create"),
    "update": lazy_gettext("update"),
    "delete": lazy_gettext("delete"),
}

YES, NO = lazy_gettext("yes"), lazy_gettext("no")
MAX_LENGTH = 60  # characters of a value in a table
MAX_LABEL_LENGTH = 80
MAX_CACHED = 256  # what follows from an access alone, which lasts for a caller


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
    # JSON of a record is passed through unparsed; that of its history has been read.
    is_json = isinstance(value, orjson.Fragment | dict | list)
    return orjson.dumps(value).decode() if is_json else str(value)


@lru_cache(MAX_CACHED)
def label_fields(access: Access) -> list[str]:
    """The text fields that label a record: those that the caller sees unmasked; choices last."""
    declared = access.definition.declared
    texts = (name for name, spec in declared.items() if spec.names_records)
    comparable = (name for name in texts if name in access.comparable)
    return sorted(comparable, key=lambda name: "choices" in declared[name].options)


def label(record: JSONMapping, names: Iterable[str]) -> str:
    """The label of a record: its first text that is not blank, else the end of its id."""
    texts = (str(record[name]).strip() for name in names if record.get(name))
    return shorten(next(filter(None, texts), f"…{record['id'][-8:]}"))


def shorten(text: str) -> str:
    """A text on one line, no longer than a label."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_LABEL_LENGTH else f"{text[:MAX_LABEL_LENGTH]}…"


def listed(operations: Iterable[str]) -> str:
    return ", ".join(str(OPERATION_NAMES[operation]) for operation in operations)
