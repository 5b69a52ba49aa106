"""Why the database refused records: told after the rollback, and only to whom it may be told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy.exc import IntegrityError

from app import db
from app.collections.access import Access
from app.db import errors, versioned_cache
from app.errors import Conflict, InvalidValues, problem
from app.records import store
from app.records.store import reads, references
from app.records.write.values import Problems

TAKEN = "Another record has this value already."
GONE = "A record that this one refers to is gone."


class Clash(Exception):
    """Records that the database refused, with what is needed to say why."""

    def __init__(
        self,
        access: Access,
        rows: Sequence[store.Row],
        sent: Sequence[Mapping[str, Any]],
        problems: Problems,
    ) -> None:
        super().__init__()
        self.access, self.rows, self.sent, self.problems = access, rows, sent, problems

    @property
    def kind(self) -> str:
        """What kind of constraint was in the way."""
        error = self.__cause__
        return errors.violation_of(error).kind if isinstance(error, IntegrityError) else "other"


@contextmanager
def refusable(
    access: Access,
    rows: Sequence[store.Row],
    sent: Sequence[Mapping[str, Any]],
    problems: Problems,
) -> Iterator[None]:
    """Around a statement that writes these rows. Raises Clash where the database refuses it."""
    try:
        yield
    except IntegrityError as error:
        raise Clash(access, rows, sent, problems) from error


@contextmanager
def explaining() -> Iterator[None]:
    """Around a transaction that writes records: tells, after its end, why some were refused.

    Within another transaction Clash goes on to whoever stands around that one.
    """
    try:
        yield
    except Clash as clash:
        if db.in_transaction():  # before its end PostgreSQL answers nothing
            raise
        raise _explained(clash) from clash


def _explained(clash: Clash) -> Exception:
    if clash.kind == "foreign_key":
        names = [name for name, field in clash.access.definition.fields.items() if field.collection]
        return InvalidValues([problem(name, "invalid_reference", GONE) for name in names])
    if clash.kind == "not_null":
        # A required field came with a change of the schema between our look and our writing.
        return versioned_cache.Stale()
    return _taken(clash) if clash.kind == "unique" else clash


def _taken(clash: Clash) -> Exception:
    access, rows, places = clash.access, clash.rows, clash.problems
    judged = [is_allowed(access, *one) for one in zip(rows, clash.sent, strict=True)]
    if not all(judged):
        # What others have must not show to whom the rule refuses the record anyway.
        return places.refusal(access, [index for index, open_ in enumerate(judged) if not open_])
    details: list[dict[str, Any]] = []
    for index, names in reads.clashing(access.definition, rows).items():
        details += places.told(index, [problem(name, "not_unique", TAKEN) for name in names])
    return Conflict(TAKEN, field=details[0]["field"] if details else None, details=details)


def is_allowed(access: Access, row: store.Row, sent: Mapping[str, Any]) -> bool:
    """Whether a record that is not stored meets the rule, given what was sent for it."""
    led_to = references.foreseen(access.definition, row, access.follows)
    return access.allows({**row, **led_to}, sent)
