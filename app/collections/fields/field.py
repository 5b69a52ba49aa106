"""The base class of field types (contract section 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from app import rules
from app.db.types import Text
from app.types import JSONMapping

LONGEST_INDEXED = 2000  # bytes; an entry of PostgreSQL's indexes holds 2704, the account's id too

JsonType = type[Any] | None


class InvalidValue(ValueError):
    """A value that the field does not accept; `code` is an error code of the contract."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Field:
    name: str
    required: bool = False
    default: object = None
    unique: bool = False
    options: JSONMapping = field(default_factory=dict)
    collection: str | None = None  # the target of a reference
    pii: bool = False
    mask_type: str | None = None
    expression: str | None = None  # of a computed field
    return_type: str | None = None
    on_delete: str | None = None  # of a reference: what a delete of its target does
    max_bytes: int | None = None  # of an indexed text

    type: ClassVar[str]
    column_type: ClassVar[Any] = Text
    known_options: ClassVar[frozenset[str]] = frozenset({"index"})
    may_be_unique: ClassVar[bool] = True
    filterable: ClassVar[bool] = True
    reads_differently: ClassVar[bool] = False
    rule_type: ClassVar[rules.Type] = rules.Type.TEXT
    json_schema: ClassVar[JSONMapping] = {"type": "string"}
    properties: ClassVar[Mapping[str, rules.Type]] = {}
    """What rules may read of a value by dotted names."""

    def __post_init__(self) -> None:
        """Take from the settings what is needed later, where no application is running."""

    def clean(self, value: object) -> object:
        """The stored form of a JSON value that is not null. Raises InvalidValue."""
        raise NotImplementedError

    def from_text(self, text: str) -> Any:
        """The stored form of a query parameter's text. Raises InvalidValue."""
        return self.clean(text)

    def read_back(self, value: object) -> object:
        """The value that a SELECT returns for a stored one; differs where `reads_differently`."""
        return value

    def shown(self, value: Any) -> object:
        """The JSON form of a stored value that is not null."""
        return value

    @cached_property
    def is_json(self) -> bool:
        """Whether every stored value is its own JSON form."""
        return type(self).shown is Field.shown

    @cached_property
    def json_type(self) -> JsonType:
        """The type of stored values that are their own JSON form, if others are not."""
        return None

    @cached_property
    def encode(self) -> Callable[[Any], object]:
        """`shown` for values of another type than `json_type`."""
        return self.shown

    def definition_problems(self) -> Iterator[str]:
        """Problems of the field's options."""
        yield from ()

    def _check_index_size(self, value: str, max_bytes: int) -> None:
        if len(value.encode()) > max_bytes:
            message = f"Must have at most {max_bytes} bytes, as this field is indexed."
            raise InvalidValue("too_long", message)


def bounds_problems(
    options: JSONMapping, low: str, high: str, fits: Callable[[object], bool], kind: str
) -> Iterator[str]:
    """Problems of a lower and an upper bound among the options."""
    bounds = [name for name in (low, high) if name in options]
    wrong = [name for name in bounds if not fits(options[name])]
    yield from (f"{name} must be {kind}." for name in wrong)
    if len(bounds) == 2 and not wrong and options[low] > options[high]:
        yield f"{low} is greater than {high}."


class Encoder(NamedTuple):
    """Turns the stored values of one field into JSON, but for those of `json_type`."""

    name: str
    encode: Callable[[object], object]
    json_type: JsonType


def encoders_of(fields: Mapping[str, Field]) -> Sequence[Encoder]:
    """The encoders of the fields that need one."""
    return [
        Encoder(name, field.encode, field.json_type)
        for name, field in fields.items()
        if not field.is_json
    ]
