"""Operations on several collections in one request: all of them or none."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.config import current
from app.records import operations
from tests.builders import Caller, Cast, changes_of_records, make_collection, make_record
from tests.sql import statements

ORDER = [
    {"name": "title", "type": "text", "required": True},
    {"name": "code", "type": "text", "unique": True},
    {"name": "secret", "type": "text"},
    {"name": "mail", "type": "text", "pii": True},
    {"name": "data", "type": "json"},
]
LINE = [
    {"name": "title", "type": "text"},
    {"name": "data", "type": "json"},
    {"name": "n", "type": "number"},
    {"name": "order", "type": "reference", "collection": "orders", "on_delete": "cascade"},
]


@pytest.fixture
def shop(root: Caller) -> None:
    make_collection(root, "orders", ORDER, view_fields=["title", "code", "mail", "data"])
    make_collection(root, "lines", LINE)


def post(collection: str, name: str | None = None, /, **body: Any) -> dict[str, Any]:
    named = {"as": name} if name else {}
    return {"method": "POST", "collection": collection, "body": body, **named}


def on(method: str, collection: str, id: Any, /, **body: Any) -> dict[str, Any]:
    bodied = {} if method == "DELETE" else {"body": body}
    return {"method": method, "collection": collection, "id": id, **bodied}


def ref(text: str) -> dict[str, Any]:
    return {"$ref": text}


def send(caller: Caller, *sent: Any, **options: Any) -> Any:
    return caller.post("batch", {"operations": list(sent)}, **options)


def told(answer: Any) -> list[tuple[str, str]]:
    """The place and code of every problem."""
    return [(one["field"], one["code"]) for one in answer.json["details"]]


def titles(caller: Caller, collection: str) -> list[str]:
    items = caller.get(f"records/{collection}?sort=title&limit=100").json["items"]
    return [one["title"] for one in items]


def test_operations_are_done_in_order_and_refer_to_earlier_ones(alice: Caller, shop: None) -> None:
    old = make_record(alice, "orders", title="old")
    answer = send(
        alice,
        post("orders", "order", title="new", code="c-1"),
        post("lines", title=ref("order.code"), order=ref("order.id"), n=1),
        post("lines", "line", title="b", order=ref("order.id"), data={"in": [ref("order.title")]}),
        on("PATCH", "lines", ref("line.id"), n=2),
        on("PUT", "orders", ref("order.id"), title="put", code=ref("order.code")),
        on("DELETE", "orders", old["id"]),
    )
    assert answer.status_code == 200, answer.json
    results = answer.json["results"]
    assert [one["status"] for one in results] == [201, 201, 201, 200, 200, 204]
    order, first, second, patched, put, gone = [one["body"] for one in results]
    assert (first["title"], first["order"], gone) == ("c-1", order["id"], None)
    assert (second["data"], second["n"]) == ({"in": ["new"]}, None)
    assert patched == alice.get(f"records/lines/{second['id']}").json
    assert put == alice.get(f"records/orders/{order['id']}").json
    assert (put["title"], put["code"], patched["n"]) == ("put", "c-1", 2)
    assert (titles(alice, "orders"), titles(alice, "lines")) == (["put"], ["b", "c-1"])


@pytest.mark.parametrize(
    ("last", "status", "place", "code"),
    [
        (post("orders", title="x", code="taken"), 409, "body.code", "not_unique"),
        (post("orders", title=None), 400, "body.title", "required_null"),
        (post("orders", none=1, title="x"), 400, "body.none", "unknown_field"),
        (on("PATCH", "orders", "none", title="x"), 404, "id", "not_found"),
        (on("DELETE", "orders", "none"), 404, "id", "not_found"),
        (post("closed", title="x"), 403, "", "rule_denied"),
        (post("mine", title="x"), 403, "", "rule_denied"),
        (post("none", title="x"), 404, "collection", "not_found"),
        (post("signed", title="x"), 428, "", "signature_required"),
        ({**on("PATCH", "orders", "kept", n=1), "if_match": '"x"'}, 412, "", "precondition_failed"),
        (on("DELETE", "orders", "kept"), 409, "", "conflict"),
        (post("lines", order="none"), 400, "body.order", "invalid_reference"),
    ],
)
def test_operations_are_all_undone_if_one_fails(
    root: Caller, alice: Caller, shop: None, last: Any, status: int, place: str, code: str
) -> None:
    make_collection(root, "closed", create_rule=None)
    make_collection(root, "mine", create_rule='title = "y"')
    make_collection(root, "signed", options={"require_signature": True})
    restricted = {"type": "reference", "collection": "orders", "on_delete": "restrict"}
    make_collection(root, "notes", [{"name": "order", **restricted}])
    kept = make_record(alice, "orders", title="kept", code="taken")
    make_record(alice, "notes", order=kept["id"])
    last = {**last, "id": kept["id"]} if last.get("id") == "kept" else last
    answer = send(
        alice,
        post("orders", "order", title="a"),
        post("lines", title="b", order=ref("order.id")),
        on("PATCH", "orders", kept["id"], title="changed"),
        last,
    )
    assert answer.status_code == status, answer.json
    assert (f"operations[3].{place}".rstrip("."), code) in told(answer)
    assert {one["index"] for one in answer.json["details"]} == {3}
    assert (titles(alice, "orders"), titles(alice, "lines")) == (["kept"], [])
    assert alice.get(f"records/orders/{kept['id']}/history").json["total"] == 1


def test_problems_of_several_operations_are_told_at_once(alice: Caller, shop: None) -> None:
    answer = send(
        alice,
        post("lines", title="fine"),
        post("orders", "order", title=None),
        post("lines", order=ref("order.id"), n="x"),  # nobody knows what it would refer to
        post("lines", title=["x"], n="x"),
        on("PATCH", "orders", "none", title="x"),
        post("lines", account_id="x"),
    )
    assert (answer.status_code, answer.json["error"]) == (400, "validation_error")
    assert told(answer) == [
        ("operations[1].body.title", "required_null"),
        ("operations[3].body.title", "invalid_type"),
        ("operations[3].body.n", "invalid_type"),
        ("operations[4].id", "not_found"),
        ("operations[5].body.account_id", "field_read_only"),
    ]
    assert titles(alice, "lines") == []


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"title": ref("none.id")}, "body.title"),
        ({"title": ref("later.id")}, "body.title"),
        ({"title": ref("self.id")}, "body.title"),
        ({"title": ref("order.none")}, "body.title"),
        ({"title": ref("order.secret")}, "body.title"),
        ({"title": ref("order.mail")}, "body.title"),
        ({"title": ref("order.id.x")}, "body.title"),
        ({"title": ref("order")}, "body.title"),
        ({"title": ref("")}, "body.title"),
        ({"title": {"$ref": 1}}, "body.title"),
        ({"title": {"$ref": None}}, "body.title"),
        ({"title": {"$ref": ref("order.id")}}, "body.title"),
        ({"title": {"$ref": "order.id", "more": 1}}, "body.title"),
        ({"data": {"a": [1, {"b": ref("none.id")}]}}, "body.data.a[1].b"),
        ({"$ref": "order.id"}, "body"),
    ],
)
def test_wrong_reference_is_refused_with_its_place(
    cast: Cast, shop: None, wrong: Any, place: str
) -> None:
    answer = send(
        cast.bob,
        post("orders", "order", title="x"),
        {"method": "POST", "collection": "lines", "body": wrong, "as": "self"},
        post("lines", "later"),
    )
    assert (answer.status_code, told(answer)) == (
        400,
        [(f"operations[1].{place}", "invalid_reference")],
    )
    assert titles(cast.alice, "orders") == []


def test_references_in_a_circle_and_names_given_twice_are_refused(
    alice: Caller, shop: None
) -> None:
    answer = send(
        alice,
        post("lines", "a", title=ref("b.title")),
        post("lines", "b", title=ref("a.title")),
        post("lines", "a", title="x"),
        on("DELETE", "lines", ref("c.id")),
    )
    assert told(answer) == [
        ("operations[0].body.title", "invalid_reference"),
        ("operations[2].as", "not_unique"),
        ("operations[3].id", "invalid_reference"),
    ]


def test_reference_needs_a_value_that_the_caller_sees(root: Caller, cast: Cast, shop: None) -> None:
    rules = {"view_rule": 'title = "seen"', "list_rule": 'title = "seen"'}
    make_collection(root, "drafts", [{"name": "title", "type": "text"}], **rules)
    for title, status in (("seen", 200), ("hidden", 400)):
        draft = post("drafts", "draft", title=title)
        assert send(cast.bob, draft, post("lines", title=ref("draft.id"))).status_code == 200
        answer = send(cast.bob, draft, post("lines", title=ref("draft.title")))
        assert answer.status_code == status, answer.json
    assert told(answer) == [("operations[1].body.title", "invalid_reference")]
    listed = send(
        cast.bob,
        post("orders", "order", title="x", data={"a": 1}),
        post("lines", data=ref("order.data")),
        on("PATCH", "lines", ref("order.code"), n=1),
    )
    assert told(listed) == [
        ("operations[1].body.data", "invalid_reference"),
        ("operations[2].id", "invalid_reference"),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "GET", "collection": "orders"},
        {"collection": "orders", "body": {}},
        {"method": "POST", "body": {}},
        {"method": "POST", "collection": "orders"},
        {"method": "POST", "collection": "orders", "body": {}, "id": "x"},
        {"method": "POST", "collection": "orders", "body": {}, "if_match": "x"},
        {"method": "POST", "collection": "orders", "body": [], "as": "x"},
        {"method": "POST", "collection": "orders", "body": {}, "as": "1"},
        {"method": "POST", "collection": "orders", "body": {}, "as": ""},
        {"method": "PATCH", "collection": "orders", "body": {}},
        {"method": "PATCH", "collection": "orders", "id": "x"},
        {"method": "PUT", "collection": "orders", "id": 1, "body": {}},
        {"method": "DELETE", "collection": "orders"},
        {"method": "DELETE", "collection": "orders", "id": "x", "body": {}},
        {"method": "DELETE", "collection": "orders", "id": "x", "as": "x"},
        {"method": "POST", "collection": "orders", "body": {}, "more": 1},
        "x",
        None,
    ],
)
def test_operation_with_wrong_shape_is_422(alice: Caller, shop: None, wrong: Any) -> None:
    answer = send(alice, post("orders", title="x"), wrong)
    assert answer.status_code == 422
    assert answer.json["detail"][0]["loc"][:3] == ["body", "operations", 1]
    assert titles(alice, "orders") == []


def test_operations_are_between_one_and_a_thousand(alice: Caller, shop: None) -> None:
    many = [post("lines", title="x")] * 1001
    for sent in ([], many):
        assert send(alice, *sent).status_code == 422
    assert send(alice, *many[:1000]).status_code == 200
    assert alice.get("records/lines").json["total"] == 1000


def test_references_do_not_multiply_what_is_sent(app: Flask, alice: Caller, shop: None) -> None:
    with app.app_context():
        most = current().max_body_bytes
    text = "x" * (most // 100)
    first = post("lines", "line", title=text)
    some = [post("lines", data=[ref("line.title")] * 10)]
    assert send(alice, first, *some).status_code == 200
    answer = send(alice, first, *some * 11)
    assert (answer.status_code, answer.json["error"]) == (413, "payload_too_large")
    assert alice.get("records/lines").json["total"] == 2


def test_operations_have_one_budget_of_time(
    app: Flask, alice: Caller, shop: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = app.extensions["atrium.config"].statement_seconds
    times = (number * 0.6 * seconds for number in count())
    monkeypatch.setattr(operations, "time", SimpleNamespace(monotonic=lambda: next(times)))
    lone = [post("lines", title="a"), post("orders", title="a")]
    assert send(alice, *lone[:1]).status_code == 200
    answer = send(alice, *lone)
    assert (answer.status_code, answer.json["error"]) == (400, "too_expensive")
    assert titles(alice, "lines") == ["a"]


def test_neighbours_take_the_statements_of_one_batch(app: Flask, alice: Caller, shop: None) -> None:
    kept = [make_record(alice, "lines", title="x")["id"] for _ in range(40)]

    def sent_for(size: int) -> int:
        own = [kept.pop() for _ in range(size)]
        with statements(app) as sent:
            answer = send(
                alice,
                *[post("orders", title="x") for _ in range(size)],
                *[on("PATCH", "lines", id, n=1) for id in own],
                *[on("DELETE", "lines", id) for id in own],
            )
        assert answer.status_code == 200, answer.json
        return len(sent)

    sent_for(2)  # the first has still to find out what there is
    assert sent_for(3) == sent_for(30)


def test_operations_of_others_are_refused_as_single_requests(cast: Cast, shop: None) -> None:
    theirs = make_record(cast.charlie, "orders", title="theirs")
    for method in ("PATCH", "PUT", "DELETE"):
        answer = send(cast.alice, on(method, "orders", theirs["id"], title="x"))
        assert (answer.status_code, told(answer)) == (404, [("operations[0].id", "not_found")])
    answer = send(cast.alice, post("lines", order=theirs["id"]))
    assert told(answer) == [("operations[0].body.order", "invalid_reference")]
    anonymous = Caller(cast.alice.app)
    assert send(anonymous, post("orders", title="x")).status_code == 401
    assert titles(cast.charlie, "orders") == ["theirs"]


def test_views_take_no_operations_and_the_trash_takes_deleted_records(
    root: Caller, alice: Caller, shop: None
) -> None:
    view = {"name": "titles", "type": "view", "from": "lines", "fields": ["title"]}
    view |= {"list_rule": "true", "view_rule": "true"}
    assert root.post("collections", view).status_code == 201
    fields = [{"name": "title", "type": "text"}]
    make_collection(root, "notes", fields, options={"trash": {"days": 30}})
    note = make_record(alice, "notes", title="a")["id"]
    for refused in (post("titles", title="x"), on("DELETE", "titles", note)):
        answer = send(alice, on("DELETE", "notes", note), refused)
        assert (answer.status_code, answer.json["error"]) == (405, "view_read_only"), answer.json
        assert told(answer) == [("operations[1]", "view_read_only")]
    assert titles(alice, "notes") == ["a"]
    assert send(alice, on("DELETE", "notes", note)).status_code == 200
    assert titles(alice, "notes") == []
    assert alice.post(f"records/notes/{note}/restore").status_code == 200


def test_changes_of_lists_take_references(root: Caller, alice: Caller, shop: None) -> None:
    lists = [{"name": "titles", "type": "text_list"}]
    make_collection(root, "boards", lists)
    board = make_record(alice, "boards", titles=["a"])["id"]
    answer = send(
        alice,
        post("lines", "line", title="b"),
        on("PATCH", "boards", board, titles={"$add": [ref("line.title")], "$remove": ["a"]}),
    )
    assert answer.status_code == 200, answer.json
    assert answer.json["results"][1]["body"]["titles"] == ["b"]


def test_scopes_of_a_key_hold_for_each_operation(app: Flask, alice: Caller, shop: None) -> None:
    scopes = {"orders": ["create", "view"], "lines": ["view"]}
    key = alice.post("api-keys", {"name": "k", "scopes": scopes}).json["key"]
    program = Caller(app, **{"X-API-Key": key})
    assert send(program, post("orders", "order", title="a")).status_code == 200
    answer = send(program, post("orders", title="b"), post("lines", title="b"))
    assert (answer.status_code, answer.json["error"]) == (403, "scope_denied")
    assert told(answer) == [("operations[1]", "scope_denied")]
    assert titles(alice, "orders") == ["a"]


def test_operations_are_audited_and_announced_each(root: Caller, alice: Caller, shop: None) -> None:
    hook = {"url": "https://hooks.example/", "collection": "lines", "events": ["create", "update"]}
    made = alice.post("webhooks", hook).json["id"]
    answer = send(
        alice,
        post("orders", "order", title="a"),
        post("lines", "line", title="b", order=ref("order.id")),
        on("PATCH", "lines", ref("line.id"), n=2),
        on("DELETE", "orders", ref("order.id")),
    )
    assert answer.status_code == 200, answer.json
    order, line = (answer.json["results"][n]["body"]["id"] for n in (0, 1))
    told = [(one["event"], one["record_id"]) for one in changes_of_records(alice)]
    assert told[:3] == [
        ("records.create", order),
        ("records.create", line),
        ("records.update", line),
    ]
    assert sorted(told[3:]) == sorted([("records.delete", order), ("records.delete", line)])
    assert alice.get(f"webhooks/{made}/deliveries").json["total"] == 2
    assert root.acting_in(alice.slug).get("audit-logs/verify").json["valid"]


def test_quota_counts_what_earlier_operations_made(cast: Cast, shop: None) -> None:
    limit = {"records": {"hard": 3}}
    assert cast.root.put(f"accounts/{cast.alice.account_id}/quotas", limit).status_code == 200
    twice = [post("orders", title="a"), post("lines", title="a")] * 2
    answer = send(cast.alice, *twice)
    assert (answer.status_code, answer.json["error"]) == (429, "quota_exceeded")
    assert send(cast.alice, *twice[:3]).status_code == 200


REFERRING = st.sampled_from(["order.id", "order.title", "line.id", "line.order", "b.n", "x", ""])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | REFERRING.map(ref),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$ref", "a", "title", "order"]), inner, max_size=3)
    ),
    max_leaves=6,
)
COLLECTIONS = st.sampled_from(["orders", "lines", "LINES"])
BODIES = st.dictionaries(
    st.sampled_from(["title", "code", "data", "n", "order"]), ANYTHING, max_size=4
)
NAMED = {"as": st.sampled_from(["order", "line", "b"])}
ON = {"collection": COLLECTIONS, "id": REFERRING.map(ref) | st.text(max_size=5)}
CREATES = st.fixed_dictionaries(
    {"method": st.just("POST"), "collection": COLLECTIONS, "body": BODIES}, optional=NAMED
)
CHANGES = st.fixed_dictionaries(
    {"method": st.sampled_from(["PATCH", "PUT"]), **ON, "body": BODIES},
    optional={**NAMED, "if_match": st.text(max_size=5)},
)
DELETIONS = st.fixed_dictionaries({"method": st.just("DELETE"), **ON})
SENT = st.one_of(CREATES, CREATES, CHANGES, DELETIONS) | st.dictionaries(
    st.sampled_from(["method", "collection", "id", "body", "as", "if_match"]), ANYTHING
)


@pytest.mark.long
@given(sent=st.lists(SENT, max_size=6))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_operations_are_an_error_of_the_service(
    alice: Caller, shop: None, sent: list[dict[str, Any]]
) -> None:
    before = alice.get("records/lines").json["total"]
    answer = send(alice, *sent)
    assert answer.status_code in (200, 400, 403, 404, 409, 412, 413, 422), answer.json
    if answer.status_code != 200:
        assert alice.get("records/lines").json["total"] == before
        for one in answer.json.get("details", ()):
            assert one["field"].startswith(f"operations[{one['index']}]")
