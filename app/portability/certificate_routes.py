"""Deletions of accounts and their certificates, for superadmins (docs/bundles.md)."""

from __future__ import annotations

import marshmallow as ma

from app.accounts.routes import blueprint
from app.accounts.types import Query
from app.portability import certificates
from app.types import JSONObject
from app.web import fields
from app.web.access import superadmin
from app.web.fields import doc
from app.web.paging import PageArgs, page_body, page_of
from app.web.schemas import View, example

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
NUMBERS = {"description": "The number of rows of each table when the account was deleted."}


@example(counts=COUNTS, certified_at="2026-11-20T13:05:00.123456Z")
class DeletionView(View):
    account_id = fields.Id()
    account_name = ma.fields.String(allow_none=True)
    closed_at = fields.Timestamp()
    closed_by = fields.Id()
    counts = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.Integer(), metadata=NUMBERS)
    certified_at = fields.Timestamp(
        allow_none=True, **doc("When nothing was left; null until the certificate is signed.")
    )


@example(
    counts=COUNTS,
    closed_at=DELETION["closed_at"],
    closed_by=DELETION["closed_by"],
    verified_at=DELETION["certified_at"],
    kept=["audit_changes", "audit_checkpoints"],
    public_key=KEY,
    signature=SIGNATURE,
)
class CertificateView(View):
    """A certificate of deletion; `docs/verify_deletion.py` verifies it."""

    purpose = fields.Choice(("deletion",))
    account_id = fields.Id()
    counts = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.Integer(), metadata=NUMBERS)
    closed_at = ma.fields.String()
    closed_by = ma.fields.String()
    verified_at = ma.fields.String()
    kept = ma.fields.List(ma.fields.String(), **doc("The tables that stay."))
    checkpoint = ma.fields.Dict(
        allow_none=True, **doc("The last checkpoint of the account's audit log.")
    )
    public_key = ma.fields.String()
    signature = ma.fields.String()


@blueprint.route("/deletions", methods=["GET"])
@blueprint.arguments(PageArgs, location="query")
@blueprint.response(200, page_of(DeletionView))
@superadmin(operator="accounts")
def list_account_deletions(args: Query) -> dict[str, object]:
    """List the deletions of accounts.

    Newest first.
    """
    return page_body(*certificates.page(args), args)


@blueprint.route("/<uuid:account_id>/certificate", methods=["GET"])
@blueprint.response(200, CertificateView)
@blueprint.fails(409)
@superadmin(operator="accounts")
def get_deletion_certificate(account_id: str) -> JSONObject:
    """Get the certificate of the deletion of an account.

    The service signs it about an hour after the deletion, when nothing of the account is left;
    until then it is a 409. An account that was not deleted is a 404.
    """
    return certificates.get(account_id)
