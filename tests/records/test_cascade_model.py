"""Deletions in any web of references, against a model of a few lines."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import OPEN, Caller
from tests.collections.tables import wipe

NAMES = ["one", "two", "six"]
ACTIONS = ["restrict", "cascade", "set_null"]
Key = tuple[str, int]  # a record: its collection and number
Link = tuple[Key, str, Key]  # from, field, to


@st.composite
def webs(draw: st.DrawFn) -> tuple[dict[str, dict[str, tuple[str, str]]], list[Link], Key]:
    """Collections with references, records that refer, and one of them to delete."""
    target = st.tuples(st.sampled_from(NAMES), st.sampled_from(ACTIONS))
    schema = {n: draw(st.dictionaries(st.sampled_from("abc"), target, max_size=3)) for n in NAMES}
    keys = [(name, number) for name in NAMES for number in range(3)]
    links: list[Link] = []
    for key in keys:
        for field, (to, _) in schema[key[0]].items():
            chosen = draw(st.none() | st.integers(0, 2))
            if chosen is not None:
                links.append((key, field, (to, chosen)))
    return schema, links, draw(st.sampled_from(keys))


def expected(schema: Any, links: list[Link], victim: Key) -> tuple[set[Key], set[Link]] | None:
    """What is gone and which references are emptied; None where something holds it."""
    gone = {victim}
    while True:
        more = {
            origin
            for origin, field, to in links
            if to in gone and schema[origin[0]][field][1] == "cascade"
        } - gone
        if not more:
            break
        gone |= more
    broken = [link for link in links if link[2] in gone and link[0] not in gone]
    if any(schema[origin[0]][field][1] == "restrict" for origin, field, _ in broken):
        return None
    return gone, set(broken)


LAW = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


@pytest.mark.long
@pytest.mark.parametrize("examples", [8, pytest.param(25, marks=pytest.mark.slow)])
def test_cascade_equals_model(app: Flask, root: Caller, alice: Caller, examples: int) -> None:
    @settings(max_examples=examples, **LAW)
    @given(web=webs())
    def check(web: Any) -> None:
        check_deletion(app, root, alice, web)

    check()


def check_deletion(app: Flask, root: Caller, alice: Caller, web: Any) -> None:
    """In collections with these references and records, one is deleted."""
    schema, links, victim = web
    wipe(app)
    items = [
        {
            "name": name,
            "schema": [
                {"name": field, "type": "reference", "collection": to, "on_delete": action}
                for field, (to, action) in schema[name].items()
            ],
            "rules": OPEN,
        }
        for name in NAMES
    ]
    assert root.post("collections/import", {"data": {"collections": items}}).status_code == 200
    ids = made(alice)
    for name in NAMES:
        sent = {
            key: {field: ids[to] for origin, field, to in links if origin == key}
            for key in ids
            if key[0] == name
        }
        body = {"records": [{"id": ids[key], "data": data} for key, data in sent.items()]}
        assert alice.patch(f"records/{name}/batch", body).status_code == 200
    told = expected(schema, links, victim)
    answer = alice.delete(f"records/{victim[0]}/{ids[victim]}")
    assert answer.status_code == (409 if told is None else 204)
    gone, emptied = told or (set(), set())
    found = {one["id"]: one for name in NAMES for one in alice.get(f"records/{name}").json["items"]}
    assert found.keys() == {id for key, id in ids.items() if key not in gone}
    for key in ids.keys() - gone:
        kept = {f: ids[to] for origin, f, to in set(links) - emptied if origin == key}
        assert {f: found[ids[key]][f] for f in schema[key[0]]} == {
            f: kept.get(f) for f in schema[key[0]]
        }


def made(caller: Caller) -> dict[Key, str]:
    """Three records of each collection."""
    body = {"records": [{}] * 3}
    answers = {name: caller.post(f"records/{name}/batch", body).json for name in NAMES}
    return {
        (name, number): one["id"]
        for name, answer in answers.items()
        for number, one in enumerate(answer["created"])
    }
