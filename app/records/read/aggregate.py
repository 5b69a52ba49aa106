"""Counts, sums, averages and extremes of records, in groups or in all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import sqlalchemy as sa

from app import db, rules
from app.audit.security_log import reads
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import aggregates, definitions
from app.collections.access import Access
from app.collections.columns import TableColumns
from app.collections.definitions import Definition
from app.collections.fields import Field, NumberField
from app.context import tenancy
from app.errors import InvalidValues, problem
from app.records import store
from app.records.read import query, search
from app.records.read.paths import PathError, Paths
from app.records.read.query import Conditions
from app.records.store.reads import Selection
from app.rules import sql
from app.rules.nodes import Some
from app.types import JSONObject

OWN_PARAMETERS = {"functions", "group_by", "filter", "having", "skip", "limit", search.NAME}
CALL = r"\b(count|sum|avg|min|max)\(\s*([A-Za-z][A-Za-z0-9_]*)?\s*\)"
FUNCTION = re.compile(CALL, re.IGNORECASE)
QUOTED_OR_CALL = re.compile(
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|""" + CALL, re.IGNORECASE | re.DOTALL
)
MAX_FUNCTIONS, MAX_GROUPS = 50, 8
MASKED = "You see this field masked, so it can be neither grouped by nor aggregated."
FUNCTION_REQUIRED = "Name at least one function, such as count() or sum(price)."
NOT_A_FUNCTION = (
    "is none of count(), count(field), sum(field), avg(field), min(field) and max(field)."
)

Problems = list[JSONObject]
Parameters = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Result:
    """One value of every group: its name, how it is shown and compared, and where it is from."""

    field: Field
    expression: Any
    source: str = ""
    """The field that it is computed from."""
    access: Access | None = None
    """The access by which the caller sees that field; None without one that records have."""

    @property
    def name(self) -> str:
        """Under which the answer and `having` know it."""
        return self.field.name


@dataclass(frozen=True)
class Aggregate:
    groups: Sequence[Result]
    values: Sequence[Result]
    having: rules.Node | None
    conditions: Conditions
    paths: Paths | None = None
    """Those of the groups; None if all are fields of the records themselves."""

    @property
    def results(self) -> Sequence[Result]:
        """Everything that an answer has for a group."""
        return [*self.groups, *self.values]


def aggregate(
    collection: str, parameters: Parameters, *, skip: int, limit: int, by: Principal
) -> JSONObject:
    """The groups of the records that the caller may list. Raises InvalidValues."""
    definition = definitions.get(collection)
    access = accesses.for_operation(by, definition, "list")
    parsed = parse(access, parameters)
    conditions = parsed.conditions
    selection = Selection(
        access, tuple(conditions.indexed), conditions.bound, conditions.version_checks
    )
    if parsed.paths is not None:
        selection = parsed.paths.joined(selection)
    rows, width = _rows(selection, parsed, skip, limit)
    selection.version_checks.check(rows[0][width:])
    # Where the page has no group, one row carries the total alone.
    if rows[0][0]:
        sources: dict[Access, set[str]] = {access: set()}
        for result in parsed.results:
            if result.access is not None:
                sources.setdefault(result.access, set()).add(result.source)
        for account_id in _account_ids(selection):
            for seen_by, names in sources.items():
                reads.note(seen_by.definition, by, account_id, (), seen_by.exposed & names)
    results = [_group_view(row[2:width], parsed.results) for row in rows if row[1] is not None]
    return {"results": results, "total_groups": rows[0][0]}


def _account_ids(selection: Selection) -> Sequence[str]:
    if selection.account_id is not None:
        return [selection.account_id]
    account_id = selection.definition.table.c.account_id
    query = sa.select(account_id).where(*selection.where).distinct()
    with tenancy.through_views():
        return db.connection().scalars(query, selection.parameters).all()


def _rows(
    selection: Selection, parsed: Aggregate, skip: int, limit: int
) -> tuple[Sequence[Any], int]:
    """The rows of the answer, and where in them the versions begin. Raises AnswerTooLarge."""
    width = len(parsed.results) + 2
    long_results = [result for result in parsed.results if result.field.is_long]
    max_bytes = store.room_for(limit * len(long_results))

    def read(guarded: bool) -> Sequence[Any]:
        statement = _statement(selection, parsed, skip, limit, guarded=guarded)
        query = statement.add_columns(*selection.version_checks.columns)
        bound_values = {**selection.parameters, "_room": max_bytes}
        with tenancy.through_views():
            return db.connection().execute(query, bound_values).all()

    if not long_results:
        return read(False), width
    rows = read(True)
    lengths = [row[width] or 0 for row in rows]
    store.SizeLimit().take(sum(lengths))
    if max(lengths) > max_bytes:
        return read(False), width
    return [(*row[:width], *row[width + 1 :]) for row in rows], width


def parse(access: Access, parameters: Parameters) -> Aggregate:
    """Read the parameters. Raises InvalidValues with every problem."""
    problems_: Problems = []
    last_values = {name: texts[-1] for name, texts in parameters.items() if texts}
    conditions = query.parse_conditions(access, parameters, OWN_PARAMETERS, problems_)
    grouped_by = last_values.get("group_by", "")
    paths = Paths(access) if "." in grouped_by else None
    groups = _groups(access, paths, grouped_by, problems_)
    values = _values(access, last_values.get("functions", ""), problems_)
    for name in {group.name for group in groups} & {value.name for value in values}:
        message = f"{name} is the name of a function's result, too."
        problems_.append(problem("group_by", "invalid_option", message))
    having = _having([*groups, *values], last_values.get("having", ""), problems_)
    if problems_:
        raise InvalidValues(problems_)
    return Aggregate(groups, values, having, conditions, paths)


def _groups(access: Access, paths: Paths | None, text: str, problems: Problems) -> list[Result]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if len(names) > MAX_GROUPS:
        problems.append(problem("group_by", "invalid_option", f"At most {MAX_GROUPS} fields."))
    groups = []
    for name in names[:MAX_GROUPS]:
        group = _group(access, paths, name, problems)
        if group is not None and not group.field.filterable:
            message = f"A {group.field.type} cannot be grouped by."
            problems.append(problem("group_by", "invalid_option", message))
        elif group is not None:
            groups.append(group)
    return groups


def _group(access: Access, paths: Paths | None, name: str, problems: Problems) -> Result | None:
    if paths is None or "." not in name:
        field = _field(access, name, "group_by", problems)
        expression = access.definition.expressions.get(name)
        return Result(field, expression, name, access) if field is not None else None
    try:
        found = paths.value(name)
    except PathError as error:
        problems.append(problem("group_by", error.code, str(error)))
        return None
    return Result(found.field, found.expression, name.rpartition(".")[2], found.access)


def _values(access: Access, text: str, problems: Problems) -> list[Result]:
    calls = [call.strip() for call in text.split(",") if call.strip()]
    if not calls:
        problems.append(problem("functions", "required", FUNCTION_REQUIRED))
    if len(calls) > MAX_FUNCTIONS:
        message = f"At most {MAX_FUNCTIONS} functions."
        problems.append(problem("functions", "invalid_option", message))
    values: dict[str, Result] = {}
    for call in calls[:MAX_FUNCTIONS]:
        value = _value(access, call, problems)
        if value is not None:
            values.setdefault(value.name, value)
    return list(values.values())


def _value(access: Access, call: str, problems: Problems) -> Result | None:
    match = FUNCTION.fullmatch(call)
    if match is None or (match[2] is None and match[1].lower() != "count"):
        problems.append(problem("functions", "invalid_option", f"{call[:80]} {NOT_A_FUNCTION}"))
        return None
    function, name = match[1].lower(), match[2]
    if name is None:
        return Result(NumberField("count"), sa.func.count())
    field = _field(access, name, "functions", problems)
    if field is None:
        return None
    if field.rule_type not in aggregates.TAKEN[function]:
        message = f"There is no {function} of a {field.type}."
        problems.append(problem("functions", "invalid_option", message))
        return None
    return replace(_build_result(access.definition, function, field), source=name, access=access)


def _field(access: Access, name: str, parameter: str, problems: Problems) -> Field | None:
    field = access.readable.get(name)
    if field is None:
        problems.append(problem(parameter, "unknown_field", f"There is no field {name[:80]}."))
    elif name in access.masked:
        problems.append(problem(parameter, "invalid_option", MASKED))
        return None
    return field and field.like


def _build_result(definition: Definition, function: str, field: Field) -> Result:
    name, is_computed = f"{function}_{field.name}", field.name in definition.computed
    column = definition.expressions[field.name]
    value = aggregates.expression(function, field, column, is_computed=is_computed)
    return Result(aggregates.field_of(function, field, name), value)


def _having(results: Sequence[Result], text: str, problems: Problems) -> rules.Node | None:
    if not text.strip():
        return None
    types = {result.name: result.field.rule_type for result in results}
    scope = rules.Scope(types, caller=False, follow=partial(_behind, types))
    try:
        return rules.condition(QUOTED_OR_CALL.sub(_replace_call, text), scope)
    except rules.RuleError as error:
        problems.append(problem("having", "filter_invalid", str(error), position=error.position))
        return None


def _behind(types: Mapping[str, rules.Type], step: str) -> rules.Scope | None:
    """The scope of the names that go on with a step, which groups behind references have."""
    start = f"{step}."
    rest = {n.removeprefix(start): kind for n, kind in types.items() if n.startswith(start)}
    return rules.Scope(rest, follow=partial(_behind, rest)) if rest else None


def _replace_call(match: re.Match[str]) -> str:
    """`sum(price)` as `sum_price`, no longer and no shorter, so that positions stay what they are.

    What is in quotes stays as it is.
    """
    if match[1] is None:
        return match[0]
    name = f"{match[1].lower()}_{match[2]}" if match[2] else match[1].lower()
    return name.ljust(len(match[0]))


class _ResultColumns:
    """Resolves the names of `having` to columns of the results."""

    types = TableColumns.types

    def __init__(self, results: Sequence[Result], source: Any) -> None:
        self._columns = {result.name: source.c[i] for i, result in enumerate(results)}

    def entries(self, node: Some) -> Any:
        """None: results have no lists."""
        raise LookupError(".".join(node.path))

    def column(self, path: tuple[str, ...]) -> Any:
        return self._columns[".".join(path)]

    @property
    def old(self) -> _ResultColumns:
        return self

    def now(self) -> Any:
        return TableColumns.now(self)  # type: ignore[arg-type]

    def related(self, collection: str) -> Any:
        raise LookupError(collection)  # `having` has no `@any`


def _statement(
    selection: Selection, parsed: Aggregate, skip: int, limit: int, *, guarded: bool
) -> sa.Select[Any]:
    """Select the total, 1 where there is a group, and the group's results; one row at least.

    If `guarded`, values of more than `_room` bytes are null, and a last column sums their bytes.
    """
    columns = [result.expression.label(f"r{i}") for i, result in enumerate(parsed.results)]
    grouped = sa.select(*columns).select_from(selection.source).where(*selection.where)
    grouped_rows = grouped.group_by(*(result.expression for result in parsed.groups)).cte("grouped")
    groups_query = sa.select(grouped_rows)
    if parsed.having is not None:
        source = _ResultColumns(parsed.results, grouped_rows)
        groups_query = groups_query.where(sql.condition(parsed.having, source).expression)
    total = (
        sa.select(sa.func.count().label("total")).select_from(groups_query.subquery()).subquery()
    )
    order = [grouped_rows.c[i].asc().nulls_last() for i in range(len(parsed.groups))]
    marker: Any = sa.literal_column("1").label("here")
    page = groups_query.add_columns(marker).order_by(*order).offset(skip).limit(limit).subquery()
    selected = [page.c[i] for i in range(len(parsed.results))]
    if guarded:
        selected = store.guarded(selected, [result.field.is_long for result in parsed.results])
    query = sa.select(total.c.total, page.c.here, *selected)
    joined_query = query.select_from(total.outerjoin(page, sa.true()))
    return joined_query.order_by(*(page.c[i].asc().nulls_last() for i in range(len(parsed.groups))))


def _group_view(values: Sequence[object], results: Sequence[Result]) -> JSONObject:
    return {
        result.name: None if value is None else result.field.shown(value)
        for result, value in zip(results, values, strict=True)
    }
