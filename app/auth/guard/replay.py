"""Requests with an `Idempotency-Key`: a repeated one gets the first one's response."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from flask import Request, Response, current_app
from sqlalchemy.exc import DBAPIError

from app import web
from app.auth.guard.authenticate import verified
from app.auth.principal import Principal
from app.errors import AppError
from app.web import idempotency as keys
from app.web.access import ViewAccess, access_of
from app.web.app import environ_key
from app.web.idempotency import Claim

KEY = environ_key(keys.HEADER)


def find_or_claim(request: Request, g: Any, access: ViewAccess) -> Response | None:
    """The stored response for the key; else None, with the key claimed as `g.claim`.

    A key counts on API routes, except those of signing in.
    """
    caller: Principal | None = g.get("principal")
    is_repeatable = request.path.startswith(f"{web.PREFIX}/") and not request.path.startswith(
        f"{web.PREFIX}/auth/"
    )
    if caller is None or not caller.signed_in or not is_repeatable:
        return None
    g.principal = caller = verified(request, caller, access)
    caller_key = "/".join(filter(None, (caller.user_id, caller.api_key_id)))
    body = request.get_data(cache=True)
    # Clients generate a new multipart boundary for every request.
    if boundary := request.mimetype_params.get("boundary"):
        body = body.replace(boundary.encode(), b"")
    digests = keys.request_fingerprints(request.path, request.query_string, body)
    key = request.headers[keys.HEADER]
    claim = keys.claim(caller.require_account_id(), caller_key, key, digests)
    if isinstance(claim, Claim):
        g.claim = claim
        return None
    response = Response(claim.text, claim.status, mimetype="application/json")
    response.headers["Idempotent-Replayed"] = "true"
    if claim.etag:
        response.headers["ETag"] = claim.etag
    return response


def finish(claim: Claim, request: Request, response: Response) -> Response:
    """Store the response in the transaction of its request; returns the response to send."""
    try:
        if response.status_code >= 300:
            keys.release(claim, keep_changes=response.status_code < 500)
        else:
            shows_secret = access_of(
                current_app.view_functions[request.endpoint or ""]
            ).shows_secret
            body = response.get_json() if shows_secret else {}
            has_secret = shows_secret(body) if callable(shows_secret) else shows_secret
            record_id = body.get("id") if has_secret else None
            text = None if has_secret else response.get_data(as_text=True)
            etag = response.headers.get("ETag")
            keys.save_response(claim, response.status_code, text, etag, record_id)
    except (AppError, DBAPIError) as error:
        with suppress(DBAPIError):  # if the commit succeeded after all, the stored response stays
            keys.release(claim, keep_changes=False)
        response = current_app.make_response(current_app.handle_user_exception(error))
    return response
