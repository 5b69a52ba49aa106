"""Who guesses passwords, or has mails sent, is slowed down."""

from __future__ import annotations

import secrets
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask

from app import clock, create_app, crypto
from app.auth import devices, passwords, tokens
from app.config import Config
from tests import services
from tests.builders import PASSWORD, Caller, Cast, make_account, make_user
from tests.conftest import WHOLE
from tests.console.browser import Browser
from tests.mailbox import outbox, run_jobs, token_in
from tests.parallel import at_once

# Longer than any password: a wrong one that costs no hashing.
WRONG = "x" * 200


def address() -> str:
    """An address that no other test counts, as the tests share one Redis."""
    return ".".join(str(secrets.randbelow(254) + 1) for _ in range(4))


@pytest.fixture(params=["database", pytest.param("redis", marks=pytest.mark.needs_servers)])
def storage(request: pytest.FixtureRequest) -> str:
    """Where is counted: its address, empty for the database."""
    return services.Redis().emptied() if request.param == "redis" else ""


@pytest.fixture
def limited(app: Flask, bob: Caller, storage: str, monkeypatch: pytest.MonkeyPatch) -> Caller:
    """Anyone, where the limits are on."""
    return limit(app, monkeypatch, redis_url=storage)


@pytest.fixture
def limited_mails(app: Flask, bob: Caller, monkeypatch: pytest.MonkeyPatch) -> Caller:
    """Anyone, where the limits are on and counted in the database."""
    return limit(app, monkeypatch)


def limit(app: Flask, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Caller:
    settings = replace(app.extensions["atrium.config"], login_rate_limit="on", **changes)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    return Caller(app)


def login(caller: Caller, origin: str, password: str = WRONG, **body: Any) -> Any:
    named = {"account": "acme", "email": "bob@acme.example", "password": password}
    return caller.post("auth/login", {**named, **body}, environ_overrides={"REMOTE_ADDR": origin})


def statuses(count: int, caller: Caller, origin: str, **body: Any) -> list[int]:
    return [login(caller, origin, **body).status_code for _ in range(count)]


def test_lockout_after_ten_failures_per_user_and_address_is_429(limited: Caller) -> None:
    here, there = address(), address()
    assert statuses(10, limited, here) == [401] * 10
    for password in (WRONG, PASSWORD):
        answer = login(limited, here, password)
        assert (answer.status_code, answer.json["error"]) == (429, "rate_limited")
        assert 0 < int(answer.headers["Retry-After"]) <= 15 * 60
        assert "Set-Cookie" not in answer.headers
    assert login(limited, here, PASSWORD, email="alice@acme.example").status_code == 200
    assert login(limited, there, PASSWORD).status_code == 200


def test_lockout_default_limits() -> None:
    settings = Config.from_env({"SERVICE_ENV": "test"})
    guesses = (settings.login_tries_per_address, settings.login_tries_per_user)
    assert (settings.login_tries, *guesses) == (10, 50, 100)
    assert (settings.mail_tries, settings.mail_tries_per_mailbox) == (10, 50)


def test_lockout_counts_failures_per_address(
    app: Flask, bob: Caller, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = limit(app, monkeypatch, redis_url=storage, login_tries_per_address=12)
    here = address()
    for number in range(12):
        assert login(limited, here, email=f"{number}@acme.example").status_code == 401
    assert login(limited, here, PASSWORD).status_code == 429
    assert login(limited, address(), PASSWORD).status_code == 200


@pytest.mark.long
@pytest.mark.parametrize("who", ["bob", "root"])
def test_lockout_by_strangers_leaves_user_able_to_sign_in(
    app: Flask, cast: Cast, storage: str, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    user = getattr(cast, who)
    whom = {"account": user.slug, "email": user.email}
    limited = limit(app, monkeypatch, redis_url=storage)
    strangers = [address() for _ in range(12)]
    seen = [login(limited, one, **whom).status_code for one in strangers for _ in range(11)]
    assert seen.count(401) <= 100 + 12 * 3
    assert {login(limited, one, PASSWORD, **whom).status_code for one in strangers[:9]} == {429}
    fresh = address()
    assert login(limited, fresh, PASSWORD, **whom).status_code == 200
    assert statuses(4, limited, fresh, **whom) == [401] * 3 + [429]
    refused = login(limited, fresh, PASSWORD, **whom)
    assert (refused.status_code, refused.json["error"]) == (429, "rate_limited")
    assert 0 < int(refused.headers["Retry-After"]) <= 15 * 60


def test_lockout_of_attacked_user_allows_three_tries_per_48_network(
    app: Flask, bob: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = limit(app, monkeypatch, login_tries_per_user=5)
    assert [login(limited, address()).status_code for _ in range(5)] == [401] * 5
    of_48 = f"2001:db8:{secrets.token_hex(2)}"
    seen = [login(limited, f"{of_48}:{n:x}::1").status_code for n in range(1, 6)]
    assert seen == [401] * 3 + [429] * 2
    assert login(limited, address(), PASSWORD).status_code == 200


def test_lockout_bounds_failures_of_all_networks_per_user(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = limit(app, monkeypatch, login_tries_per_user=2)
    device = known_device(limited, cast.bob)
    seen = [login(limited, address()).status_code for _ in range(22)]
    assert seen == [401] * 20 + [429] * 2
    assert login(limited, address(), PASSWORD).status_code == 429
    assert login(device, address(), PASSWORD).status_code == 200
    reset_password(limited, cast.bob)
    assert login(limited, address(), "Better-horse-2").status_code == 200


def known_device(anyone: Caller, user: Caller) -> Caller:
    """A device where the user has signed in."""
    signed_in = login(anyone, address(), PASSWORD, account=user.slug, email=user.email)
    cookies = signed_in.headers.getlist("Set-Cookie")
    (cookie,) = [one for one in cookies if one.startswith(f"{devices.COOKIE}=")]
    return Caller(anyone.app, Cookie=cookie.partition(";")[0])


def reset_password(anyone: Caller, user: Caller) -> None:
    ask(anyone, "auth/forgot-password", user.email, address())
    run_jobs(anyone.app)
    body = {"token": token_in(outbox(anyone.app)[-1]), "new_password": "Better-horse-2"}
    assert anyone.post("auth/reset-password", body).status_code == 200


def test_lockout_counts_known_device_separately(
    app: Flask, cast: Cast, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited, here = limit(app, monkeypatch, redis_url=storage), address()
    bobs, alices = known_device(limited, cast.bob), known_device(limited, cast.alice)
    assert statuses(11, limited, here) == [401] * 10 + [429]
    assert login(alices, here, PASSWORD).status_code == 429, "not known to this user"
    assert login(bobs, here, PASSWORD).status_code == 200
    assert statuses(11, bobs, here) == [401] * 10 + [429]
    assert login(bobs, address(), PASSWORD).status_code == 429
    assert login(limited, address(), PASSWORD).status_code == 200


def test_lockout_accepts_device_cookie_of_earlier_release(
    limited: Caller, cast: Cast, app: Flask
) -> None:
    with app.app_context():
        digest = tokens.digest(f"{cast.bob.account_id} {cast.bob.id}")[:16]
        cookie = crypto.sign([digest], devices.PURPOSE)
    here = address()
    assert statuses(11, limited, here)[-1] == 429
    device = Caller(app, Cookie=f"{devices.COOKIE}={cookie}")
    assert login(device, here, PASSWORD).status_code == 200


def test_lockout_by_strangers_leaves_console_sign_in_open(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = limit(app, monkeypatch, login_tries_per_user=5)
    assert [login(limited, address()).status_code for _ in range(5)] == [401] * 5
    browser = Browser(app)
    form = {"account": "acme", "email": cast.bob.email, "password": PASSWORD}
    assert browser.send("sign-in", **form).status_code == 303


def test_lockout_applies_to_unknown_users(limited: Caller) -> None:
    for unknown in ({"email": "nobody@acme.example"}, {"account": f"x-{secrets.token_hex(4)}"}):
        assert statuses(11, limited, address(), **unknown) == [401] * 10 + [429]


def test_lockout_does_not_count_successful_logins(limited: Caller) -> None:
    here = address()
    assert statuses(9, limited, here) == [401] * 9
    assert statuses(4, limited, here, password=PASSWORD) == [200] * 4
    assert statuses(2, limited, here) == [401, 429]


def test_lockout_counts_all_spellings_of_account_and_email_together(
    limited: Caller, bob: Caller
) -> None:
    here = address()
    names = ["acme", "ACME ", "AA0001", "aa0001", bob.account_id, bob.account_id.upper()]
    for name in names[:5]:
        assert statuses(1, limited, here, account=name) == [401]
        assert statuses(1, limited, here, account=name, email=" BOB@acme.example") == [401]
    assert [statuses(1, limited, here, account=name) for name in names] == [[429]] * 6


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Real-IP", "Forwarded"])
def test_lockout_ignores_forged_forwarding_headers(limited: Caller, header: str) -> None:
    here = address()
    seen = []
    for _ in range(11):
        forged = address() if header != "Forwarded" else f"for={address()}"
        caller = Caller(limited.app, **{header: forged})
        seen.append(login(caller, here).status_code)
    assert seen == [401] * 10 + [429]


def test_lockout_counts_proxied_address_in_any_notation_as_one(
    limited_mails: Caller, root: Caller, alice: Caller
) -> None:
    """Its port, brackets, or what is no address, for which the proxy's own stands."""
    proxied = create_app(replace(limited_mails.app.extensions["atrium.config"], trusted_proxies=1))
    here, proxy = address(), address()
    written = [f"{here}:{port}" for port in range(9)] + [here]
    seen = [
        login(Caller(proxied, **{"X-Forwarded-For": one}), proxy).status_code for one in written
    ]
    assert seen == [401] * 10
    for one in (here, f" {here} ", f"{here}:443"):
        assert login(Caller(proxied, **{"X-Forwarded-For": one}), proxy).status_code == 429
    for number in range(11):
        garbage = Caller(proxied, **{"X-Forwarded-For": f"<{number}>"})
        assert login(garbage, proxy).status_code == (401 if number < 10 else 429)
    for told, kept in (
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("2001:DB8::1", "2001:db8::1"),
        ("x" * 3000, "127.0.0.1"),
        (f"{here}:1", here),
    ):
        headers = {**alice.headers, "X-Forwarded-For": told}
        made = Caller(proxied, **headers).post("groups", {"name": f"of {told[:9]}"}).json
        entries = root.get(f"audit-logs?record_id={made['id']}").json["items"]
        assert {entry["ip_address"] for entry in entries} == {kept}


def test_lockout_ends_after_15_minutes(
    app: Flask, bob: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited, here = limit(app, monkeypatch), address()
    assert statuses(11, limited, here)[-1] == 429
    with time_machine.travel(clock.now() + timedelta(minutes=14)):
        assert login(limited, here, PASSWORD).status_code == 429
    with time_machine.travel(clock.now() + timedelta(minutes=16)):
        assert login(limited, here, PASSWORD).status_code == 200
        assert statuses(11, limited, here) == [401] * 10 + [429]


def test_lockout_count_is_shared_between_processes(limited: Caller) -> None:
    other = Caller(create_app(limited.app.extensions["atrium.config"]))
    here = address()
    seen = [login(caller, here).status_code for _ in range(5) for caller in (limited, other)]
    assert seen == [401] * 10
    assert [login(caller, here, PASSWORD).status_code for caller in (limited, other)] == [429] * 2


def test_lockout_counts_concurrent_failures(limited: Caller) -> None:
    here = address()
    seen = at_once(9, lambda _: login(limited, here).status_code)
    assert seen == [401] * 9
    assert statuses(2, limited, here) == [401, 429]


@WHOLE
@pytest.mark.usefixtures("real_hashes")
def test_lockout_answers_ten_of_concurrent_failures(limited: Caller, whole: bool) -> None:
    here, refused = address(), 20 if whole else 6
    seen = at_once(10 + refused, lambda n: login(limited, here, f"Wrong-horse-{n}").status_code)
    assert sorted(seen) == [401] * 10 + [429] * refused
    assert login(limited, here, PASSWORD).status_code == 429


@pytest.mark.long
@WHOLE
@pytest.mark.usefixtures("real_hashes")
def test_lockout_per_address_bounds_concurrent_failures_of_many_users(
    app: Flask, bob: Caller, storage: str, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    here, refused = address(), 18 if whole else 6
    limited = limit(app, monkeypatch, redis_url=storage, login_tries_per_address=12)
    seen = at_once(
        12 + refused,
        lambda n: login(limited, here, "Wrong", email=f"{n}@acme.example").status_code,
    )
    assert sorted(seen) == [401] * 12 + [429] * refused


@pytest.mark.long
@pytest.mark.usefixtures("real_hashes")
def test_lockout_does_not_delay_concurrent_successful_logins(limited: Caller) -> None:
    here = address()
    assert statuses(9, limited, here) == [401] * 9
    assert at_once(20, lambda _: login(limited, here, PASSWORD).status_code) == [200] * 20


def test_lockout_answers_429_to_right_password_beside_wrong_ones(
    limited: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, verify = address(), passwords.verify

    def slowly(password: str, password_hash: str | None) -> bool:
        if password == PASSWORD:
            assert statuses(10, limited, here) == [401] * 10
        return verify(password, password_hash)

    monkeypatch.setattr(passwords, "verify", slowly)
    answer = login(limited, here, PASSWORD)
    assert (answer.status_code, "Set-Cookie" in answer.headers) == (429, False)


def ask(caller: Caller, path: str, email: str, origin: str) -> int:
    body = {"account": "acme", "email": email}
    if path == "auth/register":
        body["password"] = PASSWORD
    sent_from = {"REMOTE_ADDR": origin}
    return caller.post(path, body, environ_overrides=sent_from).status_code


MAILING = {"auth/register": 409, "auth/forgot-password": 200, "auth/resend-verification": 200}


@pytest.mark.parametrize("path", MAILING)
def test_mail_limit_per_mailbox_is_429(limited_mails: Caller, path: str) -> None:
    tries, here = limited_mails.app.extensions["atrium.config"].mail_tries, address()
    seen = [ask(limited_mails, path, "Bob@acme.example", here) for _ in range(tries + 1)]
    assert seen == [MAILING[path]] * tries + [429]
    assert ask(limited_mails, path, "bob@ACME.example", here) == 429
    assert ask(limited_mails, path, "alice@acme.example", here) == MAILING[path]
    assert ask(limited_mails, path, "bob@ACME.example", address()) == MAILING[path]


@pytest.mark.parametrize("path", MAILING)
def test_mail_limit_per_mailbox_and_day_is_429(
    app: Flask, bob: Caller, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    limited = limit(app, monkeypatch, mail_tries_per_mailbox=4)
    here = address()
    seen = [ask(limited, path, bob.email, here) for _ in range(6)]
    assert seen == [MAILING[path]] * 5 + [429], "one more than those of the hour"
    seen = [ask(limited, path, bob.email, address()) for _ in range(4)]
    assert seen == [MAILING[path]] * 3 + [429]
    with time_machine.travel(clock.now() + timedelta(hours=2)):
        assert ask(limited, path, bob.email, address()) == 429
    with time_machine.travel(clock.now() + timedelta(hours=25)):
        assert ask(limited, path, bob.email, address()) == MAILING[path]


@pytest.mark.parametrize("path", ["auth/forgot-password", "auth/resend-verification"])
def test_mail_limit_counts_known_device_separately(
    limited_mails: Caller, cast: Cast, path: str
) -> None:
    here, device = address(), known_device(limited_mails, cast.bob)
    seen = [ask(limited_mails, path, cast.bob.email, here) for _ in range(12)]
    assert seen[-1] == 429
    seen = [ask(device, path, cast.bob.email, here) for _ in range(11)]
    assert seen == [200] * 10 + [429]
    assert ask(limited_mails, path, cast.bob.email, address()) == 200


def test_mail_limit_does_not_count_invalid_requests(limited_mails: Caller, bob: Caller) -> None:
    weak = {"account": "new", "email": bob.email, "password": WRONG}
    assert {limited_mails.post("auth/register", weak).status_code for _ in range(12)} == {400}
    assert ask(limited_mails, "auth/forgot-password", bob.email, address()) == 200


@pytest.mark.parametrize("path", MAILING)
def test_mail_limit_per_address_is_429(
    app: Flask, bob: Caller, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    limited, here = limit(app, monkeypatch, mail_tries_per_address=12), address()
    seen = [ask(limited, path, f"{number}@acme.example", here) for number in range(13)]
    assert seen == [MAILING[path]] * 12 + [429]
    assert ask(limited, path, "0@acme.example", address()) == MAILING[path]


def test_mail_limit_applies_to_own_email_changes(limited_mails: Caller, bob: Caller) -> None:
    tries = limited_mails.app.extensions["atrium.config"].mail_tries
    body = {"email": "victim@elsewhere.example"}
    seen = [bob.patch("auth/me", body).status_code for _ in range(tries + 1)]
    assert seen == [200] * tries + [429]


def test_mail_limit_holds_for_concurrent_requests(
    app: Flask, bob: Caller, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited, here = limit(app, monkeypatch, redis_url=storage), address()
    email = f"{secrets.token_hex(6)}@acme.example"
    seen = at_once(20, lambda _: ask(limited, "auth/forgot-password", email, here))
    assert sorted(seen) == [200] * 10 + [429] * 10


INVITE = {"email": "bob@globex.example"}
LINK = {"send_reset_link": True}
# Who has mails sent to which mailbox, and how.
SIGNED_IN: dict[str, tuple[str, str, str, Any, str]] = {
    "own link": ("bob", "POST", "auth/send-verification", {}, "bob@acme.example"),
    "own link again": ("bob", "POST", "auth/resend-verification", {}, "bob@acme.example"),
    "a user's link": (
        "alice",
        "POST",
        "auth/send-verification",
        {"email": "Bob@acme.example"},
        "bob@acme.example",
    ),
    "by a superadmin": (
        "root",
        "POST",
        "users/{bob}/resend-verification",
        None,
        "bob@acme.example",
    ),
    "a link to reset": ("root", "POST", "users/{bob}/password", LINK, "bob@acme.example"),
    "inviting": ("alice", "POST", "invitations", INVITE, "bob@globex.example"),
    "inviting again": (
        "alice",
        "POST",
        "invitations/{invitation}/resend",
        None,
        "guest@acme.example",
    ),
}


@pytest.mark.parametrize("case", SIGNED_IN)
def test_mail_limit_applies_to_signed_in_callers(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    who, method, path, body, mailbox = SIGNED_IN[case]
    invitation = cast.alice.post("invitations", {"email": "guest@acme.example"}).json["id"]
    limited, caller = limit(app, monkeypatch, mail_tries=3), getattr(cast, who)
    at = path.format(bob=cast.bob.id, invitation=invitation)
    answers = [caller(method, at, body) for _ in range(5)]
    good = 201 if path == "invitations" else 200
    assert [answer.status_code for answer in answers] == [good] * 3 + [429] * 2
    assert 0 < int(answers[-1].headers["Retry-After"]) <= 3600
    assert ask(limited, "auth/register", mailbox, address()) == 409, "requests count by themselves"
    run_jobs(app)
    assert sum(mail["To"] == mailbox for mail in outbox(app)) <= 3


def invite(caller: Caller, email: str) -> int:
    return caller.post("invitations", {"email": email}).status_code


@pytest.mark.long
def test_mail_limit_reached_by_one_account_spares_other_accounts(
    app: Flask, cast: Cast, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = limit(app, monkeypatch, redis_url=storage, mail_tries_per_mailbox=15)
    strangers = [cast.charlie]
    for n in range(2):
        account = make_account(app, f"evil{n}")
        strangers.append(Caller(app, make_user(app, account, f"eve@evil{n}.example", "admin")))
    seen = [invite(one, cast.bob.email) for one in strangers for _ in range(11)]
    assert seen[:11] == [201] * 10 + [429], "of one account"
    assert seen[11:22] == [201] * 6 + [429] * 5, "15 of all accounts together, and one more"
    assert seen[22:] == [201] + [429] * 10
    assert invite(cast.alice, "bob@elsewhere.example") == 201
    mailed = len(outbox(app))
    for account in ("acme", "ACME", "AA0001", cast.bob.account_id):
        sent_from = {"environ_overrides": {"REMOTE_ADDR": address()}}
        body = {"account": account, "email": cast.bob.email}
        assert limited.post("auth/forgot-password", body, **sent_from).status_code == 200
    run_jobs(app)
    resets = [mail for mail in outbox(app)[mailed:] if "reset-password" in mail.as_string()]
    assert [mail["To"] for mail in resets] == [cast.bob.email] * 4
    here = {"environ_overrides": {"REMOTE_ADDR": address()}}
    names = ["acme", "ACME", "AA0001", cast.bob.account_id] * 3
    bodies = [{"account": name, "email": cast.bob.email} for name in names[:11]]
    seen = [limited.post("auth/forgot-password", one, **here).status_code for one in bodies]
    assert seen == [200] * 10 + [429], "however the account is named"


def test_mail_limit_applies_to_resets_of_unverified_users(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = limit(app, monkeypatch, mail_tries_per_mailbox=3)
    email = "victim@elsewhere.example"
    for n in range(4):
        account = make_account(app, f"evil{n}")
        make_user(app, account, email, verified=False)
        body = {"account": f"evil{n}", "email": email}
        for _ in range(2):
            sent_from = {"environ_overrides": {"REMOTE_ADDR": address()}}
            limited.post("auth/forgot-password", body, **sent_from)
    run_jobs(app)
    assert sum(mail["To"] == email for mail in outbox(app)) == 6


def test_mail_limit_applies_to_repeated_user_creation_and_moves(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(app, monkeypatch, mail_tries=2)
    seen = []
    for _ in range(3):
        made = cast.alice.post("account/users", {"email": "victim@acme.example"})
        seen.append(made.status_code)
        if made.status_code == 201:
            cast.alice.delete(f"account/users/{made.json['id']}")
    assert seen == [201, 201, 429]
    assert cast.alice.get("account/users").json["total"] == 2
    moved = cast.alice.patch(f"account/users/{cast.bob.id}", {"email": "victim@acme.example"})
    assert moved.status_code == 429
    assert cast.alice.get(f"account/users/{cast.bob.id}").json["email"] == cast.bob.email


def test_mail_limit_applies_to_console(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    alices, bobs = Browser(app, cast.alice), Browser(app, cast.bob)
    limit(app, monkeypatch, mail_tries=2)
    reset, new = f"team/users/{cast.bob.id}/reset-link", {"email": "victim@elsewhere.example"}
    assert [bobs.send("profile", **new).status_code for _ in range(3)] == [303, 303, 429]
    assert [alices.send(reset).status_code for _ in range(3)] == [303, 303, 429]


def change_password(caller: Caller, current: str = WRONG) -> Any:
    body = {"current_password": current, "new_password": "Better-horse-2"}
    return caller.post("auth/change-password", body, environ_overrides={"REMOTE_ADDR": address()})


def test_current_password_guesses_are_limited(limited: Caller, cast: Cast) -> None:
    seen = [change_password(cast.bob).status_code for _ in range(10)]
    assert seen == [400] * 10
    for password in (WRONG, PASSWORD):
        answer = change_password(cast.bob, password)
        assert (answer.status_code, answer.json["error"]) == (429, "rate_limited")
        assert 0 < int(answer.headers["Retry-After"]) <= 15 * 60
    assert login(limited, address(), PASSWORD).status_code == 200
    assert change_password(cast.alice, PASSWORD).status_code == 200


@pytest.mark.long
@pytest.mark.usefixtures("real_hashes")
def test_current_password_concurrent_guesses_are_limited(limited: Caller, bob: Caller) -> None:
    seen = at_once(20, lambda n: change_password(bob, f"Wrong-horse-{n}").status_code)
    assert sorted(seen) == [400] * 10 + [429] * 10


def test_current_password_that_is_right_is_not_limited(limited: Caller, bob: Caller) -> None:
    weak = {"current_password": PASSWORD, "new_password": "weak"}
    seen = [bob.post("auth/change-password", weak).status_code for _ in range(12)]
    assert seen == [400] * 12
    assert change_password(bob, PASSWORD).status_code == 200


def test_current_password_limit_ends_after_15_minutes(limited_mails: Caller, bob: Caller) -> None:
    assert [change_password(bob).status_code for _ in range(11)] == [400] * 10 + [429]
    with time_machine.travel(clock.now() + timedelta(minutes=16)):
        assert change_password(bob, PASSWORD).status_code == 200


def test_current_password_guesses_are_unlimited_without_lockout(bob: Caller) -> None:
    assert [change_password(bob).status_code for _ in range(12)] == [400] * 12


class Counting:
    """The hasher, which notes how many of its hashes were made at once."""

    def __init__(self, hasher: Any) -> None:
        self._hasher, self._lock = hasher, threading.Lock()
        self.now = self.most = self.total = 0
        self.memory_cost = hasher.memory_cost

    def verify(self, password_hash: str, password: str) -> bool:
        with self._lock:
            self.now, self.total = self.now + 1, self.total + 1
            self.most = max(self.most, self.now)
        try:
            return bool(self._hasher.verify(password_hash, password))
        finally:
            with self._lock:
                self.now -= 1


@WHOLE
@pytest.mark.usefixtures("real_hashes")
def test_login_concurrency_has_bounded_hashing_memory(
    app: Flask, anyone: Caller, alice: Caller, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    make_user(app, alice.account_id, "ann@acme.example")
    counting = Counting(passwords._hasher)
    monkeypatch.setattr(passwords, "_hasher", counting)
    known, many = {"email": "ann@acme.example"}, 50 if whole else 16
    seen = at_once(
        many, lambda n: login(anyone, address(), f"Wrong-horse-{n}", **known).status_code
    )
    assert seen == [401] * many
    assert counting.total == many
    assert counting.most * counting.memory_cost <= 80 * 1024  # KiB


def test_mail_limit_applies_to_setup_links_of_several_accounts(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(app, monkeypatch, mail_tries_per_mailbox=3)
    mailbox = "it@customer.example"
    body = {"name": "IT", "email": mailbox}
    callers = [cast.alice, cast.charlie] * 3
    statuses = [one.post("account/setup-links", body).status_code for one in callers]
    assert statuses == [201] * 5 + [429], "one more of each account"
    run_jobs(app)
    assert sum(mail["To"] == mailbox for mail in outbox(app)) == 5
