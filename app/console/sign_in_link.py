"""The page of the link that `bin/atrium setup` printed: it signs in the first superadmin."""

from __future__ import annotations

from flask import request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app.auth import mail_tokens
from app.auth.mfa.gate import Proof
from app.auth.models import LinkPurpose
from app.console.shell import forms, guard
from app.console.shell.access import ANYBODY
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page


@page("/console/sign-in-link", role=ANYBODY)
def show_sign_in_link() -> Page:
    """The button that signs in with a link that `bin/atrium setup` printed."""
    token = request.args.get("token", "")
    is_valid = mail_tokens.find(token, LinkPurpose.SIGN_IN) is not None
    form = Form({"token": token}, status=200 if is_valid else 400)
    return form.render("console/sign_in_link.html", valid=is_valid)


@page("/console/sign-in-link", "POST", role=ANYBODY)
def use_sign_in_link() -> Page | BaseResponse:
    """Sign in with the token, once."""
    form = forms.submitted("token")
    found = mail_tokens.consume(form["token"], LinkPurpose.SIGN_IN)
    if found is None:
        form.status = 400
        return form.render("console/sign_in_link.html", valid=False)
    return guard.start_session(found.user, url_for("console.show_home"), Proof.SETUP_LINK)
