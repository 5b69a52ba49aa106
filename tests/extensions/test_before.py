"""Handlers before creates, updates and deletes: every door, what they may change and refuse."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest

from app.extend import (
    Conflict,
    NotFound,
    Refused,
    before_create,
    before_delete,
    before_update,
)
from app.extensions import before, loading
from tests.builders import Caller, Cast, changes_of_records, make_collection, make_record
from tests.console.browser import Browser

FIELDS = [
    {"name": "title", "type": "text", "required": True},
    {"name": "number", "type": "text", "required": True, "unique": True},
    {"name": "status", "type": "select", "options": {"choices": ["open", "closed"]}},
    {"name": "price", "type": "number"},
    {"name": "due", "type": "datetime"},
    {"name": "more", "type": "json"},
    {"name": "doubled", "type": "computed", "expression": "price * 2", "return_type": "number"},
]


@pytest.fixture
def orders(cast: Cast) -> Cast:
    """The cast, and a collection of orders, with lines that go with them."""
    make_collection(cast.root, "orders", FIELDS)
    order = {"name": "order", "type": "reference", "collection": "orders"}
    line = [{**order, "on_delete": "cascade"}, {"name": "text", "type": "text"}]
    make_collection(cast.root, "lines", line)
    return cast


def numbering() -> None:
    """Number orders, and refuse a title and a price together."""

    @before_create("Orders")
    def number(caller: Any, record: dict[str, Any]) -> str:
        if record["number"] is None:
            record["number"] = f"{record['title'].upper()}-{caller.account.slug}"
        record["more"] = {"by": caller.user.email, "seen": record["more"]}
        return "what is returned does not matter"

    @before_create("orders")
    def refuse(caller: Any, record: dict[str, Any]) -> None:
        if record["title"] == "bad":
            raise Refused("title", code="bad_title", message="Not this one.")

    @before_create("orders")
    def refuse_price(caller: Any, record: dict[str, Any]) -> None:
        if record["title"] == "bad":
            raise Refused(code="bad_record", message="Nor at all.")


def guarding() -> None:
    """Refuse changes and deletions of closed orders."""

    @before_update("orders")
    def keep_closed(caller: Any, old: dict[str, Any], record: dict[str, Any]) -> None:
        if old["status"] == "closed":
            raise Refused("status", code="closed", message="It is closed.")
        if record["title"] != old["title"]:
            record["price"] = 7

    @before_delete("orders")
    def keep(caller: Any, record: dict[str, Any]) -> None:
        if record["status"] == "closed":
            raise Refused(code="closed", message="It is closed.")


def create_one(by: Caller) -> dict[str, Any]:
    return make_record(by, "orders", title="a")


def create_batch(by: Caller) -> dict[str, Any]:
    answer = by.post("records/orders/batch", {"records": [{"title": "a"}]})
    assert answer.status_code == 201, answer.json
    found: dict[str, Any] = answer.json["created"][0]
    return found


def upsert(by: Caller) -> dict[str, Any]:
    record = {"title": "a", "number": "A-acme"}
    answer = by.post("records/orders/batch?mode=upsert&on=number", {"records": [record]})
    assert answer.status_code == 201, answer.json
    found: dict[str, Any] = answer.json["created"][0]
    return found


def import_file(by: Caller) -> dict[str, Any]:
    answer = by.post("records/orders/import", [{"title": "a"}])
    assert answer.status_code == 200, answer.json
    found: dict[str, Any] = by.get("records/orders").json["items"][0]
    return found


def do_operation(by: Caller) -> dict[str, Any]:
    one = {"method": "POST", "collection": "orders", "body": {"title": "a"}}
    answer = by.post("batch", {"operations": [one]})
    assert answer.status_code == 200, answer.json
    found: dict[str, Any] = answer.json["results"][0]["body"]
    return found


def import_by_key(by: Caller) -> dict[str, Any]:
    rows = [{"title": "a", "number": "A-acme"}]
    answer = by.post("records/orders/import?upsert=number", rows)
    assert answer.status_code == 200, answer.json
    found: dict[str, Any] = by.get("records/orders").json["items"][0]
    return found


@pytest.mark.parametrize(
    "create", [create_one, create_batch, upsert, import_file, do_operation, import_by_key]
)
def test_created_record_has_what_handlers_set(
    orders: Cast, create: Callable[[Caller], dict[str, Any]]
) -> None:
    with loading.loaded(numbering):
        made = create(orders.bob)
    assert made["number"] == "A-acme"
    assert made["more"] == {"by": "bob@acme.example", "seen": None}
    assert orders.bob.get(f"records/orders/{made['id']}").json["number"] == "A-acme"


def test_handlers_do_not_see_what_others_do_to_the_old_record(orders: Cast) -> None:
    seen = []

    def shop() -> None:
        @before_update("orders")
        def spoil(caller: Any, old: dict[str, Any], record: dict[str, Any]) -> None:
            old["title"] = "forged"
            old["more"]["by"] = "forged"

        @before_update("orders")
        def see(caller: Any, old: dict[str, Any], record: dict[str, Any]) -> None:
            seen.append((old["title"], old["more"], record["more"]))

        @before_delete("orders")
        def spoil_too(caller: Any, record: dict[str, Any]) -> None:
            record["more"]["by"] = record["title"] = "forged"

        @before_delete("orders")
        def see_too(caller: Any, record: dict[str, Any]) -> None:
            seen.append((record["title"], record["more"]))

    made = make_record(orders.bob, "orders", title="a", number="1", more={"by": "x"})
    with loading.loaded(shop):
        path = f"records/orders/{made['id']}"
        assert orders.bob.patch(path, {"price": 1}).status_code == 200
        assert orders.bob.delete(path).status_code == 204
    assert seen == [("a", {"by": "x"}, {"by": "x"}), ("a", {"by": "x"})]


def test_nothing_is_called_once_an_extension_is_removed(orders: Cast) -> None:
    with loading.loaded(numbering):
        pass
    answer = orders.bob.post("records/orders", {"title": "a"})
    assert [one["code"] for one in answer.json["details"]] == ["required_missing"]


def test_refusals_are_400_all_at_once(orders: Cast) -> None:
    with loading.loaded(numbering):
        answer = orders.bob.post("records/orders", {"title": "bad"})
    assert (answer.status_code, answer.json["error"]) == (400, "validation_error")
    assert answer.json["details"] == [
        {"field": "title", "message": "Not this one.", "code": "bad_title"},
        {"field": None, "message": "Nor at all.", "code": "bad_record"},
    ]


def test_refusals_of_a_batch_have_their_index_beside_invalid_values(orders: Cast) -> None:
    records = [{"title": "a"}, {"title": "bad"}, {"title": 7}, {"price": 1}]
    with loading.loaded(numbering):
        answer = orders.bob.post("records/orders/batch", {"records": records})
    found = [(one["index"], one["code"]) for one in answer.json["details"]]
    assert sorted(found) == [
        (1, "bad_record"),
        (1, "bad_title"),
        (2, "invalid_type"),
        (2, "required_missing"),
        (3, "required_missing"),
        (3, "required_missing"),
    ]


def test_handler_sees_valid_records_only(orders: Cast) -> None:
    seen = []

    def shop() -> None:
        @before_create("orders")
        def see(caller: Any, record: dict[str, Any]) -> None:
            seen.append(record)

    with loading.loaded(shop):
        answer = orders.bob.post("records/orders", {"title": "a", "price": "much"})
        assert answer.status_code == 400
        assert seen == []
        due = "2026-01-31T10:00:00Z"
        answer = orders.bob.post(
            "records/orders", {"title": "a", "due": due, "price": 1.5, "more": [1]}
        )
    assert [one["code"] for one in answer.json["details"]] == ["required_missing"]
    missing = {"title": "a", "number": None, "status": None}
    assert seen == [{**missing, "price": 1.5, "due": "2026-01-31T10:00:00.000000Z", "more": [1]}]


def test_update_is_changed_and_refused(orders: Cast) -> None:
    made = make_record(orders.bob, "orders", title="a", number="1", status="open", price=1)
    path = f"records/orders/{made['id']}"
    with loading.loaded(guarding):
        assert orders.bob.patch(path, {"title": "b"}).json["price"] == 7
        put = {"title": "c", "number": "1", "status": "closed", "price": 1}
        assert orders.bob.put(path, put).json["doubled"] == 14
        for answer in (
            orders.bob.patch(path, {"title": "b"}),
            orders.bob.put(path, put),
            orders.bob.delete(path),
        ):
            assert answer.status_code == 400, answer.json
            assert answer.json["details"][0]["code"] == "closed"
        ids = {"ids": [make_record(orders.bob, "orders", title="x", number="2")["id"], made["id"]]}
        answer = orders.bob.delete("records/orders/batch", json=ids)
        assert [(one["index"], one["code"]) for one in answer.json["details"]] == [(1, "closed")]
        items = [{"id": id, "data": {"title": "y"}} for id in ids["ids"]]
        answer = orders.bob.patch("records/orders/batch", {"records": items})
        assert [(one["index"], one["code"]) for one in answer.json["details"]] == [(1, "closed")]
        for method, body in (("PATCH", {"body": {"title": "y"}}), ("DELETE", {})):
            some = [
                {"method": method, "collection": "orders", "id": id, **body} for id in ids["ids"]
            ]
            details = orders.bob.post("batch", {"operations": some}).json["details"]
            assert [(one["index"], one["code"]) for one in details] == [(1, "closed")]
            assert details[0]["field"].startswith("operations[1]")
    assert orders.bob.get("records/orders").json["total"] == 2


def test_handler_of_update_has_whole_records(orders: Cast) -> None:
    seen = []

    def shop() -> None:
        @before_update("orders")
        def see(caller: Any, old: dict[str, Any], record: dict[str, Any]) -> None:
            seen.append((old, dict(record)))
            old["title"] = "this changes nothing"

    made = make_record(orders.bob, "orders", title="a", number="1", price=2, more={"a": [1]})
    with loading.loaded(shop):
        answer = orders.bob.patch(f"records/orders/{made['id']}", {"more": {"b": None}})
    assert answer.json["title"] == "a"
    ((old, record),) = seen
    assert {**made, "title": old["title"]} == old
    assert record == {**{n: v for n, v in made.items() if n != "doubled"}, "more": {"b": None}}


def test_handler_of_update_is_called_for_what_comes_back_with_values(orders: Cast) -> None:
    make_collection(orders.root, "notes", options={"trash": {"days": 7}})
    seen = []

    def shop() -> None:
        @before_update("notes")
        def see(caller: Any, old: dict[str, Any], record: dict[str, Any]) -> None:
            seen.append((old["title"], record["title"]))
            caller.records("orders").create({"title": "seen", "number": str(len(seen))})
            if record["title"] == "no":
                raise Refused("title", code="no", message="Not this.")
            record["title"] += "!"

    made = make_record(orders.bob, "notes", title="a")
    path = f"records/notes/{made['id']}"
    orders.bob.delete(path)
    with loading.loaded(shop):
        refused = orders.bob.post(f"{path}/restore", {"values": {"title": "no"}})
        assert (refused.status_code, refused.json["details"][0]["code"]) == (400, "no")
        answer = orders.bob.post(f"{path}/restore", {"values": {"title": "b"}})
        assert answer.json["title"] == "b!"
        orders.bob.delete(path)
        assert orders.bob.post(f"{path}/restore", {}).json["title"] == "b!"
    assert seen[0] == ("a", "no")
    assert seen[-1] == ("a", "b")
    assert orders.bob.get("records/orders").json["total"] == 1


def test_cascade_calls_handlers_of_what_goes_along(orders: Cast) -> None:
    gone = []

    def shop() -> None:
        @before_delete("lines")
        def see(caller: Any, record: dict[str, Any]) -> None:
            gone.append(record["text"])
            if record["text"] == "stays":
                raise Refused("text", code="stays", message="It stays.")

    made = make_record(orders.bob, "orders", title="a", number="1")
    for text in ("one", "stays"):
        make_record(orders.bob, "lines", order=made["id"], text=text)
    with loading.loaded(shop):
        answer = orders.bob.delete(f"records/orders/{made['id']}")
    assert answer.status_code == 400
    assert answer.json["details"] == [{"field": "text", "message": "It stays.", "code": "stays"}]
    assert sorted(gone) == ["one", "stays"]
    assert orders.bob.get("records/lines").json["total"] == 2


def test_handler_of_delete_may_delete_and_add_what_goes(orders: Cast) -> None:
    called = []

    def shop() -> None:
        @before_delete("orders")
        def clear(caller: Any, record: dict[str, Any]) -> None:
            lines = caller.records("lines")
            for line in lines.list(filter=f'order = "{record["id"]}"')["items"]:
                lines.delete(line["id"])
            lines.create({"order": record["id"], "text": "new"})

        @before_delete("lines")
        def see(caller: Any, record: dict[str, Any]) -> None:
            called.append(record["text"])

    made = make_record(orders.bob, "orders", title="a", number="1")
    make_record(orders.bob, "lines", order=made["id"], text="old")
    with loading.loaded(shop):
        answer = orders.bob.delete(f"records/orders/{made['id']}")
    assert answer.status_code == 204, answer.json
    assert called == ["old", "new"]
    assert orders.bob.get("records/lines").json["total"] == 0
    deleted = [
        one["record_id"] for one in changes_of_records(orders.alice) if one["event"] == "delete"
    ]
    assert len(deleted) == len(set(deleted))


def test_values_of_handlers_ignore_field_rights_and_meet_the_rule(cast: Cast) -> None:
    fields = [
        {"name": "title", "type": "text"},
        {"name": "level", "type": "number", "writable_if": '@request.auth.role = "admin"'},
    ]
    make_collection(cast.root, "posts", fields, create_rule="level < 5", update_rule="level < 5")

    def shop() -> None:
        @before_create("posts")
        def rate(caller: Any, record: dict[str, Any]) -> None:
            record["level"] = int(record["title"])

        @before_update("posts")
        def rate_again(caller: Any, old: dict[str, Any], record: dict[str, Any]) -> None:
            record["level"] = int(record["title"])

    with loading.loaded(shop):
        assert cast.bob.post("records/posts", {"title": "1", "level": 2}).status_code == 400
        made = make_record(cast.bob, title="3")
        assert made["level"] == 3
        denied = cast.bob.post("records/posts", {"title": "7"})
        assert (denied.status_code, denied.json["error"]) == (403, "rule_denied")
        path = f"records/posts/{made['id']}"
        assert cast.bob.patch(path, {"title": "4"}).json["level"] == 4
        assert cast.bob.patch(path, {"title": "9"}).status_code == 403
    assert cast.bob.get(path).json["level"] == 4


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("price", "much", "invalid_type"),
        ("status", "torn", "invalid_option"),
        ("title", None, "required_null"),
        ("due", "soon", "invalid_datetime"),
    ],
)
def test_invalid_values_of_handlers_are_400(
    orders: Cast, name: str, value: object, code: str
) -> None:
    def shop() -> None:
        @before_create("orders")
        def spoil(caller: Any, record: dict[str, Any]) -> None:
            record[name] = value

    with loading.loaded(shop):
        answer = orders.bob.post("records/orders", {"title": "a", "number": "1"})
    assert answer.status_code == 400
    assert [(one["field"], one["code"]) for one in answer.json["details"]] == [(name, code)]


def test_references_of_handlers_need_a_record_of_the_account(cast: Cast) -> None:
    make_collection(cast.root, "rates", view_rule=None, list_rule=None)
    reference = {"name": "rate", "type": "reference", "collection": "rates"}
    many = {**reference, "name": "rates", "multiple": True}
    user = {"name": "owner", "type": "user"}
    make_collection(cast.root, "posts", [reference, many, user])
    hidden = make_record(cast.bob, "rates", title="hidden")["id"]
    foreign = make_record(cast.charlie, "rates", title="foreign")["id"]
    chosen: dict[str, Any] = {}

    def shop() -> None:
        @before_create("posts")
        def choose(caller: Any, record: dict[str, Any]) -> None:
            record |= chosen

    with loading.loaded(shop):
        chosen |= {"rate": hidden, "rates": [hidden], "owner": cast.alice.id}
        made = make_record(cast.bob)
        assert (made["rate"], made["rates"], made["owner"]) == (hidden, [hidden], cast.alice.id)
        chosen |= {"rate": foreign, "rates": [foreign], "owner": cast.charlie.id}
        answer = cast.bob.post("records/posts", {})
    assert answer.status_code == 400
    found = {(one["field"], one["code"]) for one in answer.json["details"]}
    assert found == {(name, "invalid_reference") for name in ("rate", "rates", "owner")}


def test_inner_writes_roll_back_with_the_write(orders: Cast) -> None:
    def shop() -> None:
        @before_create("orders")
        def log(caller: Any, record: dict[str, Any]) -> None:
            caller.records("lines").create({"text": record["title"]})
            if record["title"] == "bad":
                raise Refused(code="bad", message="Bad.")

    with loading.loaded(shop):
        assert orders.bob.post("records/orders", {"title": "bad", "number": "1"}).status_code == 400
        assert orders.bob.get("records/lines").json["total"] == 0
        make_record(orders.bob, "orders", title="good", number="1")
    items = orders.bob.get("records/lines").json["items"]
    assert [one["text"] for one in items] == ["good"]
    entries = orders.alice.get("account/audit-logs?table_name=col_lines").json
    acting = {
        (one["user_id"], one["actor"]["kind"], one["actor"]["id"]) for one in entries["items"]
    }
    assert acting == {(orders.bob.id, "extension", "shop")}
    entries = orders.alice.get("account/audit-logs?table_name=col_orders").json
    assert {one["actor"]["kind"] for one in entries["items"]} == {"user"}


def test_refused_inner_write_may_be_caught(orders: Cast) -> None:
    """What failed leaves nothing, and the transaction goes on."""
    caught = []

    def shop() -> None:
        @before_create("lines")
        def copy(caller: Any, record: dict[str, Any]) -> None:
            orders_ = caller.records("orders")
            for values in ({"title": "a", "number": "1"}, {"title": "b", "number": "1"}):
                try:
                    orders_.create(values)
                except Conflict as error:
                    caught.append(error.error)
            try:
                orders_.get("019a9f00-0000-7000-8000-000000000001")
            except NotFound as error:
                caught.append(error.error)

    with loading.loaded(shop):
        make_record(orders.bob, "lines", text="x")
    assert caught == ["conflict", "not_found"]
    assert [one["title"] for one in orders.bob.get("records/orders").json["items"]] == ["a"]


def test_handler_of_update_may_write_other_records_of_the_batch(orders: Cast) -> None:
    first, second = (
        make_record(orders.bob, "orders", title="a", number=number, price=1) for number in "12"
    )

    def shop() -> None:
        @before_update("orders")
        def raise_other(caller: Any, old: dict[str, Any], record: dict[str, Any]) -> None:
            if old["id"] == first["id"]:
                caller.records("orders").update(second["id"], {"price": 5})

    items = [{"id": one["id"], "data": {"title": "b"}} for one in (first, second)]
    with loading.loaded(shop):
        answer = orders.bob.patch("records/orders/batch", {"records": items})
    assert [(one["title"], one["price"]) for one in answer.json["updated"]] == [("b", 1), ("b", 5)]
    stored = orders.bob.get(f"records/orders/{second['id']}").json
    assert (stored["title"], stored["price"]) == ("b", 5)


def test_rule_that_refuses_an_inner_write_is_403(orders: Cast) -> None:
    make_collection(orders.root, "secrets", create_rule='@request.auth.role = "admin"')

    def shop() -> None:
        @before_create("lines")
        def note(caller: Any, record: dict[str, Any]) -> None:
            caller.records("secrets").create({"title": "x"})

    with loading.loaded(shop):
        denied = orders.bob.post("records/lines", {"text": "x"})
        assert (denied.status_code, denied.json["error"]) == (403, "rule_denied")
        make_record(orders.alice, "lines", text="x")


def test_handlers_that_write_without_end_are_500(orders: Cast) -> None:
    def shop() -> None:
        @before_create("lines")
        def again(caller: Any, record: dict[str, Any]) -> None:
            caller.records("lines").create({"text": "again"})

    with loading.loaded(shop):
        answer = orders.bob.post("records/lines", {"text": "x"})
    assert (answer.status_code, answer.json["error"]) == (500, "internal_error")
    assert orders.bob.get("records/lines").json["total"] == 0
    assert before.MAX_DEPTH < 10


def test_anonymous_form_calls_handlers(orders: Cast) -> None:
    seen = []

    def shop() -> None:
        @before_create("inbox")
        def see(caller: Any, record: dict[str, Any]) -> None:
            seen.append((caller.kind, caller.user, caller.account.slug, record["title"]))

    make_collection(orders.root, "inbox", create_rule="")
    with loading.loaded(shop):
        nobody = Caller(orders.alice.app, **{"X-Account-ID": "acme"})
        answer = nobody.post("records/inbox", {"title": "hello"})
        assert answer.status_code == 201, answer.json
    assert seen == [("anonymous", None, "acme", "hello")]


def test_restored_state_calls_handlers(orders: Cast) -> None:
    made = make_record(orders.alice, "orders", title="a", number="1")
    path = f"records/orders/{made['id']}"
    orders.alice.patch(path, {"title": "b", "status": "closed"})
    entry = orders.alice.get(f"{path}/history").json["items"][-1]["audit_id"]
    with loading.loaded(guarding):
        answer = orders.alice.post(f"{path}/restore", {"audit_id": entry})
    assert answer.status_code == 400
    assert answer.json["details"][0]["code"] == "closed"


def test_console_calls_handlers(orders: Cast) -> None:
    admin = Browser(orders.alice.app, orders.alice)
    place = f"records/{orders.alice.account_id}/orders/new"
    with loading.loaded(numbering):
        answer = admin.send(place, do="save", f_title="bad")
        assert (answer.status_code, "Not this one." in answer.text) == (400, True)
        assert "A-acme" in admin.done(place, do="save", f_title="a")


def test_handlers_run_again_with_a_transaction_that_is_tried_again(orders: Cast) -> None:
    calls = []
    lines = next(
        one for one in orders.root.get("collections").json["items"] if one["name"] == "lines"
    )

    def change_collection() -> None:
        answer = orders.root.patch(f"collections/{lines['id']}", {"create_rule": ""})
        assert answer.status_code == 200, answer.json

    def shop() -> None:
        @before_create("lines")
        def count(caller: Any, record: dict[str, Any]) -> None:
            calls.append(record["text"])
            if len(calls) == 1:
                thread = Thread(target=change_collection)
                thread.start()
                thread.join()

    make_record(orders.bob, "lines", text="first")
    with loading.loaded(shop):
        make_record(orders.bob, "lines", text="second")
    assert calls == ["second", "second"]
    assert orders.bob.get("records/lines").json["total"] == 2


def test_user_who_leaves_is_refused_by_handlers_of_records(orders: Cast) -> None:
    """What goes with a user is asked for, too."""
    fields = [{"name": "owner", "type": "user", "on_delete": "cascade"}]
    make_collection(orders.root, "cars", fields)
    make_record(orders.bob, "cars", owner=orders.bob.id)

    def shop() -> None:
        @before_delete("cars")
        def keep(caller: Any, record: dict[str, Any]) -> None:
            raise Refused(code="stays", message="It stays.")

    with loading.loaded(shop):
        answer = orders.alice.delete(f"account/users/{orders.bob.id}")
        assert answer.status_code == 400, answer.json
        assert answer.json["details"][0]["code"] == "stays"
    assert orders.alice.get("records/cars").json["total"] == 1
    assert orders.alice.delete(f"account/users/{orders.bob.id}").status_code < 300
