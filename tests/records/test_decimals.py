"""Decimals: exact in JSON, files, filters, sums and expressions, alike on both databases."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from tests.builders import Caller, make_collection, make_record

AMOUNT = {"name": "amount", "type": "decimal", "options": {"precision": 38, "scale": 4}}
SCHEMA = [
    {"name": "title", "type": "text"},
    AMOUNT,
    {"name": "rate", "type": "decimal", "options": {"precision": 38, "scale": 20}},
    {"name": "pieces", "type": "number"},
    {
        "name": "gross",
        "type": "computed",
        "expression": "round(amount * (1 + rate), 2)",
        "return_type": "decimal",
    },
    {
        "name": "each",
        "type": "computed",
        "expression": "amount / pieces",
        "return_type": "decimal",
    },
]
TEXTS = ["-99999999999999999999.9999", "-0.1", "0", "0.1", "0.3", "2.5", "10", "9007199254740993"]


@pytest.fixture
def sales(root: Caller) -> None:
    make_collection(root, "sales", SCHEMA)


def amounts(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.json
    return [one["amount"] for one in answer.json["items"]]


def found(caller: Caller, **query: Any) -> list[str]:
    """The amounts that a list finds, in their order."""
    return amounts(caller.get("records/sales", query_string={"sort": "amount", **query}))


def test_decimal_is_text_with_the_digits_of_its_scale(sales: None, alice: Caller) -> None:
    made = make_record(alice, "sales", amount="+0012.5", rate="0.19", pieces=3)
    assert (made["amount"], made["rate"]) == ("12.5000", "0.19000000000000000000")
    assert (made["gross"], made["each"]) == ("14.88", "4.16666666666666666666666666666666666667")
    assert alice.get(f"records/sales/{made['id']}").json == made
    assert make_record(alice, "sales", amount=7)["amount"] == "7.0000"
    assert make_record(alice, "sales", amount="-0.0000")["amount"] == "0.0000"
    exact = "-9999999999999999999999999999999999.9999"
    assert make_record(alice, "sales", amount=exact)["amount"] == exact


def test_decimal_lists_are_sorted_filtered_and_paged_exactly(sales: None, alice: Caller) -> None:
    for text in reversed(TEXTS):
        make_record(alice, "sales", amount=text)
    make_record(alice, "sales")
    exact = [format(Decimal(text).quantize(Decimal("0.0001")), "f") for text in TEXTS]
    assert found(alice) == [*exact, None]
    assert found(alice, amount="0.10") == ["0.1000"]
    assert found(alice, filter="amount = 0.1 + 0.2") == ["0.3000"]
    assert found(alice, filter="amount >= 9007199254740993") == ["9007199254740993.0000"]
    assert found(alice, filter="amount > '9007199254740992.9999'") == ["9007199254740993.0000"]
    assert found(alice, filter="amount < -99999999999999999999.9998") == exact[:1]
    assert found(alice, filter="amount IN [2.5, 10.0, 11]") == ["2.5000", "10.0000"]
    assert found(alice, filter="amount * 3 = 0.3 && rate = null") == ["0.1000"]
    assert found(alice, filter="amount % 3 = decimal('0.1')") == ["0.1000"]
    walked: list[str] = []
    page = alice.get("records/sales", query_string={"sort": "-amount", "cursor": "", "limit": 2})
    while True:
        walked += amounts(page)
        if not page.json["has_more"]:
            break
        query = {"sort": "-amount", "cursor": page.json["next_cursor"], "limit": 2}
        page = alice.get("records/sales", query_string=query)
    assert walked == [*reversed(exact), None]
    wrong = alice.get("records/sales", query_string={"filter": "amount > title"})
    assert wrong.status_code == 400


def test_decimal_aggregates_are_exact(sales: None, alice: Caller) -> None:
    for title, text in (("a", "0.1"), ("a", "0.2"), ("b", "99999999999999999999.9999"), ("b", "1")):
        make_record(alice, "sales", title=title, amount=text, pieces=1)
    query = {"functions": "sum(amount),avg(amount),min(amount),max(amount),sum(each),count(amount)"}
    answer = alice.get("records/sales/aggregate", query_string={**query, "group_by": "title"})
    assert answer.json["results"] == [
        {
            "title": "a",
            "sum_amount": "0.3000",
            "avg_amount": "0.15",
            "min_amount": "0.1000",
            "max_amount": "0.2000",
            "sum_each": "0.3",
            "count_amount": 2,
        },
        {
            "title": "b",
            "sum_amount": "100000000000000000000.9999",
            "avg_amount": "50000000000000000000.49995",
            "min_amount": "1.0000",
            "max_amount": "99999999999999999999.9999",
            "sum_each": "100000000000000000000.9999",
            "count_amount": 2,
        },
    ]
    grouped = {"functions": "count()", "group_by": "amount", "having": "count() > 0"}
    groups = alice.get("records/sales/aggregate", query_string=grouped).json["results"]
    assert [one["amount"] for one in groups][:2] == ["0.1000", "0.2000"]
    having = {**query, "group_by": "title", "having": "sum(amount) = 0.3"}
    few = alice.get("records/sales/aggregate", query_string=having).json["results"]
    assert [one["title"] for one in few] == ["a"]


def test_decimal_rules_judge_exactly(root: Caller, alice: Caller, bob: Caller) -> None:
    rules = {
        "list_rule": "true",
        "view_rule": "true",
        "create_rule": "amount <= 100.01 && @request.data.amount > 0.01",
        "update_rule": "amount >= @old.amount",
        "delete_rule": None,
    }
    make_collection(root, "sales", SCHEMA, **rules)
    assert alice.post("records/sales", {"amount": "100.0101"}).status_code == 403
    assert alice.post("records/sales", {"amount": "0.01"}).status_code == 403
    made = make_record(alice, "sales", amount="100.01")
    lower = alice.patch(f"records/sales/{made['id']}", {"amount": "100.0099"})
    assert lower.status_code == 403
    same = alice.patch(f"records/sales/{made['id']}", {"amount": "100.0100"})
    assert (same.status_code, same.json["updated_at"]) == (200, made["updated_at"])


def test_decimal_unique_values_are_equal_whatever_their_zeros(root: Caller, alice: Caller) -> None:
    make_collection(root, "sales", [{**AMOUNT, "unique": True}])
    make_record(alice, "sales", amount="1.5")
    clash = alice.post("records/sales", {"amount": "1.5000"})
    assert (clash.status_code, clash.json["details"][0]["code"]) == (409, "not_unique")


def test_decimal_survives_files_history_and_audit(sales: None, root: Caller, alice: Caller) -> None:
    made = make_record(alice, "sales", title="a", amount="-12.5")
    for format_, kind in (("csv", "text/csv"), ("json", "application/json")):
        exported = alice.get(
            "records/sales/export",
            query_string={"format": format_, "fields": "title,amount,rate,pieces"},
        )
        assert (b",-12.5000," if format_ == "csv" else b'"-12.5000"') in exported.data
        if format_ == "csv":
            text = b"title,amount\r\nb,-12.5\r\nc,'-12.5\r\nd,7\r\n"
            answer = alice.post("records/sales/import", data=text, content_type=kind)
            assert answer.status_code in (200, 201), answer.json
    assert sorted(found(alice)) == sorted(["-12.5000"] * 3 + ["7.0000"])
    path = f"records/sales/{made['id']}"
    alice.patch(path, {"amount": "13"})
    (change, _) = alice.get(f"{path}/history").json["items"]
    values = [(one["field"], one["old_value"], one["new_value"]) for one in change["changes"]]
    assert ("amount", "-12.5000", "13.0000") in values
    past = alice.get(path, query_string={"as_of": made["created_at"]}).json
    assert past["amount"] == "-12.5000"


def test_decimal_scale_may_grow(root: Caller, alice: Caller) -> None:
    collection = make_collection(root, "sales", [{"name": "amount", "type": "decimal"}])
    made = make_record(alice, "sales", amount="1.25")
    wider = {"schema": [{"name": "amount", "options": {"scale": 3}}]}
    assert root.patch(f"collections/{collection['id']}", wider).status_code == 200
    assert alice.get(f"records/sales/{made['id']}").json["amount"] == "1.250"
    narrower = {"schema": [{"name": "amount", "options": {"scale": 1}}]}
    assert root.patch(f"collections/{collection['id']}", narrower).status_code == 200
    assert alice.get(f"records/sales/{made['id']}").json["amount"] == "1.25"
    assert alice.patch(f"records/sales/{made['id']}", {"amount": "1.26"}).status_code == 400
