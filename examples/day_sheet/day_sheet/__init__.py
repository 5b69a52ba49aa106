"""A page of the console with the visits of the day, and what was left is carried over at night."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from app.extend import Caller, NotFound, PageRequest, console_page, gettext, periodic, signed_in

__version__ = "1.0.0"

SERVICE = "day-sheet"
"""The service user of an account that moves its visits."""


@console_page("/today", title="Day sheet", access=signed_in, methods=("GET", "POST"))
def today(caller: Caller, request: PageRequest) -> object:
    """Show the visits of today that the caller may see, and mark one as done."""
    visits = caller.records("visits")
    if request.method == "POST":
        visits.update(request.form.get("visit"), {"done": True})
        return request.redirect("/today", gettext("The visit is done."))
    day = datetime.now(UTC).date().isoformat()
    found = visits.list(filter=f'day = "{day}"', sort="done,title", limit=100)
    return request.render("today.html", day=day, visits=found["items"])


@periodic("0 3 * * *", accounts=True)
def carry_over(caller: Caller) -> None:
    """Move visits that were not done to today, in accounts that have the service user."""
    try:
        with caller.as_service(SERVICE) as service:
            _carry_over(service, datetime.now(UTC).date())
    except NotFound:
        return


def _carry_over(service: Caller, today: date) -> None:
    visits = service.records("visits")
    late = f'done = false && day < "{today}" && day >= "{today - timedelta(days=30)}"'
    for visit in visits.list(filter=late, limit=100)["items"]:
        visits.update(visit["id"], {"day": today.isoformat()})
