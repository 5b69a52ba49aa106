"""Counts, sums, averages and extremes of records, in groups or in all (contract section 5)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app import db, rules
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definition as definitions
from app.collections.access import Access
from app.collections.columns import TableColumns
from app.collections.definition import Definition
from app.collections.fields import ComputedField, Field, Number, NumberField
from app.db import versioned_cache
from app.db.versioned_cache import VersionChecks
from app.errors import InvalidValues, problem
from app.records import store
from app.records.read import query
from app.records.read.query import Conditions
from app.records.store import sizes
from app.rules import sql
from app.rules.elements import CodePoints
from app.types import JSONMapping, JSONObject

OWN = {"functions", "group_by", "filter", "having", "skip", "limit"}
CALL = r"\b(count|sum|avg|min|max)\(\s*([A-Za-z][A-Za-z0-9_]*)?\s*\)"
FUNCTION = re.compile(CALL, re.IGNORECASE)
QUOTED_OR_CALL = re.compile(
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|""" + CALL, re.IGNORECASE | re.DOTALL
)
ORDERED = (rules.Type.NUMBER, rules.Type.TEXT, rules.Type.DATE, rules.Type.DATETIME)
MOST_FUNCTIONS, MOST_GROUPS = 50, 8
MASKED = "You see this field masked, so it can be neither grouped by nor aggregated."
NEEDED = "Name at least one function, such as count() or sum(price)."
FORM = "is none of count(), count(field), sum(field), avg(field), min(field) and max(field)."

Problems = list[JSONObject]
Parameters = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Result:
    """One value of every group: its name, how it is shown and compared, and where it is from."""

    field: Field
    expression: Any

    @property
    def name(self) -> str:
        """Under which the answer and `having` know it."""
        return self.field.name


@dataclass(frozen=True)
class Aggregate:
    """What is asked for."""

    groups: Sequence[Result]
    values: Sequence[Result]
    having: rules.Node | None
    conditions: Conditions

    @property
    def results(self) -> Sequence[Result]:
        """Everything that an answer has for a group."""
        return [*self.groups, *self.values]


def of(
    collection: str, parameters: Parameters, *, skip: int, limit: int, by: Principal
) -> JSONObject:
    """The groups of the records that the caller may list. Raises InvalidValues."""
    definition = definitions.get(collection)
    access = accesses.for_operation(by, definition, "list")
    asked = parse(access, parameters)
    checked = versioned_cache.combine(
        *by.version_checks, *definition.version_checks, *asked.conditions.version_checks
    )
    where = [*store.scope(definition, by.account_id, access.where), *asked.conditions.where]
    bound = {**access.parameters, **asked.conditions.bound, **checked.parameters}
    rows, width = _rows(definition, where, asked, skip, limit, checked, bound)
    checked.check(rows[0][width:])
    # Where the page has no group, one row carries the total alone.
    results = [_shown(row[2:width], asked.results) for row in rows if row[1] is not None]
    return {"results": results, "total_groups": rows[0][0]}


def _rows(
    definition: Definition,
    where: Sequence[object],
    asked: Aggregate,
    skip: int,
    limit: int,
    checked: VersionChecks,
    bound: JSONMapping,
) -> tuple[Sequence[Any], int]:
    """The rows of the answer, and where in them the stamps begin. Raises AnswerTooLarge."""
    width, long = len(asked.results) + 2, [one for one in asked.results if sizes.is_long(one.field)]
    most = sizes.room_for(limit * len(long))

    def read(guarded: bool) -> Sequence[Any]:
        statement = _statement(definition, where, asked, skip, limit, guarded=guarded)
        chosen = statement.add_columns(*checked.columns)
        return db.connection().execute(chosen, {**bound, "_room": most}).all()

    if not long:
        return read(False), width
    rows = read(True)
    lengths = [row[width] or 0 for row in rows]
    sizes.SizeLimit().take(sum(lengths))
    if max(lengths) > most:
        return read(False), width
    return [(*row[:width], *row[width + 1 :]) for row in rows], width


def parse(access: Access, parameters: Parameters) -> Aggregate:
    """Read the parameters. Raises InvalidValues with every problem."""
    found: Problems = []
    one = {name: texts[-1] for name, texts in parameters.items() if texts}
    conditions = query.conditions_of(access, parameters, OWN, found)
    groups = _groups(access, one.get("group_by", ""), found)
    values = _values(access, one.get("functions", ""), found)
    for name in {group.name for group in groups} & {value.name for value in values}:
        message = f"{name} is the name of a function's result, too."
        found.append(problem("group_by", "invalid_option", message))
    having = _having([*groups, *values], one.get("having", ""), found)
    if found:
        raise InvalidValues(found)
    return Aggregate(groups, values, having, conditions)


def _groups(access: Access, text: str, found: Problems) -> list[Result]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if len(names) > MOST_GROUPS:
        found.append(problem("group_by", "invalid_option", f"At most {MOST_GROUPS} fields."))
    groups = []
    for name in names[:MOST_GROUPS]:
        field = _field(access, name, "group_by", found)
        if field is not None and not field.filterable:
            message = f"A {field.type} cannot be grouped by."
            found.append(problem("group_by", "invalid_option", message))
        elif field is not None:
            groups.append(Result(field, access.definition.expressions[name]))
    return groups


def _values(access: Access, text: str, found: Problems) -> list[Result]:
    calls = [call.strip() for call in text.split(",") if call.strip()]
    if not calls:
        found.append(problem("functions", "required", NEEDED))
    if len(calls) > MOST_FUNCTIONS:
        message = f"At most {MOST_FUNCTIONS} functions."
        found.append(problem("functions", "invalid_option", message))
    values: dict[str, Result] = {}
    for call in calls[:MOST_FUNCTIONS]:
        value = _value(access, call, found)
        if value is not None:
            values.setdefault(value.name, value)
    return list(values.values())


def _value(access: Access, call: str, found: Problems) -> Result | None:
    matched = FUNCTION.fullmatch(call)
    if matched is None or (matched[2] is None and matched[1].lower() != "count"):
        found.append(problem("functions", "invalid_option", f"{call[:80]} {FORM}"))
        return None
    function, name = matched[1].lower(), matched[2]
    if name is None:
        return Result(NumberField("count"), sa.func.count())
    field = _field(access, name, "functions", found)
    if field is None:
        return None
    fits = {"sum": (rules.Type.NUMBER,), "avg": (rules.Type.NUMBER,), "min": ORDERED}
    if field.rule_type not in fits.get(function, ORDERED if function == "max" else (*rules.Type,)):
        message = f"There is no {function} of a {field.type}."
        found.append(problem("functions", "invalid_option", message))
        return None
    return _aggregated(access.definition, function, field)


def _field(access: Access, name: str, where: str, found: Problems) -> Field | None:
    field = access.readable.get(name)
    if field is None:
        found.append(problem(where, "unknown_field", f"There is no field {name[:80]}."))
    elif name in access.masked:
        found.append(problem(where, "invalid_option", MASKED))
        return None
    return field.like if isinstance(field, ComputedField) else field


def _aggregated(definition: Definition, function: str, field: Field) -> Result:
    column, name = definition.expressions[field.name], f"{function}_{field.name}"
    if function == "count":
        return Result(NumberField(name), sa.func.count(column))
    if function in ("sum", "avg"):
        return Result(NumberField(name), ARITHMETIC[function](column))
    if isinstance(column.type, sa.Text) and field.name in definition.computed:
        column = CodePoints(column)
    extreme = getattr(sa.func, function)(column, type_=definition.expressions[field.name].type)
    return Result(type(field)(name), extreme)


def _sum(column: object) -> object:
    if db.connection().dialect.name == "sqlite":
        return sa.func.atrium_sum(column, type_=Number())
    return sa.func.atrium_number(sa.func.sum(column), type_=Number())


def _average(column: Any) -> object:
    if db.connection().dialect.name == "sqlite":
        return sa.func.atrium_average(column, type_=Number())
    count = sa.cast(sa.func.count(column), sa.Numeric)
    return sa.func.atrium_divide(sa.func.sum(column), count, type_=Number())


ARITHMETIC = {"sum": _sum, "avg": _average}


def _having(results: Sequence[Result], text: str, found: Problems) -> rules.Node | None:
    if not text.strip():
        return None
    scope = rules.Scope({one.name: one.field.rule_type for one in results}, caller=False)
    try:
        return rules.condition(QUOTED_OR_CALL.sub(_named, text), scope)
    except rules.RuleError as error:
        found.append(problem("having", "filter_invalid", str(error), position=error.position))
        return None


def _named(match: re.Match[str]) -> str:
    """`sum(price)` as `sum_price`, no longer and no shorter, so that positions stay what they are.

    What is in quotes stays as it is.
    """
    if match[1] is None:
        return match[0]
    name = f"{match[1].lower()}_{match[2]}" if match[2] else match[1].lower()
    return name.ljust(len(match[0]))


class _ResultColumns:
    """Where the names of `having` get their values from."""

    types = TableColumns.types

    def __init__(self, results: Sequence[Result], source: Any) -> None:
        self._columns = {one.name: source.c[i] for i, one in enumerate(results)}

    def column(self, path: tuple[str, ...]) -> Any:
        return self._columns[path[0]]

    def now(self) -> Any:
        return TableColumns.now(self)  # type: ignore[arg-type]


def _statement(
    definition: Definition,
    where: Sequence[Any],
    asked: Aggregate,
    skip: int,
    limit: int,
    *,
    guarded: bool,
) -> sa.Select[Any]:
    """The total, a mark where there is a group, and the group's results; one row at least.

    `guarded`, without values beyond `_room` bytes, and behind them how many bytes they all have.
    """
    columns = [one.expression.label(f"r{i}") for i, one in enumerate(asked.results)]
    grouped = sa.select(*columns).select_from(definition.table).where(*where)
    everything = grouped.group_by(*(one.expression for one in asked.groups)).cte("grouped")
    kept = sa.select(everything)
    if asked.having is not None:
        source = _ResultColumns(asked.results, everything)
        kept = kept.where(sql.condition(asked.having, source).expression)
    total = sa.select(sa.func.count().label("total")).select_from(kept.subquery()).subquery()
    order = [everything.c[i].asc().nulls_last() for i in range(len(asked.groups))]
    here: Any = sa.literal_column("1").label("here")
    page = kept.add_columns(here).order_by(*order).offset(skip).limit(limit).subquery()
    shown = [page.c[i] for i in range(len(asked.results))]
    if guarded:
        shown = sizes.guarded(shown, [sizes.is_long(one.field) for one in asked.results])
    chosen = sa.select(total.c.total, page.c.here, *shown)
    joined = chosen.select_from(total.outerjoin(page, sa.true()))
    return joined.order_by(*(page.c[i].asc().nulls_last() for i in range(len(asked.groups))))


def _shown(values: Sequence[object], results: Sequence[Result]) -> JSONObject:
    return {
        one.name: None if value is None else one.field.shown(value)
        for one, value in zip(results, values, strict=True)
    }
