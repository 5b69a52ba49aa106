"""Random conditions about lists: the database and Python agree on every record."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app import db, rules
from app.collections import access, definitions
from app.collections.columns import TableColumns
from app.records import store
from app.records.store import references
from app.rules import sql
from tests.builders import Caller, change_user, make_collection, make_record

TITLE = {"name": "title", "type": "text"}
WORDS = ("'a'", "'b'", "'A'", "''", "@request.auth.id", "@request.auth.role", "title")
TEXTS = (
    *("title", "members", "members.name", "members.role", "tags", "tags.title", "tags.loud"),
    *("tags.up.title", "one.title", "one.tags.up.title", "one.tags", "one.tags.title"),
)
FLAGS = ("members.is_active", "open")

texts = st.sampled_from(TEXTS) | st.sampled_from(WORDS)
operators = st.sampled_from(("=", "!=", "<", ">=", "~", "!~"))
compared = st.builds(lambda *parts: " ".join(parts), texts, operators, texts)
listed = st.builds(
    lambda name, no, items: f"{name} {no}IN [{', '.join(items)}]",
    st.sampled_from(TEXTS),
    st.sampled_from(("", "NOT ")),
    st.lists(st.sampled_from(WORDS), max_size=2),
)
missing = st.builds(
    lambda name, operator: f"{name} {operator} null",
    st.sampled_from(TEXTS),
    st.sampled_from(("=", "!=")),
)
held = st.builds(
    lambda name, item: f"@contains({name}, {item})",
    st.sampled_from(("members", "tags", "one.tags")),
    texts,
)
chosen = st.builds(
    lambda flag, left, right, word: f"if({flag}, {left}, {right}) = {word}",
    st.sampled_from(FLAGS),
    *(st.sampled_from(("title", "members.name", "tags.title", "'a'")),) * 2,
    texts,
)
ties = st.sampled_from(
    (
        *("id = @record.one", "one = @record.one", "@record.title = title", "id != @record.id"),
        *("@contains(@record.tags, one.title)", "@contains(members, @record.title)", "open"),
        *("@record.title = members.name", "tags.title != @record.one.title", "members != tags"),
        "@any(tags, id = @outer.tags && title = @record.title)",
        "@any(items, @outer.tags.title = tags.up.title && members != @request.auth.id)",
    )
)
alone = compared | listed | missing | held | chosen | st.sampled_from(FLAGS)
found_elsewhere = st.builds(
    lambda call, one, tie, other: call.format(f"items, {one} && {tie} && {other}"),
    st.sampled_from(("@any({})", "@count({}) > 1", "members.name != 'x' && @any({})")),
    *(alone, ties, alone | ties),
)
leaves = alone | found_elsewhere
conditions = st.recursive(
    leaves,
    lambda inner: (
        st.builds(lambda one: f"!({one})", inner)
        | st.builds(lambda one, other: f"({one} && {other})", inner, inner)
        | st.builds(lambda one, other: f"({one} || {other})", inner, inner)
    ),
    max_leaves=5,
)


@pytest.fixture
def furnished(app: Flask, root: Caller, alice: Caller, bob: Caller) -> Flask:
    change_user(app, alice.id, name="a")
    change_user(app, bob.id, is_active=False)
    loud = {"name": "loud", "type": "computed", "expression": "upper(title)"}
    up = {"name": "up", "type": "reference", "collection": "tags"}
    make_collection(root, "tags", [TITLE, up, loud | {"return_type": "text"}])
    to = {"type": "reference", "collection": "tags", "multiple": True, "name": "tags"}
    people = {"type": "user", "multiple": True, "name": "members"}
    one = {"type": "reference", "collection": "items", "name": "one"}
    make_collection(root, "items", [TITLE, {"name": "open", "type": "boolean"}, to, people, one])
    tags: list[str] = []
    for title in ("a", "b", None, "A"):
        made = make_record(alice, "tags", title=title, up=tags[-1] if tags else None)
        tags.append(made["id"])
    before = None
    for members, some in (
        ([alice.id, bob.id], tags[:2]),
        ([bob.id], tags[2:]),
        ([], tags),
        (None, []),
        ([alice.id], None),
    ):
        values: dict[str, Any] = {"members": members, "tags": some, "one": before}
        values |= {"title": "a" if some else "b", "open": None if some is None else bool(members)}
        before = make_record(alice, "items", **values)["id"]
    return app


@pytest.mark.long
def test_conditions_about_lists_have_one_verdict(furnished: Flask, alice: Caller) -> None:
    with furnished.app_context():
        of = definitions.get("items")
        subject = rules.Subject(alice.id, "alice@acme.example", "admin", alice.account_id)
        query = sa.select(*of.selected).where(of.table.c.account_id == alice.account_id)
        rows = store.rows(of, db.connection().execute(query))
        columns = TableColumns(of, of.table, account=sql.ACCOUNT)

        @settings(
            max_examples=80,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(conditions)
        def agree(text: str) -> None:
            try:
                node = rules.condition(text, of.scope)
            except rules.RuleError:
                return
            names = access.dotted_names(node)
            left = rules.partial_evaluate(node, subject)
            asked = [*rules.subqueries(left)]
            judged = references.answers(of, rows, asked, subject, [{}] * len(rows))
            known = references.resolve(of, judged, names)
            unstored = references.resolve_unstored(of, rows, names)
            compiled = sql.condition(left, columns)
            found = sa.select(of.table.c.id).where(
                of.table.c.account_id == alice.account_id, compiled.expression
            )
            ids = {
                *db.connection().scalars(
                    found, compiled.parameters(subject, account_id=alice.account_id)
                )
            }
            contexts = [rules.Context(row, subject) for row in known]
            assert {c.record["id"] for c in contexts if rules.holds(left, c)} == ids
            for row, more in zip(judged, unstored, strict=True):
                is_held = rules.holds(left, rules.Context({**row, **more}, subject))
                assert is_held == (row["id"] in ids)

        agree()
