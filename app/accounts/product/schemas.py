"""The product and brands of accounts in requests and responses."""

from __future__ import annotations

import marshmallow as ma

from app.accounts.product import images
from app.accounts.product.settings import LinkKind
from app.web import fields
from app.web.fields import doc
from app.web.schemas import Schema, View, example

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
    """A name, a logo, a colour and links; what is absent stays, null or "" takes away."""

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
