"""What a sign-in page shows: the account, its providers, and the other ways to sign in."""

from __future__ import annotations

from urllib.parse import urlencode

import marshmallow as ma
from flask import request

from app import config, web
from app.accounts.product import settings as product
from app.auth import lockout
from app.sso import email_domains
from app.sso.email_domains import Realm
from app.sso.models import CATEGORIES, OAUTH
from app.sso.routes import blueprint
from app.types import JSONObject
from app.web import fields
from app.web.access import public
from app.web.fields import doc
from app.web.schemas import Schema, View

EXAMPLE = {
    "account": {"slug": "acme", "name": "Acme", "logo": None, "accent_color": "#0b5fff"},
    "password": False,
    "passkey": True,
    "magic_link": False,
    "providers": [
        {
            "slug": "google",
            "kind": "oauth",
            "name": "Google",
            "start_url": "https://api.example.com/oauth/google/authorize?account=acme",
            "category": OAUTH,
            "display_name": "Google",
        }
    ],
    "password_sign_in": False,
}


class DiscoverBody(Schema):
    """An email address, of which only the domain matters."""

    # No format: what is no address has the answer of an unknown domain.
    email = fields.Text(longest=320, required=True)


class ProvidersArgs(Schema):
    account = fields.Text(longest=200, required=True, **doc("Slug, code or id."))


class OfferedProvider(View):
    """A provider that users of an account may sign in with."""

    slug = ma.fields.String(**doc("Its name in the paths of sign-in, such as `google`."))
    kind = fields.Choice(("oauth", "saml"))
    name = ma.fields.String()
    start_url = ma.fields.String(
        **doc("Where a browser starts; add `redirect_uri` and `state`.", **fields.URI)
    )
    category = fields.Choice(CATEGORIES)
    display_name = ma.fields.String(**doc("The name."))


class RealmAccount(View):
    """The account, as its own sign-in page may show it."""

    slug = ma.fields.String()
    name = ma.fields.String()
    logo = ma.fields.String(allow_none=True, **doc("An address.", **fields.URI))
    accent_color = ma.fields.String(allow_none=True)


class RealmView(View):
    """How the users of an account sign in."""

    account = ma.fields.Nested(
        RealmAccount, allow_none=True, **doc("null for a domain that nobody has proved.")
    )
    password = ma.fields.Boolean(**doc("Whether these users may sign in by password."))
    passkey = ma.fields.Boolean()
    magic_link = ma.fields.Boolean(**doc("Whether they may ask for a mailed link."))
    providers = ma.fields.List(
        ma.fields.Nested(OfferedProvider), **doc("The enabled providers, by priority.")
    )
    password_sign_in = ma.fields.Boolean(**doc("As `password`."))


@blueprint.route("/discover", methods=["POST"])
@blueprint.arguments(DiscoverBody, example={"email": "alice@acme.example"})
@blueprint.response(200, RealmView, example=EXAMPLE)
@blueprint.fails(429)
@public(across_accounts=True)
def discover_account(body: JSONObject) -> JSONObject:
    """Find how an email address signs in, by its domain.

    Needs no credential. Depends on the domain alone, never on whether the user exists. The response
    for a domain that no account has proved has no account and no providers.
    """
    lockout.count_discovery(request.remote_addr)
    return _shown(email_domains.discover(body["email"]))


@blueprint.route("/providers", methods=["GET"])
@blueprint.arguments(ProvidersArgs, location="query")
@blueprint.response(200, RealmView, example=EXAMPLE)
@blueprint.fails(404, 429)
@public(across_accounts=True)
def list_sign_in_ways(args: JSONObject) -> JSONObject:
    """Get what a sign-in page of an account shows: its name, and the ways to sign in.

    Needs no credential. An unknown or suspended account is a 404.
    """
    lockout.count_discovery(request.remote_addr)
    return _shown(email_domains.of_account(args["account"]))


def _shown(realm: Realm) -> JSONObject:
    base, account = config.current().base_url, None
    if realm.account is not None:
        brand, own = product.load_brand(realm.account.id), product.load()
        logo = brand.logo or own.logo
        if logo and logo.startswith("data:"):
            logo = f"{base}{web.PREFIX}/product/logo?account={realm.account.account_code}"
        account = {
            "slug": realm.account.slug,
            "name": brand.name or realm.account.name,
            "logo": logo,
            "accent_color": brand.accent_color or own.accent_color,
        }
    providers = []
    for one in realm.providers:
        kind, start = ("oauth", "authorize") if one.category == OAUTH else ("saml", "sso")
        query = urlencode({"account": realm.account.slug if realm.account else ""})
        providers.append(
            {
                "slug": one.provider_name,
                "kind": kind,
                "name": one.display_name,
                "start_url": f"{base}/{kind}/{one.provider_name}/{start}?{query}",
                "category": one.category,
                "display_name": one.display_name,
            }
        )
    return {
        "account": account,
        "password": realm.password,
        "passkey": realm.passkey,
        "magic_link": realm.magic_link,
        "providers": providers,
        "password_sign_in": realm.password,
    }
