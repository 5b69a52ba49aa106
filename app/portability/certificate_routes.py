"""Deletions of accounts and their certificates, for superadmins (docs/bundles.md)."""

from __future__ import annotations

import marshmallow as ma

from app.accounts.routes import blueprint
from app.accounts.types import Query
from app.portability import certificates
from app.types import JSONObject
from app.web import fields
from app.web.access import superadmin
from app.web.paging import Page, PageArgs, items_field, page_body
from app.web.schemas import Schema

ACCOUNT_ID = "019a9f00-0000-7000-8000-00000000000a"
COUNTS = {"users": 12, "files": 37, "col_posts": 40_112}
DELETION = {
    "account_id": ACCOUNT_ID,
    "account_name": "Acme",
    "closed_at": "2026-11-20T12:00:00.123456Z",
    "closed_by": "019a9f00-0000-7000-8000-00000000000b",
    "counts": COUNTS,
    "certified_at": "2026-11-20T13:05:00.123456Z",
}
KEY, SIGNATURE = "3d40" * 16, "92a0" * 32
CERTIFICATE = {
    "purpose": "deletion",
    "account_id": ACCOUNT_ID,
    "counts": COUNTS,
    "closed_at": DELETION["closed_at"],
    "closed_by": DELETION["closed_by"],
    "verified_at": DELETION["certified_at"],
    "kept": ["audit_changes", "audit_checkpoints"],
    "checkpoint": None,
    "public_key": KEY,
    "signature": SIGNATURE,
}
PAGE = {"skip": 0, "limit": 25}
NUMBERS = {"description": "The number of rows of each table when the account was deleted."}


class DeletionView(Schema):
    """The deletion of an account."""

    account_id = fields.Id(required=True)
    account_name = ma.fields.String(required=True, allow_none=True)
    closed_at = fields.Timestamp(required=True)
    closed_by = fields.Id(required=True)
    counts = ma.fields.Dict(
        keys=ma.fields.String(), values=ma.fields.Integer(), required=True, metadata=NUMBERS
    )
    certified_at = fields.Timestamp(
        required=True,
        allow_none=True,
        metadata={"description": "When nothing was left; null until the certificate is signed."},
    )


class DeletionPage(Page):
    """A page of deletions."""

    items = items_field(DeletionView)


class CertificateView(Schema):
    """A certificate of deletion; `docs/verify_deletion.py` verifies it."""

    purpose = fields.Choice(("deletion",), required=True)
    account_id = fields.Id(required=True)
    counts = ma.fields.Dict(
        keys=ma.fields.String(), values=ma.fields.Integer(), required=True, metadata=NUMBERS
    )
    closed_at = ma.fields.String(required=True)
    closed_by = ma.fields.String(required=True)
    verified_at = ma.fields.String(required=True)
    kept = ma.fields.List(
        ma.fields.String(), required=True, metadata={"description": "The tables that stay."}
    )
    checkpoint = ma.fields.Dict(
        required=True,
        allow_none=True,
        metadata={"description": "The last checkpoint of the account's audit log."},
    )
    public_key = ma.fields.String(required=True)
    signature = ma.fields.String(required=True)


@blueprint.route("/deletions", methods=["GET"])
@blueprint.arguments(PageArgs, location="query")
@blueprint.response(200, DeletionPage, example=page_body([DELETION], 1, PAGE))
@superadmin
def list_account_deletions(args: Query) -> dict[str, object]:
    """List the deletions of accounts.

    Newest first.
    """
    return page_body(*certificates.page(args), args)


@blueprint.route("/<uuid:account_id>/certificate", methods=["GET"])
@blueprint.response(200, CertificateView, example=CERTIFICATE)
@blueprint.fails(409)
@superadmin
def get_deletion_certificate(account_id: str) -> JSONObject:
    """Get the certificate of the deletion of an account.

    The service signs it about an hour after the deletion, when nothing of the account is left;
    until then it is a 409. An account that was not deleted is a 404.
    """
    return certificates.get(account_id)
