"""`/product` and `/account/brand`: the product's own face, and that of an account."""

from __future__ import annotations

from flask import Response, request

from app import web
from app.accounts import own_account_routes
from app.accounts.product import images, settings
from app.accounts.product.schemas import EXAMPLE, FaceBody, FaceView, ProductBody, ProductView
from app.accounts.product.settings import Face, Product
from app.accounts.types import Body, Query
from app.auth import principal as principals
from app.auth.guard import principal
from app.errors import NotFound
from app.web import fields
from app.web.access import account_admin, public, superadmin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.schemas import BYTES, Schema

blueprint = Blueprint(
    "Product",
    __name__,
    url_prefix=f"{web.PREFIX}/product",
    description="What your product is called, how it looks, and where its pages are.",
)
account = own_account_routes.blueprint


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

    It takes effect with the next mail and page. Links need a recent sign-in (403
    `recent_sign_in_required`), as their pages receive tokens; API keys cannot change them (403).
    """
    if settings.changes_links(body):
        principal().require_recent_sign_in()
    return settings.change(body)


class LogoArgs(Schema):
    account = fields.Text(longest=200, **doc("Slug, code or id; absent: the product's."))


@blueprint.route("/logo", methods=["GET"])
@blueprint.arguments(LogoArgs, location="query")
@blueprint.response(200, schema=BYTES, content_type="application/octet-stream", example="(bytes)")
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
    account_id = principal().require_account_id()
    settings.require_branding(account_id)
    return settings.load_brand(account_id)


@account.route("/brand", methods=["PUT", "PATCH"])
@account.arguments(FaceBody, example={"name": "Acme", "accent_color": "#0b5fff"})
@account.response(200, FaceView)
@account.fails(403)
@account_admin(recent_sign_in=True, api_keys=False)
def update_brand(body: Body) -> Face:
    """Set the brand of your account: mails and pages for its users show it.

    Links lead to addresses of `allowed_redirect_uris` (without the token), or to those of the
    product. Tokens of members of `pii_access` lead to those of the product only.
    """
    return settings.change_brand(principal().require_account_id(), body)
