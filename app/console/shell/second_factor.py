"""The second step of a sign-in: a code, a passkey, or setting up a factor; signatures in forms."""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64encode

from flask import Response, g, make_response, request

from app.accounts.models import User
from app.auth import signatures
from app.auth.mfa import service as mfa
from app.auth.mfa import totp
from app.auth.mfa.gate import EnrolmentRequired, MfaRequired
from app.auth.mfa.models import Method
from app.auth.mfa.service import Answer
from app.console.shell import forms, resubmit
from app.console.shell.forms import Form, Page
from app.console.shell.scopes import CollectionScope
from app.errors import BadRequest, InvalidValues, Malformed, problem
from app.types import JSONObject
from app.web.languages import gettext

INPUTS = {
    "es_username": signatures.USERNAME,
    "es_password": signatures.PASSWORD,
    "es_reason": signatures.REASON,
}
INCOMPLETE = (
    "Sign with an email address, its password or passkey, and a reason of at most 1000 characters."
)

CODE = re.compile(r"\d{3} ?\d{3}", re.ASCII)
PAGE, SET_UP = "console/second_factor.html", "console/set_up_factor.html"
FIELDS = ("mfa_token", "methods", "options", "next", resubmit.FIELD)
LONGEST_ASSERTION = 20_000


def page_of(error: MfaRequired | EnrolmentRequired) -> Page:
    """The page that asks a user who signs in for the second factor."""
    values = {
        "mfa_token": error.extra["mfa_token"],
        "methods": " ".join(error.extra["methods"]),
        "options": json.dumps(error.extra.get("passkey_options")),
        "next": g.get("after_sign_in", ""),
        resubmit.FIELD: forms.text(resubmit.FIELD),
    }
    if isinstance(error, EnrolmentRequired):
        return set_up_page(Form(values), mfa.enrolling(values["mfa_token"]).user)
    return step_page(Form(values))


def step_page(form: Form) -> Page:
    """The page with the code or passkey of a sign-in."""
    methods = form["methods"].split()
    has_codes = Method.TOTP in methods or Method.RECOVERY_CODE in methods
    return form.render(PAGE, has_codes=has_codes, methods=methods)


def set_up_page(form: Form, user: User) -> Page:
    """The page that sets up a first authenticator app during a sign-in."""
    if form.errors:
        factor, secret = mfa.pending_totp(user, form["factor"])
    else:
        factor, secret = mfa.start_totp(user, Method.TOTP)
    return form.render(SET_UP, **totp_context(user, secret), factor=factor)


def totp_context(user: User, secret: str) -> JSONObject:
    """The template variables of a new authenticator app."""
    url = totp.otpauth_url(secret, user)
    return {"secret": secret, "qr_svg": totp.qr_svg(url), "otpauth_url": url}


def answer(form: Form, token: str = "") -> Answer | None:
    """The second factor in a form; None if there is none. Raises InvalidValues.

    An assertion answers `token`, the sign-in's; without a sign-in, the token that comes with it.
    """
    if form["assertion"]:
        sent = credential(form["assertion"])
        return Answer(Method.PASSKEY, assertion=sent["credential"], token=token or sent["token"])
    if not form["code"]:
        return None
    method = Method.TOTP if CODE.fullmatch(form["code"]) else Method.RECOVERY_CODE
    return Answer(method, code=form["code"][:100])


def credential(text: str) -> JSONObject:
    """Parse the `credential` and `token` of the browser's script. Raises InvalidValues."""
    try:
        sent = json.loads(text[:LONGEST_ASSERTION])
        fits = isinstance(sent["credential"], dict) and isinstance(sent["token"], str)
    except (ValueError, TypeError, KeyError, RecursionError):
        fits = False
    if not fits:
        message = gettext("The browser sent no passkey. Try again.")
        raise InvalidValues([problem("assertion", "invalid_credential", message)])
    found: JSONObject = sent
    return found


def response_to(error: MfaRequired | EnrolmentRequired) -> Response:
    response = make_response(*page_of(error))
    response.headers["Cache-Control"] = "no-store"
    return response


def submitted() -> Form:
    form = forms.submitted(*FIELDS, "code", "assertion", "factor")
    form.values["mfa_token"] = request.form.get("mfa_token", "")[:1000].replace("\0", "")
    return form


def sign(scope: CollectionScope, form: Form) -> None:
    """Verify the signature that a form carries. Raises BadRequest, Unauthorized."""
    inputs = {name: forms.text(name) for name in INPUTS}
    form.values |= {"es_username": inputs["es_username"], "es_reason": inputs["es_reason"]}
    assertion = forms.text("assertion")
    if not any((*inputs.values(), assertion)) and not scope.requires_signature:
        return
    headers = {header: inputs[name] for name, header in INPUTS.items()}
    if assertion:
        headers[signatures.PASSKEY] = _passkey_header(assertion)
    try:
        g.signature = signatures.verify(headers, scope.by, request.remote_addr)
    except Malformed as error:
        raise BadRequest(INCOMPLETE) from error
    if g.signature is None:
        raise BadRequest(INCOMPLETE)


def _passkey_header(assertion: str) -> str:
    """The header of the API with what the browser's script sends. Raises InvalidValues."""
    sent = credential(assertion)
    value = json.dumps({"token": sent["token"], "assertion": sent["credential"]})
    return urlsafe_b64encode(value.encode()).decode()
