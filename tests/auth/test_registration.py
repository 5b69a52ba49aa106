"""Registration: a new account and its first user."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app.accounts import service as accounts
from app.accounts.models import Account, User
from app.auth.models import MailedToken
from app.db import db
from app.errors import Conflict
from app.jobs import Job
from tests.builders import PASSWORD, Caller, Cast, make_account, make_user
from tests.parallel import at_once

BODY = {
    "account_name": "Acme Inc.",
    "account_slug": "acme",
    "email": "ann@acme.example",
    "password": PASSWORD,
}
FORMS = {
    "multi-tenant": BODY,
    "variant": {
        "account": "acme",
        "account_name": "Acme Inc.",
        "email": "ann@acme.example",
        "password": PASSWORD,
    },
}


def count(app: Flask, model: Any) -> int:
    with app.app_context():
        return db.session.scalar(sa.select(sa.func.count()).select_from(model)) or 0


def problems(answer: Any) -> list[tuple[str, str]]:
    assert (answer.status_code, answer.json["error"]) == (400, "validation_error")
    return [(one["field"], one["code"]) for one in answer.json["details"]]


@pytest.mark.parametrize("form", FORMS)
def test_registration_creates_account_and_admin(anyone: Caller, form: str) -> None:
    answer = anyone.post("auth/register", FORMS[form])
    assert answer.status_code == 201
    assert set(answer.json) == {"message", "account", "user"}
    account, user = answer.json["account"], answer.json["user"]
    assert {**account, "id": "", "created_at": ""} == {
        "id": "",
        "slug": "acme",
        "name": "Acme Inc.",
        "account_code": "AA0001",
        "created_at": "",
    }
    expected = {
        "kind": "person",
        "email": "ann@acme.example",
        "name": None,
        "account_id": account["id"],
        "account_code": "AA0001",
        "account_name": "Acme Inc.",
        "role": "admin",
        "role_name": "admin",
        "groups": ["pii_access"],
        "is_active": True,
        "email_verified": False,
        "email_verified_at": None,
        "auth_provider": "password",
        "last_login": None,
    }
    assert {name: user[name] for name in expected} == expected
    assert set(user) == {*expected, "id", "role_id", "created_at", "updated_at", "token_type"}


def test_registration_stores_password_as_hash_only(app: Flask, anyone: Caller) -> None:
    answer = anyone.post("auth/register", BODY)
    with app.app_context():
        stored = db.session.scalars(sa.select(User.password_hash)).one()
    assert (stored or "").startswith("$argon2id$")
    assert PASSWORD not in answer.text
    assert "argon2" not in answer.text


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Acme", "acme"),
        ("Crème  Brûlée & Co.", "creme-brulee-co"),
        ("--Acme__Two--", "acme-two"),
        ("ACME\u2019s 2nd", "acme-s-2nd"),
        ("Größe", "grosse"),
        ("a" * 31 + " bcd", "a" * 31),
    ],
)
def test_registration_slug_is_derived_from_account_name(
    anyone: Caller, name: str, slug: str
) -> None:
    body = {"account_name": name, "email": "a@b.example", "password": PASSWORD}
    answer = anyone.post("auth/register", body)
    assert (answer.status_code, answer.json["account"]["slug"]) == (201, slug)


@pytest.mark.parametrize("name", ["日本", "Ακμή", "Мир", "شركة", "🦊", "A", "3M"])
def test_registration_slug_is_account_code_for_name_without_letters(
    app: Flask, anyone: Caller, root: Caller, name: str
) -> None:
    body = {"account_name": name, "email": "a@b.example", "password": PASSWORD}
    account = anyone.post("auth/register", body).json["account"]
    assert (account["name"], account["slug"]) == (name, account["account_code"].lower())
    with app.app_context():
        accounts.mark_verified(
            db.session.scalars(sa.select(User).filter_by(email="a@b.example")).one()
        )
    for reference in (account["slug"], account["account_code"], account["id"]):
        credentials = {"account": reference, "email": "a@b.example", "password": PASSWORD}
        assert anyone.post("auth/login", credentials).status_code == 200
    made = root.post("accounts", {"name": name}).json
    assert made["slug"] == made["account_code"].lower()


NAMES = {
    "account and name": ({"account": "acme", "name": "Ann"}, ("acme", "Ann")),
    "both names": ({"account_name": "Acme", "name": "Ann"}, ("Acme", "Ann")),
    "slug and name": ({"account_slug": "acme", "name": " Ann "}, ("acme", "Ann")),
    "all": (
        {"account_name": "Acme Inc.", "account_slug": "acme", "name": "Ann"},
        ("Acme Inc.", "Ann"),
    ),
    "name alone": ({"name": "Acme"}, ("Acme", None)),
    "no name": ({"account_name": "Acme"}, ("Acme", None)),
}


@pytest.mark.parametrize("case", NAMES)
def test_registration_name_and_account_name_per_field(anyone: Caller, case: str) -> None:
    body, expected = NAMES[case]
    credentials = {"email": "a@b.example", "password": PASSWORD}
    made = anyone.post("auth/register", {**body, **credentials}).json
    assert (made["account"]["name"], made["user"]["name"]) == expected


def test_registration_account_name_defaults_to_slug(anyone: Caller) -> None:
    body = {"account": "acme", "email": "a@b.example", "password": PASSWORD}
    assert anyone.post("auth/register", body).json["account"]["name"] == "acme"


WEAK = [("password", "password_too_weak")]
BAD_VALUES = [
    ({"password": "Short-1"}, WEAK),
    ({"password": "Short-pass1"}, WEAK),
    ({"password": "Aa1-" * 33}, WEAK),
    ({"password": "correct-horse-1"}, WEAK),
    ({"password": "CORRECT-HORSE-1"}, WEAK),
    ({"password": "Correct-horse-x"}, WEAK),
    ({"password": "Correcthorse1"}, WEAK),
    ({"password": "aaaa"}, WEAK * 4),
    ({"password": ""}, WEAK * 5),
    ({"email": "nobody"}, [("email", "invalid_email")]),
    ({"email": ""}, [("email", "invalid_email")]),
    ({"email": "a@b.example\r\nBcc: c@d.example"}, [("email", "invalid_email")]),
    ({"email": "a@b.example, c@d.example"}, [("email", "invalid_email")]),
    ({"email": "=?utf-8?q?a=40b.example=2C?=@c.example"}, [("email", "invalid_email")]),
    ({"email": "a" * 64 + "@" + "b" * 60 + ".example" * 24}, [("email", "invalid_email")]),
    ({"account_slug": "ab"}, [("account_slug", "slug_invalid")]),
    ({"account_slug": "a" * 33}, [("account_slug", "slug_invalid")]),
    ({"account_slug": "Acme"}, [("account_slug", "slug_invalid")]),
    ({"account_slug": "1acme"}, [("account_slug", "slug_invalid")]),
    ({"account_slug": "-acme"}, [("account_slug", "slug_invalid")]),
    ({"account_slug": "ac me"}, [("account_slug", "slug_invalid")]),
    ({"account_slug": "ac\nme"}, [("account_slug", "slug_invalid")]),
    ({"account_slug": "äcme"}, [("account_slug", "slug_invalid")]),
    ({"account_slug": "ab1234"}, [("account_slug", "slug_invalid")]),
    ({"account_slug": "xn--80ak6aa92e"}, [("account_slug", "slug_invalid")]),
    ({"account_slug": "ab--c"}, [("account_slug", "slug_invalid")]),
    ({"account_slug": "", "account_name": "Mail"}, [("account_slug", "slug_invalid")]),
    ({"account_slug": "", "account_name": "AB1234"}, [("account_slug", "slug_invalid")]),
    ({"account_name": "Acme\r\nBcc: x"}, [("account_name", "name_invalid")]),
    ({"account_name": "Acme\x1b[31m"}, [("account_name", "name_invalid")]),
    ({"name": "Ann\r\nBcc: x"}, [("name", "name_invalid")]),
    ({"account_name": "\u200b", "account_slug": "acme"}, [("account_name", "name_invalid")]),
]


@pytest.mark.parametrize(("changes", "expected"), BAD_VALUES)
def test_registration_with_bad_value_is_400_with_its_code(
    app: Flask, anyone: Caller, changes: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    assert problems(anyone.post("auth/register", {**BODY, **changes})) == expected
    assert count(app, Account) == 1
    assert count(app, Job) == 0


def test_registration_password_problems_have_distinct_messages(anyone: Caller) -> None:
    details = anyone.post("auth/register", {**BODY, "password": ""}).json["details"]
    assert len({one["message"] for one in details}) == 5


def test_registration_reports_all_bad_values_at_once(anyone: Caller) -> None:
    body = {"account_name": "a\tb", "account_slug": "A", "email": "x", "password": "Correct-horse"}
    assert set(problems(anyone.post("auth/register", body))) == {
        ("account_name", "name_invalid"),
        ("account_slug", "slug_invalid"),
        ("email", "invalid_email"),
        ("password", "password_too_weak"),
    }


@pytest.mark.parametrize(
    ("changes", "loc"),
    [
        ({"email": None}, "email"),
        ({"email": 5}, "email"),
        ({"password": ["x"]}, "password"),
        ({"account_name": {"a": 1}}, "account_name"),
        ({"account_name": "x" * 201}, "account_name"),
        ({"role": "admin"}, "role"),
        ({"account_id": "00000000-0000-0000-0000-000000000000"}, "account_id"),
        ({"email_verified": True}, "email_verified"),
    ],
)
def test_registration_body_with_wrong_shape_is_422(
    anyone: Caller, changes: dict[str, Any], loc: str
) -> None:
    answer = anyone.post("auth/register", {**BODY, **changes})
    assert answer.status_code == 422
    assert [one["loc"] for one in answer.json["detail"]] == [["body", loc]]


@pytest.mark.parametrize("absent", ["email", "password"])
def test_registration_with_missing_field_is_422(anyone: Caller, absent: str) -> None:
    body = {name: value for name, value in BODY.items() if name != absent}
    answer = anyone.post("auth/register", body)
    assert (answer.status_code, answer.json["detail"][0]["loc"]) == (422, ["body", absent])


def test_registration_without_name_and_slug_is_422(anyone: Caller) -> None:
    answer = anyone.post("auth/register", {"email": "a@b.example", "password": PASSWORD})
    assert (answer.status_code, answer.json["detail"][0]["type"]) == (422, "missing")


@pytest.mark.parametrize("slug", ["acme", "system"])
@pytest.mark.parametrize("form", ["account_slug", "account"])
def test_registration_with_taken_slug_is_409_and_stores_nothing(
    app: Flask, anyone: Caller, slug: str, form: str
) -> None:
    make_account(app, "acme")
    before = (count(app, Account), count(app, User), count(app, Job))
    body = {form: slug, "email": "eve@evil.example", "password": PASSWORD}
    answer = anyone.post("auth/register", body)
    assert (answer.status_code, answer.json["error"]) == (409, "conflict")
    assert answer.json["field"] == "account_slug"
    assert (count(app, Account), count(app, User), count(app, Job)) == before


def test_account_codes_are_consecutive_after_refused_registration(anyone: Caller) -> None:
    def register(slug: str) -> Any:
        return anyone.post("auth/register", {**BODY, "account_slug": slug}).json

    assert register("one")["account"]["account_code"] == "AA0001"
    assert register("one"), "taken"
    assert register("two-")["account"]["account_code"] == "AA0002"


def test_registration_of_several_accounts_with_one_email(anyone: Caller) -> None:
    for slug in ("one", "two"):
        assert anyone.post("auth/register", {**BODY, "account_slug": slug}).status_code == 201


def test_user_email_is_unique_per_account_in_any_case(app: Flask) -> None:
    acme = make_account(app, "acme")
    make_user(app, acme, "ann@acme.example")
    with pytest.raises(Conflict):
        make_user(app, acme, "ANN@Acme.Example")


SAME = [
    ("n@b\u00fccher.example", "n@xn--bcher-kva.example", "N@B\u00dcCHER.example"),
    ("m@example.com", "m@\uff45xample.com", "m@Example.com"),
    ("\u00e9@acme.example", "e\u0301@acme.example", "\u00c9@acme.example"),
]


@pytest.mark.parametrize("spellings", SAME)
def test_user_email_is_unique_per_mailbox_in_any_spelling(
    app: Flask, anyone: Caller, spellings: tuple[str, ...]
) -> None:
    acme = make_account(app, "acme")
    for first in spellings:
        for second in spellings:
            assert accounts.email_key(first) == accounts.email_key(second)
    make_user(app, acme, spellings[0])
    with pytest.raises(Conflict):
        make_user(app, acme, spellings[1])
    login = {"account": "acme", "email": spellings[2], "password": PASSWORD}
    assert anyone.post("auth/login", login).status_code == 200


def test_user_emails_of_different_mailboxes_coexist(app: Flask) -> None:
    acme = make_account(app, "acme")
    for email in (
        "\ufb01@acme.example",
        "fi@acme.example",
        "stra\u00dfe@a.example",
        "strasse@a.example",
    ):
        make_user(app, acme, email)


def test_registration_enqueues_mail_and_creates_no_token(app: Flask, anyone: Caller) -> None:
    assert anyone.post("auth/register", BODY).status_code == 201
    assert (count(app, Job), count(app, MailedToken)) == (1, 0)


def test_registration_concurrently_50_times_gives_50_account_codes(
    app: Flask, anyone: Caller
) -> None:
    def register(number: int) -> Any:
        return anyone.post("auth/register", {**BODY, "account_slug": f"acme-{number}"})

    answers = at_once(50, register)
    assert {answer.status_code for answer in answers} == {201}
    codes_given = sorted(answer.json["account"]["account_code"] for answer in answers)
    assert codes_given == [f"AA{number:04}" for number in range(1, 51)]
    assert len({answer.json["account"]["slug"] for answer in answers}) == 50


def test_registration_concurrent_with_one_slug_succeeds_once(app: Flask, anyone: Caller) -> None:
    answers = at_once(20, lambda _: anyone.post("auth/register", BODY))
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 19
    assert {answer.json.get("field") for answer in answers} == {None, "account_slug"}
    assert count(app, Account) == 2


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (1, "AA0001"),
        (9999, "AA9999"),
        (10_000, "AB0001"),
        (26 * 9999, "AZ9999"),
        (26 * 9999 + 1, "BA0001"),
        ((18 * 26 + 24) * 9999, "SX9999"),
        ((18 * 26 + 24) * 9999 + 1, "SZ0001"),
        (675 * 9999, "ZZ9999"),
    ],
)
def test_account_codes_follow_letter_pairs_in_order(number: int, code: str) -> None:
    assert accounts.account_code(number) == code


def test_account_codes_are_unique_and_never_sy() -> None:
    given = [accounts.account_code(pair * 9999 + 1) for pair in range(675)]
    assert len(set(given)) == 675
    assert given == sorted(given)
    assert not any(code.startswith("SY") for code in given)


def test_account_code_after_the_last_raises_conflict() -> None:
    with pytest.raises(Conflict):
        accounts.account_code(675 * 9999 + 1)


HOST_NAMES = (
    *("www", "api", "admin", "login", "sso", "console", "support"),
    *("mail", "docs", "static", "app", "help", "status", "auth"),
)


@pytest.mark.parametrize("slug", HOST_NAMES)
def test_account_slug_reserved_for_service_hosts_is_slug_invalid(
    anyone: Caller, root: Caller, slug: str
) -> None:
    for form in ({"account_slug": slug}, {"account": slug}):
        body = {**form, "email": "eve@evil.example", "password": PASSWORD}
        refused = anyone.post("auth/register", body)
        assert refused.status_code == 400
        assert "reserved for the service" in refused.json["details"][0]["message"]
    for body in ({"name": "Evil", "slug": slug}, {"name": slug}):
        assert root.post("accounts", body).json["details"][0]["code"] == "slug_invalid"


def test_account_slug_reserved_later_stays_with_its_account(app: Flask, cast: Cast) -> None:
    user = make_user(app, make_account(app, "docs"), "dora@docs.example", "admin")
    dora = Caller(app, user)
    assert dora.get("account").json["slug"] == "docs"
    assert dora.patch("account", {"name": "Documents"}).status_code == 200
    renamed = cast.root.patch(f"accounts/{user.account_id}", {"name": "Docs"})
    assert (renamed.status_code, renamed.json["slug"]) == (200, "docs")
