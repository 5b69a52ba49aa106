"""The security log of an account: what it records, for whom, and that it verifies (contract 19)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from tests.audit.chains import stand_alone
from tests.builders import PASSWORD, Cast, make_collection, make_record
from tests.security.reading import CUSTOMERS, events, reads


@pytest.fixture
def customer(cast: Cast) -> dict[str, Any]:
    """A record with personal data, made by somebody who may see it."""
    make_collection(cast.root, "customers", CUSTOMERS)
    return make_record(cast.alice, "customers", name="Zoe", email="zoe@example.org")


def test_a_list_is_one_event_with_its_records_and_fields(
    cast: Cast, customer: dict[str, Any]
) -> None:
    other = make_record(cast.alice, "customers", name="Max", email="max@example.org")
    cast.alice.get("records/customers", headers={"X-Correlation-ID": "list-1"})
    (event,) = reads(cast.alice, path="list")
    assert event["target_type"] == "col_customers"
    assert event["user_id"] == cast.alice.id
    assert event["request_id"] == "list-1"
    assert event["details"]["fields"] == ["email"]
    assert sorted(event["details"]["records"]) == sorted([customer["id"], other["id"]])


def test_a_masked_read_is_not_recorded(cast: Cast, customer: dict[str, Any]) -> None:
    before = len(events(cast.alice))
    for path in ("records/customers", f"records/customers/{customer['id']}"):
        assert cast.bob.get(path).status_code == 200
    cast.alice.get("records/customers", query_string={"fields": "name"})
    assert len(events(cast.alice)) == before


def test_a_sign_in_and_a_failure_are_recorded(cast: Cast) -> None:
    body = {"account": "acme", "email": cast.bob.email}
    cast.bob.post("auth/login", {**body, "password": PASSWORD}, headers={"Authorization": ""})
    cast.bob.post("auth/login", {**body, "password": "wrong"}, headers={"Authorization": ""})
    (good,) = events(cast.alice, kind="sign_in.succeeded")
    (bad,) = events(cast.alice, kind="sign_in.failed")
    assert (good["user_id"], good["target_id"]) == (cast.bob.id, cast.bob.id)
    assert (bad["user_id"], bad["target_id"]) == ("anonymous", cast.bob.id)
    assert bad["details"]["reason"] == "authentication_failed"
    assert "wrong" not in json.dumps(bad)


def test_only_admins_of_the_account_read_it(cast: Cast, customer: dict[str, Any]) -> None:
    assert cast.bob.get("account/security-log").status_code == 403
    assert all("customers" not in event["target_type"] for event in events(cast.charlie))


def test_an_export_verifies_offline(cast: Cast, customer: dict[str, Any], tmp_path: Path) -> None:
    cast.alice.get("records/customers")
    verifier = stand_alone()
    for format in ("jsonl", "json", "csv"):
        file = tmp_path / f"log.{format}"
        file.write_bytes(cast.alice.get(f"account/security-log/export?format={format}").data)
        (chain,) = verifier.verify(verifier.read(str(file))).values()
        assert (chain.fault, chain.checked) == (None, events(cast.alice)[-1]["number"])
    found = cast.alice.get("account/security-log/verify").json
    assert found["valid"], found
    assert found["checked"] == events(cast.alice)[-1]["number"]


def test_numbers_have_no_gaps(app: Flask, cast: Cast, customer: dict[str, Any]) -> None:
    for _ in range(3):
        cast.alice.get(f"records/customers/{customer['id']}")
    numbers = [event["number"] for event in events(cast.alice)]
    assert numbers == list(range(1, len(numbers) + 1))
