"""Refusals by a rule: a 403 has an `explain_id`, by which a superadmin finds out why.

The id is the question itself, signed: nothing is stored, so refusals cost no more than before.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from flask import Flask, Response, request
from itsdangerous import BadSignature

from app import clock, crypto
from app.collections.access import RuleDenied
from app.errors import NotFound
from app.web import error_handlers

PURPOSE = "rule denial"


@dataclass(frozen=True)
class Denial:
    """A refused request."""

    account_id: str | None
    user_id: str | None
    collection: str
    operation: str
    record_id: str | None
    occurred_at: str


def init_app(app: Flask) -> None:
    """Have refusals answered with their id."""
    app.register_error_handler(RuleDenied, _response)


def _response(error: RuleDenied) -> Response:
    caller = error.caller
    record_id = (request.view_args or {}).get("record_id")
    denial = Denial(
        *(caller.account_id, caller.user_id, error.collection, error.operation, record_id),
        occurred_at=clock.iso(clock.now()),
    )
    error.extra = {**error.extra, "explain_id": crypto.sign(asdict(denial), PURPOSE)}
    return error_handlers.error_response(error)


def read(explain_id: str) -> Denial:
    """Return the refused request of an id. Raises NotFound."""
    try:
        return Denial(**crypto.unsign(explain_id, PURPOSE))
    except (BadSignature, TypeError) as error:
        raise NotFound("There is no such refusal.") from error
