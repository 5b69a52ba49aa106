"""`/product` and `/account/brand`: the product's own face, and that of an account."""

from __future__ import annotations

import marshmallow as ma
from flask import Response, request

from app import web
from app.accounts import own_account_routes
from app.accounts.product import images, settings
from app.accounts.product.settings import Face, LinkKind, Product
from app.accounts.types import Body, Query
from app.auth import principal as principals
from app.auth.guard import principal
from app.errors import NotFound
from app.web import fields
from app.web.access import account_admin, public, superadmin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.schemas import BYTES, Schema, View, example

blueprint = Blueprint(
    "Product",
    __name__,
    url_prefix=f"{web.PREFIX}/product",
    description="What your product is called, how it looks, and where its pages are.",
)
account = own_account_routes.blueprint

LOGO = "An https address, or a PNG or SVG without scripts as a data address, at most 256 KiB."
LINKS = (
    "Pages of your own that mails lead to, with `{token}` and `{account}` in them, by"
    f" {', '.join(LinkKind)}. Where there is none, people come to the service's own page."
)
COLOR = "Such as `#0b5fff`."
EXAMPLE = {
    "name": "Helpdesk",
    "logo": None,
    "accent_color": "#0b5fff",
    "links": {"reset_password": "https://www.example.com/password?token={token}"},
}


class FaceBody(Schema):
    """A name, a logo, a colour and links; what is absent stays, null takes away."""

    name = fields.Text(longest=100, allow_none=True)
    logo = fields.Text(longest=images.LONGEST, allow_none=True, **doc(LOGO))
    accent_color = fields.Text(longest=20, allow_none=True, **doc(COLOR))
    links = ma.fields.Dict(
        keys=fields.Text(longest=50),
        values=fields.Text(longest=1000, allow_none=True),
        validate=ma.validate.Length(max=20),
        **doc(LINKS),
    )


class ProductBody(FaceBody):
    """The product; what is absent stays, null takes away."""

    url = fields.Text(longest=1000, allow_none=True, **doc("Its front page.", **fields.URI))
    support_email = fields.Text(longest=320, allow_none=True, metadata=fields.EMAIL)
    privacy_url = fields.Text(longest=1000, allow_none=True, metadata=fields.URI)
    terms_url = fields.Text(longest=1000, allow_none=True, metadata=fields.URI)
    accounts_may_brand = fields.StrictBoolean(
        **doc("Whether accounts may have a name, logo, colour and links of their own.")
    )


@example(**EXAMPLE)
class FaceView(View):
    """The name, logo, colour and links of an account."""

    name = ma.fields.String(allow_none=True)
    logo = ma.fields.String(allow_none=True, **doc(LOGO))
    accent_color = ma.fields.String(allow_none=True, **doc(COLOR))
    links = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.String(), **doc(LINKS))


@example(**EXAMPLE, accounts_may_brand=False)
class ProductView(FaceView):
    """The product, as the operator describes it."""

    url = ma.fields.String(allow_none=True, metadata=fields.URI)
    support_email = ma.fields.String(allow_none=True, metadata=fields.EMAIL)
    privacy_url = ma.fields.String(allow_none=True, metadata=fields.URI)
    terms_url = ma.fields.String(allow_none=True, metadata=fields.URI)
    accounts_may_brand = ma.fields.Boolean()


@blueprint.route("", methods=["GET"])
@blueprint.response(200, ProductView)
@superadmin
def get_product() -> Product:
    """Get what the product is called, looks like, and where its pages are."""
    return settings.load()


@blueprint.route("", methods=["PUT", "PATCH"])
@blueprint.arguments(ProductBody, example=EXAMPLE)
@blueprint.response(200, ProductView)
@superadmin
def update_product(body: Body) -> Product:
    """Set what the product is called, looks like, and where its pages are.

    It takes effect with the next mail and page.
    """
    return settings.change(body)


class LogoArgs(Schema):
    account = fields.Text(longest=200, **doc("Slug, code or id; absent: the product's."))


@blueprint.route("/logo", methods=["GET"])
@blueprint.arguments(LogoArgs, location="query")
@blueprint.response(200, schema=BYTES, content_type="image/*", example="(bytes)")
@blueprint.fails(404)
@public(across_accounts=True)
def get_logo(args: Query) -> Response:
    """Get the logo of the product, or of an account that has its own, if it was set as an image.

    Needs no credential, as pages show it before a sign-in.
    """
    row = principals.find_account(args["account"]) if args.get("account") else None
    brand = settings.load_brand(row.id) if row and row.is_active else Face()
    found = images.decode(brand.logo or settings.load().logo or "")
    if found is None:
        raise NotFound("There is no logo.")
    response = Response(found[1], mimetype=found[0])
    response.headers["Content-Security-Policy"] = images.POLICY
    response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
    response.headers["Cache-Control"] = "public, max-age=300"
    response.add_etag()
    response.make_conditional(request)
    return response


@account.route("/brand", methods=["GET"])
@account.response(200, FaceView)
@account.fails(403)
@account_admin
def get_brand() -> Face:
    """Get the brand of your account.

    Where the operator has not turned that on, it is a 403 `branding_off`.
    """
    settings.require_branding()
    return settings.load_brand(principal().require_account_id())


@account.route("/brand", methods=["PUT", "PATCH"])
@account.arguments(FaceBody, example={"name": "Acme", "accent_color": "#0b5fff"})
@account.response(200, FaceView)
@account.fails(403)
@account_admin(recent_sign_in=True, api_keys=False)
def update_brand(body: Body) -> Face:
    """Set the brand of your account: mails and pages for its users show it.

    Links lead to addresses of `allowed_redirect_uris` (without the token), or to those of the
    product. Tokens of members of `pii_access` go to none that somebody outside the group has added.
    """
    return settings.change_brand(principal().require_account_id(), body)
