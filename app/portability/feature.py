"""An account's data as a file, by age, and after its end."""

from __future__ import annotations

from app.portability import certificate_routes, certificates, commands
from app.portability.bundle import exports
from app.portability.bundle import routes as bundle_routes
from app.portability.retention import routes, service
from app.web.feature import Feature

FEATURE = Feature(
    routes=(routes, bundle_routes, certificate_routes),
    jobs=(exports, service),
    subscribers=(certificates,),
    commands=(commands.account,),
)
