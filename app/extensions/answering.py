"""Runs a handler for a request: of an endpoint, or of a page of the console."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app import db
from app.auth.principal import Principal
from app.errors import AppError
from app.extensions import running
from app.extensions.caller import Caller
from app.extensions.registry import Handler


class WroteInRead(running.Misuse):
    """A write of a handler that answers reads."""


def answer(
    handler: Handler,
    by: Principal,
    *arguments: object,
    reads: bool,
    named: Mapping[str, object],
    then: Callable[[Any], Any],
) -> Any:
    """Call a handler, and return what `then` makes of what it returns.

    What it writes is one transaction, as it runs again if a definition has changed meanwhile; if it
    `reads`, it must not write. Raises AppError.
    """
    message = f"{handler.name} answers reads, and must not write."
    with db.refuse_transactions(WroteInRead(message)) if reads else db.transaction():
        return running.run(
            handler,
            Caller(by, handler),
            *arguments,
            named=named,
            then=then,
            passing=(AppError,),
        )
