"""`/files`: upload, download, link and delete files."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app import clock, web
from app.auth.guard import optimistic, principal
from app.auth.key_scopes import ScopeDenied
from app.auth.principal import Principal
from app.context import tenancy
from app.db import versioned_cache
from app.errors import (
    BadRequest,
    NotFound,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
)
from app.files import links, responses, service, storage, thumbnails
from app.files import uploads as waiting_uploads
from app.files.links import Link
from app.files.routes import upload_parts
from app.files.thumbnails import Form
from app.records.read import files
from app.records.routes.records import IF_MATCH, UNLESS_MATCH, get_preconditions
from app.types import JSONObject
from app.web import fields
from app.web.access import View as ViewFunction
from app.web.access import anonymous, public, signed_in
from app.web.app import get_request
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.paging import PageArgs, page_body, page_of
from app.web.schemas import BYTES, TEXT, Schema, View, example

blueprint = Blueprint(
    "Files",
    __name__,
    url_prefix=f"{web.PREFIX}/files",
    description="Files of records: uploads, downloads and signed links.",
)

LONGEST_CREDENTIAL = 4096
UPLOADED = "The file is uploaded."
SHORTEST_LINK, LONGEST_LINK, LINK_SECONDS = 60, 7 * 24 * 3600, 3600
RANGE = {
    "in": "header",
    "name": "Range",
    "schema": {"type": "string"},
    "description": "A part of the file, such as `bytes=0-1023`: 206, or 416 beyond its end.",
}
IF_NONE_MATCH = {
    "in": "header",
    "name": "If-None-Match",
    "schema": {"type": "string"},
    "description": "ETags of the caller's copies; returns 304 if one is current.",
}


@example(
    id="019a9f00-0000-7000-8000-0000000000f1",
    filename="cat.png",
    name="cat.png",
    size=20480,
    mime_type="image/png",
    path="019a9f00-0000-7000-8000-00000000000a/019a9f00-0000-7000-8000-0000000000f1",
)
class UploadedFile(View):
    """An upload that waits for a record to take it."""

    id = fields.Id(**doc("What a record's field takes, within 24 hours."))
    filename = ma.fields.Function(lambda file: file.name, metadata=TEXT)
    name = ma.fields.String()
    size = ma.fields.Integer(**doc("In bytes."))
    mime_type = ma.fields.String(**doc("Found from the content."))
    path = ma.fields.Function(
        lambda file: storage.key_of(file.account_id, file.id),
        **doc("For `GET` and `DELETE /files/{path}`.", **TEXT),
    )
    sha256 = ma.fields.String()


class UploadAnswer(View):
    success = ma.fields.Boolean()
    message = ma.fields.String()
    file = ma.fields.Nested(UploadedFile)


class WaitingUpload(UploadedFile):
    """An upload, who made it, and when it is deleted unless a record takes it."""

    uploaded_by = fields.Id(allow_none=True, **doc("Null if anonymous."))
    created_at = fields.Timestamp()
    expires_at = ma.fields.Function(
        lambda file: clock.iso(file.created_at + waiting_uploads.TAKEN_WITHIN),
        metadata={"type": "string", "format": "date-time"},
    )


class DownloadArgs(Schema):
    """A thumbnail, and credentials of clients that send no headers."""

    thumb = fields.Text(
        **doc(
            "`WxH`, each 16 to 2048, rounded down to one of twenty steps: the image, no larger"
            " than that.",
            pattern=f"^{thumbnails.SIZE.pattern}$",
        )
    )
    fit = fields.DocumentedChoice(
        thumbnails.FITS,
        **doc(
            "Of a thumbnail: `contain` (default) shows the whole image, `cover` cuts it to the"
            " shape of `thumb`."
        ),
    )
    format = fields.DocumentedChoice(thumbnails.WRITTEN, **doc("Of a thumbnail; default `webp`."))
    token = fields.Text(
        longest=LONGEST_CREDENTIAL, **doc("An access token; prefer the header `Authorization`.")
    )
    ticket = fields.Text(longest=LONGEST_CREDENTIAL, **doc("Of `POST /realtime/tickets`."))


class LinkBody(Schema):
    """The lifetime of a new link."""

    expires_in = fields.Integer(
        SHORTEST_LINK,
        LONGEST_LINK,
        load_default=LINK_SECONDS,
        **doc("Seconds, from 1 minute to 7 days."),
    )


@example(
    url="https://atrium.example.com/api/v1/files/link/WyJ...",
    expires_at="2026-11-20T13:00:00.000000Z",
)
class FileLink(View):
    """A signed address of a file."""

    url = ma.fields.String(metadata=fields.URI)
    expires_at = fields.Timestamp()


class CredentialArgs(Schema):
    """No parameters but a credential, for clients that send it in the address."""

    token = fields.Text(longest=LONGEST_CREDENTIAL)


@blueprint.route("/upload", methods=["POST"])
@blueprint.doc(
    requestBody={
        "required": True,
        "content": {
            upload_parts.MULTIPART: {
                "schema": {
                    "type": "object",
                    "properties": {"file": BYTES},
                    "required": ["file"],
                },
                "example": {"file": "(the bytes of cat.png)"},
            }
        },
    }
)
@blueprint.response(201, UploadAnswer, example={"message": UPLOADED})
@blueprint.fails(413, 415, 422, 503)
@anonymous(operator="records")
def upload_file() -> dict[str, object]:
    """Upload a file.

    `multipart/form-data` with one part `file`. Put the returned id into a `file` field of a record
    within 24 hours; otherwise the file is deleted. Until then only you can download it, and you and
    admins can delete it. You need the right to write a file field of some collection (403), and may
    have 100 uploads waiting (429).
    """
    waiting_uploads.check_may_upload(_writer())
    if get_request().mimetype != upload_parts.MULTIPART:
        raise UnsupportedMediaType("Send the file as multipart/form-data.")
    _, parts = upload_parts.receive(with_record=False)
    sent = parts.getlist("file")
    if len(sent) != 1 or len(parts) != 1:
        raise BadRequest("Send one file, in a part named file.", error="file_required")
    return {"success": True, "message": UPLOADED, "file": sent[0]}


@blueprint.route("/waiting", methods=["GET"])
@blueprint.arguments(PageArgs, location="query")
@blueprint.response(200, page_of(WaitingUpload, "WaitingPage"))
@signed_in
def list_waiting_uploads(args: JSONObject) -> JSONObject:
    """List the uploads that no record has taken.

    Admins see those of the account, everybody else their own. The newest comes first. Delete them
    with `DELETE /files/{file_id}`.
    """
    return page_body(*waiting_uploads.page(principal(), args["skip"], args["limit"]), args)


def _sends_file(view: ViewFunction) -> ViewFunction:
    """Declare the parameters and responses of a download."""
    sent = {"schema": BYTES, "content_type": "application/octet-stream", "example": "(bytes)"}
    for decorate in (
        blueprint.fails(416, 503),
        blueprint.response(200, **sent),
        blueprint.alt_response(206, **sent, description="The part named by Range."),
        blueprint.alt_response(302, description="The S3 service sends the file, if configured."),
        blueprint.alt_response(304, description="The copy named by If-None-Match is current."),
        blueprint.arguments(DownloadArgs, location="query"),
        blueprint.doc(parameters=[RANGE, IF_NONE_MATCH]),
    ):
        view = decorate(view)
    return view


@blueprint.route("/<file_id>", methods=["GET"])
@_sends_file
@optimistic
@anonymous(query_credentials=True, operator="records")
def download_file(args: JSONObject, file_id: str) -> Response:
    """Download a file.

    Whoever may view its field of its record may download it. Only images (not SVG), PDF, audio,
    video and plain text are shown by browsers; everything else is saved.
    """
    return responses.send(files.readable(file_id, by=principal()), _thumb(args))


@blueprint.route("/<account_id>/<file_id>", methods=["GET"])
@blueprint.route(
    "/download/<account_id>/<file_id>", methods=["GET"], endpoint="download_by_full_path"
)
@_sends_file
@optimistic
@anonymous(query_credentials=True, operator="records")
def download_by_path(args: JSONObject, account_id: str, file_id: str) -> Response:
    """Download a file by the path that its upload returned.

    The same as `GET /files/{file_id}`, with the same rights, ranges and thumbnails. A 404 also
    means that the file is not of this account.
    """
    file = files.readable(file_id, by=principal())
    if file.account_id != account_id.lower():
        raise NotFound(service.NO_FILE)
    return responses.send(file, _thumb(args))


@blueprint.route("/link/<token>", methods=["GET"])
@_sends_file
@blueprint.fails(400, 403, 404)
@public(across_accounts=True)
def download_linked(args: JSONObject, token: str) -> Response:
    """Download a file by a signed link; it needs no credential.

    The links are made by `POST /files/{file_id}/link`. A changed, expired or ended one is a 403
    `link_invalid`; a 404 means that the record no longer has the file, or that whoever made the
    link may no longer view it. Ranges and thumbnails work as in `GET /files/{file_id}`.
    """
    link = links.read(token)
    with tenancy.in_account(link.account_id):
        try:
            with versioned_cache.reloading():
                file = files.linked(link)
        except versioned_cache.Stale:  # the rules, or the maker of the link, changed meanwhile
            raise Unavailable from None
        answer = responses.send(file, _thumb(args))
        if answer.status_code != 304:
            links.note_use(file, link, target=files.target(file))
        return answer


@blueprint.route("/<file_id>/link", methods=["POST"])
@blueprint.arguments(LinkBody, required=False, example={"expires_in": 3600})
@blueprint.response(201, FileLink)
@optimistic
@anonymous
def create_file_link(body: JSONObject, file_id: str) -> Link:
    """Create a signed link to a file.

    It works without a credential until it expires, until the record no longer has the file, until
    you may no longer view it, or until somebody ends the links of the file. The security log has
    links that are made and used.
    """
    by = _require_caller()
    file = files.readable(file_id, by=by)
    return links.create(file, body["expires_in"], target=files.target(file), by=by)


@blueprint.route("/<file_id>/links", methods=["DELETE"])
@blueprint.response(204)
@optimistic
@anonymous
def end_file_links(file_id: str) -> Response:
    """End all links of a file.

    For admins, and for whoever may update the record that has it. Links that are made afterwards
    work.
    """
    files.end_links(file_id, by=_writer())
    return Response(status=204)


@blueprint.route("/<file_id>", methods=["DELETE"])
@blueprint.doc(parameters=[IF_MATCH, UNLESS_MATCH])
@blueprint.arguments(CredentialArgs, location="query")
@blueprint.response(204)
@blueprint.fails(412)
@anonymous(query_credentials=True)
def delete_file(args: JSONObject, file_id: str) -> Response:
    """Delete an upload that no record has taken.

    Users delete their own uploads, admins all of the account. To delete a file that a record has,
    remove it from the record's field.
    """
    return _delete(file_id)


@blueprint.route("/<account_id>/<file_id>", methods=["DELETE"])
@blueprint.doc(parameters=[IF_MATCH, UNLESS_MATCH])
@blueprint.arguments(CredentialArgs, location="query")
@blueprint.response(204)
@blueprint.fails(412)
@anonymous(query_credentials=True)
def delete_by_path(args: JSONObject, account_id: str, file_id: str) -> Response:
    """Delete an upload by the path that it returned.

    The same as `DELETE /files/{file_id}`: an upload that a record has, or that somebody else made,
    is a 404; admins delete those of others, too.
    """
    return _delete(file_id, account_id)


def _thumb(args: JSONObject) -> Form | None:
    return thumbnails.parse(args.get("thumb"), args.get("fit"), args.get("format"))


def _require_caller() -> Principal:
    """The caller of an `@anonymous` view that needs a credential. Raises Unauthorized.

    `@signed_in` views are closed to API keys with scopes; here scopes count as for records.
    """
    by = principal()
    if not by.signed_in:
        raise Unauthorized
    return by


def _writer() -> Principal:
    """The caller, who may write records. Raises Unauthorized, Forbidden."""
    by = _require_caller()
    if not by.has_scope_for("create", "update"):
        raise ScopeDenied("This API key may not write records.")
    return by


def _delete(file_id: str, account_id: str | None = None) -> Response:
    by = _writer()
    if account_id is not None and account_id.lower() != by.account_id:
        raise NotFound(service.NO_FILE)
    file = service.find(file_id, by.require_account_id())
    # A 412 for somebody else's upload would show that it is there.
    if file is not None and service.is_own_upload(file, by):
        get_preconditions().check(responses.etag_of(file))
    service.discard(file_id, by)
    return Response(status=204)
