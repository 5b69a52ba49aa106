"""`POST /account/portal-sessions`: pages of administration in a product's own page."""

from __future__ import annotations

import marshmallow as ma

from app.accounts import own_account_routes
from app.accounts.types import Body
from app.auth import portals
from app.auth.guard import principal
from app.web import fields
from app.web.access import account_admin
from app.web.examples import USER_ID
from app.web.fields import doc
from app.web.schemas import Schema, View

PAGES = list(portals.PortalPage)


class PortalBody(Schema):
    """The pages of a portal, who opens it, and where it leads back to."""

    pages = ma.fields.List(
        fields.Choice(PAGES),
        required=True,
        validate=ma.validate.Length(1, len(PAGES)),
        **doc("The pages that the session opens, in their order.", uniqueItems=True),
    )
    user_id = fields.GivenId(**doc("The admin that the session acts as; by default the caller."))
    return_url = fields.Text(
        longest=2000,
        required=True,
        **doc(
            "Where its pages lead back to: of the account's `allowed_redirect_uris`, or a link of"
            " the product.",
            format="uri",
        ),
    )
    expires_in = fields.Integer(
        portals.MIN_SECONDS,
        portals.MAX_SECONDS,
        **doc(f"Seconds until the session ends; by default {portals.DEFAULT_SECONDS}."),
    )

    @ma.validates("pages")
    def _are_unique(self, pages: list[str], **options: object) -> None:
        if len(set(pages)) < len(pages):
            raise ma.ValidationError("Name each page once.")


class PortalView(View):
    """The address of a portal, which opens once, and the end of its session."""

    url = ma.fields.String(metadata=fields.URI)
    expires_at = fields.Timestamp()


EXAMPLE = {
    "pages": ["team", "sso", "audit_log"],
    "user_id": USER_ID,
    "return_url": "https://client.example.com/settings",
    "expires_in": 3600,
}


@own_account_routes.blueprint.route("/portal-sessions", methods=["POST"])
@own_account_routes.blueprint.arguments(PortalBody, example=EXAMPLE)
@own_account_routes.blueprint.response(201, PortalView)
@own_account_routes.blueprint.fails(409)
@account_admin(recent_sign_in=True, api_keys=False, shows_secret=True, operator="portal")
def create_portal_session(body: Body) -> dict[str, object]:
    """Create a portal session: pages of administration for a page of your own.

    `url` opens it once, by its first GET, in a browser alone or in a frame of the account's
    `frame_ancestors`; a second GET is a 410. The session acts as an active admin of the account,
    opens the named pages and nothing else, and ends with that admin's other sessions. What needs a
    recent sign-in works for 15 minutes after that of the caller. Superadmins name the account by
    `X-Account-ID` and the admin by `user_id`.
    """
    url, expires_at = portals.create(body, by=principal())
    return {"url": url, "expires_at": expires_at}
