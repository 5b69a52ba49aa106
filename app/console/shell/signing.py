"""Electronic signatures in forms."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode

from flask import g, request

from app.auth import signatures
from app.console.shell import forms, second_factor
from app.console.shell.forms import Form
from app.console.shell.scopes import CollectionScope
from app.errors import BadRequest, Malformed

INPUTS = {
    "es_username": signatures.USERNAME,
    "es_password": signatures.PASSWORD,
    "es_reason": signatures.REASON,
}
INCOMPLETE = (
    "Sign with an email address, its password or passkey, and a reason of at most 1000 characters."
)


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
    sent = second_factor.credential(assertion)
    value = json.dumps({"token": sent["token"], "assertion": sent["credential"]})
    return urlsafe_b64encode(value.encode()).decode()
