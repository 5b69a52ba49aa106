"""`/auth/undo-email-change`: undo a change from the old address."""

from __future__ import annotations

from flask import Response, make_response

from app.accounts.types import Body
from app.auth import email_changes
from app.auth.mfa.schemas import AddressRestoration, RestoredAddress
from app.auth.mfa.service import Answer
from app.auth.routes import blueprint
from app.auth.schemas import TokenBody
from app.web.access import public
from app.web.schemas import Message

DONE = "The address is restored. A link to set a new password is on its way."
WAITS = "The address is restored in 24 hours, unless that is stopped from the present one."
KEPT = "The address stays as it is."


@blueprint.route("/undo-email-change", methods=["POST"])
@blueprint.arguments(AddressRestoration, example={"token": "AA0001-..."})
@blueprint.response(200, RestoredAddress, example={"message": DONE, "due_at": None})
@blueprint.alt_response(
    202,
    schema=RestoredAddress,
    example={"message": WAITS, "due_at": "2026-11-30T12:00:00.123456Z"},
    description="With wait=true: the address is restored at `due_at`.",
)
@blueprint.fails(400, 401, 403, 409, 429)
@public(across_accounts=True)
def undo_email_change(body: Body) -> Response:
    """Undo a change of the email address with the token that was mailed to the old one.

    The token works once, within 7 days. The password, all sessions, access tokens, API keys and
    provider identities of the user are revoked, as an attacker may have created them, and so are
    second factors that are younger than the change; older ones stay. The user gets a link to set a
    new password, and the address that is replaced a notice.

    A user with an older second factor gets a 401 `mfa_required`: send `method` and `code`, or
    `assertion` and the `mfa_token`, too. With `wait: true` instead, the address is restored after
    24 hours, and the present address gets a link that stops it. A wrong, used or expired token is a
    400 `invalid_token`. If the old address belongs to another user by now, it is a 409; if the
    domain of the present one has `sso_only`, a 403 `address_managed`.
    """
    answer = None
    if "method" in body:
        token, code = body.get("mfa_token", ""), body.get("code", "")
        answer = Answer(body["method"], code, body.get("assertion"), token)
    due_at = email_changes.undo(body["token"], answer, waits=body.get("wait", False))
    view = {"message": WAITS if due_at else DONE, "due_at": due_at}
    return make_response(RestoredAddress().dump(view), 202 if due_at else 200)


@blueprint.route("/keep-email", methods=["POST"])
@blueprint.arguments(TokenBody, example={"token": "AA0001-..."})
@blueprint.response(200, Message, example={"message": KEPT})
@blueprint.fails(400)
@public(across_accounts=True)
def keep_email(body: dict[str, str]) -> dict[str, str]:
    """Stop the undoing of a change with the token that was mailed to the present address.

    The link that would undo it stops working, too. A wrong, used or expired token is a 400
    `invalid_token`.
    """
    email_changes.keep(body["token"])
    return {"message": KEPT}
