"""Turns integrity errors into API errors after the rollback, only for callers who may know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy.exc import IntegrityError

from app.collections.access import Access
from app.db import errors, versioned_cache
from app.errors import Conflict, InvalidValues, problem
from app.records import store
from app.records.store import reads, references
from app.records.store.reads import UniqueKey
from app.records.write.values import Body, Problems
from app.types import JSONObject

TAKEN = "Another record has this value already."
GONE = "A record that this one refers to is gone."


class WriteRefused(Exception):
    """The database refused records; carries what the explanation needs."""

    def __init__(
        self,
        access: Access,
        rows: Sequence[store.Row],
        sent: Sequence[Body],
        problems: Problems,
    ) -> None:
        super().__init__()
        self.access, self.rows, self.sent, self.problems = access, rows, sent, problems

    @property
    def kind(self) -> str:
        """The kind of the violated constraint."""
        error = self.__cause__
        return errors.violation_of(error).kind if isinstance(error, IntegrityError) else "other"


@contextmanager
def explain_refusals() -> Iterator[None]:
    """Explain a WriteRefused after the transaction inside the block has ended."""
    try:
        yield
    except WriteRefused as clash:
        raise explained(clash) from clash


def explained(clash: WriteRefused) -> Exception:
    """The error to raise for a refusal, after the rollback."""
    if clash.kind == "foreign_key":
        names = [*clash.access.definition.references]
        return InvalidValues([problem(name, "invalid_reference", GONE) for name in names])
    if clash.kind == "not_null":
        # A concurrent change of the schema added a required field.
        return versioned_cache.Stale()
    if clash.kind != "unique":
        return clash
    access, rows = clash.access, clash.rows
    allowed = [is_allowed(access, *one) for one in zip(rows, clash.sent, strict=True)]
    if not all(allowed):
        # A caller whose record the rule refuses must not learn which values exist.
        refused = [index for index, is_open in enumerate(allowed) if not is_open]
        return clash.problems.refusal(access, refused)
    details: list[JSONObject] = []
    for index, keys in reads.find_conflicts(access.definition, rows).items():
        details += clash.problems.with_index(index, not_unique(keys))
    message = details[0]["message"] if details else TAKEN
    return Conflict(message, field=details[0]["field"] if details else None, details=details)


def not_unique(keys: Sequence[UniqueKey]) -> list[JSONObject]:
    """The problems of duplicate values, one per field."""
    messages: dict[str, str] = {}
    for names in keys:
        together = f"Another record has the same values of {', '.join(names)} already."
        for name in names:
            messages.setdefault(name, TAKEN if len(names) == 1 else together)
    return [problem(name, "not_unique", message) for name, message in messages.items()]


def is_allowed(access: Access, row: store.Row, sent: Body) -> bool:
    """Whether a record that is not stored meets the rule, given what was sent for it."""
    return references.allows(access, row, sent)
