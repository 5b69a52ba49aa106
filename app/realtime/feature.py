"""Streams of changes, and the feed that they are read from."""

from __future__ import annotations

from app.realtime import limits
from app.realtime.feed import changes, marks
from app.web.feature import Check, Feature, Routes


def routes() -> Routes:
    """Import the routes."""
    from app.realtime import routes as streams
    from app.realtime.feed import routes as feed

    return Routes(api=(feed.blueprint, streams.blueprint))


FEATURE = Feature(
    routes=routes,
    jobs=(changes,),
    subscribers=(marks,),
    checks=(Check("streams", limits.check, reads_tables=False),),
)
