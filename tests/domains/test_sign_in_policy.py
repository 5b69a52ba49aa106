"""Every way a session begins or a credential is set, where an account wants its provider only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyotp
import pytest
from flask import Flask

from app import db
from app.accounts.models import ADMIN, User
from app.auth import mail_tokens
from app.auth.models import LinkPurpose
from tests.auth.test_second_factors import set_up
from tests.builders import PASSWORD, Caller, Cast, make_user
from tests.console.browser import COOKIE, Browser
from tests.domains.proving import prove
from tests.mailbox import body_of, link_in, outbox, run_jobs, token_in
from tests.name_server import NameServer
from tests.sso.flows import Stage

OFF = "password_sign_in_off"
NEW = "Another-horse-2"
GUEST = "gus@acme.example"


@dataclass
class House:
    """An account that is about to want its provider only, by either policy."""

    app: Flask
    cast: Cast
    stage: Stage
    policy: str
    domain: str

    def close(self) -> None:
        """Let the account want its provider only."""
        if self.policy == "no passwords":
            changed = self.cast.alice.patch("account", {"password_sign_in": False})
        else:
            path = f"account/domains/{self.domain}"
            changed = self.cast.alice.patch(path, {"sso_only": True})
        assert changed.status_code == 200, changed.json

    def token(self, email: str) -> str:
        """The token of the newest mail to an address."""
        run_jobs(self.app)
        mails = [mail for mail in outbox(self.app) if mail["To"] == email]
        return link_in(mails[-1]).replace("token=", "/").rpartition("/")[2]

    def mails(self, email: str) -> int:
        """The number of mails to an address."""
        run_jobs(self.app)
        return sum(mail["To"] == email for mail in outbox(self.app))

    def login(self, email: str, password: str = PASSWORD) -> Any:
        """The answer of a login by password."""
        body = {"account": "acme", "email": email, "password": password}
        return Caller(self.app).post("auth/login", body)


@pytest.fixture(params=["no passwords", "sso only"])
def house(
    app: Flask, cast: Cast, stage: Stage, dns: NameServer, request: pytest.FixtureRequest
) -> House:
    stage.oauth(cast.alice)
    domain = prove(dns, cast.alice)["id"]
    assert cast.alice.patch("account", {"magic_link": True}).status_code == 200
    return House(app, cast, stage, request.param, domain)


Door = Callable[[House], Callable[[], Any]]
DOORS: dict[str, Door] = {}


def door(prepare: Door) -> Door:
    """A way in: prepared while passwords work, tried when they do not."""
    DOORS[prepare.__name__] = prepare
    return prepare


@door
def login(house: House) -> Callable[[], Any]:
    return lambda: house.login(house.cast.bob.email)


@door
def login_in_console(house: House) -> Callable[[], Any]:
    form = {"account": "acme", "email": house.cast.bob.email, "password": PASSWORD}
    return lambda: Browser(house.app).send("sign-in", **form)


@door
def mailed_invitation(house: House) -> Callable[[], Any]:
    house.cast.alice.post("invitations", {"email": GUEST})
    path = f"invitations/{house.token(GUEST)}/accept"
    return lambda: Caller(house.app).post(path, {"password": PASSWORD})


@door
def shown_invitation(house: House) -> Callable[[], Any]:
    shown = house.cast.alice.post("invitations", {"email": GUEST}).json["token"]
    path = f"invitations/{shown}/accept"
    return lambda: Caller(house.app).post(path, {"password": PASSWORD})


@door
def invitation_in_console(house: House) -> Callable[[], Any]:
    house.cast.alice.post("invitations", {"email": GUEST})
    form = {"token": house.token(GUEST), "password": PASSWORD}
    return lambda: Browser(house.app).send("/welcome/invitation", **form)


def magic_link(house: House) -> str:
    """The token of a link to sign in."""
    body = {"account": "acme", "email": house.cast.bob.email}
    assert Caller(house.app).post("auth/magic-link", body).status_code == 200
    return house.token(house.cast.bob.email)


@door
def mailed_link(house: House) -> Callable[[], Any]:
    token = magic_link(house)
    return lambda: Caller(house.app).post("auth/magic-link/verify", {"token": token})


@door
def mailed_link_in_console(house: House) -> Callable[[], Any]:
    token = magic_link(house)
    return lambda: Browser(house.app).send("/welcome/magic-link", token=token)


def reset_link(house: House) -> str:
    """The token of a link to set a password."""
    body = {"account": "acme", "email": house.cast.bob.email}
    assert Caller(house.app).post("auth/forgot-password", body).status_code == 200
    return house.token(house.cast.bob.email)


@door
def reset(house: House) -> Callable[[], Any]:
    body = {"token": reset_link(house), "new_password": NEW}
    return lambda: Caller(house.app).post("auth/reset-password", body)


@door
def reset_in_console(house: House) -> Callable[[], Any]:
    token = reset_link(house)
    return lambda: Browser(house.app).send("/welcome/reset-password", token=token, new_password=NEW)


@door
def changed_password(house: House) -> Callable[[], Any]:
    body = {"current_password": PASSWORD, "new_password": NEW}
    return lambda: house.cast.bob.post("auth/change-password", body)


@door
def reset_by_admin(house: House) -> Callable[[], Any]:
    path = f"users/{house.cast.bob.id}/password"
    return lambda: house.cast.root.post(path, {"send_reset_link": True})


@door
def second_factor(house: House) -> Callable[[], Any]:
    phone = set_up(house.cast.bob)
    step = house.login(house.cast.bob.email).json["mfa_token"]
    return lambda: phone.verify(step, phone.code(1))


@door
def first_factor(house: House) -> Callable[[], Any]:
    house.cast.alice.patch("account", {"mfa": "required"})
    step = {"mfa_token": house.login(house.cast.bob.email).json["mfa_token"]}
    anyone = Caller(house.app)
    secret = anyone.post("auth/mfa/totp", step).json["secret"]
    return lambda: anyone.post("auth/mfa/totp/confirm", step | {"code": pyotp.TOTP(secret).now()})


@door
def password_again(house: House) -> Callable[[], Any]:
    signed_in = house.login(house.cast.bob.email).json
    caller = Caller(house.app, Authorization=f"Bearer {signed_in['token']}")
    return lambda: caller.post("auth/reauthenticate", {"password": PASSWORD})


@door
def printed_link(house: House) -> Callable[[], Any]:
    """The link of a set-up is for the first superadmin alone."""
    with house.app.app_context():
        user = db.db.session.get_one(User, (house.cast.bob.account_id, house.cast.bob.id))
        token = mail_tokens.issue(user, LinkPurpose.SIGN_IN)
    return lambda: Browser(house.app).send("sign-in-link", token=token)


@pytest.mark.parametrize("name", sorted(DOORS))
def test_sign_in_policy_blocks_every_other_way_to_sign_in(house: House, name: str) -> None:
    enter = DOORS[name](house)
    house.close()
    answer = enter()
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text)
    assert "refresh_token" not in answer.text
    assert not any(COOKIE in cookie for cookie in answer.headers.getlist("Set-Cookie"))
    emails = {one["email"] for one in house.cast.alice.get("account/users").json["items"]}
    assert GUEST not in emails
    for password in (PASSWORD, NEW):
        assert house.login(house.cast.bob.email, password).status_code == 401


@pytest.mark.parametrize("path", ["auth/forgot-password", "auth/magic-link"])
def test_sign_in_policy_mails_no_useless_links(house: House, path: str) -> None:
    house.close()
    before = house.mails(house.cast.bob.email)
    body = {"account": "acme", "email": house.cast.bob.email}
    status = Caller(house.app).post(path, body).status_code
    assert status == (400 if house.policy == "no passwords" and "magic" in path else 200)
    assert house.mails(house.cast.bob.email) == before


def test_sign_in_policy_refuses_passwords_set_by_admins(house: House) -> None:
    house.close()
    path = f"users/{house.cast.bob.id}/password"
    house.cast.root.post(path, {"new_password": NEW})
    assert house.login(house.cast.bob.email, NEW).json["error"] == OFF
    made = house.cast.alice.post("account/users", {"email": "new@acme.example"})
    assert made.status_code == 201
    house.mails("new@acme.example")
    mailed = outbox(house.app)[-1]
    assert "/auth/verify-email?token=" in body_of(mailed)
    proof = {"token": token_in(mailed)}
    assert Caller(house.app).post("auth/verify-email", proof).status_code == 200
    assert house.login("new@acme.example").status_code == 401


def test_sign_in_policy_accepts_invitation_through_provider(house: House) -> None:
    house.cast.alice.post("invitations", {"email": GUEST, "role": "editor"})
    page = f"/welcome/invitation?token={house.token(GUEST)}"
    house.close()
    shown = Browser(house.app).get(page)
    assert shown.status_code == 200
    assert "signs in with its provider" in shown.text
    assert 'name="password"' not in shown.text
    house.stage.provider.who |= {"sub": "gus", "email": GUEST}
    signed_in = house.stage.traded(house.stage.sign_in())
    assert (signed_in["user"]["email"], signed_in["user"]["role"]) == (GUEST, "editor")


def test_sign_in_policy_exempts_superadmins_and_other_domains(house: House) -> None:
    house.close()
    assert house.login(house.cast.bob.email).json["error"] == OFF
    body = {"account": "system", "email": house.cast.root.email, "password": PASSWORD}
    assert Caller(house.app).post("auth/login", body).status_code == 200
    make_user(house.app, house.cast.alice.account_id, "carol@elsewhere.example")
    status = house.login("carol@elsewhere.example").status_code
    assert status == (401 if house.policy == "no passwords" else 200)


MOVE = {"email": "bob@private.example", "current_password": PASSWORD}


@pytest.mark.parametrize("house", ["sso only"], indirect=True)
def test_sso_only_domain_email_change_is_address_managed(house: House) -> None:
    bob = house.cast.bob
    assert bob.patch("auth/me", MOVE).status_code == 200
    pending = {"token": house.token("bob@private.example")}
    house.close()
    for by in (bob, house.cast.alice):
        refused = by.patch("auth/me", MOVE)
        assert (refused.status_code, refused.json["error"]) == (403, "address_managed")
    assert bob.patch("auth/me", {"name": "Robert", "email": "BOB@acme.example"}).status_code == 200
    late = Caller(house.app).post("auth/verify-email", pending)
    assert (late.status_code, late.json["error"]) == (403, "address_managed")
    assert bob.get("auth/me").json["email"] == bob.email
    # An admin can.
    path = f"account/users/{bob.id}"
    assert house.cast.alice.patch(path, {"email": "bob@private.example"}).status_code == 200


@pytest.mark.parametrize("house", ["sso only"], indirect=True)
def test_sso_only_domain_email_change_undo_is_address_managed(house: House) -> None:
    user = make_user(house.app, house.cast.alice.account_id, "dan@private.example", ADMIN)
    dan, anyone = Caller(house.app, user), Caller(house.app)
    assert dan.patch("auth/me", {"email": "dan@acme.example"}).status_code == 200
    moved = {"token": house.token("dan@acme.example")}
    assert anyone.post("auth/verify-email", moved).status_code == 200
    undo = {"token": house.token("dan@private.example")}
    house.close()
    refused = anyone.post("auth/undo-email-change", undo)
    assert (refused.status_code, refused.json["error"]) == (403, "address_managed")
    assert house.login("dan@acme.example").json["error"] == OFF
