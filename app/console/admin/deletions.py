"""Deleted accounts and the certificates of their deletion, for superadmins."""

from __future__ import annotations

import orjson
from flask import Response, render_template

from app.audit.chain import signing
from app.console.records import writers
from app.console.shell import lists
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.portability import certificates

DELETIONS = "/console/accounts/deletions"


@page(DELETIONS, role=SUPERADMIN)
def show_deletions() -> str:
    """The accounts that were deleted, each with its certificate."""
    listing = lists.from_request("console.show_deletions")
    listing.with_page(certificates.page(listing.page_args))
    return render_template(
        "console/accounts/deletions.html",
        listing=listing,
        people=writers.superadmins({one.closed_by for one in listing.items}),
        public_keys=signing.public_keys(),
    )


@page(f"{DELETIONS}/<uuid:account_id>/certificate", role=SUPERADMIN)
def download_certificate(account_id: str) -> Response:
    certificate = orjson.dumps(certificates.get(account_id), option=orjson.OPT_INDENT_2)
    name = f"deletion-{account_id.lower()}.json"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(certificate, mimetype="application/json", headers=headers)
