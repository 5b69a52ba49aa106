"""Forgotten and changed passwords, the own profile, and the sessions they end."""

from __future__ import annotations

from datetime import timedelta
from http.cookies import SimpleCookie
from typing import Any

import pytest
import sqlalchemy as sa
import time_machine
from flask import Flask

from app import clock, db
from app.auth.models import MailedToken, SignInSession
from app.jobs import Job
from tests.builders import PASSWORD, Caller, change_user, make_user
from tests.mailbox import check_alike, link_in, outbox, run_jobs, token_in
from tests.parallel import at_once

NEW = "Better-horse-2"
BOB = {"account": "acme", "email": "bob@acme.example"}


def login(caller: Caller, password: str = PASSWORD, **body: Any) -> Any:
    return caller.post("auth/login", {**BOB, "password": password, **body})


def mailed_token(app: Flask, caller: Caller, **body: str) -> str:
    assert caller.post("auth/forgot-password", {**BOB, **body}).status_code == 200
    run_jobs(app)
    return token_in(outbox(app)[-1])


def reset(caller: Caller, token: str, password: str = NEW) -> Any:
    return caller.post("auth/reset-password", {"token": token, "new_password": password})


def outcome(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json["error"]


def alive(app: Flask) -> int:
    """How many sessions, of whatever kind, have not been ended."""
    with app.app_context():
        mine = sa.select(sa.func.count()).where(SignInSession.revoked_at.is_(None))
        return db.db.session.scalar(mine) or 0


def sign_in_to_the_console(app: Flask) -> None:
    with app.app_context(), db.transaction() as session:
        row = session.scalars(sa.select(SignInSession)).first()
        assert row is not None
        copied = ("account_id", "user_id", "expires_at")
        values = {name: getattr(row, name) for name in copied}
        session.add(SignInSession(kind="console", token_hash="x", **values))


ADDRESSES = {
    "known": BOB,
    "by code, in capitals": {"account": "aa0001", "email": " BOB@ACME.example "},
    "unverified": {**BOB, "email": "new@acme.example"},
    "inactive": {**BOB, "email": "gone@acme.example"},
    "unknown": {**BOB, "email": "nobody@acme.example"},
    "of no account": {**BOB, "account": "nowhere"},
    "of another account": {**BOB, "account": "globex"},
    "no address": {**BOB, "email": "nobody"},
}
MAILED = {"known", "by code, in capitals", "unverified"}


def test_forgot_password_response_does_not_reveal_address(app: Flask, alice: Caller) -> None:
    make_user(app, alice.account_id, "new@acme.example", verified=False)
    gone = make_user(app, alice.account_id, "gone@acme.example")
    change_user(app, gone.id, is_active=False)
    check_alike(app, "auth/forgot-password", ADDRESSES, MAILED)


def test_forgot_password_account_comes_from_host(app: Flask, anyone: Caller, bob: Caller) -> None:
    body = {"email": bob.email}
    at_acme = {"Host": "acme.atrium.test"}
    assert anyone.post("auth/forgot-password", body, headers=at_acme).status_code == 200
    assert run_jobs(app) == len(outbox(app)) == 1
    nowhere = anyone.post("auth/forgot-password", body)
    assert [d["code"] for d in nowhere.json["details"]] == ["required"]


def test_password_reset_link_works_once(app: Flask, anyone: Caller, bob: Caller) -> None:
    token = mailed_token(app, anyone)
    assert outbox(app)[-1]["To"] == bob.email
    assert link_in(outbox(app)[-1]).startswith("http://atrium.test/welcome/reset-password?token=")
    assert reset(anyone, token).status_code == 200
    assert login(anyone).status_code == 401
    assert login(anyone, NEW).status_code == 200
    assert outcome(reset(anyone, token, PASSWORD)) == (400, "invalid_token")
    assert login(anyone, NEW).status_code == 200


def test_password_reset_link_ignores_request_host(app: Flask, anyone: Caller, bob: Caller) -> None:
    spoofed = {"Host": "evil.example", "X-Forwarded-Host": "evil.example"}
    assert anyone.post("auth/forgot-password", BOB, headers=spoofed).status_code == 200
    run_jobs(app)
    assert "evil" not in outbox(app)[0].as_string()


@pytest.mark.usefixtures("real_hashes")
def test_password_reset_concurrent_uses_succeed_once(
    app: Flask, anyone: Caller, bob: Caller
) -> None:
    token = mailed_token(app, anyone)
    answers = at_once(8, lambda number: reset(anyone, token, f"{NEW}{number}").status_code)
    assert sorted(answers) == [200] + [400] * 7
    assert login(anyone, f"{NEW}{answers.index(200)}").status_code == 200


@pytest.mark.parametrize(("minutes", "status"), [(59, 200), (61, 400)])
def test_password_reset_link_expires_after_one_hour(
    app: Flask, anyone: Caller, bob: Caller, minutes: int, status: int
) -> None:
    token = mailed_token(app, anyone)
    with time_machine.travel(clock.now() + timedelta(minutes=minutes)):
        assert anyone.get(f"auth/verify-reset-token/{token}").json["valid"] is (status == 200)
        assert reset(anyone, token).status_code == status


def test_password_reset_keeps_three_links_until_one_is_used(
    app: Flask, anyone: Caller, bob: Caller
) -> None:
    first, second, third, fourth = (mailed_token(app, anyone) for _ in range(4))
    assert outcome(reset(anyone, second)) == (400, "invalid_token")
    assert reset(anyone, third).status_code == 200
    for other in (first, fourth):
        assert outcome(reset(anyone, other)) == (400, "invalid_token")


def test_password_change_voids_reset_link(app: Flask, anyone: Caller, bob: Caller) -> None:
    token = mailed_token(app, anyone)
    body = {"current_password": PASSWORD, "new_password": NEW}
    assert bob.post("auth/change-password", body).status_code == 200
    assert outcome(reset(anyone, token, PASSWORD)) == (400, "invalid_token")


def test_password_reset_link_to_former_email_is_invalid_token(
    app: Flask, anyone: Caller, bob: Caller
) -> None:
    token = mailed_token(app, anyone)
    change_user(app, bob.id, email="b@acme.example", email_key="b@acme.example")
    assert outcome(reset(anyone, token)) == (400, "invalid_token")


def test_password_reset_verifies_email(app: Flask, anyone: Caller, alice: Caller) -> None:
    make_user(app, alice.account_id, "new@acme.example", verified=False)
    new = {"email": "new@acme.example"}
    assert outcome(login(anyone, **new)) == (401, "email_not_verified")
    assert reset(anyone, mailed_token(app, anyone, **new)).status_code == 200
    assert login(anyone, NEW, **new).json["user"]["email_verified"] is True


def test_password_reset_ends_all_sessions(app: Flask, anyone: Caller, bob: Caller) -> None:
    pair = login(anyone).json
    sign_in_to_the_console(app)
    assert alive(app) == 2
    reset(anyone, mailed_token(app, anyone))
    assert alive(app) == 0
    body = {"refresh_token": pair["refresh_token"]}
    assert anyone.post("auth/refresh", body).status_code == 401


@pytest.mark.parametrize("token", ["x", "", "-", "AA0001-", "AA0001-x", "é"])
def test_password_reset_with_bad_token_is_invalid_token(
    anyone: Caller, bob: Caller, token: str
) -> None:
    assert outcome(reset(anyone, token)) == (400, "invalid_token")
    if token:
        seen = anyone.get(f"auth/verify-reset-token/{token}")
        assert (seen.status_code, seen.json) == (200, {"valid": False, "expires_at": None})


def test_password_reset_with_verification_token_is_invalid_token(
    app: Flask, anyone: Caller, alice: Caller
) -> None:
    make_user(app, alice.account_id, "new@acme.example", verified=False)
    new = {"account": "acme", "email": "new@acme.example"}
    anyone.post("auth/resend-verification", new)
    run_jobs(app)
    assert outcome(reset(anyone, token_in(outbox(app)[-1]))) == (400, "invalid_token")
    token = mailed_token(app, anyone, **new)
    verified = anyone.post("auth/verify-email", {"token": token})
    assert outcome(verified) == (400, "invalid_token")


def test_password_reset_with_weak_password_keeps_token(
    app: Flask, anyone: Caller, bob: Caller
) -> None:
    token = mailed_token(app, anyone)
    weak = reset(anyone, token, "weak")
    assert weak.status_code == 400
    assert {(d["field"], d["code"]) for d in weak.json["details"]} == {
        ("new_password", "password_too_weak")
    }
    seen = anyone.get(f"auth/verify-reset-token/{token}").json
    assert (seen["valid"], seen["expires_at"] is None) == (True, False)
    assert reset(anyone, token).status_code == 200


def test_password_reset_of_deactivated_user_is_invalid_token(
    app: Flask, anyone: Caller, bob: Caller
) -> None:
    token = mailed_token(app, anyone)
    change_user(app, bob.id, is_active=False)
    assert outcome(reset(anyone, token)) == (400, "invalid_token")


def valid(caller: Caller, token: str) -> bool:
    return bool(caller.get(f"auth/verify-reset-token/{token}").json["valid"])


CLOSINGS: dict[str, tuple[str, str, Any]] = {
    "another address": ("PATCH", "users/{user}", {"email": "robert@acme.example"}),
    "deactivated": ("PATCH", "users/{user}", {"is_active": False}),
    "deleted": ("DELETE", "users/{user}", None),
    "account suspended": ("PATCH", "accounts/{account}", {"is_active": False}),
    "account closed": ("DELETE", "accounts/{account}", None),
}


@pytest.mark.parametrize("case", CLOSINGS)
def test_password_reset_link_ends_with_user_or_account(
    app: Flask, anyone: Caller, cast: Any, case: str
) -> None:
    token = mailed_token(app, anyone)
    assert valid(anyone, token)
    method, path, body = CLOSINGS[case]
    at = path.format(user=cast.bob.id, account=cast.bob.account_id)
    assert cast.root(method, at, body).status_code in (200, 204)
    assert not valid(anyone, token)
    assert outcome(reset(anyone, token)) == (400, "invalid_token")
    assert login(anyone, NEW).status_code == 401
    assert login(anyone, NEW, email="robert@acme.example").status_code == 401


def test_password_reset_link_to_replaced_own_email_is_invalid_token(
    app: Flask, anyone: Caller, bob: Caller
) -> None:
    token = mailed_token(app, anyone)
    bob.patch("auth/me", {"email": "robert@acme.example"})
    run_jobs(app)
    assert valid(anyone, token), "until the new address is verified, the old one is bob's"
    anyone.post("auth/verify-email", {"token": token_in(outbox(app)[-1])})
    assert bob.get("auth/me").json["email"] == "robert@acme.example"
    assert not valid(anyone, token)
    assert outcome(reset(anyone, token)) == (400, "invalid_token")


def test_suspended_account_sends_no_mails_and_verifies_nobody(
    app: Flask, anyone: Caller, cast: Any
) -> None:
    make_user(app, cast.alice.account_id, "new@acme.example", verified=False)
    new = {"account": "acme", "email": "new@acme.example"}
    anyone.post("auth/resend-verification", new)
    run_jobs(app)
    token = token_in(outbox(app)[-1])
    account = f"accounts/{cast.alice.account_id}"
    cast.root.patch(account, {"is_active": False})
    assert outcome(anyone.post("auth/verify-email", {"token": token})) == (400, "invalid_token")
    for path in ("auth/forgot-password", "auth/resend-verification"):
        assert anyone.post(path, new).status_code == 200
    run_jobs(app)
    assert len(outbox(app)) == 1


def test_mailed_token_is_stored_as_hash_only(app: Flask, anyone: Caller, bob: Caller) -> None:
    secret = mailed_token(app, anyone).partition("-")[2]
    with app.app_context():
        stored = [db.db.session.execute(sa.select(t.__table__)).all() for t in (MailedToken, Job)]
    assert all(stored)
    assert secret not in str(stored)


def test_password_change_ends_all_sessions(app: Flask, anyone: Caller, bob: Caller) -> None:
    pair = login(anyone).json
    sign_in_to_the_console(app)
    body = {"current_password": PASSWORD, "new_password": NEW}
    assert bob.post("auth/change-password", body).status_code == 200
    assert alive(app) == 0
    again = anyone.post("auth/refresh", {"refresh_token": pair["refresh_token"]})
    assert again.status_code == 401
    assert (login(anyone).status_code, login(anyone, NEW).status_code) == (401, 200)


@pytest.mark.parametrize(
    ("current", "new", "problems"),
    [
        ("Wrong-horse-1", NEW, {("current_password", "invalid_option")}),
        (PASSWORD, "weak", {("new_password", "password_too_weak")}),
        (
            "Wrong-horse-1",
            "weak",
            {("current_password", "invalid_option"), ("new_password", "password_too_weak")},
        ),
    ],
)
def test_password_change_reports_all_problems(
    app: Flask, anyone: Caller, bob: Caller, current: str, new: str, problems: set[Any]
) -> None:
    login(anyone)
    body = {"current_password": current, "new_password": new}
    answer = bob.post("auth/change-password", body)
    assert answer.status_code == 400
    assert {(d["field"], d["code"]) for d in answer.json["details"]} == problems
    assert alive(app) == 1
    assert login(anyone).status_code == 200


@pytest.mark.parametrize("revoke", [True, False, None])
@pytest.mark.parametrize("how", ["reset", "changed"])
def test_password_change_lists_api_keys_and_revokes_on_demand(
    app: Flask, anyone: Caller, alice: Caller, bob: Caller, how: str, revoke: bool | None
) -> None:
    keys = {
        name: who.post("api-keys", {"name": name}).json["key"]
        for name, who in {"nightly import": bob, "export": bob, "of alice": alice}.items()
    }
    over = bob.post("api-keys", {"name": "over"}).json["id"]
    assert bob.delete(f"api-keys/{over}").status_code == 204
    body = {"new_password": NEW, **({} if revoke is None else {"revoke_api_keys": revoke})}
    if how == "reset":
        token = mailed_token(app, anyone)
        answer = anyone.post("auth/reset-password", {"token": token, **body})
    else:
        answer = bob.post("auth/change-password", {"current_password": PASSWORD, **body})
    assert answer.status_code == 200
    names = [] if revoke else ["export", "nightly import"]
    assert (answer.json["active_api_keys"], answer.json["api_keys"]) == (len(names), names)
    statuses = {
        name: Caller(app, **{"X-API-Key": key}).get("auth/me").status_code
        for name, key in keys.items()
    }
    of_bob = 401 if revoke else 200
    assert statuses == {"nightly import": of_bob, "export": of_bob, "of alice": 200}


def test_password_change_without_credential_is_401(anyone: Caller) -> None:
    body = {"current_password": PASSWORD, "new_password": NEW}
    assert anyone.post("auth/change-password", body).status_code == 401


def test_profile_name_change_applies_at_once(app: Flask, bob: Caller) -> None:
    assert bob.patch("auth/me", {"name": "Bob B."}).json["name"] == "Bob B."
    assert bob.get("auth/me").json["name"] == "Bob B."
    assert bob.patch("auth/me", {"name": None}).json["name"] is None
    assert bob.patch("auth/me", {"name": "two\nlines"}).status_code == 400
    assert bob.patch("auth/me", {"role": "admin"}).status_code == 422
    assert run_jobs(app) == 0


def test_profile_email_change_applies_after_verification(
    app: Flask, anyone: Caller, bob: Caller
) -> None:
    answer = bob.patch("auth/me", {"email": " Robert@acme.example "})
    assert (answer.status_code, answer.json["email"]) == (200, bob.email)
    run_jobs(app)
    (mail,) = outbox(app)
    assert mail["To"] == "Robert@acme.example"
    assert login(anyone).status_code == 200
    assert anyone.post("auth/verify-email", {"token": token_in(mail)}).status_code == 200
    assert bob.get("auth/me").json["email"] == "Robert@acme.example"
    assert login(anyone).status_code == 401
    assert login(anyone, email="robert@acme.example").status_code == 200
    own = bob.post("auth/send-verification", {"email": "robert@acme.example"})
    assert own.status_code == 200
    assert outcome(anyone.post("auth/verify-email", {"token": token_in(mail)})) == (
        400,
        "invalid_token",
    )


@pytest.mark.parametrize("mailed", [True, False], ids=["mailed", "not yet mailed"])
@pytest.mark.parametrize("how", ["changed", "set by a superadmin", "address replaced"])
def test_profile_pending_email_change_ends_with_password_change(
    app: Flask, anyone: Caller, root: Caller, bob: Caller, how: str, mailed: bool
) -> None:
    bob.patch("auth/me", {"email": "thief@elsewhere.example"})
    if mailed:
        run_jobs(app)
    new = {"current_password": PASSWORD, "new_password": "Correct-horse-2"}
    done = {
        "changed": lambda: bob.post("auth/change-password", new),
        "set by a superadmin": lambda: root.put(f"users/{bob.id}/password", {"password": PASSWORD}),
        "address replaced": lambda: root.patch(f"users/{bob.id}", {"email": "b@acme.example"}),
    }[how]()
    assert done.status_code == 200
    run_jobs(app)
    mails = [one for one in outbox(app) if one["To"] == "thief@elsewhere.example"]
    assert len(mails) == mailed
    for mail in mails:
        answer = anyone.post("auth/verify-email", {"token": token_in(mail)})
        assert outcome(answer) == (400, "invalid_token")


@pytest.mark.parametrize("email", ["", "nobody", "bob@", "a@b@c.example"])
def test_profile_email_change_to_invalid_address_is_400(
    app: Flask, bob: Caller, email: str
) -> None:
    answer = bob.patch("auth/me", {"email": email})
    assert [(d["field"], d["code"]) for d in answer.json["details"]] == [("email", "invalid_email")]
    assert run_jobs(app) == 0


def test_profile_email_change_to_taken_address_is_409_at_verification(
    app: Flask, anyone: Caller, bob: Caller
) -> None:
    free = bob.patch("auth/me", {"email": "free@acme.example"})
    taken = bob.patch("auth/me", {"email": "alice@acme.example"})
    assert (taken.status_code, taken.json["email"]) == (free.status_code, bob.email)
    run_jobs(app)
    answer = anyone.post("auth/verify-email", {"token": token_in(outbox(app)[-1])})
    assert (answer.status_code, answer.json["field"]) == (409, "email")
    assert bob.get("auth/me").json["email"] == bob.email


def test_session_list_shows_agent_address_and_last_use(
    app: Flask, anyone: Caller, bob: Caller
) -> None:
    phone = {"User-Agent": "Phone/1.0"}
    first = anyone.post("auth/login", {**BOB, "password": PASSWORD}, headers=phone).json
    login(anyone)
    shown = bob.get("auth/sessions").json
    assert shown["total"] == 2
    mine = shown["items"][1]
    assert (mine["user_agent"], mine["ip_address"], mine["kind"]) == (
        "Phone/1.0",
        "127.0.0.1",
        "api",
    )
    with time_machine.travel(clock.now() + timedelta(minutes=5)):
        anyone.post("auth/refresh", {"refresh_token": first["refresh_token"]})
        newest = bob.get("auth/sessions").json["items"][0]
    assert newest["id"] == mine["id"]
    assert newest["last_used_at"] > mine["last_used_at"]
    assert "token" not in str(shown)


def test_session_deletion_ends_its_refresh_token(anyone: Caller, bob: Caller) -> None:
    pairs = [login(anyone).json for _ in range(2)]
    newest = bob.get("auth/sessions").json["items"][0]["id"]
    assert bob.delete(f"auth/sessions/{newest}").status_code == 204
    assert bob.delete(f"auth/sessions/{newest}").status_code == 404
    refreshed = [
        anyone.post("auth/refresh", {"refresh_token": pair["refresh_token"]}).status_code
        for pair in pairs
    ]
    assert refreshed == [200, 401]


def test_session_of_other_user_is_404(anyone: Caller, cast: Any) -> None:
    login(anyone)
    (session,) = cast.bob.get("auth/sessions").json["items"]
    for other in (cast.alice, cast.charlie, cast.root, cast.root.acting_in("acme")):
        assert other.get("auth/sessions").json["total"] == 0
        assert other.delete(f"auth/sessions/{session['id']}").status_code == 404
    assert anyone.get("auth/sessions").status_code == 401
    assert anyone.delete(f"auth/sessions/{session['id']}").status_code == 401
    assert cast.bob.delete("auth/sessions/nonsense").status_code == 422
    assert cast.bob.get("auth/sessions").json["total"] == 1


def test_verification_resend_by_signed_in_user_needs_no_body(
    app: Flask, anyone: Caller, alice: Caller
) -> None:
    new = Caller(app, make_user(app, alice.account_id, "new@acme.example", verified=False))
    assert new.post("auth/resend-verification", {}).status_code == 200
    assert new.post("auth/resend-verification").status_code == 200
    run_jobs(app)
    assert [mail["To"] for mail in outbox(app)] == ["new@acme.example"] * 2
    assert anyone.post("auth/resend-verification", {}).status_code == 401


def test_refresh_by_cookie_alone(anyone: Caller, bob: Caller) -> None:
    def cookie_of(answer: Any) -> dict[str, str]:
        (morsel,) = SimpleCookie(answer.headers["Set-Cookie"]).values()
        return {"Cookie": f"{morsel.key}={morsel.value}"}

    signed_in = login(anyone)
    for body in (None, {}):
        refreshed = anyone.post("auth/refresh", body, headers=cookie_of(signed_in))
        assert refreshed.status_code == 200
        assert cookie_of(refreshed) != cookie_of(signed_in)
        signed_in = refreshed
    bad = anyone.post("auth/refresh", {"refresh_token": "x"}, headers=cookie_of(signed_in))
    assert bad.status_code == 401
    assert anyone.post("auth/refresh", {}).status_code == 401
