"""Visits of the operator in a security log: requests in a row, which the page shows as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from app.audit.security_log.models import EventKind
from app.types import JSONMapping, JSONObject
from app.web.languages import gettext, lazy_gettext

REQUESTS = (EventKind.OPERATOR_REQUEST, EventKind.OPERATOR_READ)
LONGEST_PAUSE = timedelta(minutes=30)
MAX_NAMED = 3
MAX_EVENTS = 250  # of a page
ACCOUNT = "/<uuid:account_id>"
PAGES: Mapping[str, object] = {
    "/console": lazy_gettext("Console"),
    "/console/accounts": lazy_gettext("Accounts"),
    f"/console/accounts{ACCOUNT}": lazy_gettext("Users"),
    f"/console/accounts{ACCOUNT}/dashboard": lazy_gettext("Overview"),
    f"/console/accounts{ACCOUNT}/groups": lazy_gettext("Groups"),
    f"/console/accounts{ACCOUNT}/keys": lazy_gettext("API keys"),
    f"/console/accounts{ACCOUNT}/team": lazy_gettext("Team"),
    "/console/jobs": lazy_gettext("Jobs"),
    "/console/records": lazy_gettext("Records"),
    "/console/security-log": lazy_gettext("Security log"),
    f"/console/security-log{ACCOUNT}/readers": lazy_gettext("Who read personal data"),
    f"/console/security-log{ACCOUNT}/receiver": lazy_gettext("Receiver of the security log"),
    "/console/settings": lazy_gettext("Settings"),
    f"/console/settings{ACCOUNT}/retention": lazy_gettext("Retention"),
    "/console/sso": lazy_gettext("Single sign-on"),
    f"/console/sso{ACCOUNT}/domains": lazy_gettext("Domains"),
    f"/console/sso{ACCOUNT}/scim": lazy_gettext("Provisioning (SCIM)"),
    f"/console/sso{ACCOUNT}/setup-links": lazy_gettext("Setup links"),
    "/console/usage": lazy_gettext("Usage"),
    "/console/webhooks": lazy_gettext("Webhooks"),
    f"/console/webhooks{ACCOUNT}/deliveries": lazy_gettext("Deliveries"),
    "/console/workflows": lazy_gettext("Workflows"),
    f"/console/workflows{ACCOUNT}/instances": lazy_gettext("Instances"),
}
"""The areas of the console by the beginning of their routes."""


@dataclass(frozen=True)
class Visit:
    """One event, or requests of a visit of the operator; the newest first."""

    events: Sequence[JSONMapping]

    @property
    def last(self) -> JSONMapping:
        """The newest event."""
        return self.events[0]

    @property
    def first(self) -> JSONMapping:
        """The oldest event."""
        return self.events[-1]

    @property
    def pages(self) -> str:
        """Some names of visited areas in order of the visits, for a sentence."""
        found = (area(one) or gettext("API") for one in reversed(self.events))
        names = list(dict.fromkeys(found))
        rest = len(names) - MAX_NAMED
        more = [gettext("%(count)s others", count=rest)] if rest > 0 else []
        return ", ".join([*names[:MAX_NAMED], *more])


@dataclass(frozen=True)
class VisitPage:
    """Visits in a row, the newest first, and where the neighbouring ones are."""

    visits: Sequence[Visit]
    newer: int | None = None
    """The number of the event after which the newer ones are; None if there are none."""
    older: int | None = None
    """The number of the event before which the older ones are; None if there are none."""

    @property
    def events(self) -> list[JSONMapping]:
        return [event for visit in self.visits for event in visit.events]


def load_page(
    load: Callable[..., list[JSONObject]], size: int, before: int | None, after: int | None
) -> VisitPage:
    """The visits next to the event of a number, else the newest ones.

    Also the newest ones if none are left there, as retention removes events, or if the newer ones
    do not fill a page.

    `load(limit, before=, after=)` returns the events. A page has at most MAX_EVENTS of them: a
    longer visit goes on in the next one.
    """
    found = None
    if after is not None:
        found = _upwards(load(MAX_EVENTS + 1, after=after), size)
    elif before is not None:
        found = _downwards(load(MAX_EVENTS + 1, before=before), size, is_newest=False)
    return found or _downwards(load(MAX_EVENTS + 1), size, is_newest=True) or VisitPage(())


def _downwards(loaded: Sequence[JSONMapping], size: int, *, is_newest: bool) -> VisitPage | None:
    visits = grouped(loaded[:MAX_EVENTS])
    if not visits:
        return None
    shown = visits[:size]
    has_older = sum(len(one.events) for one in shown) < len(loaded)
    newer = None if is_newest else shown[0].last["number"]
    return VisitPage(shown, newer, shown[-1].first["number"] if has_older else None)


def _upwards(loaded: Sequence[JSONMapping], size: int) -> VisitPage | None:
    visits = grouped(loaded[-MAX_EVENTS:])
    if len(loaded) <= MAX_EVENTS and len(visits) <= size:
        return None
    shown = visits[-size:]
    return VisitPage(shown, shown[0].last["number"], shown[-1].first["number"])


def grouped(events: Iterable[JSONMapping]) -> list[Visit]:
    """The events of a page, the newest first; a visit is within one day."""
    found = list[list[JSONMapping]]()
    for event in events:
        if found and _goes_on(found[-1][-1], event):
            found[-1].append(event)
        else:
            found.append([event])
    return [Visit(each) for each in found]


def _goes_on(later: JSONMapping, earlier: JSONMapping) -> bool:
    is_short = later["moment"] - earlier["moment"] <= LONGEST_PAUSE
    is_one_day = later["moment"].date() == earlier["moment"].date()
    is_one_person = later["user_id"] == earlier["user_id"]
    return is_short and is_one_day and is_one_person and _is_request(later, earlier)


def _is_request(*events: JSONMapping) -> bool:
    # An erased event has no details, and stands alone.
    return all(one["kind"] in REQUESTS and one["details"] is not None for one in events)


def area(event: JSONMapping) -> str | None:
    """The area of the console that a request was for."""
    if event["kind"] == EventKind.OPERATOR_READ:
        return gettext("Records")
    route: str = (event["details"] or {}).get("route", "")
    parts = route.split("/")
    beginnings = ("/".join(parts[:number]) for number in range(len(parts), 0, -1))
    name = next((PAGES[one] for one in beginnings if one in PAGES), None)
    return None if name is None else str(name)
