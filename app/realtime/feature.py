"""Streams of changes, and the feed that they are read from."""

from __future__ import annotations

from app.realtime import commands, hub, limits, routes
from app.realtime.feed import purge
from app.realtime.feed import routes as feed_routes
from app.web.feature import Check, Feature

FEATURE = Feature(
    api=(feed_routes.blueprint, routes.blueprint),
    jobs=(purge,),
    subscribers=(hub,),
    checks=(Check("streams", limits.check, reads_tables=False),),
    commands=(commands.expire_changes,),
)
