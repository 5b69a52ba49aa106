"""What the records of both clients share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Generic, TypedDict, TypeVar

import httpx

from atrium_client.filters import Condition

T = TypeVar("T")
ItemT = TypeVar("ItemT", bound=Mapping[str, Any])
RecordT = TypeVar("RecordT", bound=Mapping[str, Any])
NewT = TypeVar("NewT", bound=Mapping[str, Any])
ReplacementT = TypeVar("ReplacementT", bound=Mapping[str, Any])
ChangesT = TypeVar("ChangesT", bound=Mapping[str, Any])


@dataclass(frozen=True)
class Page(Generic[T]):
    """A page of a list; `total` is None if it was not counted."""

    items: Sequence[T]
    total: int | None
    page: int
    page_size: int


class Newest(TypedDict, Generic[T]):
    """The newest records that refer to one, and whether there are more."""

    items: list[T]
    has_more: bool


class Record(dict[str, Any]):
    """A record with the ETag that it came with."""

    etag: str | None = None


def etag_of(record: Mapping[str, Any]) -> str:
    """Return the ETag of a record. Raises ValueError if it came without, as in a list."""
    if etag := getattr(record, "etag", None):
        return str(etag)
    raise ValueError("This record has no ETag: it comes from a list. Get it first.")


def with_etag(response: httpx.Response) -> Any:
    """Return the record of a response with its ETag."""
    record = Record(response.json())
    record.etag = response.headers.get("ETag")
    return record


def match_header(expected: str | Mapping[str, Any] | None) -> dict[str, str]:
    """Return the header that lets a write fail if the record has changed."""
    if expected is None:
        return {}
    return {"If-Match": expected if isinstance(expected, str) else etag_of(expected)}


def query(**values: object) -> dict[str, str]:
    """Return query parameters; those without a value are left out."""
    texts = {name: _text(value) for name, value in values.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (str, Condition, int)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, Sequence):
        return ",".join(map(str, value)) or None
    raise TypeError(f"{value!r} is no value of a parameter.")


def sendable(value: Any) -> Any:
    """Return a value as JSON has it: decimals become texts, digit by digit."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, Mapping):
        return {name: sendable(one) for name, one in value.items()}
    return [*map(sendable, value)] if isinstance(value, list | tuple) else value


def page_of(answer: Mapping[str, Any]) -> Page[Any]:
    """Return a page as the API answers it."""
    return Page(answer["items"], answer["total"], answer["page"], answer["page_size"])
