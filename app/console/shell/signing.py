"""Electronic signatures in forms, for what is changed with one only (contract section 7)."""

from __future__ import annotations

from flask import g, request

from app.auth import signatures
from app.console.shell import forms
from app.console.shell.forms import Form
from app.console.shell.scopes import Shelf
from app.errors import BadRequest, Malformed

INPUTS = {
    "es_username": signatures.USERNAME,
    "es_password": signatures.PASSWORD,
    "es_reason": signatures.REASON,
}
INCOMPLETE = "Sign this: with an address, its password, and a reason of at most 1000 characters."


def sign(shelf: Shelf, form: Form) -> None:
    """Take in the signature that a form carries. Raises BadRequest, Unauthorized."""
    given = {name: forms.text(name) for name in INPUTS}
    form.values |= {"es_username": given["es_username"], "es_reason": given["es_reason"]}
    if not any(given.values()) and not shelf.demands_signature:
        return
    told = {header: given[name] for name, header in INPUTS.items()}
    try:
        g.signature = signatures.verify(told, shelf.by, request.remote_addr)
    except Malformed as error:
        raise BadRequest(INCOMPLETE) from error
    if g.signature is None:
        raise BadRequest(INCOMPLETE)
