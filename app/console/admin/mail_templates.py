"""Texts of mails: of the instance, for superadmins; of an account, for its admins."""

from __future__ import annotations

from flask import Response, after_this_request, flash, url_for
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import tenants, users
from app.accounts.domains import senders
from app.accounts.product import mail_templates, mails, settings
from app.accounts.product.mail_kinds import KINDS
from app.accounts.product.mail_schemas import MailTemplateBody
from app.auth import account_settings
from app.console.admin.account_settings import ACCOUNT_SETTINGS
from app.console.admin.product import PRODUCT
from app.console.shell import forms, guard
from app.console.shell.access import ADMIN, SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import AccountScope
from app.errors import AppError
from app.types import JSONObject
from app.web import html
from app.web.languages import LANGUAGES, gettext

MAILS, OWN_MAILS = f"{PRODUCT}/mails", f"{ACCOUNT_SETTINGS}/mails"
ONE = "<string:mail_kind>/<string:language>"
FIELDS = ("subject", "text", "html", "reply_to")
FRAMED = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' https: data:; sandbox;"
    " frame-ancestors 'self'"
)
"""Of a preview, which is shown within the page of its text."""


@page(MAILS, role=SUPERADMIN)
def show_product_mails() -> Page:
    """The kinds of mails, and which texts the instance has changed."""
    return Form().render(
        "console/mails/list.html", kinds=mail_templates.summaries(None), languages=LANGUAGES
    )


@page(f"{MAILS}/{ONE}", role=SUPERADMIN)
def show_product_mail(mail_kind: str, language: str, form: Form | None = None) -> Page:
    return _editor(mail_kind, language, None, form)


@page(f"{MAILS}/{ONE}", "POST", role=SUPERADMIN, form_page=show_product_mail)
def change_product_mail(mail_kind: str, language: str) -> BaseResponse | Page:
    """Save a text, or mail it to the caller."""
    return _change(mail_kind, language, None)


@page(f"{MAILS}/{ONE}/reset", "POST", role=SUPERADMIN, form_page=show_product_mail)
def reset_product_mail(mail_kind: str, language: str) -> BaseResponse:
    """Return to the built-in text."""
    return _reset(mail_kind, language, None)


@page(f"{MAILS}/{ONE}/preview", role=SUPERADMIN)
def preview_product_mail(mail_kind: str, language: str) -> Response:
    """The HTML of a mail with the text in force."""
    return _preview(mail_kind, language, None, None)


@page(f"{MAILS}/{ONE}/preview", "POST", role=SUPERADMIN)
def try_product_mail(mail_kind: str, language: str) -> Response:
    """The HTML of a mail with the text of the form."""
    return _preview(mail_kind, language, None, _body(forms.submitted(*FIELDS)))


@page(OWN_MAILS, role=ADMIN)
def show_mail_templates(scope: AccountScope, form: Form | None = None) -> Page:
    """The address that an account's mails come from, and its texts."""
    account = tenants.get(scope.account.id)
    may_brand = settings.may_brand(account.id)
    own = senders.of(account.id)
    form = form or Form({"mail_from": account.settings.get(senders.SETTING) or ""})
    return form.render(
        "console/mails/list.html",
        scope=scope,
        kinds=mail_templates.summaries(account.id) if may_brand else (),
        languages=LANGUAGES,
        is_offered=senders.is_offered(),
        wanted=senders.wanted_records(form["mail_from"].rpartition("@")[2] or "acme.example"),
        is_active=own is not None,
        advice=senders.advice(account.id),
    )


@page(f"{OWN_MAILS}/sender", "POST", role=ADMIN, form_page=show_mail_templates)
def change_sender(scope: AccountScope) -> BaseResponse:
    """Save the address that an account's mails come from."""
    form = forms.submitted("mail_from")
    address = form.validated(mail_from=320)["mail_from"].strip() or None
    account_settings.change(scope.account.id, {senders.SETTING: address}, by=scope.by)
    return redirect_with_notice(
        gettext("The settings are saved."), "console.show_mail_templates", **scope.url_args
    )


@page(f"{OWN_MAILS}/{ONE}", role=ADMIN)
def show_mail_template(
    scope: AccountScope, mail_kind: str, language: str, form: Form | None = None
) -> Page:
    return _editor(mail_kind, language, _branded(scope), form)


@page(f"{OWN_MAILS}/{ONE}", "POST", role=ADMIN, form_page=show_mail_template)
def change_mail_template(scope: AccountScope, mail_kind: str, language: str) -> BaseResponse | Page:
    """Save a text of an account, or mail it to the caller."""
    return _change(mail_kind, language, _branded(scope))


@page(f"{OWN_MAILS}/{ONE}/reset", "POST", role=ADMIN, form_page=show_mail_template)
def reset_mail_template(scope: AccountScope, mail_kind: str, language: str) -> BaseResponse:
    """Return to the text of the operator."""
    return _reset(mail_kind, language, _branded(scope))


@page(f"{OWN_MAILS}/{ONE}/preview", role=ADMIN)
def preview_mail_template(scope: AccountScope, mail_kind: str, language: str) -> Response:
    """The HTML of a mail of an account with the text in force."""
    return _preview(mail_kind, language, _branded(scope), None)


@page(f"{OWN_MAILS}/{ONE}/preview", "POST", role=ADMIN)
def try_mail_template(scope: AccountScope, mail_kind: str, language: str) -> Response:
    """The HTML of a mail of an account with the text of the form."""
    return _preview(mail_kind, language, _branded(scope), _body(forms.submitted(*FIELDS)))


def _branded(scope: AccountScope) -> AccountScope:
    settings.require_branding(scope.account.id)
    return scope


def _editor(kind: str, language: str, scope: AccountScope | None, form: Form | None) -> Page:
    shown = mail_templates.show(kind, language, scope.account.id if scope else None)
    if form is None:
        form = Form({name: getattr(shown, name) or "" for name in FIELDS})
    after_this_request(html.allow_frames)
    return form.render(
        "console/mails/one.html",
        scope=scope,
        shown=shown,
        title=KINDS[kind].title,
        languages=LANGUAGES,
        at=url_for(**_place(kind, language, scope)),
        has_link=KINDS[kind].has_link,
    )


def _change(kind: str, language: str, scope: AccountScope | None) -> BaseResponse | Page:
    form, account_id = forms.submitted(*FIELDS), scope.account.id if scope else None
    if forms.text("do") == "test":
        home, user_id = guard.require_caller().home_and_user()
        to = users.get(home.id, user_id)
        mails.send_test(kind, language, account_id, _body(form), to=to)
        flash(gettext("An example is on its way to %(address)s.", address=to.email))
        return _editor(kind, language, scope, form)
    if scope:
        scope.by.require_recent_sign_in()
    mail_templates.save(kind, language, account_id, _body(form))
    return redirect_with_notice(gettext("The text is saved."), **_place(kind, language, scope))


def _reset(kind: str, language: str, scope: AccountScope | None) -> BaseResponse:
    if scope:
        scope.by.require_recent_sign_in()
    mail_templates.delete(kind, language, scope.account.id if scope else None)
    notice = gettext("The former text is in force again.")
    return redirect_with_notice(notice, **_place(kind, language, scope))


def _preview(
    kind: str, language: str, scope: AccountScope | None, body: JSONObject | None
) -> Response:
    caller = guard.require_caller()
    name, account_id = caller.name or caller.email or "", scope.account.id if scope else None
    try:
        shown = mails.preview(kind, language, account_id, body, name=name).html
        response = Response(shown, mimetype="text/html")
    except AppError as error:
        details = error.extra.get("details") or ()
        lines = [error.message, *(f"{one['field']}: {one['message']}" for one in details)]
        response = Response("\n".join(lines), mimetype="text/plain")
    response.headers["Content-Security-Policy"] = FRAMED
    return response


def _body(form: Form) -> JSONObject:
    return forms.validated(MailTemplateBody(), {name: form[name] or None for name in FIELDS})


def _place(kind: str, language: str, scope: AccountScope | None) -> JSONObject:
    """The arguments of `url_for` for the page of a text."""
    endpoint = "console.show_mail_template" if scope else "console.show_product_mail"
    own = scope.url_args if scope else {}
    return {"endpoint": endpoint, "mail_kind": kind, "language": language, **own}
