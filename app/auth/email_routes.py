"""`/auth/undo-email-change`: the old address takes a change of it back (contract section 18)."""

from __future__ import annotations

from typing import Any

from app.auth import email_changes
from app.auth.routes import blueprint
from app.auth.schemas import TokenBody
from app.rest.access import across_accounts, public
from app.rest.schemas import Message

DONE = "The address is restored. A link to set a new password is on its way."


@blueprint.route("/undo-email-change", methods=["POST"])
@blueprint.arguments(TokenBody, example={"token": "AA0001-..."})
@blueprint.response(200, Message, example={"message": DONE})
@blueprint.fails(400, 409)
@public
@across_accounts
def undo_email_change(body: dict[str, Any]) -> dict[str, str]:
    """Take a changed address back, by the token that was mailed to the old one.

    It serves once, for 7 days. The password, all sessions, access tokens, API keys and identities
    at providers end, as they may be of whoever changed the address; a link to set a new password
    is mailed. A bad, used or expired token is 400 `invalid_token`. Where the old address is another
    user's by now, it is a 409.
    """
    email_changes.take_back(body["token"])
    return {"message": DONE}
