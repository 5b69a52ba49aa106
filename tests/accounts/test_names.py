"""Names of accounts, people, roles and the like: which characters they may have."""

# ruff: noqa: RUF001 - names in other scripts

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import pytest

from app.accounts import service as accounts
from tests.builders import Caller, Cast

REFUSED = {
    "encoded word": "Payroll =?utf-8?q?x?=",
    "right-to-left override": "Acme\u202eelpmaxe",
    "isolate": "Acme\u2066x\u2069",
    "zero width space": "Ac\u200bme",
    "soft hyphen": "Ac\u00adme",
    "byte order mark": "\ufeffAcme",
    "tag characters": "Acme\U000e0041",
    "joiner between Latin letters": "Ac\u200dme",
    "non-joiner between Latin letters": "Ac\u200cme",
    "joiner at the end": "👩\u200d",
    "joiner at the beginning": "\u200dAcme",
    "line separator": "Acme\u2028x",
    "line break": "Acme\nx",
}
ALLOWED = {
    "Persian": "شرکت می\u200cخواهم",
    "Persian, a non-joiner that changes nothing": "کار\u200cها",
    "Devanagari": "क्\u200dष",
    "Devanagari, non-joiner": "क्\u200cष",
    "emoji of a family": "👨\u200d👩\u200d👧",
    "emoji with a variation selector": "❤️\u200d🔥",
    "emoji with a skin tone": "👩🏽\u200d🚒",
    "flag": "🏳️\u200d🌈 e.V.",
    "Arabic": "شركة",
    "Japanese": "株式会社アトリウム",
    "composed and decomposed": "Zoë Zoe\u0308",
    "equals and question mark": "a = b?",
}


@pytest.mark.parametrize("case", REFUSED)
def test_label_with_invisible_characters_or_encoded_word_is_name_invalid(case: str) -> None:
    problem = accounts.label_problem(REFUSED[case])
    assert problem is not None
    assert problem["code"] == "name_invalid"


@pytest.mark.parametrize("case", ALLOWED)
def test_label_in_any_script_is_valid(case: str) -> None:
    assert accounts.label_problem(ALLOWED[case]) is None


def role(cast: Cast, name: str) -> Any:
    return cast.root.post("roles", {"name": name})


def account_of_superadmin(cast: Cast, name: str) -> Any:
    return cast.root.post("accounts", {"name": name, "slug": f"a{secrets.token_hex(4)}"})


def registered(cast: Cast, name: str) -> Any:
    body = {"account_name": name, "account_slug": f"a{secrets.token_hex(4)}"}
    body |= {"email": f"{secrets.token_hex(4)}@x.example", "password": "Correct-horse-1"}
    return Caller(cast.alice.app).post("auth/register", body)


def accepted(cast: Cast, name: str) -> Any:
    email = f"{secrets.token_hex(4)}@acme.example"
    token = cast.alice.post("invitations", {"email": email}).json["token"]
    body = {"password": "Correct-horse-1", "name": name}
    return Caller(cast.alice.app).post(f"invitations/{token}/accept", body)


PLACES: dict[str, Callable[[Cast, str], Any]] = {
    "own account": lambda cast, name: cast.alice.patch("account", {"name": name}),
    "account by a superadmin": account_of_superadmin,
    "registration": registered,
    "invitation": accepted,
    "own name": lambda cast, name: cast.bob.patch("auth/me", {"name": name}),
    "user": lambda cast, name: cast.alice.post(
        "account/users", {"email": f"{secrets.token_hex(4)}@x.example", "name": name}
    ),
    "changed user": lambda cast, name: cast.alice.patch(
        f"account/users/{cast.bob.id}", {"name": name}
    ),
    "group": lambda cast, name: cast.alice.post("groups", {"name": name}),
    "role": role,
    "API key": lambda cast, name: cast.alice.post("api-keys", {"name": name}),
    "setup link": lambda cast, name: cast.alice.post("account/setup-links", {"name": name}),
    "authenticator app": lambda cast, name: cast.bob.post("auth/mfa/totp", {"name": name}),
}


@pytest.mark.parametrize("place", PLACES)
def test_label_rules_apply_to_every_named_object(cast: Cast, place: str) -> None:
    for name in (REFUSED["encoded word"], REFUSED["right-to-left override"]):
        answer = PLACES[place](cast, name)
        assert answer.status_code == 400, answer.json
        assert "name_invalid" in {one["code"] for one in answer.json["details"]}
    assert PLACES[place](cast, ALLOWED["Persian"]).status_code // 100 == 2


LONG = "a" * 65 + "@x.example"
ADDRESSES: dict[str, Callable[[Cast, str], Any]] = {
    "registration": lambda cast, email: Caller(cast.alice.app).post(
        "auth/register",
        {"account_name": secrets.token_hex(6), "email": email, "password": "Correct-horse-1"},
    ),
    "invitation": lambda cast, email: cast.alice.post("invitations", {"email": email}),
    "user": lambda cast, email: cast.alice.post("account/users", {"email": email}),
    "changed user": lambda cast, email: cast.alice.patch(
        f"account/users/{cast.bob.id}", {"email": email}
    ),
    "setup link": lambda cast, email: cast.alice.post(
        "account/setup-links", {"name": "IT", "email": email}
    ),
    "own address": lambda cast, email: cast.bob.patch(
        "auth/me", {"email": email, "current_password": "Correct-horse-1"}
    ),
}


@pytest.mark.parametrize("place", ADDRESSES)
def test_email_local_part_over_64_bytes_is_invalid_email(cast: Cast, place: str) -> None:
    for email in (LONG, "ä" * 33 + "@x.example", f" {LONG}"):
        answer = ADDRESSES[place](cast, email)
        assert answer.status_code == 400
        assert [one["code"] for one in answer.json["details"]] == ["invalid_email"]
    assert ADDRESSES[place](cast, LONG[1:]).status_code // 100 == 2
