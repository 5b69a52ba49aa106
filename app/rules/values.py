"""Operators and functions over values that are not null; both back ends use them.

The evaluator calls these functions, SQLite calls them as functions of its own, and PostgreSQL has
the same in PL/pgSQL (migration 0004). Numbers are added and multiplied as they are written, in
decimal, and the result is the nearest of our numbers: a whole one of 64 bits, else an IEEE double.
None stands for null: whatever has no result (division by zero, overflow) is null.

Decimals are exact (migration 0091): sums, differences, products and quotients are rounded to PLACES
digits behind the point, halves away from zero. SQLite, which has no such numbers, stores texts in
their order (`encoded`).
"""

from __future__ import annotations

import calendar
import math
import re
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal
from typing import Any

import orjson
import re2

SMALLEST, LARGEST = -(2**63), 2**63 - 1
# Enough for the sum of the largest double and the smallest, digit by digit.
EXACT = Context(prec=1500, rounding=ROUND_HALF_UP, Emax=10**6, Emin=-(10**6), traps=[])
QUOTIENT = Context(prec=80, rounding=ROUND_HALF_UP, Emax=10**6, Emin=-(10**6), traps=[])
BLANKS = " \t\n\r\v\f"
UPPER = {lower: lower - 32 for lower in range(ord("a"), ord("z") + 1)}
LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
MICROSECONDS = {"days": 86_400_000_000, "hours": 3_600_000_000, "minutes": 60_000_000}
MICROSECONDS |= {"seconds": 1_000_000}
MONTHS = {"months": 1, "years": 12}
UNITS = (*MICROSECONDS, *MONTHS)
LONGEST_MOMENT = len("2026-11-20T12:00:00.123456789+00:00")
MOMENT = re.compile(
    r"\d{4}-\d\d-\d\d"
    r"([Tt ]\d\d(:\d\d(:\d\d([.,]\d{1,9})?)?)?(Z|[+-]\d\d(:?\d\d(:?\d\d)?)?)?)?",
    re.ASCII,
)
FURTHEST = 10**9  # characters; no text of ours has as many
MAX_PLACES = 400  # digits; no number of ours has as many on either side of the point

PLACES = 38  # digits of a decimal behind the point
LARGEST_DECIMAL = Decimal("1e308")  # none has as many digits before it
QUANTUM = Decimal(1).scaleb(-PLACES)
DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)")
LONGEST_DECIMAL = 400  # characters
BIAS = 50_000
OPPOSITE = str.maketrans("0123456789", "9876543210")

LONG_RUN = re2.compile(r"\p{M}{31,}")  # longer ones than UAX #15 calls safe for streams

Number = int | float


def composed(text: str) -> str:
    """A text in Unicode's form NFC, in which values are stored and literals compared.

    One with more than 30 marks in a row stays as it is: Python takes a time for these that grows
    with the square of their number.
    """
    if text.isascii() or LONG_RUN.search(text):
        return text
    return unicodedata.normalize("NFC", text)


def spellings(texts: Iterable[str]) -> set[str]:
    """Composed texts and their decomposed forms, which names from older releases may have."""
    return {form for one in texts for form in (one, unicodedata.normalize("NFD", one))}


def decimal(number: Number) -> Decimal:
    """A number as it is written."""
    return Decimal(number) if isinstance(number, int) else Decimal(repr(number))


def number(text: str) -> Number | None:
    """The number that digits name; None where it is out of range."""
    return nearest(EXACT.create_decimal(text))


def nearest(exact: Decimal) -> Number | None:
    """The number of ours that is nearest; None where there is none."""
    if not exact.is_finite():
        return None
    whole = exact.to_integral_value(context=EXACT)
    # Past 2**53 doubles have no parts, and lie further apart than whole numbers do.
    if SMALLEST <= whole <= LARGEST and (exact == whole or exact.copy_abs() >= 2**53):
        return int(whole)
    double = float(exact)
    if not math.isfinite(double):
        return None
    return int(double) if double.is_integer() and SMALLEST <= double <= LARGEST else double


def as_decimal(value: object) -> Decimal | None:
    """The decimal that a number is, or a text writes; None for anything else."""
    if isinstance(value, Decimal):
        return value
    if isinstance(value, str):
        is_one = len(value) <= LONGEST_DECIMAL and DECIMAL.fullmatch(value)
        return Decimal(value) if is_one else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return decimal(value) if is_number else None  # type: ignore[arg-type]


def scaled(exact: Decimal, scale: int = 0) -> Decimal:
    """The decimal with its own digits behind the point, but at least so many."""
    plain_form = EXACT.add(exact, 0).normalize(EXACT)  # no zero has a sign
    if plain_form.as_tuple().exponent <= -scale:  # type: ignore[operator]
        return plain_form
    return plain_form.quantize(Decimal(1).scaleb(-scale), context=EXACT)


def settled(exact: Decimal) -> Decimal | None:
    """A result as decimals have it; None where it is out of range."""
    rounded = scaled(exact)
    if rounded.as_tuple().exponent < -PLACES:  # type: ignore[operator]
        rounded = scaled(rounded.quantize(QUANTUM, ROUND_HALF_UP, EXACT))
    return rounded if rounded.copy_abs() < LARGEST_DECIMAL else None


def encoded(exact: Decimal) -> str:
    """A text for SQLite: texts order as their decimals do, and are equal where these are.

    0, 1 or 2 for the sign, the place of the first digit, and the digits; of a negative one,
    place and digits count from the other end.
    """
    if not exact:
        return "1"
    _, digits, _ = exact.normalize(EXACT).as_tuple()
    written = "".join(map(str, digits))
    place = f"{BIAS + exact.adjusted():05}"
    return f"2{place}{written}" if exact > 0 else f"0{(place + written).translate(OPPOSITE)}~"


def decoded(text: str) -> Decimal:
    """The decimal that a text of `encoded` stands for."""
    if text == "1":
        return Decimal(0)
    sign, rest = ("", text[1:]) if text[0] == "2" else ("-", text[1:-1].translate(OPPOSITE))
    place, digits = int(rest[:5]) - BIAS, rest[5:]
    return scaled(Decimal(f"{sign}{digits}E{place - len(digits) + 1}"))


def add_decimals(left: Decimal, right: Decimal) -> Decimal | None:
    """`left + right`"""
    return settled(EXACT.add(left, right))


def subtract_decimals(left: Decimal, right: Decimal) -> Decimal | None:
    """`left - right`"""
    return settled(EXACT.subtract(left, right))


def multiply_decimals(left: Decimal, right: Decimal) -> Decimal | None:
    """`left * right`"""
    return settled(EXACT.multiply(left, right))


def divide_decimals(left: Decimal, right: Decimal) -> Decimal | None:
    """`left / right`; null by zero."""
    if not right:
        return None
    # Twice the quotient and one, by twice the divisor: rounds once, as whole numbers have no rest.
    shifted = EXACT.add(EXACT.multiply(left.copy_abs().scaleb(PLACES, EXACT), 2), right.copy_abs())
    whole = EXACT.divide_int(shifted, EXACT.multiply(right.copy_abs(), 2))
    quotient = whole.scaleb(-PLACES, EXACT)
    return settled(quotient if (left < 0) is (right < 0) else quotient.copy_negate())


def remainder_decimals(left: Decimal, right: Decimal) -> Decimal | None:
    """`left % right`, with the sign of `left`; null by zero."""
    return settled(EXACT.remainder(left, right)) if right else None


def round_decimal(exact: Decimal, digits: Number = 0) -> Decimal | None:
    """As `round_half_away`."""
    places = math.trunc(max(-MAX_PLACES, min(MAX_PLACES, digits)))
    if places >= -exact.as_tuple().exponent:  # type: ignore[operator]
        return settled(exact)
    return settled(exact.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, EXACT))


def absolute_decimal(exact: Decimal) -> Decimal | None:
    """The decimal without its sign."""
    return settled(exact.copy_abs())


def ceil_decimal(exact: Decimal) -> Decimal | None:
    """The smallest whole decimal that is not less."""
    return settled(exact.to_integral_value(ROUND_CEILING, EXACT))


def floor_decimal(exact: Decimal) -> Decimal | None:
    """The largest whole decimal that is not greater."""
    return settled(exact.to_integral_value(ROUND_FLOOR, EXACT))


def add(left: Number, right: Number) -> Number | None:
    """`left + right`"""
    return nearest(EXACT.add(decimal(left), decimal(right)))


def subtract(left: Number, right: Number) -> Number | None:
    """`left - right`"""
    return nearest(EXACT.subtract(decimal(left), decimal(right)))


def multiply(left: Number, right: Number) -> Number | None:
    """`left * right`"""
    return nearest(EXACT.multiply(decimal(left), decimal(right)))


def divide(left: Number, right: Number) -> Number | None:
    """`left / right`, true division; null by zero."""
    return nearest(QUOTIENT.divide(decimal(left), decimal(right))) if right else None


def remainder(left: Number, right: Number) -> Number | None:
    """`left % right`, with the sign of `left`; null by zero."""
    return nearest(EXACT.remainder(decimal(left), decimal(right))) if right else None


def round_half_away(number: Number, digits: Number = 0) -> Number | None:
    """The nearest number with so many digits after the point; halves away from zero."""
    places = math.trunc(max(-MAX_PLACES, min(MAX_PLACES, digits)))
    exact = decimal(number)
    if places >= -exact.as_tuple().exponent:  # type: ignore[operator]
        return number
    return nearest(exact.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, EXACT))


def absolute(number: Number) -> Number | None:
    """The number without its sign."""
    return nearest(decimal(number).copy_abs())


def ceiling(number: Number) -> Number | None:
    """The smallest whole number that is not less."""
    return nearest(decimal(number).to_integral_value(ROUND_CEILING, EXACT))


def floor(number: Number) -> Number | None:
    """The largest whole number that is not greater."""
    return nearest(decimal(number).to_integral_value(ROUND_FLOOR, EXACT))


def upper(text: str) -> str:
    """ASCII letters in capitals."""
    return text.translate(UPPER)


def lower(text: str) -> str:
    """ASCII letters in small."""
    return text.translate(LOWER)


def trim(text: str) -> str:
    """Without ASCII blanks at both ends."""
    return text.strip(BLANKS)


def substring(text: str, start: Number, length: Number = 2 * FURTHEST) -> str:
    """So many characters from a position on; the first is 1."""
    first = math.trunc(max(-FURTHEST, min(FURTHEST, start)))
    end = first + math.trunc(max(0, min(2 * FURTHEST, length)))
    return text[max(first, 1) - 1 : max(end, 1) - 1]


def written(value: Any) -> str:
    """A value as `concat` writes it; null is nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else plain(value)


def plain(number: Number | Decimal) -> str:
    """All digits of a number, without an exponent."""
    exact = number if isinstance(number, Decimal) else decimal(number)
    text = format(exact or Decimal(0), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


PATTERN = re.compile(r"\\([\\%])|%|[^\\%]+|\\")


def matches(text: str, pattern: str) -> bool:
    """`text ~ pattern`: the whole text, case aside; `%` is any run.

    A backslash stands for itself, but `\\%` is a percent sign and two are one.
    """
    runs: list[list[str]] = [[]]
    for token in PATTERN.finditer(lower(pattern)):
        if token[0] == "%":
            runs.append([])
        else:
            runs[-1].append(token[1] or token[0])
    parts = ["".join(run) for run in runs]
    subject = lower(text)
    if len(parts) == 1:
        return subject == parts[0]
    first, *middle, last = parts
    if len(subject) < len(first) + len(last):
        return False
    if not subject.startswith(first) or not subject.endswith(last):
        return False
    position, end = len(first), len(subject) - len(last)
    for part in middle:
        found = subject.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return True


def items(container: object) -> list[object]:
    """The items of a list, or of the JSON text of one; none of anything else."""
    if isinstance(container, str):
        with suppress(orjson.JSONDecodeError):
            container = orjson.loads(container)
    return container if isinstance(container, list) else []


def contains(container: object, item: object) -> bool:
    """`@contains(container, item)`: a list has the text."""
    return isinstance(item, str) and item in items(container)


def moment(text: str) -> datetime:
    """The moment that an ISO 8601 text names, `t` and `z` in either case; else it is UTC.

    Raises ValueError.
    """
    # The library takes texts of any length, and digits without anything between them.
    if len(text) > LONGEST_MOMENT or not MOMENT.fullmatch(text := text.upper()):
        raise ValueError("not a moment")
    found = datetime.fromisoformat(text)
    if found.tzinfo is UTC:
        return found
    try:
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("out of range") from error


def midnight(day: date) -> datetime:
    """The first moment of a day, in UTC."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def date_diff(left: datetime, right: datetime, unit: str) -> Number | None:
    """`left - right` in a unit: parts of days and less, whole months and years."""
    if unit in MICROSECONDS:
        return divide((left - right) // timedelta(microseconds=1), MICROSECONDS[unit])
    months = _months_between(max(left, right), min(left, right)) // MONTHS[unit]
    return months if left >= right else -months


def _months_between(later: datetime, earlier: datetime) -> int:
    months = (later.year - earlier.year) * 12 + later.month - earlier.month
    reached = date_add(earlier, months, "months")
    return months if reached is not None and reached <= later else months - 1


def date_add(start: datetime, amount: Number, unit: str) -> datetime | None:
    """A moment so many units later; months keep the day, or the last one of a shorter month."""
    try:
        if unit in MICROSECONDS:
            exact = EXACT.multiply(decimal(amount), MICROSECONDS[unit])
            steps = int(exact.to_integral_value(ROUND_DOWN, EXACT))
            return start + timedelta(microseconds=steps)
        months = start.year * 12 + start.month - 1 + math.trunc(amount) * MONTHS[unit]
        year, month = divmod(months, 12)
        day = min(start.day, calendar.monthrange(year, month + 1)[1])
        return start.replace(year=year, month=month + 1, day=day)
    except (OverflowError, ValueError):
        return None
