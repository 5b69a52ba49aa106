"""Records: reading, writing, history, imports and exports."""

from __future__ import annotations

from app.feature import Feature
from app.records.routes import aggregates, batches, denials, explain, history, records, transfer
from app.records.write import cleanup

FEATURE = Feature(
    api=(
        records.blueprint,
        transfer.blueprint,
        aggregates.blueprint,
        batches.blueprint,
        history.blueprint,
    ),
    routes=(explain,),
    subscribers=(cleanup,),
    init=(denials.init_app,),
)
