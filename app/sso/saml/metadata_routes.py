"""`/admin/configuration/{id}/metadata`: reads of an identity provider's metadata by URL."""

from __future__ import annotations

import marshmallow as ma

from app.auth.guard import principal
from app.sso import service
from app.sso.config_routes import BY_ID, blueprint
from app.sso.models import MetadataRefresh
from app.sso.saml import metadata_refresh
from app.types import JSONObject
from app.web import fields
from app.web.access import account_admin
from app.web.fields import doc
from app.web.schemas import View

PATH = f"{BY_ID}/metadata"
READ = {
    "read_at": "2026-11-20T12:00:00.123456Z",
    "error": None,
    "changed_at": "2026-11-20T12:00:00.123456Z",
    "changes": [
        {
            "name": "idp_x509_cert",
            "removed": ["idp (SHA-256 0f1e2d3c4b5a6978..., until 2026-12-01)"],
            "added": ["idp (SHA-256 a1b2c3d4e5f60718..., until 2028-12-01)"],
        }
    ],
}
NEVER: JSONObject = {"read_at": None, "error": None, "changed_at": None, "changes": []}


class MetadataChange(View):
    """A setting that a read changed; certificates by name, fingerprint and last day."""

    name = ma.fields.String()
    removed = ma.fields.List(ma.fields.String())
    added = ma.fields.List(ma.fields.String())


class MetadataReadView(View):
    """The last read, and the last changes that a read brought."""

    read_at = fields.Timestamp(allow_none=True)
    error = ma.fields.String(
        allow_none=True, **doc("Why the last read failed, if it did; it changed nothing.")
    )
    changed_at = fields.Timestamp(allow_none=True)
    changes = ma.fields.List(ma.fields.Nested(MetadataChange))


def view(read: MetadataRefresh | None) -> JSONObject:
    return {name: getattr(read, name) for name in NEVER} if read else NEVER


@blueprint.route(PATH, methods=["GET"])
@blueprint.response(200, MetadataReadView, example=READ)
@account_admin
def get_metadata_read(configuration_id: str) -> JSONObject:
    """Get when the provider's metadata was last read from `metadata_url`, and what changed.

    All properties are null or empty before the first daily read.
    """
    caller = service.act_in_account_of(configuration_id, by=principal())
    return view(metadata_refresh.find(service.get(configuration_id, by=caller)))


@blueprint.route(PATH, methods=["POST"])
@blueprint.response(200, MetadataReadView, example=READ)
@account_admin(recent_sign_in=True, api_keys=False)
def read_metadata(configuration_id: str) -> JSONObject:
    """Read the provider's metadata from `metadata_url` now.

    New certificates and addresses apply at once; another entity id is an error. A failed read is a
    200 with `error`. Does nothing for settings without `metadata_url`.
    """
    caller = service.act_in_account_of(configuration_id, by=principal())
    return view(metadata_refresh.refresh(configuration_id, by=caller))
