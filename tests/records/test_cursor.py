"""Keyset paging: every record once, in both directions, whatever happens meanwhile."""

from __future__ import annotations

import random
from functools import cmp_to_key
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from app import db
from tests.builders import Caller, make_collection, make_record
from tests.sql import statements

SCHEMA = [
    {"name": "text", "type": "text"},
    {"name": "number", "type": "number", "options": {"index": True}},
    {"name": "flag", "type": "boolean"},
    {"name": "at", "type": "datetime"},
    {"name": "day", "type": "date"},
    {"name": "size", "type": "number", "required": True, "default": 0},
    {
        "name": "half",
        "type": "computed",
        "expression": "number / 2",
        "return_type": "number",
    },
    {
        "name": "both",
        "type": "computed",
        "expression": "concat(text, if(flag, 'É', 'a'))",
        "return_type": "text",
    },
    {"name": "secret", "type": "text"},
    {"name": "phone", "type": "text", "pii": True},
]
INDEXES = [
    {"fields": fields} for fields in (["flag", "-number"], ["-text", "size"], ["-at", "day"])
]
FIELDS = ("text", "number", "flag", "at", "day", "size", "half", "both")


def problems(answer: TestResponse) -> list[tuple[str, str]]:
    assert answer.status_code == 400, answer.json
    return [(one["field"], one["code"]) for one in answer.json["details"]]


def walked(caller: Caller, **query: Any) -> dict[str, Any]:
    answer = caller.get("records/posts", query_string=query)
    assert answer.status_code == 200, answer.json
    assert list(answer.json) == ["items", "next_cursor", "prev_cursor", "has_more", "limit"]
    page: dict[str, Any] = answer.json
    return page


def ids(page: dict[str, Any]) -> list[str]:
    return [one["id"] for one in page["items"]]


def forward(caller: Caller, **query: Any) -> list[dict[str, Any]]:
    """All pages from the first to the last."""
    pages = [walked(caller, cursor="", **query)]
    while pages[-1]["has_more"]:
        pages.append(walked(caller, cursor=pages[-1]["next_cursor"], **query))
    return pages


def backward(caller: Caller, **query: Any) -> list[dict[str, Any]]:
    """All pages from the last to the first, in the order of the list."""
    pages = [walked(caller, cursor_before="", **query)]
    while pages[0]["prev_cursor"] is not None:
        pages.insert(0, walked(caller, cursor_before=pages[0]["prev_cursor"], **query))
    return pages


def together(pages: list[dict[str, Any]]) -> list[str]:
    return [one for page in pages for one in ids(page)]


def test_cursor_pages_link_to_each_other(root: Caller, alice: Caller) -> None:
    make_collection(root)
    newest = [make_record(alice, title=str(i)) for i in range(5)][::-1]
    first = walked(alice, cursor="", limit=2)
    assert (first["items"], first["has_more"], first["limit"]) == (newest[:2], True, 2)
    assert first["prev_cursor"] is None
    second = walked(alice, cursor=first["next_cursor"], limit=2)
    assert (second["items"], second["has_more"]) == (newest[2:4], True)
    last = walked(alice, cursor=second["next_cursor"], limit=2)
    assert (last["items"], last["has_more"], last["next_cursor"]) == (newest[4:], False, None)
    back = walked(alice, cursor_before=last["prev_cursor"], limit=2)
    assert (back["items"], back["has_more"]) == (newest[2:4], True)
    start = walked(alice, cursor_before=back["prev_cursor"], limit=2)
    assert (start["items"], start["prev_cursor"], start["has_more"]) == (newest[:2], None, True)
    assert ids(walked(alice, cursor=start["next_cursor"], limit=2)) == ids(second)
    assert walked(alice, cursor="")["limit"] == 30
    assert walked(alice, cursor="", skip=0, limit=100, fields="title", include_count="true")
    without_sign = walked(alice, cursor="", limit=2, fields="title")["items"]
    assert without_sign == [{"id": one["id"], "title": one["title"]} for one in newest[:2]]


def test_cursor_of_other_direction_is_invalid_option(root: Caller, alice: Caller) -> None:
    make_collection(root)
    for _ in range(5):
        make_record(alice)
    second = walked(alice, cursor=walked(alice, cursor="", limit=2)["next_cursor"], limit=2)
    back = alice.get("records/posts", query_string={"cursor": second["prev_cursor"], "limit": 2})
    assert problems(back) == [("cursor", "invalid_option")]
    assert "cursor_before" in back.json["details"][0]["message"]
    assert len(walked(alice, cursor_before=second["prev_cursor"], limit=2)["items"]) == 2


def test_cursor_list_without_records_has_one_page(root: Caller, alice: Caller) -> None:
    make_collection(root)
    empty = {"items": [], "next_cursor": None, "prev_cursor": None, "has_more": False}
    assert walked(alice, cursor="") == walked(alice, cursor_before="") == {**empty, "limit": 30}


def test_cursor_pages_have_no_gap_after_deletions(root: Caller, alice: Caller) -> None:
    make_collection(root)
    newest = [make_record(alice, title=str(i))["id"] for i in range(6)][::-1]
    page = walked(alice, cursor=walked(alice, cursor="", limit=2)["next_cursor"], limit=2)
    for gone in newest[2:4]:
        assert alice.delete(f"records/posts/{gone}").status_code == 204
    assert ids(walked(alice, cursor=page["next_cursor"])) == newest[4:]
    assert ids(walked(alice, cursor_before=page["prev_cursor"])) == newest[:2]
    for gone in newest[4:]:
        alice.delete(f"records/posts/{gone}")
    behind = walked(alice, cursor=page["next_cursor"])
    assert (behind["items"], behind["has_more"]) == ([], False)
    assert ids(walked(alice, cursor_before=behind["prev_cursor"])) == newest[:2]
    for gone in newest[:2]:
        alice.delete(f"records/posts/{gone}")
    before = walked(alice, cursor_before=page["prev_cursor"])
    late = make_record(alice)["id"]
    assert (before["items"], before["has_more"]) == ([], True)
    assert ids(walked(alice, cursor=before["next_cursor"])) == [late]


values = {
    "text": st.sampled_from([None, "", "a", "A", "b", "é", "🎈"]),
    "number": st.sampled_from([None, -1, 0, 0.1, 1, 2**63 - 1, 1e300]),
    "flag": st.sampled_from([None, True, False]),
    "at": st.sampled_from([None, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000001Z"]),
    "day": st.sampled_from([None, "2026-01-01", "2026-01-02"]),
    "size": st.sampled_from([0, 1, 2]),
}
orders = st.lists(
    st.tuples(st.sampled_from(["", "-"]), st.sampled_from([*FIELDS, "id", "created_at"])),
    min_size=1,
    max_size=3,
    unique_by=lambda key: key[1],
)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_cursor_pages_meet_every_record_once_despite_changes(
    root: Caller, alice: Caller, data: st.DataObject
) -> None:
    if root.get("records/posts", headers={"X-Account-ID": "acme"}).status_code == 404:
        make_collection(root, schema=SCHEMA, indexes=INDEXES)
    for old in alice.get("records/posts?limit=100").json["items"]:
        alice.delete(f"records/posts/{old['id']}")
    row = st.fixed_dictionaries(values)
    made = [make_record(alice, **one) for one in data.draw(st.lists(row, min_size=1, max_size=9))]
    sort = ",".join(sign + name for sign, name in data.draw(orders))
    limit = data.draw(st.integers(1, 4))
    everything = [one["id"] for one in alice.get(f"records/posts?sort={sort}").json["items"]]
    assert together(forward(alice, sort=sort, limit=limit)) == everything
    assert together(backward(alice, sort=sort, limit=limit)) == everything
    chance, kept = random.Random(data.draw(st.integers())), {one["id"] for one in made}
    back = data.draw(st.booleans())
    way, link = ("cursor_before", "prev_cursor") if back else ("cursor", "next_cursor")
    met, token = [], ""
    while token is not None:
        page = walked(alice, sort=sort, limit=limit, **{way: token})
        met, token = [*met, *ids(page)[:: -1 if back else 1]], page[link]
        change(alice, chance, kept, data.draw(row))
    assert len(met) == len(set(met))
    throughout = [one for one in everything if one in kept]
    assert [one for one in met if one in kept] == throughout[:: -1 if back else 1]


def change(alice: Caller, chance: random.Random, kept: set[str], values: dict[str, Any]) -> None:
    """Delete a record now and then, and add a few."""
    if chance.random() < 0.5 and kept:
        gone = chance.choice(sorted(kept))
        kept.remove(gone)
        assert alice.delete(f"records/posts/{gone}").status_code == 204
    if chance.random() < 0.3:
        make_record(alice, **values)


@pytest.mark.parametrize("indexes", [[], [{"fields": ["-number", "text", "-size"]}]])
def test_cursor_order_equals_python_sort(root: Caller, alice: Caller, indexes: list[Any]) -> None:
    make_collection(root, schema=SCHEMA, indexes=indexes)
    chance = random.Random(7)
    made = [
        make_record(
            alice,
            number=chance.choice([None, 1, 2]),
            text=chance.choice([None, "a", "B"]),
            size=chance.choice([0, 1]),
        )
        for _ in range(20)
    ]
    signs = {"number": -1, "text": 1, "size": -1}

    def compare(one: dict[str, Any], other: dict[str, Any]) -> int:
        for name, sign in signs.items():
            left, right = one[name], other[name]
            if left != right:
                if None in (left, right):
                    return 1 if left is None else -1
                return sign if left > right else -sign
        return 1 if one["id"] > other["id"] else -1

    expected = [one["id"] for one in sorted(made, key=cmp_to_key(compare))]
    query = {"sort": "-number,text,-size", "limit": 3}
    assert together(forward(alice, **query)) == expected
    assert together(backward(alice, **query)) == expected


def test_cursor_of_other_list_is_invalid_option(
    root: Caller, alice: Caller, bob: Caller, charlie: Caller
) -> None:
    make_collection(root, schema=SCHEMA)
    make_collection(root, "others", schema=SCHEMA)
    for caller in (alice, charlie):
        for i in range(3):
            make_record(caller, text="a", number=i)
    query = {"sort": "number", "filter": "text = 'a'", "flag": "true", "limit": 1}
    query.pop("flag")
    token = walked(alice, cursor="", **query)["next_cursor"]
    assert len(walked(bob, cursor=token, **query)["items"]) == 1
    assert len(walked(alice, cursor=token, **{**query, "fields": "id", "limit": 2})["items"]) == 2
    foreign: list[tuple[Caller, dict[str, Any]]] = [
        (charlie, query),
        (root, query),
        (root.acting_in("*"), query),
        (alice, {**query, "sort": "-number"}),
        (alice, {**query, "sort": "number,text"}),
        (alice, {**query, "filter": "text != 'b'"}),
        (alice, {**query, "size": "0"}),
        (alice, {"limit": 1}),
    ]
    for caller, changed in foreign:
        for name in ("cursor", "cursor_before"):
            answer = caller.get("records/posts", query_string={**changed, name: token})
            assert problems(answer) == [(name, "invalid_option")], changed
    other = alice.get("records/others", query_string={**query, "cursor": token})
    assert problems(other) == [("cursor", "invalid_option")]
    middle = len(token) // 2
    for forged in ("x", "a.b", token + "x", token[:-1], "." + token, "é", "0" * 8000):
        answer = alice.get("records/posts", query_string={**query, "cursor": forged})
        assert problems(answer) == [("cursor", "invalid_option")]
    flipped = token[:middle] + ("A" if token[middle] != "A" else "B") + token[middle + 1 :]
    answer = alice.get("records/posts", query_string={**query, "cursor": flipped})
    assert problems(answer) == [("cursor", "invalid_option")]


def test_cursor_with_skip_or_page_is_invalid_option(root: Caller, alice: Caller) -> None:
    make_collection(root)
    for query, field in [
        ("cursor=&skip=1", "skip"),
        ("cursor=&page=2", "page"),
        ("cursor_before=&skip=5", "skip"),
        ("cursor=&cursor_before=", "cursor_before"),
    ]:
        assert problems(alice.get(f"records/posts?{query}")) == [(field, "invalid_option")]
    assert alice.get("records/posts?cursor=&limit=0").status_code == 422
    wrong = alice.get("records/posts?cursor=x&sort=nope&skip=3&lost=1")
    assert sorted(problems(wrong)) == [
        ("cursor", "invalid_option"),
        ("lost", "unknown_field"),
        ("skip", "invalid_option"),
        ("sort", "unknown_field"),
    ]


def test_cursor_sort_by_hidden_or_masked_field_is_refused(
    root: Caller, alice: Caller, bob: Caller
) -> None:
    names = [one["name"] for one in SCHEMA if one["name"] != "secret"]
    make_collection(root, schema=SCHEMA, list_fields=names)
    for i in range(3):
        make_record(alice, secret=str(i), phone=str(i))
    hidden = alice.get("records/posts?cursor=&sort=secret")
    assert problems(hidden) == [("sort", "unknown_field")]
    token = walked(alice, cursor="", sort="phone", limit=1)["next_cursor"]
    assert walked(alice, cursor=token, sort="phone")["items"][0]["phone"] == "1"
    for cursor in ("", token):
        query = {"cursor": cursor, "sort": "phone"}
        assert ("sort", "invalid_option") in problems(bob.get("records/posts", query_string=query))


def test_cursor_pages_apply_rules_and_filters(root: Caller, alice: Caller, bob: Caller) -> None:
    make_collection(root, schema=SCHEMA, list_rule="@owns_record()")
    mine = [make_record(alice, number=i % 3, text="a")["id"] for i in range(7)]
    make_record(bob, number=1, text="a")
    make_record(alice, number=1, text="b")
    query = {"filter": "text = 'a'", "sort": "number", "limit": 2, "number": ["0", "1"]}
    met = together(forward(alice, **query))
    assert sorted(met) == sorted(mine[i] for i in range(7) if i % 3 < 2)
    assert together(backward(alice, **query)) == met


def test_cursor_pages_across_accounts_for_superadmin(
    root: Caller, alice: Caller, charlie: Caller
) -> None:
    make_collection(root)
    made = [make_record(caller)["id"] for caller in (alice, charlie, alice, charlie, alice)]
    everywhere = root.acting_in("*")
    assert together(forward(everywhere, limit=2)) == made[::-1]
    assert together(backward(everywhere, limit=2)) == made[::-1]


def test_cursor_sort_by_overlong_text_is_invalid_option(root: Caller, alice: Caller) -> None:
    make_collection(root)
    for i in range(3):
        make_record(alice, title="x" * 5000 + str(i))
    answer = alice.get("records/posts?cursor=&limit=1&sort=title")
    assert problems(answer) == [("sort", "invalid_option")]
    assert len(together(forward(alice, limit=1))) == 3


@pytest.mark.parametrize("name", ["cursor", "cursor_before", "expand"])
def test_field_named_like_cursor_parameter_is_filtered_by_filter_only(
    root: Caller, alice: Caller, name: str
) -> None:
    make_collection(root, schema=[{"name": name, "type": "text"}])
    made = make_record(alice, **{name: "x"})
    assert alice.get(f"records/posts?{name}=x").status_code == 400
    found = alice.get("records/posts", query_string={"filter": f"{name} = 'x'", "sort": name})
    assert found.json["items"] == [made]


def test_cursor_page_is_one_statement(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=SCHEMA)
    for i in range(4):
        make_record(alice, number=i or None)
    query = {"sort": "-number,text", "limit": 2}
    token = walked(alice, cursor="", **query)["next_cursor"]
    for way in ("", token):
        with statements(alice.app) as sent:
            walked(alice, cursor=way, **query)
        # Alice sees a personal field unmasked, of which the security log gets one event.
        # On PostgreSQL it travels with the commit.
        recorded = [one for one in sent if one.startswith("INSERT INTO security_pending")]
        assert len(recorded) <= 1
        assert [one.split()[0] for one in sent if one not in recorded] == ["SELECT"]
    with alice.app.app_context():
        assert not db.in_transaction()
