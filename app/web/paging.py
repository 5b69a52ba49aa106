"""Pagination: query parameters and page bodies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import marshmallow as ma

from app.types import JSONMapping, JSONObject
from app.web.fields import Integer, doc
from app.web.schemas import Schema, View, example

LARGEST_SKIP = 2**31 - 1


class PageArgs(Schema):
    """The query parameters of a page."""

    default_limit, largest_limit = 25, 100

    skip = Integer(0, LARGEST_SKIP, **doc("How many items to skip."))
    limit = Integer(1, 100, **doc("How many items to return."))
    page = Integer(1, LARGEST_SKIP, **doc("The page number, from 1; an alternative to skip."))
    page_size = Integer(1, 100, **doc("An alias of limit."))

    @ma.post_load
    def settle(self, args: JSONObject, **options: object) -> JSONObject:
        """Turn page and page_size into skip and limit."""
        size = args.pop("page_size", None)
        limit = args.get("limit") or size or self.default_limit
        page = args.pop("page", None)
        skip = (page - 1) * limit if page and "skip" not in args else args.get("skip", 0)
        return args | {"skip": skip, "limit": limit}


class OffsetArgs(PageArgs):
    """The query parameters of a page, with offset."""

    default_limit = 50

    offset = Integer(0, LARGEST_SKIP, **doc("An alias of skip."))

    @ma.post_load
    def settle_offset(self, args: JSONObject, **options: object) -> JSONObject:
        """Turn offset into skip."""
        offset = args.pop("offset", None)
        return args if offset is None else args | {"skip": offset}


def page_body(items: Sequence[object], total: int | None, args: JSONMapping) -> JSONObject:
    """Return the body of a page."""
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


def items_field(item: type[Schema]) -> ma.fields.List[dict[str, object]]:
    """Return the `items` field of a page."""
    return ma.fields.List(ma.fields.Nested(item))


@example(total=1, skip=0, limit=25, page=1, page_size=25, total_pages=1)
class Page(View):
    """A page; subclasses set the schema of its items."""

    items = items_field(Schema)
    total = ma.fields.Integer(allow_none=True)
    skip = ma.fields.Integer()
    limit = ma.fields.Integer()
    page = ma.fields.Integer()
    page_size = ma.fields.Integer()
    total_pages = ma.fields.Integer(allow_none=True)


@cache
def page_of(item: type[Schema], name: str = "") -> type[Page]:
    """Return the schema of a page of items, by default `ItemPage` for `ItemView`."""
    name = name or f"{item.__name__.removesuffix('View')}Page"
    return type(name, (Page,), {"items": items_field(item)})
