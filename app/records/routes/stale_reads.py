"""`Prefer: stale=N`: reads on the replica, if it is at most N seconds behind.

Rights come from the primary all the same: it confirms the caller and the definition that the read
went by, and whatever the replica refuses or fails at is read on the primary.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from flask import Response
from sqlalchemy.exc import DBAPIError

from app import events
from app.auth.guard import principal
from app.db import replica, versioned_cache
from app.db.versioned_cache import Stale
from app.errors import AppError
from app.web.app import get_header

P = ParamSpec("P")
STALE = re.compile(r"(?:^|,)\s*stale\s*=\s*\"?(\d{1,4})\"?\s*(?:[,;]|$)", re.IGNORECASE)
HEADER = {
    "in": "header",
    "name": "Prefer",
    "schema": {"type": "string", "example": "stale=5"},
    "description": "`stale=N`: the answer may be up to N seconds old (1 to 9,999), and is then read"
    " on a replica if there is one. `Preference-Applied` says that it was.",
}


def may_be_stale(view: Callable[P, Response]) -> Callable[P, Response]:
    """Run a view on the replica if the caller accepts its lag; inside `optimistic`."""

    @wraps(view)
    def run(*args: P.args, **kwargs: P.kwargs) -> Response:
        header = get_header("Prefer")
        accepted = STALE.search(header) if header else None
        # What was outdated is loaded again from the primary, for the primary.
        if accepted is None or versioned_cache.is_reloading() or replica.lag() > int(accepted[1]):
            return view(*args, **kwargs)
        response = _from_replica(view, *args, **kwargs)
        if response is None:
            events.publish(events.ViewRunsAgain())
            return view(*args, **kwargs)
        response.headers["Preference-Applied"] = f"stale={accepted[1]}"
        return response

    return run


def _from_replica(
    view: Callable[P, Response], *args: P.args, **kwargs: P.kwargs
) -> Response | None:
    """The answer of the replica; None if the primary has to give it."""
    try:
        with versioned_cache.recording() as used, replica.reading():
            response = view(*args, **kwargs)
    except (AppError, DBAPIError, Stale, replica.PrimaryRequired):
        return None
    if not versioned_cache.are_current([principal(), *used]):
        response.close()
        return None
    return response
