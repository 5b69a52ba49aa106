"""Who may register: SERVICE_REGISTRATION and single-tenant mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask

from app.accounts.models import ADMIN
from tests.builders import PASSWORD, Caller, Cast, make_account, make_user
from tests.console.browser import Browser, alert
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


def test_invitation_acceptance_works_unless_registration_is_off(
    app: Flask, cast: Cast, set_to: Set
) -> None:
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
    assert Caller(app).get(f"invitations/{tokens[1]}").json["is_valid"] is False
    assert users(cast) == 5


def test_invitation_while_registration_is_off_is_403(app: Flask, cast: Cast, set_to: Set) -> None:
    made = cast.alice.post("invitations", {"email": "dora@acme.example"}).json
    page, form = Browser(app, cast.alice), {"email": "emil@acme.example", "role": "viewer"}
    set_to(registration="off")
    for path, body in (("invitations", form), (f"invitations/{made['id']}/resend", None)):
        answer = cast.alice.post(path, body)
        assert (answer.status_code, answer.json["error"]) == (403, "forbidden")
        assert "Administrators create the users" in answer.json["message"]
    for shown in (page.get("team/invite"), page.send("team/invite", **form)):
        assert (shown.status_code, "Administrators create the users" in alert(shown)) == (403, True)
    assert Browser(app).get(f"/welcome/invitation?token={made['token']}").status_code == 403
    assert cast.alice.get("invitations").json["total"] == 1
    assert cast.alice.post("account/users", {"email": "emil@acme.example"}).status_code == 201
    set_to(registration="invite")
    assert cast.alice.post("invitations", {"email": "fay@acme.example"}).status_code == 201
    assert page.get("team/invite").status_code == 200


def test_open_registration_makes_an_account(app: Flask, cast: Cast, set_to: Set) -> None:
    set_to(registration="open")
    assert Caller(app).post("auth/register", ACME).json["user"]["role"] == "admin"
    unnamed = Caller(app).post("auth/register", ANN)
    assert (unnamed.status_code, unnamed.json["detail"][0]["type"]) == (422, "missing")


def test_single_tenant_registration_joins_account_as_viewer(
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


@pytest.mark.parametrize("field", ["account", "account_slug"])
@pytest.mark.parametrize("named", ["acme", "nowhere", "system", "AA0001", "x"])
def test_single_tenant_registration_with_other_account_is_400(
    app: Flask, cast: Cast, house: None, field: str, named: str
) -> None:
    answer = Caller(app).post("auth/register", {**ANN, field: named})
    assert answer.status_code == 400
    assert [(one["field"], one["code"]) for one in answer.json["details"]] == [
        ("account_slug", "invalid_reference")
    ]
    assert named not in answer.text
    assert users(cast) == 4
    joined = Caller(app).post("auth/register", {**ANN, field: "House"})
    assert (joined.status_code, joined.json["account"]["slug"]) == (201, "house")


def test_single_tenant_registration_ignores_new_account_name(
    app: Flask, cast: Cast, house: None
) -> None:
    answer = Caller(app).post("auth/register", ACME)
    assert (answer.status_code, answer.json["account"]["slug"]) == (201, "house")
    assert cast.root.get("users?search=initech").json["items"][0]["account_name"] == "House"
    assert cast.root.get("accounts").json["total"] == 4


def shape(answer: Any) -> Any:
    """All of an answer but what differs from one registration to the next."""
    user = answer.json["user"]
    born = {user["id"]: "<id>", user["created_at"]: "<then>", user["updated_at"]: "<changed>"}
    assert user["updated_at"] == user["created_at"]
    text = answer.text
    for value, name in born.items():
        text = text.replace(value, name)
    headers = [(k, v) for k, v in answer.headers if k not in ("Date", "X-Correlation-ID")]
    return answer.status_code, headers, text


def test_registration_with_known_address_gets_same_answer_and_a_mail(
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
    assert "/welcome/forgot-password" in body_of(mails[0])
    assert "token=" not in body_of(mails[0])


def test_registration_response_bytes_do_not_reveal_known_address(
    app: Flask, cast: Cast, house: None
) -> None:
    Caller(app).post("auth/register", ANN)
    seen = []
    for number in range(5):
        for email in (ANN["email"], f"new{number}@house.example"):
            answer = Caller(app).post("auth/register", {**ANN, "email": email})
            status, headers, text = shape(answer)
            headers = [one for one in headers if one[0] != "Content-Length"]
            seen.append((status, headers, text.replace(email, "<email>")))
    assert seen == seen[:1] * 10


def test_registration_response_does_not_reveal_address_of_other_account(
    app: Flask, cast: Cast
) -> None:
    seen = []
    for slug, email in (("one", cast.bob.email), ("two", "ann@acme.example"), ("six", "")):
        body = {"account": slug, "email": email or cast.root.email, "password": PASSWORD}
        answer = Caller(app).post("auth/register", body)
        user = answer.json["user"]
        seen.append((answer.status_code, list(user), user["role"], user["groups"]))
        assert answer.json["account"]["slug"] == slug
    assert seen == [(201, seen[0][1], "admin", ["pii_access"])] * 3


@pytest.mark.parametrize("path", ["auth/forgot-password", "auth/resend-verification"])
def test_mail_request_response_bytes_do_not_reveal_known_address(
    app: Flask, cast: Cast, path: str
) -> None:
    make_user(app, cast.bob.account_id, "dora@acme.example", verified=False)
    seen = []
    for account, email in (
        ("acme", cast.bob.email),
        ("acme", "dora@acme.example"),
        ("acme", "nobody@acme.example"),
        ("nowhere", cast.bob.email),
    ):
        answer = Caller(app).post(path, {"account": account, "email": email})
        headers = [(k, v) for k, v in answer.headers if k not in ("Date", "X-Correlation-ID")]
        seen.append((answer.status_code, headers, answer.data))
    assert seen == seen[:1] * 4


def test_registration_with_known_address_keeps_existing_user(
    app: Flask, cast: Cast, house: None
) -> None:
    account = make_account(app, "house", "House")
    make_user(app, account, "ann@house.example", ADMIN)
    again = Caller(app).post("auth/register", {**ANN, "password": "Another-horse-2"})
    assert (again.status_code, again.json["user"]["role"]) == (201, "viewer")
    assert again.json["user"]["email_verified"] is False
    signed_in = Caller(app).post("auth/login", CREDENTIALS)
    assert (signed_in.status_code, signed_in.json["user"]["role"]) == (200, "admin")


def test_single_tenant_registration_with_invalid_values_is_400(
    app: Flask, cast: Cast, house: None
) -> None:
    answer = Caller(app).post("auth/register", {"email": "x", "password": "Weak"})
    assert answer.status_code == 400
    found = {(one["field"], one["code"]) for one in answer.json["details"]}
    assert found == {("email", "invalid_email"), ("password", "password_too_weak")}
    assert users(cast) == 4


def test_single_tenant_registration_into_system_account_is_403(
    app: Flask, cast: Cast, set_to: Set
) -> None:
    set_to(single_tenant=True, single_tenant_account="system")
    assert Caller(app).post("auth/register", ANN).status_code == 403
    assert Caller(app).post("auth/register", {**ANN, "email": cast.root.email}).status_code == 403
    assert users(cast) == 4


def test_single_tenant_registration_into_suspended_account_is_403(
    app: Flask, cast: Cast, set_to: Set
) -> None:
    cast.root.patch(f"accounts/{cast.alice.account_id}", {"is_active": False})
    set_to(single_tenant=True, single_tenant_account="acme")
    assert Caller(app).post("auth/register", ANN).status_code == 403
    assert users(cast) == 4


@pytest.mark.usefixtures("real_hashes")
def test_single_tenant_concurrent_registrations_create_one_account(
    app: Flask, cast: Cast, house: None
) -> None:
    def register(number: int) -> int:
        body = {**ANN, "email": f"user{number}@house.example"}
        return Caller(app).post("auth/register", body).status_code

    assert at_once(4, register) == [201] * 4
    assert cast.root.get("accounts").json["total"] == 4
    assert users(cast) == 8
