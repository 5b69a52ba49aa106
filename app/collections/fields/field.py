"""The base class of field types."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from app import rules
from app.collections.fields.face import Face
from app.db.types import Text
from app.types import JSONMapping, JSONObject, cached_property

PEOPLE = "@users"  # what fields of type `user` lead to; no collection has such a name
LONGEST_INDEXED = 2000  # bytes; an entry of PostgreSQL's indexes holds 2704, the account's id too

JsonType = type[Any] | None
# The options that schemas have as keywords.
KEYWORDS = {
    "min_length": "minLength",
    "max_length": "maxLength",
    "choices": "enum",
    "min": "minimum",
    "max": "maximum",
}


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
    readable_if: str | None = None  # a condition over the caller; of everybody without one
    writable_if: str | None = None
    expression: str | None = None  # of a computed field
    return_type: str | None = None
    on_delete: str | None = None  # of a reference or user: what a delete of its target does
    multiple: bool = False  # a list of references or users
    max_bytes: int | None = None  # of an indexed text
    default_expression: str | None = None  # in place of a default

    type: ClassVar[str]
    label: ClassVar[str]  # the name of the type
    face: ClassVar[Face] = Face()
    names_records: ClassVar[bool] = False  # lists and links show a record by its value
    column_type: ClassVar[Any] = Text
    known_options: ClassVar[tuple[str, ...]] = ("index",)
    may_be_unique: ClassVar[bool] = True
    is_unique: ClassVar[bool] = False  # without being told to
    is_written: ClassVar[bool] = True  # by callers
    has_order: ClassVar[bool] = False  # other than that of its values
    default_on_delete: ClassVar[str | None] = None  # of types that refer to something
    takes_default: ClassVar[bool] = True
    takes_expression: ClassVar[bool] = True  # in place of a default
    is_indexed: ClassVar[bool] = False  # without being told to
    fills_indexes: ClassVar[bool] = False  # values may be too long for an index, see `max_bytes`
    filterable: ClassVar[bool] = True
    is_long: ClassVar[bool] = False  # values have no small limit of length
    may_be_cut: ClassVar[bool] = True  # the beginning of a long value can be read alone
    reads_differently: ClassVar[bool] = False
    is_list: ClassVar[bool] = False  # of distinct texts or ids, to which `$add` adds some
    rule_type: ClassVar[rules.Type] = rules.Type.TEXT
    json_schema: ClassVar[JSONMapping] = {"type": "string"}
    properties: ClassVar[Mapping[str, rules.Type]] = {}
    """The properties of a value that rules may read by dotted names."""

    def __post_init__(self) -> None:
        """Take from the settings what is needed later, where no application is running."""

    @cached_property
    def like(self) -> Field:
        """The field whose values this one has: itself, unless it is computed."""
        return self

    @property
    def leads_to(self) -> str | None:
        """The name of the collection that values refer to, or PEOPLE; None without references."""
        return self.collection

    @property
    def searched(self) -> bool:
        """Whether lists are searched for its words."""
        return self.options.get("search") is True and "search" in self.known_options

    def texts(self, value: Any) -> list[str]:
        """What a stored value, or one to be stored, has words of."""
        return [value] if value else []

    @property
    def choices(self) -> Mapping[str, str]:
        """The labels of the only values, by their text; empty if there are others."""
        return {one: one for one in self.options.get("choices", ())}

    @property
    def example(self) -> object:
        """A value that the API takes, for examples of calls; None if there is none."""
        return None

    def sample(self) -> object:
        """A value in JSON, to run a workflow by hand."""
        return self.example

    def marked(self, mark: str, number: Callable[[], int]) -> object:
        """A stored value by which the isolation check knows whose record it reads.

        It contains the mark, or a number made for it, if it can.
        """
        return mark

    def clean(self, value: object) -> object:
        """The stored form of a JSON value that is not null. Raises InvalidValue."""
        raise NotImplementedError

    @property
    def has_default(self) -> bool:
        return self.default is not None or self.default_expression is not None

    @property
    def column_default(self) -> object:
        """The stored form of its default; None without one."""
        return None if self.default is None else self.clean(self.default)

    def from_text(self, text: str) -> Any:
        """The stored form of a query parameter's text. Raises InvalidValue."""
        return self.clean(text)

    def parse(self, text: str, *, infinite: bool = False) -> object:
        """The JSON value that a text stands for in a form or a CSV file. Raises InvalidValue.

        If `infinite`, numbers beyond the doubles are read as infinities, which `clean` refuses.
        """
        return text

    def written(self, value: object) -> str:
        """A JSON value that is not null as the text of a form, which `parse` reads."""
        # Browsers normalize a single carriage return as well.
        return str(value).replace("\r\n", "\n").replace("\r", "\n")

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

    def sort_expression(self, column: Any) -> Any:
        """What values are ordered by, in SQL."""
        return column

    def sort_value(self, value: Any) -> object:
        """What a stored value that is not null is ordered by, as JSON."""
        return self.shown(value)

    def listed(self, value: Any) -> list[str]:
        """The entries of a stored list."""
        raise NotImplementedError

    def entry(self, value: object) -> str:
        """The form in which a list has an entry. Raises InvalidValue."""
        if not isinstance(value, str):
            raise InvalidValue("invalid_type", "Each entry must be a text.")
        return rules.composed(value)

    @property
    def value_schema(self) -> JSONObject:
        """The JSON schema of its values in answers, with what its options say."""
        schema = dict(self.json_schema)
        schema |= {
            word: self.options[name] for name, word in KEYWORDS.items() if name in self.options
        }
        if self.collection:
            schema["description"] = f"The id of a record of {self.collection}."
        return schema

    @property
    def input_schema(self) -> JSONObject:
        return self.value_schema

    @property
    def change_schema(self) -> JSONObject:
        """As `input_schema`, of a PATCH, which may add entries to a list and remove some."""
        whole = self.input_schema
        if not self.is_list:
            return whole
        some = {"type": "array", "items": whole["items"]}
        properties = {"$add": some, "$remove": some}
        change = {"type": "object", "properties": properties, "additionalProperties": False}
        return {"anyOf": [whole, change]}

    def definition_problems(self) -> Iterator[str]:
        """Problems of the field's options."""
        yield from ()

    def _check_index_size(self, value: str) -> None:
        if self.max_bytes is not None and len(value.encode()) > self.max_bytes:
            message = f"Must have at most {self.max_bytes} bytes, as this field is indexed."
            raise InvalidValue("too_long", message)


def typed_value(field: Field | None, cell: str | None) -> object:
    """Return the JSON value of a cell of a CSV file or a part of a form.

    What is no number, boolean or JSON stays a text, which the field's validation refuses.
    """
    if field is None or cell is None:
        return cell
    try:
        return field.parse(cell, infinite=True)
    except InvalidValue as error:
        return math.inf if error.code == "number_out_of_range" else cell


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
