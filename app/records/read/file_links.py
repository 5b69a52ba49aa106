"""Signed addresses in the file values of an answer (`file_links`), which work without a header."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from app import clock, db
from app.auth.principal import Principal
from app.collections.access import Access
from app.context import tenancy
from app.db import filters
from app.errors import InvalidValues, Unauthorized, problem
from app.files import links
from app.files.links import Key
from app.records.read import views
from app.records.read.views import Shown
from app.records.store.reads import Selection
from app.types import JSONObject

PARAMETER = "file_links"
SHORTEST, LONGEST = 60, 7 * 24 * 3600  # seconds
MOST_LINKS = 10_000  # of an answer


def sign(shown: Iterable[Shown], seconds: int, *, by: Principal) -> None:
    """Put signed addresses, and their end, into the file values of views, as JSON is to have them.

    Of records and fields that the caller may view: others keep their address. Raises Unauthorized,
    InvalidValues.
    """
    if not by.signed_in:
        raise Unauthorized
    by_access: dict[Access, list[Shown]] = {}
    for one in shown:
        if one.access.definition.files:
            by_access.setdefault(one.access, []).append(one)
    values: dict[Key, list[JSONObject]] = {}
    tables: dict[Key, str] = {}
    for access, some in by_access.items():
        view = views.view_access(access.definition, by)
        if view is None:
            continue
        names = access.definition.files.keys() & access.comparable.keys() & view.comparable.keys()
        having = [one for one in some if any(one.view.get(name) for name in names)]
        viewable = _viewable(access, view, having)
        for one in having:
            account_id = one.row["account_id"]
            if viewable is not None and (account_id, one.row["id"]) not in viewable:
                continue
            for name in (name for name in names if one.view.get(name)):
                # Copies: the ETag is that of a view without links.
                value = one.view[name]
                files = [dict(file) for file in (value if isinstance(value, list) else [value])]
                one.view[name] = files if isinstance(value, list) else files[0]
                for file in files:
                    values.setdefault((account_id, file["id"]), []).append(file)
                    tables[account_id, file["id"]] = access.definition.table_name
    if len(values) > MOST_LINKS:
        message = f"These are {len(values):,} files; at most {MOST_LINKS:,}. Request fewer records."
        raise InvalidValues([problem(PARAMETER, "invalid_option", message)])
    for key, link in links.create_all(tables, seconds, by=by).items():
        for file in values[key]:
            file |= {"url": link.url, "expires_at": clock.iso(link.expires_at)}


def _viewable(access: Access, view: Access, shown: Sequence[Shown]) -> set[Key] | None:
    """Those of listed records that the caller may view, by account and id; None for all."""
    if not shown or view.condition in (None, access.condition):
        return None
    selection = Selection(view)
    table, ids = view.definition.table, sorted({one.row["id"] for one in shown})
    query = sa.select(table.c.account_id, table.c.id).where(*selection.where)
    with tenancy.through_views():
        these = query.where(filters.is_any_of(table.c.id, ids))
        rows = db.connection().execute(these, selection.parameters)
    return {(account_id, id) for account_id, id in rows}
