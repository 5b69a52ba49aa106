"""What every field type does, and how it refuses a value (contract section 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from app import rules
from app.db.types import Text

LONGEST_INDEXED = 2000  # bytes; an entry of PostgreSQL's indexes holds 2704, the account's id too


class Refused(ValueError):
    """A value that the field does not accept; `code` is one of the contract's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Field:
    """One field of a collection."""

    name: str
    required: bool = False
    default: Any = None
    unique: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    collection: str | None = None  # the target of a reference
    pii: bool = False
    mask_type: str | None = None
    expression: str | None = None  # of a computed field
    return_type: str | None = None
    on_delete: str | None = None  # what the end of its target does to a reference

    type: ClassVar[str]
    column_type: ClassVar[Any] = Text
    known_options: ClassVar[frozenset[str]] = frozenset({"index"})
    may_be_unique: ClassVar[bool] = True
    filterable: ClassVar[bool] = True
    rule_type: ClassVar[rules.Type] = rules.Type.TEXT
    json_schema: ClassVar[Mapping[str, Any]] = {"type": "string"}

    def clean(self, value: Any) -> Any:
        """The stored form of a JSON value that is not null. Raises Refused."""
        raise NotImplementedError

    def from_text(self, text: str) -> Any:
        """The stored form of a query parameter's text. Raises Refused."""
        return self.clean(text)

    def read_back(self, value: Any) -> Any:
        """What is read of a value that was stored, or of null."""
        return value

    def shown(self, value: Any) -> Any:
        """The JSON form of a stored value that is not null."""
        return value

    @cached_property
    def is_plain(self) -> bool:
        """Whether JSON has stored values as they are."""
        return type(self).shown is Field.shown

    @cached_property
    def plain_type(self) -> Any:
        """The type of those that JSON has as they are, where it depends."""
        return None

    def definition_problems(self) -> Iterator[str]:
        """Why the field's options make no sense."""
        yield from ()

    @property
    def indexed(self) -> bool:
        """Whether it has an index of its own."""
        return bool(self.unique or self.options.get("index"))

    def _check_indexable(self, value: str) -> None:
        if self.indexed and len(value.encode()) > LONGEST_INDEXED:
            message = f"Must have at most {LONGEST_INDEXED} bytes, as this field is indexed."
            raise Refused("too_long", message)


def bounds_problems(
    options: Mapping[str, Any], low: str, high: str, fits: Callable[[Any], bool], kind: str
) -> Iterator[str]:
    """Why a lower and an upper bound among the options make no sense."""
    bounds = [name for name in (low, high) if name in options]
    wrong = [name for name in bounds if not fits(options[name])]
    yield from (f"{name} must be {kind}." for name in wrong)
    if len(bounds) == 2 and not wrong and options[low] > options[high]:
        yield f"{low} is greater than {high}."


class Way(NamedTuple):
    """How a field is shown whose stored values JSON does not have as they are."""

    name: str
    shown: Callable[[Any], Any]
    plain_type: Any
    """The type of those that it has as they are, where it depends."""


def ways_of(fields: Mapping[str, Field]) -> Sequence[Way]:
    """Those of fields that need one, under these names."""
    needing = ((name, one) for name, one in fields.items() if not one.is_plain)
    return [Way(name, one.shown, one.plain_type) for name, one in needing]
