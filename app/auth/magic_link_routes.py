"""`/auth/magic-link`: signing in by a mailed link."""

from __future__ import annotations

from flask import Response, request

from app.accounts.types import Body
from app.auth import magic_links
from app.auth import service as auth
from app.auth.guard import account_of_request
from app.auth.mfa.gate import Proof
from app.auth.responses import origin, requested_account, sign_in_response
from app.auth.routes import blueprint
from app.auth.schemas import MagicLinkBody, SignedIn, TokenBody
from app.web.access import public
from app.web.schemas import Message

SENT = "If the user exists, a link to sign in is on its way."


@blueprint.route("/magic-link", methods=["POST"])
@blueprint.arguments(MagicLinkBody, example={"account": "acme", "email": "alice@acme.example"})
@blueprint.response(200, Message, example={"message": SENT})
@blueprint.fails(400, 429)
@public(across_accounts=True)
def send_magic_link(body: Body) -> dict[str, str]:
    """Mail a link to sign in.

    For accounts that allow it (`magic_link`); others, and unknown ones, get a 400 `magic_link_off`.
    The link works once, for 15 minutes; three that you asked for stay valid until one is used. It
    leads to the console, or with its `token` to `redirect_uri`, which must be one of the account's
    `allowed_redirect_uris` or a link of the product. Links of members of `pii_access` lead to the
    console or the product only. The response does not reveal whether the user exists.
    """
    magic_links.request_link(
        requested_account(body),
        body["email"],
        body.get("redirect_uri"),
        address=request.remote_addr,
        device=origin().device,
    )
    return {"message": SENT}


@blueprint.route("/magic-link/verify", methods=["POST"])
@blueprint.arguments(TokenBody, example={"token": "AA0001-..."})
@blueprint.response(200, SignedIn)
@blueprint.fails(400, 401)
@public(across_accounts=True)
def sign_in_by_magic_link(body: Body) -> Response:
    """Sign in with the token of a mailed link; the response is that of a login.

    This also verifies the address, and removes the password of a user whose address was not
    verified. A wrong, used or expired token is a 400 `invalid_token`. As
    after a password, a user with a second factor gets a 401 `mfa_required`.
    """
    user = magic_links.consume(body["token"], account_of_request())
    return sign_in_response(auth.sign_in(user, origin(), Proof.MAIL))
