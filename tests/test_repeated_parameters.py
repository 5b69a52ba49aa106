"""A query parameter that is sent twice is refused, never dropped."""

from __future__ import annotations

import io
from typing import Any

import marshmallow as ma
import pytest
from flask import Flask, request

from app.errors import InvalidValues, Malformed
from app.web.parsing import check_query
from tests.builders import Caller, Cast, make_collection, make_record

FIELDS = [
    {"name": "m", "type": "number"},
    {"name": "p", "type": "reference", "collection": "posts"},
    {"name": "q", "type": "reference", "collection": "posts"},
    {"name": "f", "type": "file", "options": {"max_files": 2}},
]


@pytest.fixture
def posts(root: Caller, alice: Caller) -> str:
    make_collection(root, "posts", FIELDS)
    first = make_record(alice, m=1)["id"]
    make_record(alice, m=2, p=first, q=first)
    return first


@pytest.mark.both_databases
@pytest.mark.usefixtures("posts")
@pytest.mark.parametrize(
    ("path", "repeated"),
    [
        ("?filter=m=1&filter=m=2", ["filter"]),
        ("?filter=m=1&filter=m=1", ["filter"]),
        ("?expand=p&expand=q", ["expand"]),
        ("?fields=m&fields=p", ["fields"]),
        ("?sort=m&sort=-m&limit=1&limit=2", ["limit", "sort"]),
        ("?limit=1&limit=zzz", ["limit"]),
        ("?cursor=&cursor=", ["cursor"]),
        ("?include_total=false&include_total=true", ["include_total"]),
        ("/aggregate?functions=count()&functions=max(m)", ["functions"]),
        ("/aggregate?functions=count()&group_by=p&group_by=q", ["group_by"]),
        ("/aggregate?functions=count()&having=count>1&having=count>2", ["having"]),
        ("/export?format=csv&format=json", ["format"]),
        ("/export?filter=m=1&filter=m=2", ["filter"]),
    ],
)
def test_repeated_list_parameter_is_invalid_option(
    alice: Caller, path: str, repeated: list[str]
) -> None:
    answer = alice.get(f"records/posts{path}")
    assert answer.status_code == 400, answer.json
    assert [(one["field"], one["code"]) for one in answer.json["details"]] == [
        (name, "invalid_option") for name in repeated
    ]


@pytest.mark.usefixtures("posts")
def test_repeated_list_field_filters_are_alternatives(alice: Caller) -> None:
    for path, total in [("?m=1&m=2", 2), ("?m=1&m=3", 1), ("?m=2&m=2", 1)]:
        assert alice.get(f"records/posts{path}").json["total"] == total
    counted = alice.get("records/posts/aggregate?functions=count()&m=1&m=2").json
    assert counted["results"] == [{"count": 2}]


def test_repeated_parameter_of_other_routes_is_422(cast: Cast, posts: str) -> None:
    alice, root = cast.alice, cast.root
    for caller, path, name in [
        (alice, f"records/posts/{posts}?expand=p&expand=q", "expand"),
        (alice, "account/users?limit=1&limit=2", "limit"),
        (alice, "account/users?search=a&search=b", "search"),
        (alice, "account/audit-logs?limit=1&limit=1", "limit"),
        (alice, "changes?since=0&since=5", "since"),
        (alice, "webhooks?limit=1&limit=1", "limit"),
        (alice, "realtime/subscribe?since=1&since=2", "since"),
        (
            alice,
            "realtime/subscribe?collections=posts&filter.posts=a&filter.posts=b",
            "filter.posts",
        ),
        (root, "collections?page=1&page=2", "page"),
    ]:
        answer = caller.get(path)
        assert answer.status_code == 422, (path, answer.json)
        assert [(one["loc"], one["type"]) for one in answer.json["detail"]] == [
            (["query", name], "repeated")
        ]
    batch = [{"id": posts, "data": {"m": 3}}]
    answer = alice.post("records/posts/batch?mode=upsert&mode=create", {"records": batch})
    assert answer.status_code == 422


def test_repeated_parameter_is_refused_by_every_query_schema(app: Flask) -> None:
    checked = 0
    for view in app.view_functions.values():
        if not getattr(view, "takes_query", False):
            continue
        schema: Any = view.query_schema  # type: ignore[attr-defined]
        for name, field in () if schema.checks_repeated else schema.fields.items():
            name = field.data_key or name
            with app.test_request_context(f"/?{name}=a&{name}=b"):
                if isinstance(field, ma.fields.List):
                    check_query(request, view)
                    continue
                with pytest.raises((Malformed, InvalidValues)):
                    check_query(request, view)
            checked += 1
    assert checked > 100


@pytest.mark.usefixtures("posts")
def test_repeated_multipart_text_is_422(alice: Caller) -> None:
    def send(**parts: Any) -> Any:
        return alice.post("records/posts", data=parts, content_type="multipart/form-data")

    for name, values in [("m", ["1", "2"]), ("data", ['{"m": 1}', '{"m": 2}'])]:
        answer = send(**{name: values})
        assert answer.status_code == 422
        assert answer.json["detail"][0]["loc"] == ["body", name]
    files = [(io.BytesIO(b"a"), "a.txt"), (io.BytesIO(b"b"), "b.txt")]
    assert len(send(f=files, m="1").json["f"]) == 2
