"""`/migrations`: the revisions of the schema."""

from __future__ import annotations

import marshmallow as ma

from app import web
from app.collections import revisions
from app.types import JSONObject
from app.web.access import superadmin
from app.web.blueprint import Blueprint
from app.web.schemas import View

blueprint = Blueprint(
    "Migrations",
    __name__,
    url_prefix=f"{web.PREFIX}/migrations",
    description="Which revisions of the schema there are, and which are applied.",
)


REVISION = {
    "revision": "0001",
    "description": "create core tables",
    "is_applied": True,
    "is_head": True,
    "is_dynamic": False,
    "down_revision": None,
    "branch_labels": [],
    "created_at": "2026-11-20T12:00:00.000000Z",
}


class RevisionView(View):
    """A revision of the schema: of the core, or of a collection's table (dynamic)."""

    revision = ma.fields.String()
    description = ma.fields.String()
    is_applied = ma.fields.Boolean()
    is_head = ma.fields.Boolean()
    is_dynamic = ma.fields.Boolean()
    down_revision = ma.fields.String(allow_none=True)
    branch_labels = ma.fields.List(ma.fields.String())
    created_at = ma.fields.String(allow_none=True, metadata={"format": "date-time"})


class Revisions(View):
    """All revisions, newest first."""

    revisions = ma.fields.List(ma.fields.Nested(RevisionView))
    total = ma.fields.Integer()
    current_revision = ma.fields.String(allow_none=True)


class CurrentRevision(View):
    revision = ma.fields.String(allow_none=True)
    current_revision = ma.fields.String(allow_none=True)


@blueprint.route("", methods=["GET"])
@blueprint.route("/history", methods=["GET"], endpoint="list_migration_history")
@blueprint.response(
    200, Revisions, example={"revisions": [REVISION], "total": 1, "current_revision": "0001"}
)
@superadmin
def list_migrations() -> JSONObject:
    """List the revisions of the core and of collections.

    Collections first, then the core, each newest first, in one page. Revisions of the core that are
    not applied yet have `is_applied: false`. `/migrations` and `/migrations/history` are the same.
    """
    return revisions.listing()


@blueprint.route("/current", methods=["GET"])
@blueprint.response(200, CurrentRevision, example={"revision": "0001", "current_revision": "0001"})
@superadmin
def get_current_migration() -> JSONObject:
    """Get the revision that the schema is at.

    The newest applied revision: of a collection, if any was changed, else of the core.
    """
    current = revisions.listing()["current_revision"]
    return {"revision": current, "current_revision": current}
