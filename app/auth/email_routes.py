"""`/auth/undo-email-change`: undo a change from the old address (contract section 18)."""

from __future__ import annotations

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
def undo_email_change(body: dict[str, str]) -> dict[str, str]:
    """Undo a change of the email address with the token that was mailed to the old one.

    The token works once, within 7 days. The password, all sessions, access tokens, API keys and
    provider identities of the user are revoked, as an attacker may have created them; the user
    gets a link to set a new password. A wrong, used or expired token is a 400 `invalid_token`. If
    the old address belongs to another user by now, it is a 409.
    """
    email_changes.undo(body["token"])
    return {"message": DONE}
