"""`/account/export`: bundles of an account, for its admins."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app.accounts.own_account_routes import blueprint
from app.accounts.types import Body, Query
from app.auth.guard import principal
from app.files import responses
from app.portability.bundle import exports, frames
from app.portability.bundle.exports import Contents
from app.portability.bundle.models import AccountExport, ExportFormat, ExportState
from app.types import JSONObject
from app.web import fields
from app.web.access import account_admin
from app.web.fields import doc
from app.web.paging import PageArgs, page_body, page_of
from app.web.schemas import BYTES, Schema, View, example

STARTED = {
    "lines": 0,
    "size": None,
    "sha256": None,
    "finished_at": None,
    "status": ExportState.PENDING,
}
CONTENTS = {
    "records": 40_112,
    "record_bytes": 21_504_877,
    "files": 37,
    "file_bytes": 5_242_880,
    "users": 12,
}


class NewExport(Schema):
    """The format of the export, and the passphrase that a bundle is encrypted to."""

    format = fields.Choice(
        ExportFormat,
        load_default=ExportFormat.BUNDLE,
        **doc("`bundle`: encrypted, to be imported. `zip`: JSON lines and files, for people."),
    )
    passphrase = fields.Text(
        shortest=frames.SHORTEST_PASSPHRASE,
        longest=frames.LONGEST_PASSPHRASE,
        **doc("Of a bundle, which has to have one. Not stored: without it nobody can read it."),
    )

    @ma.validates_schema
    def check_passphrase(self, data: JSONObject, **options: object) -> None:
        """Require a passphrase for a bundle, and none for an archive."""
        if data["format"] == ExportFormat.BUNDLE and "passphrase" not in data:
            raise ma.ValidationError("Missing data for required field.", "passphrase")
        if data["format"] == ExportFormat.ZIP and "passphrase" in data:
            raise ma.ValidationError("A zip archive is not encrypted.", "passphrase")


@example(
    format=ExportFormat.BUNDLE,
    status=ExportState.READY,
    lines=48_213,
    size=7_340_032,
    sha256="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    finished_at="2026-11-20T12:01:00.123456Z",
)
class ExportView(View):
    id = fields.Id()
    format = fields.Choice(ExportFormat)
    status = fields.Choice(ExportState, attribute="state")
    lines = ma.fields.Integer(**doc("The lines written so far; updated every 10,000."))
    size = ma.fields.Integer(allow_none=True, **doc("In bytes."))
    sha256 = ma.fields.String(allow_none=True)
    error = ma.fields.String(allow_none=True)
    requested_by = fields.Id()
    created_at = fields.Timestamp()
    finished_at = fields.Timestamp(allow_none=True)
    expires_at = fields.Timestamp()


class ContentsView(View):
    """What a bundle would have, in numbers."""

    records = ma.fields.Integer()
    record_bytes = ma.fields.Integer()
    files = ma.fields.Integer()
    file_bytes = ma.fields.Integer()
    users = ma.fields.Integer()


@blueprint.route("/export", methods=["GET"])
@blueprint.arguments(PageArgs, location="query")
@blueprint.response(200, page_of(ExportView))
@account_admin
def list_account_exports(args: Query) -> dict[str, object]:
    """List the exports of your account.

    Newest first. An export whose bundle has expired stays in the list for 90 days.
    """
    return page_body(*exports.page(args, by=principal()), args)


@blueprint.route("/export/contents", methods=["GET"])
@blueprint.response(200, ContentsView, example=CONTENTS)
@account_admin
def get_account_export_contents() -> Contents:
    """Count what an export of your account would have.

    A bundle also has groups, webhooks, workflows, settings and the audit log.
    """
    return exports.contents(by=principal())


@blueprint.route("/export", methods=["POST"])
@blueprint.arguments(NewExport, example={"passphrase": "correct horse battery staple"})
@blueprint.response(202, ExportView, example=STARTED)
@blueprint.fails(409)
@account_admin(recent_sign_in=True, api_keys=False)
def export_account(body: Body) -> AccountExport:
    """Export your account to a file.

    Only for members of `pii_access`. A job writes one file: a bundle, encrypted, with everything
    that the account has, from which `bin/atrium account import` creates the account, here or on
    another instance; or a ZIP archive that people read, without secrets. Former exports end. While
    one is under way, another one is a 409.
    """
    return exports.start(body.get("passphrase"), by=principal())


@blueprint.route("/export/<uuid:export_id>", methods=["GET"])
@blueprint.response(200, ExportView)
@account_admin
def get_account_export(export_id: str) -> AccountExport:
    """Get an export of your account.

    A day after it has ended it is a 404.
    """
    return exports.get(export_id, by=principal())


@blueprint.route("/export/<uuid:export_id>", methods=["DELETE"])
@blueprint.response(204)
@account_admin
def delete_account_export(export_id: str) -> Response:
    """Delete an export of your account with its bundle.

    One that is under way ends.
    """
    exports.delete(export_id, by=principal())
    return Response(status=204)


@blueprint.route("/export/<uuid:export_id>/download", methods=["GET"])
@blueprint.response(200, schema=BYTES, content_type="application/octet-stream", example="(bytes)")
@blueprint.fails(409, 503)
@account_admin(recent_sign_in=True, api_keys=False)
def download_account_export(export_id: str) -> Response:
    """Download the file of an export.

    Only for members of `pii_access`. Before it is ready it is a 409. The service may redirect to
    its storage.
    """
    export = exports.ready(export_id, by=principal())
    return responses.send(exports.as_file(export, by=principal()))
