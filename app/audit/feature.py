"""The audit log and the security log."""

from __future__ import annotations

from app.audit import checkpoints, records, tracking, verifications
from app.audit import sealing as changes
from app.audit.security_log import erasing, sealing, subscribers, verifying
from app.web.feature import Check, Feature, Routes


def routes() -> Routes:
    """Import the routes."""
    from app.audit import routes as audit
    from app.audit.security_log import routes as security_log

    return Routes(api=(audit.blueprint,), modules=(security_log,))


FEATURE = Feature(
    routes=routes,
    jobs=(checkpoints, changes, erasing, sealing, subscribers, verifying),
    subscribers=(records, tracking, erasing, subscribers),
    checks=(Check("audit", verifications.check),),
)
