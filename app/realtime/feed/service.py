"""Reading the change feed on behalf of a caller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from app import clock
from app.auth.principal import Principal
from app.collections import definitions
from app.collections.definitions import Definition
from app.db import versioned_cache
from app.errors import FeedExpired, InvalidValues, NotFound, Unauthorized, problem
from app.realtime.feed import changes, dependencies, marks, rights, states, visibility
from app.realtime.feed.changes import Bounds, Scan
from app.realtime.feed.members import Outlook
from app.realtime.feed.rights import Reset
from app.realtime.feed.visibility import Event, Linked, View
from app.records.store import LARGEST_ANSWER
from app.types import JSONObject
from app.web.serialization import dumps

MAX_SCANS, SMALLEST_SCAN = 5, 100
"""Scans of one answer, which may find nothing that the caller may view."""
Views = Mapping[str, View]
"""The views by the table of their collection."""


def page(since: int, names: Sequence[str], limit: int, *, by: Principal) -> JSONObject:
    """The changes after `since` that the caller may view, and where to go on.

    Of all collections that are open to the caller without `names`. Raises Unauthorized, Forbidden,
    InvalidValues, FeedExpired; Stale if a cached value is outdated.
    """
    account_id = require_account(by)
    named, problems = list[Definition](), list[JSONObject]()
    for name in names:
        try:
            named.append(definitions.get(name))
        except NotFound:
            message = f"There is no collection {name[:80]}."
            problems.append(problem("collections", "unknown_collection", message))
    if problems:
        raise InvalidValues(problems)
    views: Views = {one.table_name: visibility.view_of(by, one) for one in named}
    read = (other for one in named for other in dependencies.read_by(one).values())
    tables = {span.table_name for one in (*named, *read) for span in one.spans}
    items, size, ended = list[JSONObject](), 0, False
    bounds = changes.bounds(account_id)
    after = start(bounds, since)
    for _ in range(MAX_SCANS):
        scan = changes.scan(account_id, after, tables, max(limit, SMALLEST_SCAN))
        after, ended = scan.next, scan.ended
        followed = named
        if not names:  # after the scan, as it may have changes of a new collection
            followed = definitions.get_all()
            opened = (visibility.view_if_open(by, one) for one in followed)
            views = {view.definition.table_name: view for view in opened if view is not None}
        passed = [mark for row in scan.rows if (mark := marks.read(row))]
        reset = rights.resets(passed, by, {one.name: [one] for one in followed}, all_=not names)
        known, is_costly = _events(account_id, scan, views)
        for event in sorted([*known, *reset], key=attrgetter("change")):
            item = _item(event, views)
            size += len(dumps(item))
            is_full = len(items) >= limit or size > LARGEST_ANSWER
            # What comes of one change stays together.
            if is_full and items and event.change > items[-1]["change"]:
                after, ended = int(items[-1]["change"]), False
                break
            items.append(item)
        if ended or is_costly or len(items) >= limit or size > LARGEST_ANSWER:
            break
    check_versions(by, views)
    return {"items": items, "next": after, "has_more": not ended, "oldest": bounds.oldest}


def require_account(by: Principal) -> str:
    """The account whose changes the caller reads. Raises Unauthorized, BadRequest."""
    if not by.signed_in:
        raise Unauthorized
    return by.require_account_id()


def start(bounds: Bounds, since: int) -> int:
    """The change after which reading begins for `since`. Raises FeedExpired, InvalidValues."""
    if since > bounds.newest:
        ahead = f"The newest change is {bounds.newest}."
        raise InvalidValues([problem("since", "out_of_range", ahead)])
    if 0 < since < bounds.expired:
        raise FeedExpired(bounds.oldest)
    return max(since, bounds.expired)


def _events(account_id: str, scan: Scan, views: Views) -> tuple[Iterable[Event | Reset], bool]:
    """Changes as a caller with these views may know them, and whether they are enough for a page.

    They are where memberships had to be judged.
    """
    collections = {view.definition.table_name: view.definition for view in views.values()}
    read = (dependencies.read_by(one) for one in collections.values())
    followed = {name: one for own in read for name, one in own.items()} | collections
    found = states.transitions(account_id, scan.rows, followed.values())
    linked = Linked(found, views.values())
    outlook = Outlook(account_id, scan.next, found)
    by_others = [event for view in views.values() for event in outlook.of(view)]
    known = (
        outlook.event(views[one.definition.table_name], one, linked)
        for one in found
        if one.definition.table_name in views
    )
    all_ = [*(event for event in known if event is not None), *by_others]
    return all_, outlook.has_judged


def check_versions(by: Principal, views: Views) -> None:
    """Verify the caller and the collections. Raises Stale."""
    checks = {check for view in views.values() for check in view.definition.version_checks}
    versioned_cache.verify_all(checks.union(by.version_checks))


def _item(event: Event | Reset, views: Views) -> JSONObject:
    if isinstance(event, Reset):
        named = {"event": "records.reset", "collection": event.collection}
        return {"change": event.change, **named}
    source, view = event.source, views[event.source.definition.table_name]
    item: JSONObject = {
        "change": event.change,
        "event": f"records.{event.operation}",
        "collection": source.definition.name,
        "record_id": source.record_id,
        "record": None if event.record is None else view.render(event.record),
    }
    if event.previous is not None:
        item["previous"] = view.render(event.previous)
    if event.hidden:
        item["hidden"] = True
    if event.operation == "create" and source.is_restored:
        item["restored"] = True
    item |= {"occurred_at": clock.iso(source.occurred_at), "user_id": source.user_id}
    return item | {"actor": source.actor}
