"""The product's own face, for superadmins; and that of an account, for its admins."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager

from flask import request
from werkzeug.wrappers import Response as BaseResponse

from app.accounts.product import images, settings
from app.accounts.product.settings import Face, LinkKind
from app.console.admin.account_settings import ACCOUNT_SETTINGS
from app.console.shell import forms, guard
from app.console.shell.access import ADMIN, SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.navigation import INSTANCE, MenuItem
from app.console.shell.scopes import AccountScope
from app.errors import InvalidValues, problem
from app.types import JSONObject
from app.web.languages import gettext, lazy_gettext

PRODUCT, BRAND = "/console/product", f"{ACCOUNT_SETTINGS}/brand"
TEXTS = ("name", "accent_color")
ADDRESSES = ("url", "support_email", "privacy_url", "terms_url")
LINKS = {
    LinkKind.SIGN_IN: lazy_gettext("Sign in"),
    LinkKind.INVITATION: lazy_gettext("Accept an invitation"),
    LinkKind.VERIFY_EMAIL: lazy_gettext("Confirm the address"),
    LinkKind.RESET_PASSWORD: lazy_gettext("Choose a new password"),
    LinkKind.MAGIC_LINK: lazy_gettext("Sign in by a mailed link"),
    LinkKind.EMAIL_CHANGE: lazy_gettext("Confirm a new address"),
}
FIELDS = (*TEXTS, "logo", "remove_logo", *LINKS)
LONGEST_LOGO_ADDRESS = 1000


@page(PRODUCT, role=SUPERADMIN, menu=MenuItem(INSTANCE, 4, lazy_gettext("Product"), "building"))
def show_product(form: Form | None = None) -> Page:
    stored = settings.load()
    if form is None:
        form = Form(_face_values(stored))
        form.values |= {name: getattr(stored, name) or "" for name in ADDRESSES}
        form.values["accounts_may_brand"] = "true" if stored.accounts_may_brand else ""
    return form.render("console/product.html", links=LINKS, logo=stored.logo)


@page(PRODUCT, "POST", role=SUPERADMIN, form_page=show_product)
def change_product() -> BaseResponse:
    """Save what the product is called, looks like, and where its pages are."""
    form = forms.submitted(*FIELDS, *ADDRESSES, "accounts_may_brand")
    body = _face_body(form) | {name: form[name].strip() or None for name in ADDRESSES}
    if settings.changes_links(body):
        guard.require_caller().require_recent_sign_in()
    with _errors_beside_links():
        settings.change(body | {"accounts_may_brand": bool(form["accounts_may_brand"])})
    return redirect_with_notice(gettext("The product is saved."), "console.show_product")


@page(BRAND, role=ADMIN)
def show_brand(scope: AccountScope, form: Form | None = None) -> Page:
    """The name, logo, colour and links of an account."""
    settings.require_branding(scope.account.id)
    stored = settings.load_brand(scope.account.id)
    return (form or Form(_face_values(stored))).render(
        "console/settings/brand.html", scope=scope, links=LINKS, logo=stored.logo
    )


@page(BRAND, "POST", role=ADMIN, form_page=show_brand)
def change_brand(scope: AccountScope) -> BaseResponse:
    """Save the brand of an account."""
    form = forms.submitted(*FIELDS)
    scope.by.require_recent_sign_in()
    with _errors_beside_links():
        settings.change_brand(scope.account.id, _face_body(form))
    return redirect_with_notice(
        gettext("The settings are saved."), "console.show_brand", **scope.url_args
    )


def _face_values(face: Face) -> dict[str, str]:
    logo = face.logo if face.logo and face.logo.startswith("https:") else ""
    values = {name: getattr(face, name) or "" for name in TEXTS}
    return values | {kind.value: face.links.get(kind, "") for kind in LINKS} | {"logo": logo}


def _face_body(form: Form) -> JSONObject:
    body: JSONObject = {name: form[name].strip() or None for name in TEXTS}
    body["links"] = {kind.value: form[kind].strip() or None for kind in LINKS}
    upload = request.files.get("image")
    if upload is not None and upload.filename:
        content = upload.read(images.MAX_BYTES + 1)
        if len(content) > images.MAX_BYTES:
            raise InvalidValues([problem("logo", "too_large", gettext("At most 256 KiB."))])
        kind = "image/svg+xml" if content.lstrip()[:1] == b"<" else "image/png"
        body["logo"] = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    elif form["remove_logo"] or form["logo"]:
        body["logo"] = form["logo"].strip()[:LONGEST_LOGO_ADDRESS] or None
    return body


@contextmanager
def _errors_beside_links() -> Iterator[None]:
    try:
        yield
    except InvalidValues as error:
        shown = [{**one, "field": one["field"].removeprefix("links.")} for one in error.details]
        raise InvalidValues(shown) from error
