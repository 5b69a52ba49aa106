"""`/plans`: what accounts have by their plans."""

from __future__ import annotations

from flask import Response

from app import web
from app.accounts.plans import schemas, service, stored
from app.accounts.plans.schemas import EXAMPLE
from app.accounts.plans.stored import Plans
from app.accounts.types import Body
from app.web.access import superadmin
from app.web.blueprint import Blueprint
from app.web.serialization import json_response

blueprint = Blueprint(
    "Plans",
    __name__,
    url_prefix=f"{web.PREFIX}/plans",
    description="Plans: the quotas and flags of accounts. For superadmins.",
)


@blueprint.route("", methods=["GET"])
@blueprint.response(200, schemas.Plans, example=EXAMPLE)
@superadmin(operator="plans")
def get_plans() -> Response:
    """Get all plans by name."""
    return _shown(stored.load())


@blueprint.route("", methods=["PUT"])
@blueprint.arguments(schemas.Plans, example=EXAMPLE)
@blueprint.response(200, schemas.Plans, example=EXAMPLE)
@blueprint.fails(409)
@superadmin(operator="plans")
def replace_plans(body: Body) -> Response:
    """Replace all plans.

    It holds on the next request of every process. A plan that accounts have or that an expression
    names is not removed, nor is the last mention of a flag: a 409 with all places. `rename_from`
    renames a plan; accounts and expressions follow.
    """
    return _shown(service.change(schemas.load(body), whole=True))


@blueprint.route("", methods=["PATCH"])
@blueprint.arguments(schemas.Plans, example={"pro": {"flags": ["sla", "exports"]}})
@blueprint.response(200, schemas.Plans, example=EXAMPLE)
@blueprint.fails(409)
@superadmin(operator="plans")
def update_plans(body: Body) -> Response:
    """Change some plans: others stay, and so do omitted properties; `removed: true` removes one.

    Else as `PUT`.
    """
    return _shown(service.change(schemas.load(body)))


def _shown(plans: Plans) -> Response:
    return json_response({name: plan.body for name, plan in plans.items()})
