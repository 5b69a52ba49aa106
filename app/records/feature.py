"""Records: reading, writing, history, imports and exports."""

from __future__ import annotations

from app.records import leaving, purge, trash
from app.records.history import erasure
from app.web.feature import Feature, Routes


def routes() -> Routes:
    """Import the routes."""
    from app.records.routes import aggregates, batches, explain, history, records, transfer

    return Routes(
        api=(
            records.blueprint,
            transfer.blueprint,
            aggregates.blueprint,
            batches.blueprint,
            history.blueprint,
        ),
        modules=(explain,),
        init=(explain.init_app,),
    )


FEATURE = Feature(
    routes=routes,
    jobs=(purge, erasure, leaving, trash),
    subscribers=(purge, leaving, trash),
)
