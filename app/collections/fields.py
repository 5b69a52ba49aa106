"""The field types: what each accepts, how it is stored, and how it comes back (contract section 4).

One class per type. `clean` turns a JSON value into the stored one or raises ValueError by
`_refuse(code, message)`; `from_text` does it for the text of a query parameter; `shown` turns the
stored value back into JSON.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar
from urllib.parse import urlsplit

import orjson
import re2
import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from app import clock, db, json_gate, rules
from app.accounts.service import is_email

LONGEST_URL = 2048
LONGEST_INDEXED = 2000  # bytes; an entry of PostgreSQL's indexes holds 2704, the account's id too
LONGEST_NUMBER = 400  # digits; enough to write out any double
SMALLEST, LARGEST = -(2**63), 2**63 - 1
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


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
    column_type: ClassVar[Any] = db.Text
    known_options: ClassVar[frozenset[str]] = frozenset()
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


def _bounds_problems(
    options: Mapping[str, Any], low: str, high: str, fits: Callable[[Any], bool], kind: str
) -> Iterator[str]:
    bounds = [name for name in (low, high) if name in options]
    wrong = [name for name in bounds if not fits(options[name])]
    yield from (f"{name} must be {kind}." for name in wrong)
    if len(bounds) == 2 and not wrong and options[low] > options[high]:
        yield f"{low} is greater than {high}."


def _is_length(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _is_number(value: Any) -> bool:
    if type(value) is int:
        return SMALLEST <= value <= LARGEST
    return type(value) is float and math.isfinite(value)


class TextField(Field):
    """Any string."""

    type = "text"
    known_options = frozenset({"min_length", "max_length", "pattern", "choices", "index"})

    @cached_property
    def _pattern(self) -> Any:
        return re2.compile(self.options["pattern"]) if "pattern" in self.options else None

    def clean(self, value: Any) -> str:
        """A string within the options."""
        if not isinstance(value, str):
            raise Refused("invalid_type", "Must be a text.")
        options = self.options
        if len(value) < options.get("min_length", 0):
            raise Refused("too_short", f"Must have at least {options['min_length']} characters.")
        if len(value) > options.get("max_length", len(value)):
            raise Refused("too_long", f"Must have at most {options['max_length']} characters.")
        if self._pattern is not None and not self._pattern.search(value):
            raise Refused("pattern_mismatch", "Does not match the pattern of this field.")
        if "choices" in options and value not in options["choices"]:
            raise Refused("invalid_option", f"Must be one of: {', '.join(options['choices'])}.")
        self._check_indexable(value)
        return value

    def definition_problems(self) -> Iterator[str]:
        """Lengths are whole numbers, choices are texts, the pattern is one of RE2's."""
        options = self.options
        kind = "a whole number, 0 or more"
        yield from _bounds_problems(options, "min_length", "max_length", _is_length, kind)
        choices = options.get("choices", [""])
        if (
            not isinstance(choices, list)
            or not choices
            or not all(isinstance(c, str) for c in choices)
        ):
            yield "choices must be a list of texts."
        if "pattern" in options:
            try:
                self._pattern  # noqa: B018 - compiling is the check
            except (re2.error, TypeError):
                yield "pattern must be a regular expression in RE2's syntax."


class Number(sa.types.TypeDecorator[Any]):
    """Whole numbers of 64 bits exactly, others as IEEE doubles; 1 and 1.0 are one value."""

    impl = sa.Numeric
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        """The column type on this database."""
        # SQLite's NUMERIC affinity keeps integers and doubles apart by value, as wanted.
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.Numeric(asdecimal=True))
        return dialect.type_descriptor(sa.Numeric(asdecimal=False))

    def bind_processor(self, dialect: Dialect) -> Any:
        """Numbers are sent as they are."""
        return None

    def result_processor(self, dialect: Dialect, coltype: Any) -> Any:
        """Decimals become whole numbers or doubles."""
        return plain_number


def plain_number(value: Any) -> Any:
    """A stored number as JSON shows it."""
    if value is None or type(value) is int:
        return value
    if value == value.__trunc__() and SMALLEST <= value <= LARGEST:
        return int(value)
    return float(value) if isinstance(value, Decimal) else value


class NumberField(Field):
    """A number, not a boolean."""

    type = "number"
    column_type = Number()
    rule_type = rules.Type.NUMBER
    known_options = frozenset({"min", "max", "integer", "index"})
    json_schema: ClassVar[Mapping[str, Any]] = {"type": "number"}

    def clean(self, value: Any) -> int | float:
        """A finite number within the options."""
        if type(value) not in (int, float):
            raise Refused("invalid_type", "Must be a number.")
        number: int | float = plain_number(value)
        if isinstance(number, int) and not SMALLEST <= number <= LARGEST:
            raise Refused("number_out_of_range", "Whole numbers have at most 64 bits.")
        if self.options.get("integer") and not isinstance(number, int):
            raise Refused("not_integer", "Must be a whole number.")
        low, high = self.options.get("min"), self.options.get("max")
        if low is not None and number < low:
            raise Refused("number_out_of_range", f"Must be at least {low}.")
        if high is not None and number > high:
            raise Refused("number_out_of_range", f"Must be at most {high}.")
        return number

    def from_text(self, text: str) -> int | float:
        """A number written out."""
        if len(text) > LONGEST_NUMBER or not NUMBER.fullmatch(text):
            raise Refused("invalid_type", "Must be a number.")
        value = float(text) if re.search(r"[.eE]", text) else int(text)
        is_whole = type(value) is int  # one of many digits is none that isfinite takes
        if not (SMALLEST <= value <= LARGEST if is_whole else math.isfinite(value)):
            raise Refused("number_out_of_range", "The number is out of range.")
        return plain_number(value)

    def definition_problems(self) -> Iterator[str]:
        """Bounds are numbers in order."""
        kind = "a number; a whole one of at most 64 bits"
        yield from _bounds_problems(self.options, "min", "max", _is_number, kind)
        if not isinstance(self.options.get("integer", False), bool):
            yield "integer must be true or false."


class BooleanField(Field):
    """True or false."""

    type = "boolean"
    column_type = sa.Boolean()
    rule_type = rules.Type.BOOLEAN
    known_options = frozenset({"index"})
    json_schema: ClassVar[Mapping[str, Any]] = {"type": "boolean"}

    def clean(self, value: Any) -> bool:
        """Exactly true or false."""
        if not isinstance(value, bool):
            raise Refused("invalid_type", "Must be true or false.")
        return value

    def from_text(self, text: str) -> bool:
        """The words true and false."""
        if text.lower() not in ("true", "false"):
            raise Refused("invalid_type", "Must be true or false.")
        return text.lower() == "true"

    def shown(self, value: Any) -> bool:
        """SQLite stores 0 and 1."""
        return bool(value)

    @cached_property
    def plain_type(self) -> Any:
        """What PostgreSQL gives."""
        return bool


class DatetimeField(Field):
    """A moment."""

    type = "datetime"
    column_type = db.Moment()
    rule_type = rules.Type.DATETIME
    known_options = frozenset({"index"})
    json_schema: ClassVar[Mapping[str, Any]] = {"type": "string", "format": "date-time"}

    def clean(self, value: Any) -> datetime:
        """ISO 8601; without an offset it is UTC."""
        try:
            if not isinstance(value, str) or len(value) < len("2026-01-01T00"):
                raise ValueError
            return clock.parse(value)
        except ValueError:
            message = "Must be an ISO 8601 date and time such as 2026-11-20T12:00:00Z."
            raise Refused("invalid_datetime", message) from None

    def shown(self, value: datetime | str) -> str:
        """The one format, in which SQLite keeps it, too."""
        return value if isinstance(value, str) else clock.iso(value)

    @cached_property
    def plain_type(self) -> Any:
        """What SQLite keeps."""
        return str


class DateField(Field):
    """A day of the calendar."""

    type = "date"
    column_type = sa.Date()
    rule_type = rules.Type.DATE
    known_options = frozenset({"index"})
    json_schema: ClassVar[Mapping[str, Any]] = {"type": "string", "format": "date"}

    def clean(self, value: Any) -> date:
        """YYYY-MM-DD."""
        try:
            if not isinstance(value, str) or not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
                raise ValueError
            return date.fromisoformat(value)
        except ValueError:
            raise Refused("invalid_date", "Must be a date such as 2026-11-20.") from None

    def shown(self, value: date) -> str:
        """YYYY-MM-DD."""
        return value.isoformat()


class EmailField(Field):
    """An e-mail address."""

    type = "email"
    known_options = frozenset({"index"})
    json_schema: ClassVar[Mapping[str, Any]] = {"type": "string", "format": "email"}

    def clean(self, value: Any) -> str:
        """An address, kept as sent."""
        if not isinstance(value, str) or not is_email(value):
            raise Refused("invalid_email", "Must be an e-mail address.")
        return value

    def from_text(self, text: str) -> str:
        """Any text may be asked for."""
        return text


class UrlField(Field):
    """A web address."""

    type = "url"
    known_options = frozenset({"index"})
    json_schema: ClassVar[Mapping[str, Any]] = {"type": "string", "format": "uri"}

    def clean(self, value: Any) -> str:
        """An http or https URL with a host, kept as sent."""
        try:
            parts = urlsplit(value) if isinstance(value, str) else None
            fits = (
                parts and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            )
        except ValueError:
            fits = False
        if not fits or len(value) > LONGEST_URL or re.search(r"[\s<>\"\x00-\x1f\x7f]", value):
            raise Refused("invalid_url", "Must be a URL starting with http:// or https://.")
        self._check_indexable(value)
        return str(value)

    def from_text(self, text: str) -> str:
        """Any text may be asked for."""
        return text


class JsonText(sa.types.TypeDecorator[Any]):
    """JSON kept as the text that was sent, so that it comes back with its order and its numbers."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Text on its way in."""
        return None if value is None else orjson.dumps(value).decode()


class JsonField(Field):
    """A JSON object or array."""

    type = "json"
    column_type = JsonText()
    rule_type = rules.Type.JSON
    may_be_unique = False
    filterable = False
    json_schema: ClassVar[Mapping[str, Any]] = {"type": ["object", "array"]}

    def clean(self, value: Any) -> Any:
        """An object or array whose whole numbers have at most 64 bits."""
        if not isinstance(value, dict | list):
            raise Refused("invalid_json", "Must be a JSON object or array.")
        if not json_gate.fits(value):
            raise Refused("number_out_of_range", "Whole numbers have at most 64 bits.")
        return value

    def shown(self, value: str) -> Any:
        """The stored text, passed through without parsing it."""
        return orjson.Fragment(value)


class ReferenceField(Field):
    """The id of a record of another collection, in the same account."""

    type = "reference"
    column_type = db.Id
    known_options = frozenset({"index"})
    json_schema: ClassVar[Mapping[str, Any]] = {"type": "string", "format": "uuid"}
    indexed = True  # it is looked up whenever its target is deleted

    def clean(self, value: Any) -> str:
        """A text; whether such a record exists is asked of the database for all fields at once."""
        if not isinstance(value, str):
            raise Refused("invalid_type", "Must be the id of a record.")
        return value


class ComputedField(Field):
    """A value that an expression gives whenever the record is read; nothing is stored."""

    type = "computed"
    may_be_unique = False
    json_schema: ClassVar[Mapping[str, Any]] = {"type": ["string", "number", "boolean", "null"]}

    @cached_property
    def like(self) -> Field:
        """The field that holds what the expression gives."""
        return RETURN_TYPES[self.return_type or ""](self.name)

    def from_text(self, text: str) -> Any:
        """What the type of the value takes."""
        return self.like.from_text(text)

    def shown(self, value: Any) -> Any:
        """As the type of the value shows it."""
        return self.like.shown(value)

    @cached_property
    def plain_type(self) -> Any:
        """As the type of the value has it."""
        return self.like.plain_type


RETURN_TYPES: dict[str, type[Field]] = {
    kind.type: kind for kind in (TextField, NumberField, BooleanField, DatetimeField)
}
TYPES: dict[str, type[Field]] = {
    kind.type: kind
    for kind in (
        TextField,
        NumberField,
        BooleanField,
        DatetimeField,
        DateField,
        EmailField,
        UrlField,
        JsonField,
        ReferenceField,
        ComputedField,
    )
}


@dataclass(frozen=True)
class SystemField:
    """A column that every record has."""

    name: str
    like: Field
    nullable: bool = False


SYSTEM_FIELDS = {
    one.name: one
    for one in (
        SystemField("id", ReferenceField("id")),
        SystemField("account_id", ReferenceField("account_id")),
        SystemField("created_at", DatetimeField("created_at")),
        SystemField("updated_at", DatetimeField("updated_at")),
        SystemField("created_by", ReferenceField("created_by"), nullable=True),
        SystemField("updated_by", ReferenceField("updated_by"), nullable=True),
    )
}
