"""Records: reading, writing, history, imports and exports."""

from __future__ import annotations

from app.records import purge
from app.records.routes import aggregates, batches, denials, explain, history, records, transfer
from app.web.feature import Feature

FEATURE = Feature(
    api=(
        records.blueprint,
        transfer.blueprint,
        aggregates.blueprint,
        batches.blueprint,
        history.blueprint,
    ),
    routes=(explain,),
    subscribers=(purge,),
    init=(denials.init_app,),
)
