"""Lists in pages: what asks for one, and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import marshmallow as ma

from app.rest.fields import Integer
from app.rest.schemas import Schema

LARGEST_SKIP = 2**31 - 1


class PageArgs(Schema):
    """Where in a list to start, and how much of it to return."""

    default_limit, largest_limit = 25, 100

    skip = Integer(0, LARGEST_SKIP, metadata={"description": "How many items to pass over."})
    limit = Integer(1, 100, metadata={"description": "How many items to return."})
    page = Integer(1, LARGEST_SKIP, metadata={"description": "The page, from 1, instead of skip."})
    page_size = Integer(1, 100, metadata={"description": "Another name for limit."})

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

    offset = Integer(0, LARGEST_SKIP, metadata={"description": "Another name for skip."})

    @ma.post_load
    def settle_offset(self, args: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Take offset for skip."""
        offset = args.pop("offset", None)
        return args if offset is None else args | {"skip": offset}


def page_body(items: Sequence[Any], total: int | None, args: Mapping[str, Any]) -> dict[str, Any]:
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


def items_field(item: type[Schema]) -> Any:
    """The items of a page, each shown as this."""
    return ma.fields.List(ma.fields.Nested(item), required=True)


class Page(Schema):
    """A page of a list. Which list says what its items are."""

    items = items_field(Schema)
    total = ma.fields.Integer(required=True, allow_none=True)
    skip = ma.fields.Integer(required=True)
    limit = ma.fields.Integer(required=True)
    page = ma.fields.Integer(required=True)
    page_size = ma.fields.Integer(required=True)
    total_pages = ma.fields.Integer(required=True, allow_none=True)
