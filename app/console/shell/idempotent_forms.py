"""What is asked for twice is done once, and the second time answered as the first.

A form that makes something carries an id, signed. A script sends no form twice, but not every
browser runs one. What is made has an id that comes of the form's and of what was sent with it:
whoever goes back and sends something else makes another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from flask import request
from itsdangerous import BadSignature

from app import crypto
from app.audit import recent
from app.errors import AppError, Conflict, NotFound
from app.ids import new_id

FIELD = "as"
NEW_ID = "the id of a new record"
NODE = 24  # where the last part of an id begins


def drawn() -> str:
    """What a form carries: what it came with, else an id that is drawn for it."""
    return request.form.get(FIELD) or crypto.sign(new_id(), NEW_ID)


def id_of(body: Any) -> str:
    """The id of what the form makes that was sent with this."""
    try:
        given = str(crypto.unsign(request.form.get(FIELD, ""), NEW_ID))
    except BadSignature:
        given = new_id()
    told = given.encode() + orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    return given[:NODE] + hashlib.sha256(told).hexdigest()[: len(given) - NODE]


def is_made(error: AppError, look: Callable[[], Any]) -> bool:
    """Whether something was not made because it is there: `look` finds it, or raises NotFound."""
    if not isinstance(error, Conflict):
        return False
    try:
        return look() is not None
    except NotFound:
        return False


@contextmanager
def deleting(account_id: str | None, table_name: str, id: str) -> Iterator[None]:
    """Around a deletion: what is gone already, as where a button was pressed twice, is deleted."""
    try:
        yield
    except NotFound:
        if not recent.is_deleted(account_id, table_name, id.lower()):
            raise
