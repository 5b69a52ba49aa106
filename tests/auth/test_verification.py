"""Verification of addresses: the mailed link, and asking for another."""

from __future__ import annotations

from datetime import timedelta
from threading import Thread
from typing import Any

import pytest
import sqlalchemy as sa
import time_machine
from flask import Flask
from werkzeug.test import TestResponse

from app import clock
from app.accounts import service as accounts
from app.accounts.models import ADMIN, User
from app.auth.models import ApiKey, MailedToken
from app.db import db, transaction
from tests.builders import PASSWORD, Caller, change_user, make_account, make_user
from tests.mailbox import body_of, check_alike, link_in, outbox, run_jobs, token_in
from tests.parallel import at_once

BODY = {
    "account": "acme",
    "account_name": "Acme",
    "email": "ann@acme.example",
    "password": PASSWORD,
}
LOGIN = {"account": "acme", "email": "ann@acme.example", "password": PASSWORD}
JSON = {"Accept": "application/json"}
BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@pytest.fixture
def ann(app: Flask) -> Caller:
    """A user who has not verified her address."""
    return Caller(
        app, make_user(app, make_account(app, "acme"), "ann@acme.example", verified=False)
    )


def mailed_token(app: Flask, anyone: Caller) -> str:
    anyone.post("auth/resend-verification", {"account": "acme", "email": "ann@acme.example"})
    run_jobs(app)
    return token_in(outbox(app)[-1])


def follow(caller: Caller, token: str, **headers: str) -> Any:
    return caller.get(f"/auth/verify-email?token={token}", headers={**JSON, **headers})


def refused(answer: Any) -> bool:
    return (answer.status_code, answer.json["error"]) == (400, "invalid_token")


def is_verified(caller: Caller) -> bool:
    with caller.app.app_context():
        verified = sa.select(User.email_verified).where(User.id == caller.id)
        return bool(db.session.scalar(verified))


def test_registration_mail_link_verifies_email(app: Flask, anyone: Caller) -> None:
    user = anyone.post("auth/register", BODY).json["user"]
    assert anyone.post("auth/login", LOGIN).json["error"] == "email_not_verified"
    assert outbox(app) == []
    run_jobs(app)
    (mail,) = outbox(app)
    assert mail["To"] == "ann@acme.example"
    assert "Welcome to Acme." in body_of(mail)
    answer = follow(anyone, token_in(mail))
    assert answer.status_code == 200
    expected = {"id": user["id"], "email": "ann@acme.example", "email_verified": True}
    assert answer.json["user"] == expected
    assert answer.json["message"]
    signed_in = anyone.post("auth/login", LOGIN)
    assert signed_in.status_code == 200
    assert signed_in.json["user"]["email_verified_at"] is not None


def test_verification_token_by_api_verifies_email(app: Flask, anyone: Caller, ann: Caller) -> None:
    answer = anyone.post("auth/verify-email", {"token": mailed_token(app, anyone)})
    assert (answer.status_code, answer.json["user"]["email_verified"]) == (200, True)
    assert is_verified(ann)
    # Her token was there while nobody had proved the address.
    assert ann.get("auth/me").status_code == 401


def test_verification_with_clock_ahead_keeps_user_working(
    app: Flask, anyone: Caller, ann: Caller
) -> None:
    token = mailed_token(app, anyone)
    with time_machine.travel(clock.now() + timedelta(seconds=30)):
        assert follow(anyone, token).status_code == 200
    signed_in = anyone.post("auth/login", LOGIN).json
    renewed = anyone.post("auth/refresh", {"refresh_token": signed_in["refresh_token"]}).json
    for its in (signed_in, renewed):
        headers = {"Authorization": f"Bearer {its['access_token']}"}
        assert anyone.get("auth/me", headers=headers).status_code == 200
    assert ann.get("auth/me").status_code == 401
    changed = anyone.patch("auth/me", {"email": "new@acme.example"}, headers=headers)
    assert changed.status_code == 200
    run_jobs(app)
    assert outbox(app)[-1]["To"] == "new@acme.example"


def test_email_change_requested_before_verification_is_not_mailed(
    app: Flask, anyone: Caller, ann: Caller
) -> None:
    token = mailed_token(app, anyone)
    assert ann.patch("auth/me", {"email": "evil@acme.example"}).status_code == 200
    follow(anyone, token)
    before = len(outbox(app))
    run_jobs(app)
    assert len(outbox(app)) == before


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("POST", "api-keys", {"name": "k"}), ("PATCH", "auth/me", {"email": "evil@acme.example"})],
)
def test_writes_concurrent_with_verification_are_401(
    app: Flask, ann: Caller, method: str, path: str, body: dict[str, str]
) -> None:
    answers = list[TestResponse]()
    other = Thread(target=lambda: answers.append(ann(method, path, body)))
    with app.app_context(), transaction() as session:
        accounts.verify_email(session.get_one(User, (ann.account_id, ann.id)))
        other.start()
        other.join(0.3)
    other.join()
    assert [answer.status_code for answer in answers] == [401]
    run_jobs(app)
    assert outbox(app) == []
    with app.app_context():
        assert db.session.scalars(sa.select(ApiKey.id)).all() == []


def test_verification_link_ignores_request_host(app: Flask, anyone: Caller) -> None:
    spoofed = {"Host": "evil.example", "X-Forwarded-Host": "evil.example"}
    assert anyone.post("auth/register", BODY, headers=spoofed).status_code == 201
    run_jobs(app)
    (mail,) = outbox(app)
    assert link_in(mail).startswith("http://atrium.test/auth/verify-email?token=")
    assert "evil" not in mail.as_string()


def test_verification_token_is_stored_as_hash_only(app: Flask, anyone: Caller, ann: Caller) -> None:
    token = mailed_token(app, anyone)
    assert len(token.partition("-")[2]) >= 43
    with app.app_context():
        row = db.session.execute(sa.select(MailedToken.__table__)).one()
    assert len(row.token_hash) == 64
    assert token not in str(row)
    lifetime = row.expires_at - row.created_at
    assert timedelta(minutes=59) < lifetime <= timedelta(hours=1, seconds=1)


def test_verification_link_works_once(app: Flask, anyone: Caller, ann: Caller) -> None:
    token = mailed_token(app, anyone)
    assert follow(anyone, token).status_code == 200
    assert refused(follow(anyone, token))
    assert refused(anyone.post("auth/verify-email", {"token": token}))
    assert is_verified(ann)


def test_verification_concurrent_uses_succeed_once(app: Flask, anyone: Caller, ann: Caller) -> None:
    token = mailed_token(app, anyone)
    answers = at_once(8, lambda _: follow(anyone, token))
    assert sorted(answer.status_code for answer in answers) == [200] + [400] * 7


@pytest.mark.parametrize(("minutes", "status"), [(59, 200), (61, 400)])
def test_verification_link_expires_after_one_hour(
    app: Flask, anyone: Caller, ann: Caller, minutes: int, status: int
) -> None:
    token = mailed_token(app, anyone)
    with time_machine.travel(clock.now() + timedelta(minutes=minutes)):
        assert follow(anyone, token).status_code == status


def test_verification_link_survives_head_request(app: Flask, anyone: Caller, ann: Caller) -> None:
    token = mailed_token(app, anyone)
    answer = anyone("HEAD", f"/auth/verify-email?token={token}", headers=JSON)
    assert answer.status_code == 200
    assert not is_verified(ann)
    assert follow(anyone, token).status_code == 200


@pytest.mark.parametrize("token", ["x", "-", "AA0001-", "AA0001-x", "é", "'--", ""])
def test_verification_with_bad_token_is_invalid_token(
    anyone: Caller, ann: Caller, token: str
) -> None:
    assert refused(follow(anyone, token))


@pytest.mark.parametrize("body", [{}, {"token": None}, {"token": 5}, {"token": "x", "more": 1}])
def test_verification_body_with_wrong_shape_is_422(anyone: Caller, body: Any) -> None:
    assert anyone.post("auth/verify-email", body).status_code == 422


def test_verification_token_with_code_of_other_account_is_refused(
    app: Flask, anyone: Caller, ann: Caller
) -> None:
    make_account(app, "globex")
    token = mailed_token(app, anyone)
    assert token.startswith("AA0001-")
    assert refused(follow(anyone, token.replace("AA0001", "AA0002")))


def test_verification_link_in_browser_is_html_page(app: Flask, anyone: Caller, ann: Caller) -> None:
    answer = follow(anyone, mailed_token(app, anyone), **BROWSER)
    assert (answer.status_code, answer.mimetype) == (200, "text/html")
    assert "ann@acme.example" in answer.text
    assert not is_verified(ann)
    assert "Accept" in answer.headers["Vary"]
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize("path", ["?token=used-up", "", "?token=a&token=b", "?token=%00"])
def test_verification_link_with_bad_token_is_html_page_in_browser(
    anyone: Caller, path: str
) -> None:
    chrome = "text/html,application/xml;q=0.9,*/*;q=0.8,application/signed-exchange;v=b3;q=0.7"
    page = anyone.get(f"/auth/verify-email{path}", headers={"Accept": chrome})
    told = anyone.get(f"/auth/verify-email{path}", headers=JSON)
    assert (page.status_code, page.mimetype) == (told.status_code, "text/html")
    assert "invalid or has expired" in page.text
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert told.status_code in (400, 422)
    assert told.mimetype == "application/json"


def test_login_reports_unverified_email_only_with_right_password(
    anyone: Caller, ann: Caller
) -> None:
    right = anyone.post("auth/login", LOGIN)
    assert (right.status_code, right.json["error"]) == (401, "email_not_verified")
    assert "inbox" in right.json["message"]
    assert right.headers["WWW-Authenticate"] == "Bearer"
    assert "Set-Cookie" not in right.headers
    wrong = anyone.post("auth/login", {**LOGIN, "password": "Wrong-horse-1"})
    assert (wrong.status_code, wrong.json["error"]) == (401, "authentication_failed")


def test_verification_keeps_three_links_until_one_is_used(
    app: Flask, anyone: Caller, ann: Caller
) -> None:
    first, second, third, fourth = (mailed_token(app, anyone) for _ in range(4))
    assert len({first, second, third, fourth}) == 4
    assert refused(follow(anyone, second))
    assert follow(anyone, third).status_code == 200
    for other in (first, fourth):
        assert refused(follow(anyone, other))


ADDRESSES = {
    "known": ("acme", "ann@acme.example"),
    "known by code and in capitals": ("aa0001", " ANN@ACME.example "),
    "verified": ("acme", "done@acme.example"),
    "inactive": ("acme", "gone@acme.example"),
    "unknown": ("acme", "nobody@acme.example"),
    "of no account": ("nowhere", "ann@acme.example"),
    "no address": ("acme", "nobody"),
}
MAILED = {"known", "known by code and in capitals"}


def test_verification_resend_response_does_not_reveal_address(app: Flask, ann: Caller) -> None:
    make_user(app, ann.account_id, "done@acme.example")
    gone = make_user(app, ann.account_id, "gone@acme.example", verified=False)
    change_user(app, gone.id, is_active=False)
    bodies = {
        case: {"account": account, "email": email} for case, (account, email) in ADDRESSES.items()
    }
    check_alike(app, "auth/resend-verification", bodies, MAILED)


def test_verification_resend_account_comes_from_host(
    app: Flask, anyone: Caller, ann: Caller
) -> None:
    body = {"email": "ann@acme.example"}
    at_acme = {"Host": "acme.atrium.test"}
    assert anyone.post("auth/resend-verification", body, headers=at_acme).status_code == 200
    assert run_jobs(app) == len(outbox(app)) == 1
    nowhere = anyone.post("auth/resend-verification", body)
    assert [d["code"] for d in nowhere.json["details"]] == ["required"]


@pytest.mark.parametrize("body", [{}, {"email": "ann@acme.example"}, {"email": "ANN@acme.example"}])
def test_send_verification_to_own_email(app: Flask, ann: Caller, body: dict[str, str]) -> None:
    assert ann.post("auth/send-verification", body).status_code == 200
    run_jobs(app)
    assert [mail["To"] for mail in outbox(app)] == ["ann@acme.example"]


@pytest.mark.parametrize(
    ("who", "email", "status", "mailed"),
    [
        ("alice", "new@acme.example", 200, ["new@acme.example"]),
        ("alice", "new@globex.example", 200, []),
        ("alice", "nobody@acme.example", 200, []),
        ("bob", "new@acme.example", 403, []),
        ("bob", "nobody@acme.example", 403, []),
        ("charlie", "new@acme.example", 200, []),
        ("root", "new@acme.example", 200, []),
    ],
)
def test_send_verification_by_admin_to_user_of_own_account(
    app: Flask, cast: Any, who: str, email: str, status: int, mailed: list[str]
) -> None:
    make_user(app, cast.alice.account_id, "new@acme.example", verified=False)
    make_user(app, cast.charlie.account_id, "new@globex.example", verified=False)
    answer = getattr(cast, who).post("auth/send-verification", {"email": email})
    assert answer.status_code == status
    run_jobs(app)
    assert [mail["To"] for mail in outbox(app)] == mailed


def test_send_verification_by_superadmin_to_user_of_acting_account(
    app: Flask, root: Caller
) -> None:
    acme = make_user(
        app, make_account(app, "initech"), "new@initech.example", ADMIN, verified=False
    )
    acting = root.acting_in("initech")
    assert acting.post("auth/send-verification", {"email": acme.email}).status_code == 200
    run_jobs(app)
    assert [mail["To"] for mail in outbox(app)] == ["new@initech.example"]


def test_send_verification_without_credential_is_401(anyone: Caller) -> None:
    assert anyone.post("auth/send-verification", {}).status_code == 401
