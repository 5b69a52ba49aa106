"""Idempotent forms: submitting twice creates or deletes once and gives the same answer.

Creating forms carry a signed id. The script prevents double submits, but not every browser runs
it. The new row's id is derived from the form's id and the submitted values: going back and
submitting other values creates another row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import orjson
from flask import request
from itsdangerous import BadSignature

from app import crypto
from app.audit import recent
from app.errors import Conflict, NotFound
from app.ids import new_id

FIELD = "as"
SALT = "the id of a new record"
NODE_START = 24  # where the last part of an id begins


def form_id() -> str:
    """The signed id that the form carries: the submitted one, else a new one."""
    return request.form.get(FIELD) or crypto.sign(new_id(), SALT)


def derive_id(body: object) -> str:
    """The id of the row that the submitted form creates from `body`."""
    try:
        signed_id = str(crypto.unsign(request.form.get(FIELD, ""), SALT))
    except BadSignature:
        signed_id = new_id()
    content = signed_id.encode() + orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    digest = hashlib.sha256(content).hexdigest()
    return signed_id[:NODE_START] + digest[: len(signed_id) - NODE_START]


@contextmanager
def ignore_already_created(load: Callable[[], object]) -> Iterator[None]:
    """Suppress the Conflict of a row that was created before, such as by a double click.

    `load` returns that row; it raises NotFound, or returns None, if there is none.
    """
    try:
        yield
    except Conflict as error:
        try:
            row = load()
        except NotFound:
            raise error from None
        if row is None:
            raise


@contextmanager
def ignore_already_deleted(account_id: str | None, table_name: str, id: str) -> Iterator[None]:
    """Suppress NotFound for a row that was deleted before, such as by a double click."""
    try:
        yield
    except NotFound:
        if not recent.is_deleted(account_id, table_name, id.lower()):
            raise
