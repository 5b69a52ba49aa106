"""Rules over other records: SQL, SQL on records not stored, and Python give the same verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock, db, rules
from app.collections import definitions
from app.collections.columns import TableColumns
from app.context import tenancy
from app.ids import new_id
from app.records.store import references
from app.rules import sql
from tests.builders import Cast, make_collection

TEAM = {"name": "team", "type": "reference", "collection": "teams"}
SCHEMAS: Mapping[str, list[dict[str, Any]]] = {
    "teams": [{"name": "name", "type": "text"}, {"name": "size", "type": "number"}],
    "members": [
        TEAM,
        {"name": "user", "type": "text"},
        {"name": "level", "type": "text"},
        {"name": "points", "type": "number"},
        {"name": "since", "type": "datetime"},
        {"name": "active", "type": "boolean"},
    ],
    "tickets": [
        TEAM,
        {"name": "title", "type": "text"},
        {"name": "owner", "type": "text"},
        {"name": "score", "type": "number"},
        {"name": "due", "type": "datetime"},
        {
            "name": "loud",
            "type": "computed",
            "expression": "upper(title)",
            "return_type": "text",
        },
    ],
}
WORDS = ["a", "A", "b", "", None]
NUMBERS = [0, 1, 2.5, -1, 2**53 + 1, None]
MOMENTS = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=n) for n in range(3)]
# For each type, the names of a record, a member and a team.
NAMES: Mapping[str, tuple[list[str], list[str], list[str]]] = {
    "text": (["title", "owner", "team", "loud", "team.name"], ["user", "level", "team"], ["name"]),
    "number": (["score", "team.size"], ["points", "team.size"], ["size"]),
    "moment": (["due"], ["since"], ["created_at"]),
}
LITERALS = {
    "text": ["'a'", "'b'", "@request.auth.id", "@request.auth.role"],
    "number": ["0", "1", "2.5", "-1"],
    "moment": ["'2026-01-02'", "@now"],
}
LOGIC = ["&&", "||"]


class Rules:
    """Makes rules of a die."""

    def __init__(self, dice: Random) -> None:
        self.dice, self.left = dice, 5

    def value(self, kind: str, around: list[str]) -> str:
        """A value: of the record, of the rows around, or written out."""
        one = self.dice
        if one.random() < 0.25:
            return one.choice(LITERALS[kind])
        places = [len(around)] if one.random() < 0.6 else list(range(len(around) + 1))
        depth = one.choice(places)
        column = ("tickets", "members", "teams").index(around[depth - 1]) if depth else 0
        name = one.choice(NAMES[kind][column])
        if depth == len(around):
            return name
        return f"@record.{name}" if depth == 0 else f"@outer.{name}"

    def condition(self, around: list[str], size: int = 3) -> str:
        """A condition, with others inside."""
        one = self.dice
        kind = one.choice(["text", "text", "text", "number", "moment"])
        chance = one.random()
        if chance < 0.35 and len(around) < 2 and self.left:
            self.left -= 1
            return self.subquery(around)
        if chance < 0.6 and size:
            parts = [self.condition(around, size - 1) for _ in range(one.randint(2, 3))]
            return "(" + f" {one.choice(LOGIC)} ".join(parts) + ")"
        if chance < 0.68 and size:
            return f"!({self.condition(around, size - 1)})"
        if chance < 0.74:
            return f"{self.value(kind, around)} IS {one.choice(['', 'NOT '])}NULL"
        if chance < 0.8:
            items = ", ".join(self.value("text", around) for _ in range(one.randint(0, 3)))
            return f"{self.value('text', around)} {one.choice(['', 'NOT '])}IN [{items}]"
        if chance < 0.84:
            return one.choice(["@has_role(viewer)", "@has_group(staff)", "@owns_record()"])
        operators = ["=", "=", "!=", "<", ">="] + (["~", "!~"] if kind == "text" else [])
        left, right = self.value(kind, around), self.value(kind, around)
        return f"{left} {one.choice(operators)} {right}"

    def subquery(self, around: list[str]) -> str:
        """An `@any`, or a `@count` that is compared."""
        collection = self.dice.choice(["members", "members", "teams", "tickets"])
        inner = self.condition([*around, collection], 2)
        if self.dice.random() < 0.75:
            return f"@any({collection}, {inner})"
        return f"@count({collection}, {inner}) {self.dice.choice(['>', '=', '<='])} 1"


class Graph:
    """Rows of two accounts, and what Python sees of the first one's."""

    def __init__(self, dice: Random, accounts: list[str], users: list[str]) -> None:
        self.stored: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
        self.seen: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
        for account in accounts:
            teams: dict[str | None, dict[str, Any]] = {}
            for name, count in (("teams", 3), ("members", 8), ("tickets", 6)):
                for _ in range(count):
                    row = self.row(dice, name, account, users, [*teams, None])
                    if name == "teams":
                        teams[row["id"]] = row
                    self.stored[name].append(row)
                    team = teams.get(row.get("team"), {})
                    reached = {f"team.{key}": team.get(key) for key in ("name", "size")}
                    if account == accounts[0]:
                        self.seen[name].append({**row, **reached})

    @staticmethod
    def row(
        dice: Random, name: str, account: str, users: list[str], teams: list[str | None]
    ) -> dict[str, Any]:
        """A row of a collection."""
        made: dict[str, Any] = {"account_id": account, "id": new_id()}
        made |= dict.fromkeys(("created_at", "updated_at"), dice.choice(MOMENTS))
        made |= dict.fromkeys(("created_by", "updated_by"), dice.choice(users))
        for spec in SCHEMAS[name]:
            choices: list[Any] = {
                "text": [*WORDS, *users] if spec["name"] in ("user", "owner") else WORDS,
                "number": NUMBERS,
                "datetime": [*MOMENTS, None],
                "boolean": [True, False, None],
                "reference": teams,
            }.get(spec["type"], [])
            if choices:
                made[spec["name"]] = dice.choice(choices)
        return made


def verdicts(cast: Cast, seed: int, count: int) -> Iterator[tuple[str, str, bool]]:
    """Compare so many rules on one graph."""
    dice = Random(seed)
    users = [cast.bob.id, cast.alice.id]
    graph = Graph(dice, [cast.bob.account_id, cast.charlie.account_id], users)
    with tenancy.across_accounts(), db.transaction():
        for name in reversed(SCHEMAS):
            db.connection().execute(sa.delete(definitions.get(name).table))
        for name, rows in graph.stored.items():
            db.connection().execute(sa.insert(definitions.get(name).table), rows)
    definition = definitions.get("tickets")
    for _ in range(count):
        text, node = "", None
        while node is None:
            text = Rules(dice).condition([])
            try:
                node = rules.condition(text, definition.scope)
            except rules.RuleError:
                continue
            if not any(rules.subqueries(node)):
                node = None
        groups = frozenset(["staff"]) if dice.random() < 0.5 else frozenset[str]()
        subject = rules.Subject(dice.choice(users), role="viewer", groups=groups)
        subject = subject if dice.random() < 0.8 else rules.Subject()
        left = rules.partial_evaluate(node, subject)
        compiled = sql.condition(left, TableColumns(definition, definition.table))
        own = definition.table.c.account_id == cast.bob.account_id
        query = sa.select(definition.table.c.id).where(own, compiled.expression)
        rows = graph.seen["tickets"]
        with tenancy.in_account(cast.bob.account_id):
            found = set(db.connection().scalars(query, compiled.parameters(subject)))
            asked = list(rules.subqueries(node))
            answered = references.answers(definition, rows, asked, subject, [{}] * len(rows))
        for row, known in zip(rows, answered, strict=True):
            shared = {"subject": subject, "now": clock.now()}
            unstored = rules.holds(node, rules.Context(known, **shared))
            python = rules.holds(node, rules.Context(row, **shared, related=graph.seen))
            told = f"{seed}: {text}\n{row}\n{subject}"
            assert (row["id"] in found, unstored) == (python, python), told
            yield text, row["id"], python


def run(app: Flask, cast: Cast, graphs: int, rules_each: int) -> tuple[int, int]:
    """How many verdicts there were, and how many of them let through."""
    for name, schema in SCHEMAS.items():
        make_collection(cast.root, name, schema)
    with app.app_context():
        found = [one for seed in range(graphs) for one in verdicts(cast, seed, rules_each)]
    return len(found), sum(may for *_, may in found)


def test_rule_over_other_records_has_one_verdict(app: Flask, cast: Cast) -> None:
    count, allowed = run(app, cast, graphs=2, rules_each=12)
    assert count == 144
    assert 30 < allowed < 120


@pytest.mark.slow
def test_rules_over_other_records_have_one_verdict_thousands_of_times(
    app: Flask, cast: Cast
) -> None:
    count, allowed = run(app, cast, graphs=50, rules_each=40)
    assert count == 12_000
    assert 2_000 < allowed < 10_000
