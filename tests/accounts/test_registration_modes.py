"""Who may register: SERVICE_REGISTRATION and single-tenant mode (contract section 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask

from app.accounts.models import ADMIN
from tests.builders import PASSWORD, Caller, Cast, make_account, make_user
from tests.mailbox import body_of, outbox, run_jobs, token_in
from tests.parallel import at_once

ACME = {"account_name": "Initech", "email": "ann@initech.example", "password": PASSWORD}
ANN = {"email": "Ann@house.example", "password": PASSWORD}
CREDENTIALS = {"email": "ann@house.example", "password": PASSWORD}
Set = Callable[..., None]


@pytest.fixture
def set_to(app: Flask) -> Iterator[Set]:
    """Change settings until the end of the test."""
    before = app.extensions["atrium.config"]

    def change(**changes: Any) -> None:
        app.extensions["atrium.config"] = replace(before, **changes)

    yield change
    app.extensions["atrium.config"] = before


@pytest.fixture
def house(set_to: Set) -> None:
    """Single-tenant mode."""
    set_to(single_tenant=True, single_tenant_account="house", single_tenant_account_name="House")


def users(cast: Cast) -> int:
    total: int = cast.root.get("users").json["total"]
    return total


@pytest.mark.parametrize("mode", ["invite", "off"])
@pytest.mark.parametrize("single", [True, False])
def test_closed_registration_is_403(
    app: Flask, cast: Cast, set_to: Set, mode: str, single: bool
) -> None:
    set_to(registration=mode, single_tenant=single)
    for body in (ACME, {**ACME, "account_slug": "acme"}, {**ACME, "password": "weak"}):
        answer = Caller(app).post("auth/register", body)
        assert (answer.status_code, answer.json["error"]) == (403, "forbidden")
    assert users(cast) == 4
    assert cast.root.get("accounts").json["total"] == 3


def test_invited_people_join_unless_it_is_off(app: Flask, cast: Cast, set_to: Set) -> None:
    tokens = [
        cast.alice.post("invitations", {"email": f"{name}@acme.example"}).json["token"]
        for name in ("dora", "emil")
    ]
    set_to(registration="invite")
    accepted = Caller(app).post(f"invitations/{tokens[0]}/accept", {"password": PASSWORD})
    assert accepted.status_code == 200
    set_to(registration="off")
    refused = Caller(app).post(f"invitations/{tokens[1]}/accept", {"password": PASSWORD})
    assert refused.status_code == 403
    assert users(cast) == 5


def test_open_registration_makes_an_account(app: Flask, cast: Cast, set_to: Set) -> None:
    set_to(registration="open")
    assert Caller(app).post("auth/register", ACME).json["user"]["role"] == "admin"
    unnamed = Caller(app).post("auth/register", ANN)
    assert (unnamed.status_code, unnamed.json["detail"][0]["type"]) == (422, "missing")


def test_the_first_and_the_second_join_the_one_account_as_viewers(
    app: Flask, cast: Cast, house: None
) -> None:
    first = Caller(app).post("auth/register", ANN)
    assert first.status_code == 201
    assert (first.json["account"]["slug"], first.json["account"]["name"]) == ("house", "House")
    second = Caller(app).post("auth/register", {**ANN, "email": "ben@house.example"})
    assert second.json["account"] == first.json["account"]
    for answer in (first, second):
        assert (answer.json["user"]["role"], answer.json["user"]["groups"]) == ("viewer", [])
    run_jobs(app)
    mails = {mail["To"]: mail for mail in outbox(app)}
    assert set(mails) == {"Ann@house.example", "ben@house.example"}
    token = token_in(mails["Ann@house.example"])
    assert Caller(app).post("auth/verify-email", {"token": token}).status_code == 200
    signed_in = Caller(app).post("auth/login", CREDENTIALS)
    assert (signed_in.status_code, signed_in.json["user"]["account_code"]) == (200, "AA0003")


def test_a_name_given_all_the_same_founds_nothing(app: Flask, cast: Cast, house: None) -> None:
    answer = Caller(app).post("auth/register", {**ACME, "account_slug": "acme"})
    assert (answer.status_code, answer.json["account"]["slug"]) == (201, "house")
    assert cast.root.get("users?search=initech").json["items"][0]["account_name"] == "House"
    assert cast.root.get("accounts").json["total"] == 4


def shape(answer: Any) -> Any:
    body = answer.json
    for name in ("id", "created_at", "updated_at"):
        body["user"].pop(name)
    return answer.status_code, sorted(answer.headers.keys()), body


def test_a_known_address_is_answered_alike_and_told_by_mail(
    app: Flask, cast: Cast, house: None
) -> None:
    new = Caller(app).post("auth/register", ANN)
    run_jobs(app)
    sent = len(outbox(app))
    known = Caller(app).post("auth/register", {**ANN, "password": "Another-horse-2"})
    assert known.json["user"]["id"] != new.json["user"]["id"]
    assert shape(known) == shape(new)
    assert users(cast) == 5
    run_jobs(app)
    mails = outbox(app)[sent:]
    assert [mail["To"] for mail in mails] == ["Ann@house.example"]
    assert "/console/forgot-password" in body_of(mails[0])
    assert "token=" not in body_of(mails[0])


def test_a_known_address_keeps_its_user(app: Flask, cast: Cast, house: None) -> None:
    account = make_account(app, "house", "House")
    make_user(app, account, "ann@house.example", ADMIN)
    again = Caller(app).post("auth/register", {**ANN, "password": "Another-horse-2"})
    assert (again.status_code, again.json["user"]["role"]) == (201, "viewer")
    assert again.json["user"]["email_verified"] is False
    signed_in = Caller(app).post("auth/login", CREDENTIALS)
    assert (signed_in.status_code, signed_in.json["user"]["role"]) == (200, "admin")


def test_values_are_checked_there_too(app: Flask, cast: Cast, house: None) -> None:
    answer = Caller(app).post("auth/register", {"email": "x", "password": "Weak"})
    assert answer.status_code == 400
    found = {(one["field"], one["code"]) for one in answer.json["details"]}
    assert found == {("email", "invalid_email"), ("password", "password_too_weak")}
    assert users(cast) == 4


def test_nobody_joins_the_system_account(app: Flask, cast: Cast, set_to: Set) -> None:
    set_to(single_tenant=True, single_tenant_account="system")
    assert Caller(app).post("auth/register", ANN).status_code == 403
    assert Caller(app).post("auth/register", {**ANN, "email": cast.root.email}).status_code == 403
    assert users(cast) == 4


def test_nobody_joins_a_suspended_account(app: Flask, cast: Cast, set_to: Set) -> None:
    cast.root.patch(f"accounts/{cast.alice.account_id}", {"is_active": False})
    set_to(single_tenant=True, single_tenant_account="acme")
    assert Caller(app).post("auth/register", ANN).status_code == 403
    assert users(cast) == 4


def test_the_first_ones_at_once_make_one_account(app: Flask, cast: Cast, house: None) -> None:
    def register(number: int) -> int:
        body = {**ANN, "email": f"user{number}@house.example"}
        return Caller(app).post("auth/register", body).status_code

    assert at_once(4, register) == [201] * 4
    assert cast.root.get("accounts").json["total"] == 4
    assert users(cast) == 8
