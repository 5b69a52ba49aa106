"""Scopes of API keys: pairs of collections and operations, and refusals that name them."""

from __future__ import annotations

import io
from typing import Any

import pytest
from flask import Flask

from app.auth import key_scopes
from app.rules import OPERATIONS
from tests.builders import Caller, Cast, make_collection, make_record

PAIRS = {"tickets": ["create", "list"], "customers": ["view"]}
NAMES = ("tickets", "customers", "notes")


@pytest.fixture
def desk(cast: Cast) -> Cast:
    """Tickets of customers, and notes."""
    make_collection(cast.root, "customers", [{"name": "name", "type": "text"}])
    make_collection(
        cast.root,
        "tickets",
        [
            {"name": "title", "type": "text"},
            {"name": "customer", "type": "reference", "collection": "customers"},
            {"name": "document", "type": "file"},
        ],
    )
    make_collection(cast.root, "notes")
    return cast


def program(app: Flask, owner: Caller, scopes: Any = PAIRS) -> Caller:
    made = owner.post("api-keys", {"name": "desk", "scopes": scopes})
    assert made.status_code == 201, made.json
    assert made.json["scopes"] == scopes
    return Caller(app, **{"X-API-Key": made.json["key"]})


def refusal(answer: Any) -> str:
    """The sentence of a refusal by scopes."""
    assert (answer.status_code, answer.json["error"]) == (403, "scope_denied"), answer.json
    return str(answer.json["message"])


def test_key_with_pairs_does_each_operation_on_its_collection(app: Flask, desk: Cast) -> None:
    key = program(app, desk.alice)
    record = {name: make_record(desk.alice, name, title="x") for name in ("tickets", "notes")}
    record["customers"] = make_record(desk.alice, "customers", name="x")
    allowed = set()
    for name in NAMES:
        one = f"records/{name}/{record[name]['id']}"
        body = {"name": "y"} if name == "customers" else {"title": "y"}
        for operation, answer in {
            "list": key.get(f"records/{name}"),
            "view": key.get(one),
            "create": key.post(f"records/{name}", body),
            "update": key.patch(one, body),
            "delete": key.delete(one),
        }.items():
            if answer.status_code < 300:
                allowed.add((name, operation))
            else:
                assert refusal(answer) == f"This API key may not {operation} {name}."
    assert allowed == {(name, one) for name, listed in PAIRS.items() for one in listed}


def test_every_door_names_what_the_key_may_not_do(app: Flask, desk: Cast) -> None:
    key = program(app, desk.alice)
    customer = make_record(desk.alice, "customers", name="Ann")
    ticket = make_record(desk.alice, "tickets", title="x", customer=customer["id"])
    one = f"records/tickets/{ticket['id']}"
    any_customer = "019a9f00-0000-7000-8000-00000000dead"
    doors = {
        "view tickets": [
            key.get(one),
            key.get("changes?collections=tickets"),
            key.get("realtime/subscribe?collections=tickets"),
            key.get("records/tickets/export?format=zip"),
        ],
        "update tickets": [
            key.get(f"{one}/history"),
            key.patch(one, {"title": "y"}),
            key.put(one, {"title": "y"}),
            key.patch(
                "records/tickets/batch", {"records": [{"id": ticket["id"], "data": {"title": "y"}}]}
            ),
        ],
        "delete tickets": [
            key.delete(one),
            key.delete("records/tickets/batch", json={"ids": [ticket["id"]]}),
        ],
        "list customers": [
            key.get("records/customers"),
            key.get("records/customers/export"),
            key.get("records/customers/aggregate?functions=count()"),
            key.get("records/tickets?filter=@any(customers, name = 'Ann')"),
        ],
        "create customers": [
            key.post("records/customers", {"name": "y"}),
            key.post("records/customers/batch", {"records": [{"name": "y"}]}),
            key.post("records/customers/import", [{"name": "y"}]),
        ],
    }
    for said, answers in doors.items():
        for answer in answers:
            assert refusal(answer) == f"This API key may not {said}."
    narrow = program(app, desk.alice, {"tickets": ["create", "list", "update", "view"]})
    asked = [
        narrow.post("records/tickets", {"title": "y", "customer": id})
        for id in (customer["id"], any_customer)
    ]
    asked += [
        narrow.post("records/tickets/batch", {"records": [{"customer": any_customer}]}),
        narrow.post("records/tickets/import", [{"customer": any_customer}]),
        narrow.get("records/tickets?expand=customer"),
        narrow.get(f"{one}?expand=customer"),
        narrow.get("records/tickets?filter=customer.name = 'Ann'"),
    ]
    for answer in asked:
        assert refusal(answer) == "This API key may not view customers."
    # What is not touched stays as it is.
    assert narrow.patch(one, {"title": "z"}).status_code == 200
    seen = key.get("records/tickets?expand=customer").json["items"][0]
    assert seen["expand"]["customer"]["name"] == "Ann"


def test_key_is_told_of_a_file_that_its_owner_may_view(app: Flask, desk: Cast) -> None:
    file = desk.alice.post("files/upload", data={"file": (io.BytesIO(b"text"), "a.txt")})
    assert file.status_code == 201, file.text
    id = file.json["file"]["id"]
    make_record(desk.alice, "tickets", title="x", document=id)
    assert refusal(program(app, desk.alice).get(f"files/{id}")) == (
        "This API key may not view tickets."
    )
    of_other = program(app, desk.charlie)
    assert of_other.get(f"files/{id}").status_code == 404
    viewer = program(app, desk.alice, {"tickets": ["view"]})
    assert viewer.get(f"files/{id}").status_code == 200


def test_scopes_follow_a_renamed_collection(app: Flask, desk: Cast) -> None:
    key = program(app, desk.alice)
    collections = desk.root.get("collections").json["items"]
    id = next(one["id"] for one in collections if one["name"] == "tickets")
    assert desk.root.patch(f"collections/{id}", {"name": "cases"}).status_code == 200
    assert key.get("records/cases").status_code == 200
    shown = desk.alice.get("api-keys").json["items"][0]["scopes"]
    assert shown == {"cases": ["create", "list"], "customers": ["view"]}


@pytest.mark.parametrize(
    ("scopes", "status"),
    [
        ({"tickets": []}, 422),
        ({"tickets": "list"}, 422),
        ({"tickets": ["list", "list"]}, 422),
        ({"tickets": ["destroy"]}, 422),
        ({"tickets": ["list"], "collections": ["tickets"]}, 422),
        ({"tickets": ["list"], "": ["list"]}, 422),
        ({"nothing": ["list"]}, 400),
        ({"collections": ["nothing"]}, 201),
    ],
)
def test_scopes_in_pairs_are_checked(desk: Cast, scopes: Any, status: int) -> None:
    answer = desk.alice.post("api-keys", {"name": "x", "scopes": scopes})
    assert answer.status_code == status, answer.json


def test_collections_called_like_the_older_form_need_another_beside_them() -> None:
    older = {"collections": ["collections"], "operations": ["list"]}
    assert key_scopes.include(older, "collections", "list")
    assert not key_scopes.include(older, "operations", "list")
    pairs = {"collections": ["list"], "operations": ["view"], "tickets": ["view"]}
    allowed = {
        (name, operation)
        for name in ("collections", "operations", "tickets")
        for operation in OPERATIONS
        if key_scopes.include(pairs, name, operation)
    }
    assert allowed == {("collections", "list"), ("operations", "view"), ("tickets", "view")}
    assert key_scopes.include_any(pairs, ["view"])
    assert not key_scopes.include_any(pairs, ["create"])
    assert key_scopes.renamed(pairs, "COLLECTIONS", "boxes").keys() == {
        "boxes",
        "operations",
        "tickets",
    }


@pytest.mark.parametrize("name", [key_scopes.COLLECTIONS, key_scopes.OPERATIONS])
def test_collection_renamed_like_the_older_form_opens_no_other(name: str) -> None:
    scopes = key_scopes.renamed({"tickets": ["list", "create"]}, "Tickets", name)
    allowed = {
        (one, operation)
        for one in (name, "tickets", "notes", "list")
        for operation in OPERATIONS
        if key_scopes.include(scopes, one, operation)
    }
    assert allowed == {(name, "list"), (name, "create")}
    again = key_scopes.renamed(scopes, name, "cases")
    assert key_scopes.include(again, "cases", "list")


def test_renamed_collection_gets_no_scopes_of_a_deleted_one() -> None:
    for scopes in (
        {"tickets": ["list"], "cases": ["delete"]},
        {"cases": ["delete"], "tickets": ["list"]},
    ):
        assert key_scopes.renamed(scopes, "tickets", "Cases") == {"Cases": ["list"]}
    assert key_scopes.renamed({"tickets": ["list"]}, "tickets", "Tickets") == {"Tickets": ["list"]}
