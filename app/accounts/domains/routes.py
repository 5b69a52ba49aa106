"""`/account/domains`: the mail domains of an account, for its admins."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app.accounts.domains import service as domains
from app.accounts.domains.models import AccountDomain, DomainState
from app.accounts.own_account_routes import blueprint
from app.accounts.types import Body, Query
from app.auth.guard import principal
from app.sso import email_domains
from app.web import fields
from app.web.access import account_admin
from app.web.fields import doc
from app.web.paging import PageArgs, page_body, page_of
from app.web.schemas import Schema, View, example

AUTO_JOIN = (
    "Whether a first sign-in with a verified address of this domain creates a user, whatever"
    " `sso_provisioning` says, and whether such an address may be registered."
)
AUTO_JOIN_ROLE = "The role of these users; null: viewer. Never `admin`."
SSO_ONLY = "Whether addresses of this domain sign in with a provider, and not by password."


class NewDomain(Schema):
    domain = fields.Text(
        longest=domains.LONGEST,
        required=True,
        **doc("A domain name, such as `acme.example`; not its subdomains."),
    )


class DomainSettings(Schema):
    """The settings of a domain, which apply while it is verified."""

    auto_join = fields.StrictBoolean(**doc(AUTO_JOIN))
    auto_join_role = fields.Text(longest=100, allow_none=True, **doc(AUTO_JOIN_ROLE))
    sso_only = fields.StrictBoolean(**doc(SSO_ONLY))


@example(
    state=DomainState.VERIFIED,
    record_name="_atrium-challenge.acme.example",
    record_value="atrium-domain-verification=3n8v...",
    verified_at="2026-11-20T12:00:00.123456Z",
    last_checked_at="2026-11-20T12:00:00.123456Z",
)
class DomainView(View):
    id = fields.Id()
    domain = ma.fields.String(**doc("In ASCII (`xn--...` for other letters)."))
    state = fields.Choice(
        DomainState,
        **doc(
            "`pending`: not proved. `failing`: the record has been missing for three days or more;"
            " after 14 the domain is pending again."
        ),
    )
    record_name = ma.fields.String(**doc("The name of the DNS record of type TXT."))
    record_value = ma.fields.String(**doc("The text of the DNS record."))
    auto_join = ma.fields.Boolean(**doc(AUTO_JOIN))
    auto_join_role = ma.fields.String(allow_none=True, **doc(AUTO_JOIN_ROLE))
    sso_only = ma.fields.Boolean(**doc(SSO_ONLY))
    verified_at = fields.Timestamp(allow_none=True)
    last_checked_at = fields.Timestamp(allow_none=True)
    created_at = fields.Timestamp()
    updated_at = fields.Timestamp()


@blueprint.route("/domains", methods=["GET"])
@blueprint.arguments(PageArgs, location="query")
@blueprint.response(200, page_of(DomainView))
@account_admin
def list_domains(args: Query) -> dict[str, object]:
    """List the domains of your account.

    Ordered by name.
    """
    rows, total = domains.page(principal().require_account_id(), args["skip"], args["limit"])
    return page_body(rows, total, args)


@blueprint.route("/domains", methods=["POST"])
@blueprint.arguments(NewDomain, example={"domain": "acme.example"})
@blueprint.response(201, DomainView, example={"state": "pending", "verified_at": None})
@blueprint.fails(409)
@account_admin(recent_sign_in=True, api_keys=False)
def create_domain(body: Body) -> AccountDomain:
    """Add a domain to your account.

    Add the record to the DNS of the domain, then verify it. Public mail domains, and public
    suffixes such as `co.uk`, are a 400.
    """
    return email_domains.create(body["domain"], by=principal())


@blueprint.route("/domains/<uuid:domain_id>/verify", methods=["POST"])
@blueprint.response(200, DomainView)
@blueprint.fails(409, 429)
@account_admin(recent_sign_in=True, api_keys=False)
def verify_domain(domain_id: str) -> AccountDomain:
    """Verify a domain by its DNS record.

    Without the record it is a 409; likewise if another account has proved the domain, as long as
    its record is there. Keep the record: it is checked daily.
    """
    return email_domains.verify(domain_id, by=principal())


@blueprint.route("/domains/<uuid:domain_id>", methods=["PATCH"])
@blueprint.arguments(DomainSettings, example={"auto_join": True, "auto_join_role": "editor"})
@blueprint.response(200, DomainView, example={"auto_join": True})
@account_admin(recent_sign_in=True, api_keys=False)
def update_domain(body: Body, domain_id: str) -> AccountDomain:
    """Change the settings of a domain.

    `sso_only` needs an enabled provider (400).
    """
    return email_domains.change(domain_id, body, by=principal())


@blueprint.route("/domains/<uuid:domain_id>", methods=["DELETE"])
@blueprint.response(204)
@account_admin(recent_sign_in=True, api_keys=False)
def delete_domain(domain_id: str) -> Response:
    """Remove a domain from your account.

    Its users stay, and sign in as all others.
    """
    email_domains.delete(domain_id, by=principal())
    return Response(status=204)
