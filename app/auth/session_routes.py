"""`/auth/sessions`: the caller's sessions."""

from __future__ import annotations

from flask import Response

from app.accounts.types import Query
from app.auth import sessions
from app.auth.guard import principal
from app.auth.routes import blueprint
from app.auth.schemas import SessionPage
from app.web.access import signed_in
from app.web.paging import PageArgs, page_body


@blueprint.route("/sessions", methods=["GET"])
@blueprint.arguments(PageArgs, location="query")
@blueprint.response(200, SessionPage)
@signed_in
def list_sessions(args: Query) -> dict[str, object]:
    """List the caller's active sessions, the last used first.

    Includes sessions of the console (`kind`). Sessions that have ended or expired are left out; API
    keys are a list of their own (`/api-keys`).
    """
    own = sessions.user_key(principal())
    return page_body(*sessions.page(*own, args["skip"], args["limit"]), args)


@blueprint.route("/sessions/end-others", methods=["POST"])
@blueprint.response(204)
@signed_in(api_keys=False)
def end_other_sessions() -> Response:
    """End all of the caller's sessions but the one that makes the request.

    Console sessions end, too, and all tokens stop working at once. API keys stay valid.
    """
    sessions.end_others(principal())
    return Response(status=204)


@blueprint.route("/sessions/<uuid:session_id>", methods=["DELETE"])
@blueprint.response(204)
@signed_in
def end_session(session_id: str) -> Response:
    """End one of the caller's sessions; its tokens stop working at once.

    Also works for the session that makes the request. API keys stay valid. A 404 means that the
    session has ended, or is another user's.
    """
    sessions.end_active(*sessions.user_key(principal()), session_id)
    return Response(status=204)
