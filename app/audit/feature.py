"""The audit log and the security log."""

from __future__ import annotations

from app.audit import checkpoints, commands, records, routes, tracking, verifications
from app.audit.security_log import erasing, sealing, subscribers, verifying
from app.audit.security_log import routes as security_log_routes
from app.web.feature import Check, Feature

FEATURE = Feature(
    api=(routes.blueprint,),
    routes=(security_log_routes,),
    jobs=(checkpoints, sealing, verifying),
    subscribers=(records, tracking, erasing, subscribers),
    checks=(Check("audit", verifications.check),),
    commands=(commands.audit,),
)
