"""What Citus refuses in a statement, read off its text (docs/adr/0053).

Citus itself is not needed: sqlglot parses what is sent to PostgreSQL. Each rule was found by a
statement that a cluster refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import sqlglot
from sqlglot import exp

from app import db
from app.db.citus import COLUMN
from app.db.policy import Placement
from tests.sql import Statement

PREFIX = "col_"
# Whose answer depends on the clock, on settings or on chance.
NOT_IMMUTABLE = {
    *("now", "statement_timestamp", "clock_timestamp", "transaction_timestamp", "timeofday"),
    *("current_timestamp", "currenttimestamp", "current_date", "currentdate", "localtimestamp"),
    *("random", "rand", "gen_random_uuid", "uuid", "nextval", "current_setting"),
    *("concat", "concat_ws", "concatws", "format", "array_to_string", "to_char", "age"),
}
REFUSING = {exp.Case: "CASE", exp.Coalesce: "COALESCE", exp.Returning: "RETURNING"}
PARAMETER = re.compile(r"%\((.*?)\)s|%%")
VIEWS = {"audit_log": "audit_changes"}


def distributed(name: str) -> bool:
    """Whether a table is distributed."""
    policy = db.policy_of(name)
    if policy is None:
        return name.startswith(PREFIX) or name in VIEWS
    return policy.placement is Placement.SHARDED


@lru_cache(10_000)
def parse(text: str) -> exp.Expression | None:
    """The statement; None for what is no SELECT, INSERT, UPDATE or DELETE."""
    names = PARAMETER.sub(lambda match: f":{_plain(match[1])}" if match[1] else "%", text)
    if not re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b", names):
        return None
    return sqlglot.parse_one(names, dialect="postgres")


def problems(statement: Statement) -> Iterator[str]:
    """What is wrong with a statement; nothing if it touches no distributed table."""
    tree = parse(statement)
    if tree is None or not _tables(tree):
        return
    if changes(tree):
        yield from _moving_functions(tree)
        yield from _moved_keys(tree)
    yield from _subqueries_as_columns(tree)
    named = {value for value, _ in _accounts(tree, statement.parameters) if value is not None}
    # Without a table of its own, a statement runs its subqueries one by one.
    if len(named) > 1 and (changes(tree) or tree.args.get("from_")):
        yield "it names several accounts"
    loose = loose_tables(statement)
    if loose:
        yield f"it names no account for {', '.join(loose)}"
        if changes(tree):
            yield "it changes rows of all accounts"
        if list(tree.find_all(exp.Lock)):
            yield "it locks rows of all accounts"


def loose_tables(statement: Statement) -> list[str]:
    """The distributed tables that no account is named for."""
    tree = parse(statement)
    assert tree is not None
    accounts = _accounts(tree, statement.parameters)
    return sorted({name for value, found in accounts if value is None for name in found})


def tables(tree: exp.Expression) -> list[str]:
    """The distributed tables of a statement."""
    return [table.name for table in _tables(tree)]


def _plain(name: str) -> str:
    return "p_" + re.sub(r"\W", "_", name)


def _tables(tree: exp.Expression) -> list[exp.Table]:
    ctes = {cte.alias for cte in tree.find_all(exp.CTE)}
    found = [table for table in tree.find_all(exp.Table) if table.name not in ctes]
    return [table for table in found if distributed(table.name)]


def changes(tree: exp.Expression) -> bool:
    """Whether a statement changes rows."""
    return any(tree.find_all(exp.Insert, exp.Update, exp.Delete))


def _name_of(call: exp.Expression) -> str:
    if isinstance(call, exp.Anonymous):
        return str(call.name).lower()
    return str(call.sql_name() if isinstance(call, exp.Func) else call.key).lower()


def _moving_functions(tree: exp.Expression) -> Iterator[str]:
    places: list[tuple[exp.Expression, str]] = []
    for kind, name in REFUSING.items():
        places += [(found, name) for found in tree.find_all(kind)]
    places += [(found, "ON CONFLICT") for found in tree.find_all(exp.OnConflict)]
    for place, name in places:
        for call in place.find_all(exp.Func):
            if _name_of(call) in NOT_IMMUTABLE:
                yield f"{_name_of(call)}() in {name}"
    for returning in tree.find_all(exp.Returning):
        if any(case.this for case in returning.find_all(exp.Case)):
            yield "CASE with a value in RETURNING"


def _subqueries_as_columns(tree: exp.Expression) -> Iterator[str]:
    """Beside a condition by a subquery that is correlated by the account, Citus takes none."""
    for select in tree.find_all(exp.Select):
        columns = [one for each in select.expressions for one in each.find_all(exp.Select)]
        where = select.args.get("where")
        if where is None or not any(_tables(one) for one in columns):
            continue
        for inner in where.find_all(exp.Select):
            if _tables(inner) and not any(_names_value(one) for one in inner.find_all(exp.EQ)):
                yield "subqueries as columns beside a correlated one"


def _names_value(equality: exp.EQ) -> bool:
    sides = (equality.this, equality.expression)
    is_key = any(isinstance(side, exp.Column) and side.name == COLUMN for side in sides)
    return is_key and any(isinstance(side, (exp.Placeholder, exp.Literal)) for side in sides)


def _moved_keys(tree: exp.Expression) -> Iterator[str]:
    for update in tree.find_all(exp.Update, exp.OnConflict):
        for change in update.expressions:
            if isinstance(change, exp.EQ) and change.this.name == COLUMN:
                yield "it changes the account of a row"


SCOPES = (exp.Select, exp.Update, exp.Delete, exp.Insert)


class Groups:
    """Tables and values that are tied to each other by equality of their accounts."""

    def __init__(self) -> None:
        self._parents: dict[Hashable, Hashable] = {}

    def add(self, one: Hashable) -> Hashable:
        """The group of one."""
        while self._parents.setdefault(one, one) != one:
            one = self._parents[one]
        return one

    def tie(self, one: Hashable, other: Hashable) -> None:
        """Put two into one group."""
        self._parents[self.add(one)] = self.add(other)

    def all(self) -> Collection[list[Any]]:
        """The members of each group."""
        found: dict[Hashable, list[Any]] = {}
        for one in list(self._parents):
            found.setdefault(self.add(one), []).append(one)
        return found.values()


def _accounts(
    tree: exp.Expression, parameters: Mapping[str, Any] | None
) -> Iterator[tuple[object, set[str]]]:
    """The account that each group of tables is tied to by equality (None: to none)."""
    groups, sent = Groups(), {_plain(n): value for n, value in dict(parameters or {}).items()}
    for table in _tables(tree):
        groups.add(_source(_scope_of(table), table.alias_or_name, table))
    for left, right in _equalities(tree):
        sides = (_side(left, sent), _side(right, sent))
        if None not in sides:
            groups.tie(*sides)
    for subquery in tree.find_all(exp.Subquery, exp.CTE):
        for column in _projected(subquery):
            outside = _derived(subquery)
            inside = _side(column, sent)
            if inside is not None:
                groups.tie(outside, inside)
    for insert in tree.find_all(exp.Insert):
        table = insert.find(exp.Table)
        if table is not None and distributed(table.name):
            target = _source(insert, table.alias_or_name, table)
            for value in _inserted(insert):
                side = _side(value, sent)
                if side is not None:
                    groups.tie(target, side)
    for members in groups.all():
        tables = {name for kind, name, *_ in members if kind == "table"}
        values = {one[1] for one in members if one[0] == "value"} or {None}
        yield from ((value, tables) for value in values if tables)


def _scope_of(node: exp.Expression) -> exp.Expression:
    found = node.find_ancestor(*SCOPES)
    assert found is not None
    return found


def _source(scope: exp.Expression, alias: str, table: exp.Expression | None) -> Hashable:
    if isinstance(table, exp.Table) and distributed(table.name):
        return ("table", table.name, id(scope), alias)
    return ("other", alias, id(scope))


def _derived(subquery: exp.Expression) -> Hashable:
    if isinstance(subquery, exp.CTE):
        return ("cte", subquery.alias)
    return ("other", subquery.alias, id(_scope_of(subquery)))


def _sources(scope: exp.Expression) -> dict[str, exp.Expression]:
    """The tables and derived tables of a scope itself, by alias."""
    found = {}
    for node in scope.find_all(exp.Table, exp.Subquery):
        if node.alias_or_name and node.find_ancestor(*SCOPES) is scope:
            found[node.alias_or_name] = node
    return found


def _resolve(column: exp.Column) -> Hashable | None:
    ctes = {cte.alias for cte in column.root().find_all(exp.CTE)}
    scope = column.find_ancestor(*SCOPES)
    while scope is not None:
        sources = _sources(scope)
        alias = column.table or (next(iter(sources)) if len(sources) == 1 else "")
        if alias in sources:
            found = sources[alias]
            if isinstance(found, exp.Table) and found.name in ctes:
                return ("cte", found.name)
            return _source(scope, alias, found)
        scope = scope.find_ancestor(*SCOPES)
    return None


def _side(side: exp.Expression, sent: Mapping[str, Any]) -> Hashable | None:
    while isinstance(side, (exp.Cast, exp.Paren)):
        side = side.this
    if isinstance(side, exp.Column):
        keys = {COLUMN, "id"} if _of_accounts(side) else {COLUMN}
        return _resolve(side) if side.name in keys else None
    if isinstance(side, exp.Placeholder):
        return ("value", str(sent.get(side.name, side.name)))
    if isinstance(side, exp.Literal):
        return ("value", str(side.this))
    return None


def _of_accounts(column: exp.Column) -> bool:
    return column.table == "accounts"


def _equalities(tree: exp.Expression) -> Iterator[tuple[exp.Expression, exp.Expression]]:
    for equality in tree.find_all(exp.EQ):
        if equality.arg_key != "expressions":  # else an assignment
            sides = (equality.this, equality.expression)
            if any(isinstance(one, exp.Column) and one.name in (COLUMN, "id") for one in sides):
                yield sides
    for choice in tree.find_all(exp.In):
        if len(choice.expressions) == 1:
            yield choice.this, choice.expressions[0]


def _projected(subquery: exp.Expression) -> Iterator[exp.Expression]:
    inner = subquery.this
    if isinstance(inner, exp.Select):
        for one in inner.expressions:
            if one.alias_or_name == COLUMN:
                yield one.unalias()


def _inserted(insert: exp.Insert) -> Iterator[exp.Expression]:
    names = [one.name for one in insert.this.expressions] if insert.this else []
    if COLUMN not in names:
        return
    place = names.index(COLUMN)
    rows = insert.expression
    if isinstance(rows, exp.Values):
        yield from (row.expressions[place] for row in rows.expressions)
    elif isinstance(rows, exp.Select):
        yield rows.expressions[place].unalias()
