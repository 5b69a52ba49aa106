"""Well-typed expressions over every operator and function, and rows full of extremes."""

from __future__ import annotations

import math
import struct
from bisect import bisect
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from app.collections.fields import plain_number
from app.rules import Name, RuleError, Subject, Type, functions, parser, value, values, walk
from tests.rules.backends import FIELDS, NOBODY, SCOPE

DEEPEST = 3
WORDS = [
    "",
    "a",
    "A",
    "ab",
    "a_b",
    "a%b",
    "%",
    "100%",
    "\\%",
    "é",
    "É",
    "e\u0301",
    "ß",
    "😀",
    "\uffee",
]
WORDS += ["!", "'", '"', ":t", "%s", "\\", " a ", "null", "10", "9", "u1", "editor", "\u0130", "K"]
PATTERNS = ["%", "a%", "%B", "%a%b%", "\\%", "%\\%", "_%", "!%", "%😀%", "100\\%", "\\\\%", "%%"]
NUMBERS = [0, 1, -1, 2, 3, 7, 10, -7, 0.1, 0.2, 0.3, 0.5, 1.5, 2.5, -2.5, 1e15, 2**53, 2**53 + 1]
NUMBERS += [
    2**63 - 1,
    -(2**63),
    9.3e18,
    5e-324,
    -5e-324,
    1e-300,
    1.7976931348623157e308,
    -1.797e308,
]
MOMENTS = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(2024, 2, 29, tzinfo=UTC),
    datetime(2026, 1, 31, 10, 11, 12, 500000, tzinfo=UTC),
]
MOMENTS += [
    datetime(2026, 11, 20, 12, 30, 15, 123456, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
]


def text(dice: Random) -> str:
    """A text, among them those that patterns and functions may trip over."""
    if dice.randint(0, 3):
        return dice.choice(WORDS)
    codes = (dice.choice((0x7F, 0x7FF, 0xD7FF, 0x10FFFF)) for _ in range(dice.randint(0, 4)))
    # From 1: no text holds a NUL. Surrogates are no characters.
    drawn = (chr(dice.randint(1, most)) for most in codes)
    return "".join(one for one in drawn if not "\ud800" <= one <= "\udfff")


def number(dice: Random) -> int | float:
    """A whole number or a double, as a field keeps it."""
    bits: float = struct.unpack("<d", dice.randbytes(8))[0]
    double = bits if math.isfinite(bits) else 0.25
    drawn = [dice.randint(-20, 20), dice.randint(-(2**63), 2**63 - 1), double, dice.random()]
    drawn.append(round(dice.uniform(-1000, 1000), dice.randint(0, 3)))
    return plain_number(dice.choice([*drawn, *[dice.choice(NUMBERS)] * 5]))  # type: ignore[no-any-return]


def decimal(dice: Random) -> Decimal:
    """A decimal of up to 38 digits, as a field keeps it."""
    digits = dice.randint(0, 38)
    whole = dice.randint(-(10**digits), 10**digits)
    return dice.choice(
        (values.scaled(Decimal(whole).scaleb(-dice.randint(0, digits))), Decimal("0.1"), Decimal(2))
    )


def moment(dice: Random) -> datetime:
    """A moment from the year 1 to the year 9999, often the last or first day of a month."""
    if dice.randint(0, 1):
        return dice.choice(MOMENTS)
    month = datetime(dice.randint(1, 9999), dice.randint(1, 12), 28, tzinfo=UTC)
    limit = 0 if month.year == 9999 else 4
    return month + timedelta(days=dice.randint(0, limit), microseconds=dice.randint(0, 10**11))


def boolean(dice: Random) -> bool:
    """True or false."""
    return dice.choice((True, False))


VALUES: dict[Type, Callable[[Random], Any]] = {
    Type.TEXT: text,
    Type.NUMBER: number,
    Type.DECIMAL: decimal,
    Type.BOOLEAN: boolean,
    Type.DATETIME: moment,
    Type.DATE: lambda dice: moment(dice).date(),
    Type.JSON: lambda dice: {"a": 1},
    Type.LIST: lambda dice: [text(dice) for _ in range(dice.randint(0, 4))],
}


def row(dice: Random) -> dict[str, Any]:
    """A value for every field; a third of them null."""
    return {
        name: VALUES[kind](dice) if dice.randint(0, 2) else None for name, kind in FIELDS.items()
    }


def subject(dice: Random) -> Subject:
    """Somebody, or nobody."""
    if not dice.randint(0, 2):
        return NOBODY
    return Subject(
        id=text(dice),
        email=dice.choice((None, text(dice))),
        role=dice.choice(("editor", "viewer", "A")),
        account_id=text(dice),
        groups=frozenset(dice.choices(("staff", "other"), k=dice.randint(0, 2))),
        plan=dice.choice((None, "A", "editor")),
        flags=frozenset(dice.choices(("staff", "editor", "viewer"), k=dice.randint(0, 2))),
        is_superadmin=boolean(dice),
    )


def quoted(text: str) -> str:
    """A text as an expression writes it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def literal(value: Any) -> str:
    """A value as an expression writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, date | datetime):
        return quoted(value.isoformat())
    if isinstance(value, Decimal):
        return f"decimal({_written(value)})"
    return quoted(value) if isinstance(value, str) else repr(value)


def _written(value: Decimal) -> str:
    """Half of the decimals as texts, the others as numbers."""
    written = format(value, "f")
    return quoted(written) if len(written) % 2 else written


def expression(dice: Random) -> str:
    """The text of an expression of any type."""
    return _expression(dice, dice.choice(list(MAKERS)), DEEPEST)


def deep_expression(dice: Random) -> str:
    """The text of one that is nested about as deep as is allowed."""
    kind = dice.choice(list(MAKERS))
    grown = [_expression(dice, kind, 1)]
    for _ in range(parser.DEEPEST):
        text, kind = _around(dice, grown[-1], kind)
        grown.append(text)
    # The first is read, so the last that is read lies where reading ends.
    return grown[bisect(grown, False, key=lambda text: not _is_read(text)) - 1]


def _is_read(text: str) -> bool:
    try:
        return bool(value(text, SCOPE))
    except RuleError:
        return False


def _around(dice: Random, text: str, kind: Type) -> tuple[str, Type]:
    """An expression with another one in the place of one of its fields, and its type."""
    places: list[Name] = []
    while not places:
        wider = dice.choice(list(MAKERS))
        outer = dice.choice(MAKERS[wider])(dice, 0)
        names = (node for node in walk(parser.parse(outer)) if isinstance(node, Name))
        places = [one for one in names if FIELDS.get(one.path[0]) is kind]
    place = dice.choice(places)
    before, after = outer[: place.start], outer[place.end :]
    apart = before.rstrip()[-1:] in ("(", "[", ",") and after[:1] in (")", "]", ",")
    return f"{before}{text if apart else f'({text})'}{after}", wider


def _expression(dice: Random, kind: Type, depth: int) -> str:
    if depth <= 0 or dice.randint(0, 5) == 0:
        return _leaf(dice, kind)
    return dice.choice(MAKERS[kind])(dice, depth - 1)


def _leaf(dice: Random, kind: Type) -> str:
    names = [name for name, its in FIELDS.items() if its is kind]
    written = [*names, *(f"@request.data.{name}" for name in names), *CONTEXT.get(kind, ())]
    if kind in LITERALS and boolean(dice):
        return "null" if dice.randint(0, 9) == 0 else literal(VALUES[kind](dice))
    return str(dice.choice(written))


LITERALS = (Type.TEXT, Type.NUMBER, Type.BOOLEAN, Type.DECIMAL)
CONTEXT = {
    Type.TEXT: [f"@request.auth.{name}" for name in ("id", "email", "role", "account_id")]
    + ["@account.plan"],
    Type.DATETIME: ["@now", "now()"],
}


def _plain(name: str) -> Callable[[Random, int], str]:
    function = functions.PLAIN[name]

    def make(dice: Random, depth: int) -> str:
        left_out = dice.randint(0, function.optional)
        kinds = function.parameters[: len(function.parameters) - left_out]
        given = [_argument(dice, kind, depth) for kind in kinds]
        if function.unit:
            given[-1] = quoted(dice.choice(values.UNITS))
        return f"{name}({', '.join(given)})"

    return make


def _argument(dice: Random, kind: Type, depth: int) -> str:
    if kind is Type.DATETIME and dice.randint(0, 3) == 0:
        return dice.choice(["day", "due"]) if boolean(dice) else literal(moment(dice))
    if kind is Type.NUMBER and boolean(dice):
        return literal(dice.randint(-9, 9))
    return _expression(dice, kind, depth)


def _arithmetic(dice: Random, depth: int) -> str:
    sign = dice.choice([*functions.ARITHMETIC, "negative"])
    left = _expression(dice, Type.NUMBER, depth)
    if sign == "negative":
        return f"-({left})"
    return f"({left} {sign} {_expression(dice, Type.NUMBER, depth)})"


def _exact_arithmetic(dice: Random, depth: int) -> str:
    sides = [_expression(dice, kind, depth) for kind in (Type.DECIMAL, _numeric(dice))]
    dice.shuffle(sides)
    return f"({sides[0]} {dice.choice([*functions.ARITHMETIC])} {sides[1]})"


def _numeric(dice: Random) -> Type:
    return dice.choice((Type.DECIMAL, Type.NUMBER))


def _exact_function(dice: Random, depth: int) -> str:
    name = dice.choice([name for name, one in functions.PLAIN.items() if one.decimal])
    digits = f", {dice.randint(-9, 40)}" if name == "round" and boolean(dice) else ""
    return f"{name}({_expression(dice, Type.DECIMAL, depth)}{digits})"


def _read_decimal(dice: Random, depth: int) -> str:
    return f"decimal({_expression(dice, dice.choice((Type.TEXT, Type.NUMBER)), depth)})"


def _concat(dice: Random, depth: int) -> str:
    kinds = dice.choices(LITERALS, k=dice.randint(1, 3))
    return f"concat({', '.join(_expression(dice, kind, depth) for kind in kinds)})"


def _chosen(kind: Type) -> Callable[[Random, int], str]:
    def make(dice: Random, depth: int) -> str:
        name = dice.choice(["if", "coalesce", "nullif"])
        count = {"if": 2, "nullif": 2}.get(name) or dice.randint(1, 3)
        given = [_expression(dice, kind, depth) for _ in range(count)]
        if name == "if":
            given.insert(0, _expression(dice, Type.BOOLEAN, depth))
        return f"{name}({', '.join(given)})"

    return make


def _comparison(dice: Random, depth: int) -> str:
    kind = dice.choice([*MAKERS, Type.TEXT, Type.NUMBER])
    signs = ["=", "!="] if kind is Type.BOOLEAN else ["=", "!=", "<", "<=", ">", ">="]
    left, right = _expression(dice, kind, depth), _other_side(dice, kind, depth)
    if boolean(dice):
        left, right = right, left
    return f"({left}) {dice.choice(signs)} ({right})"


def _other_side(dice: Random, kind: Type, depth: int) -> str:
    if kind in (Type.DATE, Type.DATETIME):
        # A date beside a moment, and texts of both.
        other = dice.choice([Type.DATE, Type.DATETIME])
        return literal(VALUES[other](dice)) if boolean(dice) else _expression(dice, other, depth)
    if kind is Type.DECIMAL:
        return _expression(dice, _numeric(dice), depth)
    return _expression(dice, kind, depth)


def _match(dice: Random, depth: int) -> str:
    known = quoted(dice.choice([*PATTERNS, text(dice)]))
    pattern = known if boolean(dice) else _expression(dice, Type.TEXT, depth)
    return f"{_expression(dice, Type.TEXT, depth)} {dice.choice(['~', '!~'])} {pattern}"


def _membership(dice: Random, depth: int) -> str:
    kind = dice.choice(list(MAKERS))
    items = [_other_side(dice, kind, depth) for _ in range(dice.randint(0, 3))]
    listed = dice.choice(["[{}]", "({})"]).format(", ".join(items))
    return f"({_expression(dice, kind, depth)}) {dice.choice(['IN', 'NOT IN'])} {listed}"


def _contains(dice: Random, depth: int) -> str:
    return f"@contains({_leaf(dice, Type.LIST)}, {_expression(dice, Type.TEXT, depth)})"


def _changed(dice: Random, depth: int) -> str:
    return f"@changed({dice.choice(list(FIELDS))})"


def _null_test(dice: Random, depth: int) -> str:
    kind = dice.choice([*MAKERS, Type.JSON, Type.LIST])
    tested = _leaf(dice, kind) if kind not in MAKERS else _expression(dice, kind, depth)
    return f"({tested}) {dice.choice(['IS NULL', 'IS NOT NULL', '= null', '!= null'])}"


def _junction(dice: Random, depth: int) -> str:
    sign = dice.choice(["&&", "||", "AND", "OR"])
    parts = [_expression(dice, Type.BOOLEAN, depth) for _ in range(dice.randint(2, 3))]
    return "(" + f" {sign} ".join(parts) + ")"


def _negation(dice: Random, depth: int) -> str:
    return f"{dice.choice(['!', 'NOT '])}({_expression(dice, Type.BOOLEAN, depth)})"


def _about_caller(dice: Random, depth: int) -> str:
    name = dice.choice(functions.CALLERS)
    word = dice.choice(["editor", "'viewer'", '"A"', "staff"])
    given = {"@has_role": word, "@has_group": word, "@has_any_role": f"[{word}, admin]"}
    given["@flag"] = word
    return f"{name}({given.get(name, '')})"


def _signed_in(dice: Random, depth: int) -> str:
    return f"@request.auth.id {dice.choice(['=', '!='])} ''"


def _giving(kind: Type) -> list[Callable[[Random, int], str]]:
    return [_plain(name) for name, one in functions.PLAIN.items() if one.result is kind]


MAKERS: dict[Type, list[Callable[[Random, int], str]]] = {
    Type.TEXT: [*_giving(Type.TEXT), _concat, _chosen(Type.TEXT)],
    Type.NUMBER: [*_giving(Type.NUMBER), *[_arithmetic] * 4, _chosen(Type.NUMBER)],
    Type.DECIMAL: [
        *[_exact_arithmetic] * 3,
        _exact_function,
        _read_decimal,
        _chosen(Type.DECIMAL),
    ],
    Type.BOOLEAN: [
        *_giving(Type.BOOLEAN),
        *[_comparison] * 3,
        *[_match] * 2,
        _membership,
        *[_contains] * 2,
        _changed,
        _null_test,
        _junction,
        _negation,
        *[_about_caller] * 3,
        _signed_in,
        _chosen(Type.BOOLEAN),
    ],
    Type.DATETIME: [*_giving(Type.DATETIME), _chosen(Type.DATETIME)],
    Type.DATE: [_chosen(Type.DATE)],
}
