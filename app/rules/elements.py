"""SQL elements that SQLAlchemy lacks, or that SQLite and PostgreSQL write differently."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from app.rules.cost import MAX_PATTERN

Expression = sa.ColumnElement[Any]
ColumnType = sa.types.TypeEngine[Any]
MAX_PARTS = 60  # of a call; some builds of SQLite take no more than 100, as does PostgreSQL


class Parameter(FunctionElement[Any]):
    """A parameter with an explicit type: PostgreSQL cannot infer one from null."""

    inherit_cache = True
    name = "atrium_parameter"

    def __init__(self, parameter: Expression, *, type_: ColumnType) -> None:
        self.type = type_
        super().__init__(parameter)


class Like(FunctionElement[bool]):
    """Case-insensitive match against a constant pattern."""

    type = sa.Boolean()
    inherit_cache = True
    name = "atrium_like"


class Matches(FunctionElement[bool]):
    """Case-insensitive match against a pattern computed by the statement."""

    type = sa.Boolean()
    inherit_cache = True
    name = "atrium_matches"


class Property(FunctionElement[Any]):
    """A property of a JSON object that is stored as text."""

    inherit_cache = True
    name = "atrium_property"

    def __init__(self, text: Expression, name: str, *, is_number: bool = False) -> None:
        self.type = sa.Double() if is_number else sa.Text()
        super().__init__(text, sa.literal_column(f"'{name}'"))


class ListContains(FunctionElement[bool]):
    """Whether the JSON text of a list has a text."""

    type = sa.Boolean()
    inherit_cache = True
    name = "atrium_contains"


class CodePoints(FunctionElement[str]):
    """A text that compares by code points."""

    type = sa.Text()
    inherit_cache = True
    name = "atrium_code_points"


class Joined(FunctionElement[str]):
    """Texts one after the other."""

    type = sa.Text()
    inherit_cache = True
    name = "atrium_joined"


class TruthText(FunctionElement[str]):
    """A boolean as `true` or `false`; null as the empty text."""

    type = sa.Text()
    inherit_cache = True
    name = "atrium_truth_text"


class Midnight(FunctionElement[Any]):
    """The moment at which a day begins."""

    inherit_cache = True
    name = "atrium_midnight"

    def __init__(self, day: Expression, *, type_: ColumnType) -> None:
        self.type = type_
        super().__init__(day)


class Nothing(FunctionElement[Any]):
    """Null, to ask what a column holds: SQLite 3.40 takes `IS NULL` in RETURNING for never true."""

    inherit_cache = True
    name = "atrium_nothing"


@compiles(Nothing)
def _nothing(element: Nothing, compiler: SQLCompiler, **options: object) -> str:
    return "NULL"


@compiles(Nothing, "sqlite")
def _sqlite_nothing(element: Nothing, compiler: SQLCompiler, **options: object) -> str:
    return "(SELECT NULL)"


def _parts(
    element: FunctionElement[Any], compiler: SQLCompiler, options: Mapping[str, object]
) -> list[str]:
    return [f"({compiler.process(clause, **options)})" for clause in element.clauses]


@compiles(Parameter)
def _parameter(element: Parameter, compiler: SQLCompiler, **options: object) -> str:
    return _parts(element, compiler, options)[0]


@compiles(Parameter, "postgresql")
def _postgres_parameter(element: Parameter, compiler: SQLCompiler, **options: object) -> str:
    (parameter,) = element.clauses
    return str(compiler.process(sa.cast(parameter, element.type), **options))


@compiles(Like, "sqlite")
def _sqlite_like(element: Like, compiler: SQLCompiler, **options: object) -> str:
    text, pattern = _parts(element, compiler, options)
    return f"{text} LIKE {pattern} ESCAPE '!'"


@compiles(Like, "postgresql")
def _postgres_like(element: Like, compiler: SQLCompiler, **options: object) -> str:
    text, pattern = _parts(element, compiler, options)
    return f"lower({text} COLLATE \"C\") LIKE {pattern} ESCAPE '!'"


@compiles(Matches, "sqlite")
def _sqlite_matches(element: Matches, compiler: SQLCompiler, **options: object) -> str:
    return f"atrium_matches({', '.join(_parts(element, compiler, options))})"


@compiles(Matches, "postgresql")
def _postgres_matches(element: Matches, compiler: SQLCompiler, **options: object) -> str:
    text, pattern = _parts(element, compiler, options)
    # Named once only: patterns may hold patterns.
    cut = f"left({pattern}, {MAX_PATTERN})"
    kept = f"replace(replace(lower({cut} COLLATE \"C\"), '!', '!!'), '_', '!_')"
    # A percent sign is doubled for the driver.
    like = f"regexp_replace({kept}, '\\\\([\\\\%%])', '!\\1', 'g')"
    return f"lower({text} COLLATE \"C\") LIKE {like} ESCAPE '!'"


@compiles(ListContains, "sqlite")
def _sqlite_contains(element: ListContains, compiler: SQLCompiler, **options: object) -> str:
    return f"atrium_contains({', '.join(_parts(element, compiler, options))})"


@compiles(ListContains, "postgresql")
def _postgres_contains(element: ListContains, compiler: SQLCompiler, **options: object) -> str:
    container, item = _parts(element, compiler, options)
    # In an array: alone, a text is also contained in an equal text.
    return f"{container}::jsonb @> jsonb_build_array({item}::text)"


@compiles(CodePoints, "sqlite")
def _sqlite_code_points(element: CodePoints, compiler: SQLCompiler, **options: object) -> str:
    return _parts(element, compiler, options)[0]


@compiles(CodePoints, "postgresql")
def _postgres_code_points(element: CodePoints, compiler: SQLCompiler, **options: object) -> str:
    return f'{_parts(element, compiler, options)[0]} COLLATE "C"'


# With `||` both databases copy what is joined so far once for each part, and PostgreSQL keeps each
# of the copies: a text of some megabytes, named often enough, would take all memory there is.
@compiles(Joined, "sqlite")
def _sqlite_joined(element: Joined, compiler: SQLCompiler, **options: object) -> str:
    parts = [compiler.process(part, **options) for part in element.clauses]
    return _in_groups(parts, lambda some: f"printf('{'%s' * len(some)}', {', '.join(some)})")


@compiles(Joined, "postgresql")
def _postgres_joined(element: Joined, compiler: SQLCompiler, **options: object) -> str:
    parts = [compiler.process(part, **options) for part in element.clauses]
    return _in_groups(parts, lambda some: f"atrium_joined({', '.join(some)})")


def _in_groups(parts: Sequence[str], call: Callable[[Sequence[str]], str]) -> str:
    while len(parts) > MAX_PARTS:
        firsts = range(0, len(parts), MAX_PARTS)
        parts = [call(parts[first : first + MAX_PARTS]) for first in firsts]
    return call(parts)


@compiles(TruthText, "sqlite")
def _sqlite_truth_text(element: TruthText, compiler: SQLCompiler, **options: object) -> str:
    value = _parts(element, compiler, options)[0]
    return f"CASE {value} WHEN 1 THEN 'true' WHEN 0 THEN 'false' ELSE '' END"


@compiles(TruthText, "postgresql")
def _postgres_truth_text(element: TruthText, compiler: SQLCompiler, **options: object) -> str:
    # No CASE: Citus cannot send nested ones with a value to compare.
    return f"coalesce({_parts(element, compiler, options)[0]}::text, '')"


@compiles(Midnight, "sqlite")
def _sqlite_midnight(element: Midnight, compiler: SQLCompiler, **options: object) -> str:
    return f"({_parts(element, compiler, options)[0]} || 'T00:00:00.000000Z')"


@compiles(Midnight, "postgresql")
def _postgres_midnight(element: Midnight, compiler: SQLCompiler, **options: object) -> str:
    return f"({_parts(element, compiler, options)[0]}::timestamp AT TIME ZONE 'UTC')"


class Nested(FunctionElement[Any]):
    """An expression compiled layer by layer, as SQLAlchemy's compiler recurses (`depth.py`).

    A later layer has placeholders (`layer(i)`), which are replaced by the SQL of earlier layers.
    """

    inherit_cache = True
    name = "atrium_nested"
    MARK = re.compile("\x02([0-9]+)\x03")

    @staticmethod
    def layer(index: int, type_: ColumnType) -> Expression:
        """The placeholder of a layer."""
        return sa.literal_column(f"\x02{index}\x03", type_)


@compiles(Nested)
def _nested(element: Nested, compiler: SQLCompiler, **options: object) -> str:
    texts: list[str] = []
    for layer in element.clauses:
        text = compiler.process(layer, **options)
        texts.append(Nested.MARK.sub(lambda mark: f"({texts[int(mark[1])]})", text))
    return texts[-1]


class Evaluated(FunctionElement[Any]):
    """An expression; on SQLite, where as SQL it would nest too deep, a program with its leaves.

    Its clauses are the expression, the program and the groups of leaves.
    """

    inherit_cache = True
    name = "atrium_expression"

    def __init__(self, *clauses: Expression, type_: ColumnType) -> None:
        self.type = type_
        super().__init__(*clauses)


@compiles(Evaluated, "sqlite")
def _sqlite_evaluated(element: Evaluated, compiler: SQLCompiler, **options: object) -> str:
    _, *given = element.clauses
    return f"atrium_expression({', '.join(compiler.process(one, **options) for one in given)})"


@compiles(Evaluated, "postgresql")
def _postgres_evaluated(element: Evaluated, compiler: SQLCompiler, **options: object) -> str:
    return _parts(element, compiler, options)[0]


@compiles(Property, "sqlite")
def _sqlite_property(element: Property, compiler: SQLCompiler, **options: object) -> str:
    text, name = _parts(element, compiler, options)
    return f"json_extract({text}, '$.' || {name})"


@compiles(Property, "postgresql")
def _postgres_property(element: Property, compiler: SQLCompiler, **options: object) -> str:
    text, name = _parts(element, compiler, options)
    value = f"({text}::json ->> {name})"
    return f"{value}::float8" if isinstance(element.type, sa.Double) else f'{value} COLLATE "C"'
