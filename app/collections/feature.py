"""Definitions, their tables, and who may do what with them."""

from __future__ import annotations

from app.collections import (
    commands,
    expression_names,
    index_builds,
    open_routes,
    permission_routes,
    revision_routes,
    routes,
    transfer_routes,
    trial_routes,
)
from app.web.feature import Check, Feature

FEATURE = Feature(
    api=(
        routes.blueprint,
        transfer_routes.blueprint,
        open_routes.blueprint,
        revision_routes.blueprint,
        trial_routes.blueprint,
    ),
    routes=(permission_routes,),
    jobs=(index_builds,),
    checks=(Check("names", expression_names.check),),
    commands=(commands.revisions,),
)
