"""Runs handlers: in their extension's name, measured, with their errors as the product's."""

from __future__ import annotations


class Refused(Exception):
    """A value or a record that a handler refuses: 400 `validation_error` for the caller.

    `field` names the one to blame; None stands for the whole record.
    """

    def __init__(self, field: str | None = None, *, code: str, message: str) -> None:
        super().__init__(message)
        self.field, self.code, self.message = field, code, message
