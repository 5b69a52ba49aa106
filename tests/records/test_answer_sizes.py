"""No answer has more than 32 MiB, nor does making one take much more memory.

Where memory is looked at, all sizes are a fourth of the real ones; with `make slow`, the real ones.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from app.records import store
from tests.builders import Caller, Cast, make_collection, make_record
from tests.console.browser import Browser

pytestmark = pytest.mark.one_database
MIB = 2**20
LARGE = "x" * 1_000_000


@pytest.fixture(params=[4, pytest.param(1, marks=pytest.mark.slow)])
def mib(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many bytes stand for a MiB."""
    assert store.LARGEST_ANSWER == 32 * MIB
    monkeypatch.setattr(store, "LARGEST_ANSWER", 32 * MIB // request.param)
    return MIB // int(request.param)


@pytest.fixture
def authors(root: Caller) -> None:
    large = [{"name": "big", "type": "text"}, {"name": "data", "type": "json"}]
    make_collection(root, "authors", large)
    make_collection(
        root,
        "posts",
        [
            {"name": "n", "type": "number"},
            {"name": "author", "type": "reference", "collection": "authors"},
            {"name": "editor", "type": "reference", "collection": "authors"},
        ],
    )


def filled(size: int) -> dict[str, Any]:
    """A record of about so many bytes."""
    return {"big": "y", "data": ["x" * 125_000] * (size // 125_000)}


def peak(call: Callable[[], TestResponse]) -> tuple[TestResponse, int]:
    """An answer, and the memory that making it took."""
    call()
    tracemalloc.start()
    try:
        answer = call()
        return answer, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def check_refused(answer: TestResponse) -> None:
    assert (answer.status_code, answer.json["error"]) == (413, "payload_too_large"), answer.text[
        :99
    ]
    assert all(word in answer.json["message"] for word in ("32 MiB", "`limit`", "`fields`"))


def test_expanded_target_of_many_records_is_serialized_once(
    alice: Caller, authors: None, mib: int
) -> None:
    author = make_record(alice, "authors", **filled(3 * mib))["id"]
    posts = [{"n": n, "author": author, "editor": author} for n in range(100)]
    assert alice.post("records/posts/batch", {"records": posts}).status_code == 201
    for query in (
        "limit=100&expand=author",
        "limit=100&expand=author&cursor=",
        "expand=author,editor",
    ):
        answer, memory = peak(lambda: alice.get(f"records/posts?{query}"))  # noqa: B023
        check_refused(answer)
        assert memory < 100 * mib, query
    shown = alice.get("records/posts?limit=3&expand=author,editor")
    assert shown.status_code == 200
    for item in shown.json["items"]:
        assert item["expand"]["author"] == item["expand"]["editor"]
        assert item["expand"]["author"]["data"] == filled(3 * mib)["data"]
    assert alice.get("records/posts?limit=100&expand=author&fields=n").status_code in (200, 413)


def test_oversized_list_is_413_without_reading_records(
    alice: Caller, authors: None, mib: int
) -> None:
    ids = [make_record(alice, "authors", **filled(9 * mib))["id"] for _ in range(5)]
    for path in (
        "records/authors?limit=100",
        "records/authors?cursor=",
        "records/authors?sort=big",
    ):
        answer, memory = peak(lambda: alice.get(path))  # noqa: B023
        check_refused(answer)
        assert memory < 5 * mib, path
    for path in ("records/authors?limit=3", "records/authors?limit=3&cursor="):
        items = alice.get(path).json["items"]
        assert [item["id"] for item in items] == ids[:1:-1]
        assert all(item["data"] == filled(9 * mib)["data"] for item in items)
    narrow, memory = peak(lambda: alice.get("records/authors?limit=100&fields=big"))
    assert [item["big"] for item in narrow.json["items"]] == ["y"] * 5
    assert memory < 5 * mib
    changes = {"records": [{"id": id, "data": {"big": "z"}} for id in ids]}
    for method, body in (("PATCH", changes), ("DELETE", {"ids": ids})):
        answer, memory = peak(lambda: alice(method, "records/authors/batch", body))  # noqa: B023
        assert answer.status_code == 413
        assert memory < 5 * mib
    assert alice.get("records/authors?limit=100&fields=big").json["total"] == 5
    assert alice.get(f"records/authors/{ids[0]}").json["big"] == "y"


@pytest.mark.long
def test_oversized_aggregate_or_history_is_413(
    app: Flask, root: Caller, alice: Caller, authors: None, mib: int
) -> None:
    for start in range(0, 45, 9):
        sent = [{"big": f"{start + n:02}{LARGE[2:mib]}"} for n in range(9)]
        assert alice.post("records/authors/batch", {"records": sent}).status_code == 201
    grouped = "records/authors/aggregate?functions=count(),min(big)&group_by=big"
    answer, memory = peak(lambda: alice.get(grouped))
    check_refused(answer)
    assert memory < 10 * mib
    few = alice.get(f"{grouped}&limit=3").json
    assert [one["min_big"][:2] for one in few["results"]] == ["00", "01", "02"]
    assert few["total_groups"] == 45
    one = make_record(alice, "authors", **filled(9 * mib))["id"]
    for n in range(4):
        assert alice.patch(f"records/authors/{one}", {"data": [n, *filled(9 * mib)["data"]]})
    check_refused(alice.get(f"records/authors/{one}/history"))
    assert len(alice.get(f"records/authors/{one}/history?limit=1").json["items"]) == 1


def test_text_over_one_million_characters_is_too_long_by_default(
    root: Caller, alice: Caller
) -> None:
    fields = [
        {"name": "usual", "type": "text"},
        {"name": "long", "type": "text", "options": {"max_length": 2_000_000}},
    ]
    make_collection(root, schema=fields)
    assert make_record(alice, usual=LARGE, long=LARGE * 2)["long"] == LARGE * 2
    for body in ({"usual": LARGE + "x"}, {"long": LARGE * 2 + "x"}):
        answer = alice.post("records/posts", body)
        assert [(d["field"], d["code"]) for d in answer.json["details"]] == [(*body, "too_long")]
    least = {"name": "a", "type": "text", "options": {"min_length": 1_000_001}}
    assert root.post("collections", {"name": "others", "schema": [least]}).status_code == 400


def test_console_record_list_shortens_large_values(
    app: Flask, cast: Cast, root: Caller, alice: Caller, authors: None, mib: int
) -> None:
    for _ in range(5):
        make_record(alice, "authors", **filled(9 * mib))
    browser = Browser(app, cast.alice)
    page, memory = peak(lambda: browser.get(f"records/{cast.alice.account_id}/authors"))
    assert page.status_code == 200
    assert page.text.count("xxxxx") >= 5
    assert len(page.data) < 200_000
    assert memory < 10 * mib
