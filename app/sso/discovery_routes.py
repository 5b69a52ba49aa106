"""`POST /auth/discover`: the account and the providers of an email address."""

from __future__ import annotations

import marshmallow as ma
from flask import request

from app.auth import lockout
from app.sso import email_domains
from app.sso.models import CATEGORIES, OAUTH
from app.sso.routes import blueprint
from app.types import JSONObject
from app.web import fields
from app.web.access import public
from app.web.fields import doc
from app.web.schemas import Schema, View

DISCOVERED = {
    "account": "acme",
    "providers": [{"category": OAUTH, "slug": "google", "display_name": "Google"}],
    "password_sign_in": False,
}


class DiscoverBody(Schema):
    """An email address, of which only the domain matters."""

    # No format: what is no address has the answer of an unknown domain.
    email = fields.Text(longest=320, required=True)


class OfferedProvider(View):
    """A provider that users of an account may sign in with."""

    category = fields.Choice(CATEGORIES)
    slug = ma.fields.String(
        attribute="provider_name", **doc("Its name in the paths of sign-in, such as `google`.")
    )
    display_name = ma.fields.String()


class RealmView(View):
    """Where users of a domain sign in."""

    account = ma.fields.String(
        allow_none=True,
        attribute="slug",
        **doc("The account's slug; null for a domain that nobody has proved."),
    )
    providers = ma.fields.List(
        ma.fields.Nested(OfferedProvider), **doc("The enabled providers, by priority.")
    )
    password_sign_in = ma.fields.Boolean(**doc("Whether these users may sign in by password."))


@blueprint.route("/discover", methods=["POST"])
@blueprint.arguments(DiscoverBody, example={"email": "alice@acme.example"})
@blueprint.response(200, RealmView, example=DISCOVERED)
@blueprint.fails(429)
@public(across_accounts=True)
def discover_account(body: JSONObject) -> email_domains.Realm:
    """Find the account and the providers of an email address by its domain.

    Needs no credential. Depends on the domain alone, never on whether the user exists. The response
    for a domain that no account has proved has no account and no providers.
    """
    lockout.count_discovery(request.remote_addr)
    return email_domains.discover(body["email"])
