"""`/mail-templates` and `/account/mail-templates`: the texts of mails."""

from __future__ import annotations

from flask import Response

from app import web
from app.accounts import own_account_routes, users
from app.accounts.product import mail_templates, mails, settings
from app.accounts.product.mail_schemas import (
    EXAMPLE,
    MailTemplateBody,
    MailTemplateList,
    MailTemplateView,
    PreviewBody,
    PreviewView,
)
from app.accounts.product.mail_templates import Shown
from app.accounts.types import Body
from app.auth.guard import principal
from app.outbound.mail import Letter
from app.web.access import account_admin, superadmin
from app.web.blueprint import Blueprint
from app.web.languages import LANGUAGES

blueprint = Blueprint(
    "Mail templates",
    __name__,
    url_prefix=f"{web.PREFIX}/mail-templates",
    description="The texts of the mails that the users of your product get.",
)
account = own_account_routes.blueprint
ONE = "/<string:kind>/<string:language>"
OWN = f"/mail-templates{ONE}"


@blueprint.route("", methods=["GET"])
@blueprint.response(200, MailTemplateList)
@superadmin
def list_mail_templates() -> Body:
    """List the kinds of mails, their placeholders, and which texts are changed.

    In the order in which a user meets them.
    """
    return {"items": mail_templates.summaries(None), "languages": list(LANGUAGES)}


@blueprint.route(ONE, methods=["GET"])
@blueprint.response(200, MailTemplateView)
@blueprint.fails(404)
@superadmin
def get_mail_template(kind: str, language: str) -> Shown:
    """Get a text as it is in force: the changed one, else the built-in one."""
    return mail_templates.show(kind, language, None)


@blueprint.route(ONE, methods=["PUT"])
@blueprint.arguments(MailTemplateBody, example=EXAMPLE)
@blueprint.response(200, MailTemplateView)
@blueprint.fails(404)
@superadmin
def update_mail_template(body: Body, kind: str, language: str) -> Shown:
    """Change a text; what is absent is empty.

    If only one of `text` and `html` is given, the other is made of it.
    """
    return mail_templates.save(kind, language, None, body)


@blueprint.route(ONE, methods=["DELETE"])
@blueprint.response(204)
@blueprint.fails(404)
@superadmin
def delete_mail_template(kind: str, language: str) -> Response:
    """Return to the built-in text."""
    mail_templates.delete(kind, language, None)
    return Response(status=204)


@blueprint.route(f"{ONE}/preview", methods=["POST"])
@blueprint.arguments(PreviewBody, required=False, example=EXAMPLE)
@blueprint.response(200, PreviewView)
@blueprint.fails(404)
@superadmin(reads=True)
def preview_mail_template(body: Body, kind: str, language: str) -> Letter:
    """Preview a mail: with the text that is sent, or without a body with that in force."""
    return mails.preview(kind, language, None, body or None, name=_name())


@blueprint.route(f"{ONE}/test", methods=["POST"])
@blueprint.arguments(PreviewBody, required=False, example=EXAMPLE)
@blueprint.response(204)
@blueprint.fails(404, 429)
@superadmin
def send_test_mail(body: Body, kind: str, language: str) -> Response:
    """Mail an example to your own address, with the text that is sent or that in force.

    At most 20 an hour. The address must be verified (403).
    """
    _send_test(kind, language, None, body)
    return Response(status=204)


@account.route("/mail-templates", methods=["GET"])
@account.response(200, MailTemplateList)
@account.fails(403)
@account_admin
def list_own_mail_templates() -> Body:
    """List the kinds of mails whose texts your account may change.

    In the order in which a user meets them. Where the operator has not turned that on, it is a 403
    `branding_off`.
    """
    return {"items": mail_templates.summaries(_account_id()), "languages": list(LANGUAGES)}


@account.route(OWN, methods=["GET"])
@account.response(200, MailTemplateView)
@account.fails(403, 404)
@account_admin
def get_own_mail_template(kind: str, language: str) -> Shown:
    """Get a text as it is in force for your account: its own, the operator's, or the built-in."""
    return mail_templates.show(kind, language, _account_id())


@account.route(OWN, methods=["PUT"])
@account.arguments(MailTemplateBody, example=EXAMPLE)
@account.response(200, MailTemplateView)
@account.fails(403, 404)
@account_admin(recent_sign_in=True, api_keys=False)
def update_own_mail_template(body: Body, kind: str, language: str) -> Shown:
    """Change a text for your account; what is absent is empty.

    The only link may be `{{ link }}`: whatever mail programs would make a link of is a 400, too.
    Members of `pii_access` get the operator's texts.
    """
    return mail_templates.save(kind, language, _account_id(), body)


@account.route(OWN, methods=["DELETE"])
@account.response(204)
@account.fails(403, 404)
@account_admin(recent_sign_in=True, api_keys=False)
def delete_own_mail_template(kind: str, language: str) -> Response:
    """Return to the text of the operator."""
    mail_templates.delete(kind, language, _account_id())
    return Response(status=204)


@account.route(f"{OWN}/preview", methods=["POST"])
@account.arguments(PreviewBody, required=False, example=EXAMPLE)
@account.response(200, PreviewView)
@account.fails(403, 404)
@account_admin(reads=True)
def preview_own_mail_template(body: Body, kind: str, language: str) -> Letter:
    """Preview a mail of your account: with the text that is sent, or that in force."""
    return mails.preview(kind, language, _account_id(), body or None, name=_name())


@account.route(f"{OWN}/test", methods=["POST"])
@account.arguments(PreviewBody, required=False, example=EXAMPLE)
@account.response(204)
@account.fails(403, 404, 429)
@account_admin
def send_own_test_mail(body: Body, kind: str, language: str) -> Response:
    """Mail an example of your account to your own address, which must be verified (403).

    At most 20 an hour.
    """
    _send_test(kind, language, _account_id(), body)
    return Response(status=204)


def _account_id() -> str:
    account_id = principal().require_account_id()
    settings.require_branding(account_id)
    return account_id


def _name() -> str:
    caller = principal()
    return caller.name or caller.email or ""


def _send_test(kind: str, language: str, account_id: str | None, body: Body) -> None:
    home, user_id = principal().home_and_user()
    to = users.get(home.id, user_id)
    mails.send_test(kind, language, account_id, body or None, to=to)
