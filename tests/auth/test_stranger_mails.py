"""Mails to addresses that nobody has verified: how many, in whose name, with which words."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import timedelta
from email.message import EmailMessage
from typing import Any

import pytest
import time_machine
from flask import Flask

from app import clock, db
from app.accounts.models import Account
from app.auth import stranger_mails
from app.outbound import mail
from tests.auth.test_lockout import limit
from tests.builders import Caller, Cast
from tests.console.browser import Browser
from tests.mailbox import body_of, outbox, run_jobs

EVIL = (
    "Payroll: confirm your salary account at https://evil.example/pay?id=8812 before Friday or it"
    " will be suspended - IT Security"
)


def somebody() -> str:
    return f"{secrets.token_hex(6)}@victim.example"


def mailed(app: Flask) -> EmailMessage:
    """The newest mail."""
    run_jobs(app)
    return outbox(app)[-1]


def invite(cast: Cast) -> Any:
    return cast.alice.post("invitations", {"email": somebody()})


def invite_again(cast: Cast) -> Any:
    page = cast.alice.get("invitations").json["items"]
    if not page:
        page = [cast.alice.post("invitations", {"email": somebody()}).json]
    return cast.alice.post(f"invitations/{page[0]['id']}/resend")


def send_setup_link(cast: Cast) -> Any:
    for link in cast.alice.get("account/setup-links").json["items"]:
        cast.alice.delete(f"account/setup-links/{link['id']}")
    return cast.alice.post("account/setup-links", {"name": "IT", "email": somebody()})


def create_user(cast: Cast) -> Any:
    return cast.alice.post("account/users", {"email": somebody()})


def change_address(cast: Cast) -> Any:
    return cast.alice.patch(f"account/users/{cast.bob.id}", {"email": somebody()})


def ask_for_verification(cast: Cast) -> Any:
    return cast.alice.post("auth/send-verification", {"email": cast.bob.email})


WAYS: list[Callable[[Cast], Any]] = [
    *(invite, invite_again, send_setup_link, create_user),
    *(change_address, ask_for_verification),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_stranger_mail_limit_per_account_applies_to_every_route(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch, way: Callable[[Cast], Any]
) -> None:
    limit(app, monkeypatch, mails_per_new_account=2)
    made = 1 if way is invite_again else 0  # the invitation itself counts, too
    seen = [way(cast).status_code for _ in range(3 - made)]
    assert {status // 100 for status in seen[:-1]} <= {2}
    assert seen[-1] == 429
    sent = len(outbox(app))
    run_jobs(app)
    assert len(outbox(app)) - sent <= 3, "two, and one to the address of before"
    other = cast.charlie.post("invitations", {"email": somebody()})
    assert other.status_code == 201, "another account has mails of its own"


@pytest.mark.long
def test_stranger_mail_limit_is_50_for_new_account(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(app, monkeypatch)
    seen = [invite(cast).status_code for _ in range(52)]
    assert seen == [201] * 50 + [429] * 2
    with app.app_context(), db.transaction() as session:
        account = session.get_one(Account, cast.alice.account_id)
        account.created_at = clock.now() - timedelta(days=8)
    assert invite(cast).status_code == 201


def test_stranger_mail_limit_applies_to_console_bulk_invitations(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = Browser(app, cast.alice)
    limit(app, monkeypatch, mails_per_new_account=3)
    emails = "\n".join(somebody() for _ in range(4))
    assert alice.send("team/invite", email=emails, role="viewer").status_code == 429
    assert run_jobs(app) == 0


def test_stranger_mail_limit_exempts_superadmins(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(app, monkeypatch, mails_per_new_account=0, mails_per_account=0)
    root = cast.root.acting_in("acme")
    assert root.post("invitations", {"email": somebody()}).status_code == 201
    user = {"email": somebody(), "account_id": cast.alice.account_id}
    assert cast.root.post("users", user).status_code == 201
    assert invite(cast).status_code == 429


def test_stranger_mail_limit_of_account_ignores_own_email_changes(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(app, monkeypatch, mail_tries=3, mails_per_new_account=3)
    seen = [cast.bob.patch("auth/me", {"email": somebody()}).status_code for _ in range(4)]
    assert seen == [200] * 3 + [429]
    assert invite(cast).status_code == 201


def test_stranger_mails_count_toward_mail_quota(app: Flask, cast: Cast) -> None:
    path = f"accounts/{cast.alice.account_id}/quotas"
    assert cast.root.patch(path, {"mails": {"hard": 1}}).status_code == 200
    assert invite(cast).status_code == 201
    run_jobs(app)
    refused = invite(cast)
    assert (refused.status_code, refused.json["error"]) == (429, "quota_exceeded")
    assert create_user(cast).json["error"] == "quota_exceeded"
    used = cast.alice.get("account/usage").json["meters"]["mails"]["used"]
    assert used == 1


@pytest.mark.parametrize("way", [invite, send_setup_link, create_user, change_address])
def test_stranger_mails_are_plain_text_and_name_the_sender(
    app: Flask, cast: Cast, way: Callable[[Cast], Any]
) -> None:
    cast.alice.patch("auth/me", {"name": "Al www.evil.example"})
    assert cast.alice.patch("account", {"name": EVIL}).status_code == 200
    assert way(cast).status_code // 100 == 2
    run_jobs(app)
    sent = [one for one in outbox(app) if str(one["To"]).endswith("@victim.example")][-1]
    assert sent["Auto-Submitted"] == "auto-generated"
    for text in (str(sent["Subject"]), body_of(sent), body_of(sent, "html")):
        assert "evil.example" not in text
        assert "8812" not in text
    text = " ".join(body_of(sent).split())
    assert 'the account named "Payroll: confirm your salary' in text
    assert f"Al evil example ({cast.alice.email}) caused this mail." in text
    assert "Report it to atrium@localhost." in text


def test_stranger_mails_name_the_abuse_address(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(app, monkeypatch, abuse_email="abuse@op.example")
    invite(cast)
    assert "Report it to abuse@op.example." in body_of(mailed(app))


SHOWN = {
    "Acme": "Acme",
    "Müller & Söhne GmbH": "Müller & Söhne GmbH",
    "Acme Inc.": "Acme Inc.",
    "شرکت می‌خواهم": "شرکت می‌خواهم",
    "https://evil.example/x": "https evil example/x",
    "WWW.evil.example": "evil example",
    "evil。example": "evil example",
    "evil\uff0eexample": "evil example",
    "x =?utf-8?q?y?=": "x = ?utf-8?q?y?=",
    "a\u202eb\u200b": "ab",
    "x" * 61: "x" * 59 + "…",
}


@pytest.mark.parametrize("name", SHOWN)
def test_names_in_mails_are_shortened_and_stripped_of_links(name: str) -> None:
    assert mail.plain_name(name) == SHOWN[name]


def test_invitation_to_same_email_cancels_the_former(
    app: Flask, cast: Cast, anyone: Caller
) -> None:
    first, second = (
        cast.alice.post("invitations", {"email": email}).json
        for email in ("Guest@acme.example", "guest@acme.example")
    )
    states = {one["id"]: one["status"] for one in cast.alice.get("invitations").json["items"]}
    assert states == {first["id"]: "cancelled", second["id"]: "pending"}
    accepted = [
        anyone.post(f"invitations/{one['token']}/accept", {"password": "Correct-horse-2"})
        for one in (first, second)
    ]
    assert [answer.status_code for answer in accepted] == [400, 200]


def test_invitation_resend_cancels_newer_invitation(app: Flask, cast: Cast) -> None:
    old = cast.alice.post("invitations", {"email": "guest@acme.example"}).json
    with time_machine.travel(clock.now() + timedelta(hours=49)):
        admin = Caller(app, Authorization=f"Bearer {_login(app, cast.alice)}")
        new = admin.post("invitations", {"email": "guest@acme.example"}).json
        assert admin.post(f"invitations/{old['id']}/resend").status_code == 200
        states = {one["id"]: one["status"] for one in admin.get("invitations").json["items"]}
    assert states == {old["id"]: "pending", new["id"]: "cancelled"}


def _login(app: Flask, user: Caller) -> str:
    body = {"account": user.slug, "email": user.email, "password": "Correct-horse-1"}
    return str(Caller(app).post("auth/login", body).json["token"])


def test_stranger_mail_limit_of_new_account_is_at_most_the_general_one(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(app, monkeypatch, mails_per_account=20)
    with app.app_context():
        assert stranger_mails.limit(cast.alice.account_id).limit.tries == 20
