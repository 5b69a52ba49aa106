"""Lists in pages: what asks for one, and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import marshmallow as ma

from app.rest.fields import Whole
from app.rest.schemas import Schema

LARGEST_SKIP = 2**31 - 1


class PageArgs(Schema):
    """Where in a list to start, and how much of it to return."""

    default_limit, largest_limit = 25, 100

    skip = Whole(0, LARGEST_SKIP, metadata={"description": "How many items to pass over."})
    limit = Whole(1, 100, metadata={"description": "How many items to return."})
    page = Whole(1, LARGEST_SKIP, metadata={"description": "The page, from 1, instead of skip."})
    page_size = Whole(1, 100, metadata={"description": "Another name for limit."})

    @ma.post_load
    def settle(self, args: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Turn page and page_size into skip and limit."""
        size = args.pop("page_size", None)
        limit = args.get("limit") or size or self.default_limit
        page = args.pop("page", None)
        skip = (page - 1) * limit if page and "skip" not in args else args.get("skip", 0)
        return args | {"skip": skip, "limit": limit}


class OffsetArgs(PageArgs):
    """Paging, also by offset."""

    default_limit = 50

    offset = Whole(0, LARGEST_SKIP, metadata={"description": "Another name for skip."})

    @ma.post_load
    def settle_offset(self, args: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Take offset for skip."""
        offset = args.pop("offset", None)
        return args if offset is None else args | {"skip": offset}


def page_of(items: Sequence[Any], total: int | None, args: Mapping[str, Any]) -> dict[str, Any]:
    """A list's answer (contract section 1)."""
    skip, limit = args["skip"], args["limit"]
    return {
        "items": items,
        "total": total,
        "skip": skip,
        "limit": limit,
        "page": skip // limit + 1,
        "page_size": limit,
        "total_pages": None if total is None else -(-total // limit),
    }


def page_schema(item: type[Schema]) -> type[Schema]:
    """The schema of a list of `item`."""
    fields: dict[str, Any] = {
        "items": ma.fields.List(ma.fields.Nested(item), required=True),
        "total": ma.fields.Integer(required=True, allow_none=True),
    }
    for name in ("skip", "limit", "page", "page_size"):
        fields[name] = ma.fields.Integer(required=True)
    fields["total_pages"] = ma.fields.Integer(required=True, allow_none=True)
    made: type[Schema] = type(f"{item.__name__}Page", (Schema,), fields)
    made.__doc__ = f"A page of a list of {item.__name__}."
    return made
