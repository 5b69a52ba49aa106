"""`/account/setup-links`: links for the customer's IT, for admins."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app.accounts.own_account_routes import blueprint
from app.accounts.types import Body, Query
from app.auth.guard import principal
from app.sso import setup_links
from app.sso.setup_links import DEFAULT_HOURS, FEATURES, LONGEST_NAME, MAX_HOURS, STATES
from app.web import fields
from app.web.access import account_admin
from app.web.fields import doc
from app.web.paging import PageArgs, page_body, page_of
from app.web.schemas import Schema, View, example

URL = "https://api.example.com/console/setup/AA0001-3n8v..."


class NewSetupLink(Schema):
    name = fields.Text(
        longest=LONGEST_NAME,
        shortest=1,
        required=True,
        **doc("Whom it is for; the audit log names what its holder does by it."),
    )
    email = fields.Text(
        longest=320,
        allow_none=True,
        **doc("Where to mail the link; null: you pass the link on yourself."),
    )
    features = ma.fields.List(
        fields.Choice(FEATURES),
        validate=ma.validate.Length(min=1, max=len(FEATURES)),
        **doc("What its holder may set up; all of it by default."),
    )
    owner_id = fields.GivenId(
        **doc("A service user who is an admin: the link goes on when you leave. Else you.")
    )
    expires_in_hours = fields.Integer(
        1, MAX_HOURS, **doc("How long the link and the set-up last.", default=DEFAULT_HOURS)
    )


@example(name="IT of Acme", email="it@acme.example", features=list(FEATURES))
class SetupLinkView(View):
    """A setup link without its address."""

    id = fields.Id()
    name = ma.fields.String()
    email = ma.fields.String(allow_none=True)
    features = ma.fields.List(fields.Choice(FEATURES))
    state = fields.Choice(
        STATES, **doc("`opened`: in use by its holder, and no longer by anybody else.")
    )
    created_by = fields.Id()
    created_at = fields.Timestamp()
    expires_at = fields.Timestamp()
    opened_at = fields.Timestamp(allow_none=True)
    tested_at = fields.Timestamp(
        allow_none=True, **doc("When the holder's last test sign-in worked.")
    )
    completed_at = fields.Timestamp(allow_none=True)


class CreatedSetupLink(SetupLinkView):
    """A new setup link with its address, which is not shown again."""

    url = ma.fields.String()


@blueprint.route("/setup-links", methods=["GET"])
@blueprint.arguments(PageArgs, location="query")
@blueprint.response(200, page_of(SetupLinkView))
@account_admin
def list_setup_links(args: Query) -> dict[str, object]:
    """List the setup links of your account.

    The newest comes first. Links are removed 30 days after their expiry.
    """
    rows, total = setup_links.page(principal().require_account_id(), args["skip"], args["limit"])
    return page_body(rows, total, args)


@blueprint.route("/setup-links", methods=["POST"])
@blueprint.arguments(NewSetupLink, example={"name": "IT of Acme", "email": "it@acme.example"})
@blueprint.response(201, CreatedSetupLink, example={"url": URL})
@blueprint.fails(409, 429)
@account_admin(recent_sign_in=True, api_keys=False, shows_secret=True)
def create_setup_link(body: Body) -> dict[str, object]:
    """Create a link by which your customer's IT sets up single sign-on.

    The link opens once, without a user, on pages for the providers, domains and SCIM tokens of this
    account and for nothing else. Whoever opens it decides who can sign in to the account, so send
    it to a person you trust. It ends when the set-up is completed, when it expires or is revoked,
    and when its owner is no longer an admin. An account has at most ten open links (409). The
    address is in this response and cannot be retrieved again.
    """
    link, url = setup_links.create(body, by=principal())
    return {name: getattr(link, name) for name in SetupLinkView().fields} | {"url": url}


@blueprint.route("/setup-links/<uuid:setup_link_id>", methods=["DELETE"])
@blueprint.response(204)
@blueprint.fails(409)
@account_admin(api_keys=False)
def revoke_setup_link(setup_link_id: str) -> Response:
    """Revoke a setup link; its holder is refused at once.

    What was set up stays. A completed set-up is a 409.
    """
    setup_links.revoke(setup_link_id, by=principal())
    return Response(status=204)
