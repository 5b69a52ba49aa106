"""`/auth/sessions`: where the caller is signed in (spec 4.1)."""

from __future__ import annotations

from typing import Any

from flask import Response

from app.accounts.schemas import PAGE
from app.auth import sessions
from app.auth.guard import principal
from app.auth.routes import blueprint
from app.auth.schemas import SESSION, SessionPage
from app.rest.paging import PageArgs, page_body


@blueprint.route("/sessions", methods=["GET"])
@blueprint.arguments(PageArgs, location="query")
@blueprint.response(200, SessionPage, example=page_body([SESSION], 1, PAGE))
def list_sessions(args: dict[str, Any]) -> dict[str, Any]:
    """List the caller's sign-ins that are still alive, the last used first."""
    return page_body(*sessions.of_caller(principal(), args["skip"], args["limit"]), args)


@blueprint.route("/sessions/<uuid:session_id>", methods=["DELETE"])
@blueprint.response(204)
def end_session(session_id: str) -> Response:
    """End one of the caller's sign-ins: its tokens are refused from now on."""
    sessions.end_own(principal(), session_id)
    return Response(status=204)
