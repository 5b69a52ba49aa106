"""Keeps a form that needs a new sign-in: its session expired, or the sign-in is not recent enough.

The submitted values travel through the sign-in page, encrypted. The browser then posts them to
the original address (307), which renders its form filled in and refuses all writes: nothing
happens until the user checks and submits it again. Users of an identity provider sign in in
another tab and come back.
"""

from __future__ import annotations

from typing import NamedTuple

import orjson
from cryptography.fernet import InvalidToken
from flask import current_app, request
from flask.typing import ResponseReturnValue
from werkzeug.datastructures import ImmutableMultiDict
from werkzeug.exceptions import HTTPException

from app import crypto, db
from app.console.shell import access, forms
from app.errors import BadRequest
from app.web.languages import lazy_gettext

FIELD = "unsent"
MAX_LENGTH = 200_000
RESTORED = lazy_gettext(
    "You have signed in again. Nothing is saved yet: check the form and submit it."
)
OMITTED = ("csrf_token", FIELD)


class SavedForm(NamedTuple):
    """A submitted form as it travels through the sign-in page."""

    path: str
    values: list[tuple[str, str]]
    has_file: bool


def encode_form() -> str | None:
    """The submitted form, encrypted for the sign-in page; None if no page can render it again."""
    if request.method != "POST" or not (access.of_request().renders_form or has_page()):
        return None
    values = [
        (name, value)
        for name, value in request.form.items(multi=True)
        if name not in OMITTED and not forms.SECRETS.search(name)
    ]
    path = request.full_path.rstrip("?")
    payload = orjson.dumps([FIELD, path, values, bool(request.files)])
    return crypto.encrypt(payload.decode()) if len(payload) <= MAX_LENGTH else None


def target_path(text: str) -> str | None:
    """The address to which a saved form was submitted."""
    form = _decode(text)
    return form.path if form else None


def lacks_file(text: str) -> bool:
    """Whether a saved form had a file, which cannot be kept."""
    form = _decode(text)
    return form is not None and form.has_file


def restore_form() -> ResponseReturnValue | None:
    """The page with the saved form of this request; None if it carries none."""
    form = _decode(request.form.get(FIELD, ""))
    if form is None or form.path != request.full_path.rstrip("?"):
        return None
    request.form = ImmutableMultiDict([(name, value) for name, value in form.values])
    view = current_app.view_functions[request.endpoint or ""]
    with db.refuse_transactions(BadRequest(str(RESTORED))):
        page: ResponseReturnValue = current_app.ensure_sync(view)(**(request.view_args or {}))
        return page


def has_page() -> bool:
    """Whether this form's address shows a page, too."""
    # The address of a button has no page, and its action may do more than write.
    try:
        current_app.create_url_adapter(request).match(method="GET")  # type: ignore[union-attr]
    except HTTPException:
        return False
    return True


def _decode(text: str) -> SavedForm | None:
    try:
        kind, path, values, has_file = orjson.loads(crypto.decrypt(text))
    except (InvalidToken, ValueError):
        return None
    return SavedForm(path, values, has_file) if kind == FIELD else None
