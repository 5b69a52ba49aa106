"""Second factors: set up, asked for, used once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pyotp
import pytest
import time_machine
from flask import Flask
from webauthn.helpers import bytes_to_base64url

from app import clock
from tests.audit.chains import entries
from tests.auth.test_lockout import limit
from tests.builders import PASSWORD, Caller, Cast, change_user, make_collection
from tests.mailbox import body_of, outbox, run_jobs
from tests.parallel import at_once
from tests.passkeys import Authenticator

REQUIRED = (401, "mfa_required")
WRONG = (401, "invalid_code")
ENDED = (401, "invalid_mfa_token")


def outcome(answer: Any) -> tuple[int, str | None]:
    """The status and the error of an answer."""
    return answer.status_code, answer.json.get("error")


def login(user: Caller) -> Any:
    """The answer of a login by password."""
    body = {"account": user.slug, "email": user.email, "password": PASSWORD}
    return Caller(user.app).post("auth/login", body)


def session_of(pair: dict[str, Any], app: Flask) -> Caller:
    """The caller of a sign-in's tokens."""
    return Caller(app, Authorization=f"Bearer {pair['token']}")


@dataclass
class Phone:
    """A user with an authenticator app, and their recovery codes."""

    user: Caller
    session: Caller
    secret: str
    recovery_codes: list[str]

    def code(self, steps: int = 0) -> str:
        """The code of now, or of so many steps of 30 seconds later."""
        moment = clock.now() + timedelta(seconds=30 * steps)
        return pyotp.TOTP(self.secret).at(moment)

    def verify(self, mfa_token: str, code: str, method: str = "totp") -> Any:
        """The answer to a code."""
        body = {"mfa_token": mfa_token, "method": method, "code": code}
        return Caller(self.user.app).post("auth/mfa/verify", body)

    def sign_in(self, steps: int = 1) -> Any:
        """The answer of a sign-in with the password and a code."""
        return self.verify(login(self.user).json["mfa_token"], self.code(steps))


def set_up(user: Caller) -> Phone:
    """Set up an authenticator app."""
    return set_up_in(session_of(login(user).json, user.app), user)


def set_up_in(session: Caller, user: Caller) -> Phone:
    """Set up an authenticator app in a session of the user."""
    secret = session.post("auth/mfa/totp", {"name": "Phone"}).json["secret"]
    code = pyotp.TOTP(secret).at(clock.now())
    enrolled = session.post("auth/mfa/totp/confirm", {"code": code}).json
    return Phone(user, session, secret, enrolled["recovery_codes"])


@pytest.fixture
def phone(cast: Cast) -> Phone:
    """Alice, an admin, with an authenticator app."""
    return set_up(cast.alice)


def test_login_without_second_factor_is_unchanged(cast: Cast) -> None:
    answer = login(cast.alice)
    assert outcome(answer) == (200, None)
    own = session_of(answer.json, cast.alice.app).get("auth/mfa").json
    assert own == {
        "policy": "optional",
        "required_from": None,
        "factors": [],
        "recovery_codes_left": 0,
    }


def test_login_with_password_alone_is_mfa_required(phone: Phone) -> None:
    asked = login(phone.user)
    assert outcome(asked) == REQUIRED
    assert asked.json["methods"] == ["totp", "recovery_code"]
    assert not {"token", "access_token", "refresh_token"} & set(asked.json)
    assert "Set-Cookie" not in asked.headers
    signed_in = phone.verify(asked.json["mfa_token"], phone.code(1))
    assert outcome(signed_in) == (200, None)
    assert signed_in.json["user"]["email"] == phone.user.email
    me = session_of(signed_in.json, phone.user.app).get("auth/me")
    assert me.status_code == 200


def test_mfa_token_as_access_or_refresh_token_is_401(phone: Phone) -> None:
    token = login(phone.user).json["mfa_token"]
    thief = Caller(phone.user.app, Authorization=f"Bearer {token}")
    assert thief.get("auth/me").status_code == 401
    assert Caller(phone.user.app).post("auth/refresh", {"refresh_token": token}).status_code == 401


def test_totp_code_works_once(phone: Phone) -> None:
    code = phone.code(1)
    assert phone.verify(login(phone.user).json["mfa_token"], code).status_code == 200
    again = phone.verify(login(phone.user).json["mfa_token"], code)
    assert outcome(again) == WRONG


def test_totp_code_sent_twice_concurrently_signs_in_once(phone: Phone) -> None:
    code = phone.code(1)
    tokens = [login(phone.user).json["mfa_token"] for _ in range(2)]
    answers = at_once(2, lambda n: phone.verify(tokens[n], code))
    assert sorted(answer.status_code for answer in answers) == [200, 401]


def test_mfa_token_works_once(phone: Phone) -> None:
    token = login(phone.user).json["mfa_token"]
    assert phone.verify(token, phone.code(1)).status_code == 200
    used = phone.verify(token, phone.recovery_codes[0], "recovery_code")
    assert outcome(used) == ENDED
    left = phone.session.get("auth/mfa").json["recovery_codes_left"]
    assert left == 10, "the refused attempt used no code up"


@pytest.mark.parametrize(("steps", "accepted"), [(-2, False), (1, True), (2, False)])
def test_totp_code_is_accepted_one_step_off(cast: Cast, steps: int, accepted: bool) -> None:
    with time_machine.travel("2026-11-26T12:00:15Z", tick=False) as traveller:
        phone = set_up(cast.alice)
        traveller.shift(120)
        assert (phone.sign_in(steps).status_code == 200) is accepted


def test_totp_code_older_than_last_used_is_refused(cast: Cast) -> None:
    with time_machine.travel("2026-11-26T12:00:15Z", tick=False) as traveller:
        phone = set_up(cast.alice)
        traveller.shift(120)
        assert phone.sign_in(1).status_code == 200
        assert outcome(phone.sign_in(0)) == WRONG


def test_mfa_token_expires_after_five_minutes(cast: Cast) -> None:
    with time_machine.travel("2026-11-26T12:00:15Z", tick=False) as traveller:
        phone = set_up(cast.alice)
        token = login(cast.alice).json["mfa_token"]
        traveller.shift(301)
        assert outcome(phone.verify(token, phone.code())) == ENDED


def new_password(phone: Phone) -> None:
    body = {"current_password": PASSWORD, "new_password": "Better-horse-2"}
    assert phone.session.post("auth/change-password", body).status_code == 200


def deactivated(phone: Phone) -> None:
    change_user(phone.user.app, phone.user.id, is_active=False)


@pytest.mark.parametrize("change", [new_password, deactivated])
def test_mfa_token_is_voided_by_password_change_or_deactivation(
    phone: Phone, change: Callable[[Phone], None]
) -> None:
    token = login(phone.user).json["mfa_token"]
    change(phone)
    assert outcome(phone.verify(token, phone.code(1))) == ENDED


def test_recovery_code_works_once_and_is_mailed(phone: Phone) -> None:
    assert len(set(phone.recovery_codes)) == 10
    code = phone.recovery_codes[3].upper().replace("-", " ")
    sent = login(phone.user).json["mfa_token"]
    assert phone.verify(sent, code, "recovery_code").status_code == 200
    again = phone.verify(login(phone.user).json["mfa_token"], code, "recovery_code")
    assert outcome(again) == WRONG
    run_jobs(phone.user.app)
    assert "recovery codes was used" in body_of(outbox(phone.user.app)[-1])


def test_second_factor_guesses_are_limited(phone: Phone, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(phone.user.app, monkeypatch)
    with time_machine.travel("2036-11-26T12:00:15Z", tick=False):
        token = login(phone.user).json["mfa_token"]
        answers = [phone.verify(token, f"{n:06}").status_code for n in range(12)]
        assert (answers[0], answers[-1]) == (401, 429)
        assert phone.verify(token, phone.code(1)).status_code == 429


def test_totp_and_recovery_codes_of_other_user_are_refused(cast: Cast) -> None:
    alice, charlie = set_up(cast.alice), set_up(cast.charlie)
    token = login(cast.charlie).json["mfa_token"]
    assert outcome(charlie.verify(token, alice.code(1))) == WRONG
    assert outcome(charlie.verify(token, alice.recovery_codes[0], "recovery_code")) == WRONG


def test_second_factor_setup_requires_recent_sign_in(cast: Cast) -> None:
    session = session_of(login(cast.alice).json, cast.alice.app)
    later = clock.now() + timedelta(minutes=16)
    acts = [
        ("POST", "auth/mfa/totp", {}),
        ("POST", "auth/mfa/totp/confirm", {"code": "123456"}),
        ("POST", "auth/mfa/passkeys/options", {}),
        ("POST", "auth/mfa/passkeys", {"token": "t", "credential": {}}),
        ("POST", "auth/mfa/recovery-codes", None),
        ("DELETE", f"auth/mfa/factors/{cast.alice.id}", None),
        ("DELETE", f"account/users/{cast.bob.id}/second-factors", None),
    ]
    with time_machine.travel(later):
        for method, path, body in acts:
            answer = session(method, path, body)
            assert outcome(answer) == (403, "recent_sign_in_required"), path


def test_second_factor_setup_ends_sessions_begun_without_one(cast: Cast) -> None:
    thief = session_of(login(cast.bob).json, cast.bob.app)
    phone = set_up(cast.bob)
    assert thief.post("auth/mfa/totp", {"name": "Mine"}).status_code == 401
    assert phone.session.get("auth/me").status_code == 200
    session = session_of(phone.sign_in().json, cast.bob.app)
    assert session.post("auth/mfa/totp", {"name": "Second"}).status_code == 201
    assert phone.session.get("auth/me").status_code == 200, "of the first factor only"


def test_email_and_password_change_with_old_session_require_second_factor(phone: Phone) -> None:
    session = session_of(phone.sign_in().json, phone.user.app)
    password = {"current_password": PASSWORD, "new_password": "Better-horse-2"}
    address = {"current_password": PASSWORD, "email": "new@acme.example"}
    with time_machine.travel(clock.now() + timedelta(minutes=16)):
        for answer in (
            session.post("auth/change-password", password),
            session.patch("auth/me", address),
        ):
            assert outcome(answer) == (403, "recent_sign_in_required")
    assert session.post("auth/change-password", password).status_code == 200


def test_api_key_on_second_factor_routes_is_403(cast: Cast) -> None:
    key = cast.alice.post("api-keys", {"name": "import"}).json["key"]
    caller = Caller(cast.alice.app, Authorization=f"Bearer {key}")
    assert caller.post("auth/mfa/totp", {}).status_code == 403
    assert caller.post("auth/mfa/recovery-codes").status_code == 403
    assert caller.delete(f"account/users/{cast.bob.id}/second-factors").status_code == 403


def test_reauthentication_requires_second_factor(phone: Phone) -> None:
    session = session_of(phone.sign_in().json, phone.user.app)
    missing = session.post("auth/reauthenticate", {"password": PASSWORD})
    assert outcome(missing) == (400, "validation_error")
    wrong = {"password": PASSWORD, "method": "totp", "code": "000000"}
    assert outcome(session.post("auth/reauthenticate", wrong)) == WRONG
    body = {"password": PASSWORD, "method": "recovery_code", "code": phone.recovery_codes[0]}
    assert session.post("auth/reauthenticate", body).status_code == 200


def test_rule_operand_auth_mfa_is_true_after_second_factor(cast: Cast) -> None:
    rules = {"create_rule": "true", "list_rule": "@request.auth.mfa", "view_rule": "true"}
    make_collection(cast.root, "papers", [{"name": "title", "type": "text"}], **rules)
    cast.alice.post("records/papers", {"title": "t"})
    before = session_of(login(cast.alice).json, cast.alice.app)
    assert before.get("records/papers").json["total"] == 0
    phone = set_up(cast.alice)
    pair = phone.sign_in().json
    after = session_of(pair, cast.alice.app)
    assert after.get("records/papers").json["total"] == 1
    assert phone.session.get("records/papers").json["total"] == 0
    renewed = Caller(cast.alice.app).post("auth/refresh", {"refresh_token": pair["refresh_token"]})
    assert session_of(renewed.json, cast.alice.app).get("records/papers").json["total"] == 1


@pytest.mark.parametrize("mode", ["optional", "off"])
def test_rule_operand_auth_mfa_is_false_for_unchecked_factor(cast: Cast, mode: str) -> None:
    rules = {"create_rule": "true", "list_rule": "@request.auth.mfa", "view_rule": "true"}
    make_collection(cast.root, "papers", [{"name": "title", "type": "text"}], **rules)
    cast.alice.post("records/papers", {"title": "t"})
    cast.alice.patch("account", {"mfa": mode})
    session = session_of(login(cast.bob).json, cast.bob.app)
    body = {"password": PASSWORD, "method": "totp", "code": "000000"}
    pair = session.post("auth/reauthenticate", body).json
    assert session_of(pair, cast.bob.app).get("records/papers").json["total"] == 0


def test_recovery_codes_end_with_last_factor(phone: Phone) -> None:
    (factor,) = phone.session.get("auth/mfa").json["factors"]
    assert phone.session.delete(f"auth/mfa/factors/{factor['id']}").status_code == 204
    assert phone.session.get("auth/mfa").json["recovery_codes_left"] == 0
    assert login(phone.user).status_code == 200


def test_totp_app_unconfirmed_is_no_factor(cast: Cast) -> None:
    session = session_of(login(cast.alice).json, cast.alice.app)
    session.post("auth/mfa/totp", {})
    assert session.get("auth/mfa").json["factors"] == []
    assert login(cast.alice).status_code == 200


def test_second_factor_reset_by_admin_mails_user_and_ends_sessions(cast: Cast) -> None:
    phone = set_up(cast.bob)
    session = session_of(phone.sign_in().json, cast.bob.app)
    reset = cast.alice.delete(f"account/users/{cast.bob.id}/second-factors")
    assert reset.status_code == 204
    assert session.get("auth/me").status_code == 401
    assert login(cast.bob).status_code == 200
    run_jobs(cast.bob.app)
    mails = [mail for mail in outbox(cast.bob.app) if cast.bob.email in mail["To"]]
    assert "An admin removed all your second factors" in body_of(mails[-1])


@pytest.mark.parametrize("who", ["alice", "charlie"])
def test_second_factors_of_other_account_are_403_or_404(cast: Cast, who: str) -> None:
    other = cast.charlie if who == "alice" else cast.bob
    caller = getattr(cast, who)
    assert caller.delete(f"account/users/{other.id}/second-factors").status_code in (403, 404)


def test_mfa_policy_required_enrols_user_at_sign_in(cast: Cast) -> None:
    changed = cast.alice.patch("account", {"mfa": "required", "mfa_roles": ["viewer"]})
    assert changed.status_code == 200, changed.json
    assert login(cast.alice).status_code == 200, "admins are not concerned"
    asked = login(cast.bob)
    assert outcome(asked) == (401, "mfa_enrolment_required")
    anyone, step = Caller(cast.bob.app), {"mfa_token": asked.json["mfa_token"]}
    secret = anyone.post("auth/mfa/totp", step).json["secret"]
    code = {"code": pyotp.TOTP(secret).at(clock.now())}
    done = anyone.post("auth/mfa/totp/confirm", step | code)
    assert done.status_code == 200, done.json
    assert len(done.json["recovery_codes"]) == 10
    assert session_of(done.json["signed_in"], cast.bob.app).get("auth/me").status_code == 200
    again = anyone.post("auth/mfa/totp", step)
    assert again.status_code == 401, "the token of a sign-in sets up the first factor only"
    assert outcome(login(cast.bob)) == REQUIRED


def test_mfa_grace_period_delays_enrolment(cast: Cast) -> None:
    cast.alice.patch("account", {"mfa": "required", "mfa_grace_days": 3})
    assert login(cast.bob).status_code == 200
    with time_machine.travel(clock.now() + timedelta(days=4)):
        assert outcome(login(cast.bob)) == (401, "mfa_enrolment_required")


def test_second_factor_report_lists_methods_per_user(cast: Cast) -> None:
    set_up(cast.bob)
    page = cast.alice.get("account/second-factors").json["items"]
    methods = {one["email"]: one["methods"] for one in page}
    assert methods == {cast.alice.email: [], cast.bob.email: ["totp"]}
    without = cast.alice.get("account/second-factors?second_factor=without").json
    assert [one["email"] for one in without["items"]] == [cast.alice.email]


def test_password_sign_in_can_be_off_except_for_superadmins(cast: Cast) -> None:
    assert cast.alice.patch("account", {"password_sign_in": False}).status_code == 200
    assert outcome(login(cast.bob)) == (401, "password_sign_in_off")
    wrong = {"account": cast.bob.slug, "email": cast.bob.email, "password": "wrong"}
    assert outcome(Caller(cast.bob.app).post("auth/login", wrong)) == (
        401,
        "authentication_failed",
    )
    cast.root.patch("account", {"password_sign_in": False})
    assert login(cast.root).status_code == 200


def test_mfa_policy_off_requires_no_factor(phone: Phone) -> None:
    assert phone.session.patch("account", {"mfa": "off"}).status_code == 200
    assert login(phone.user).status_code == 200
    assert phone.session.post("auth/mfa/totp", {}).status_code == 403


@pytest.fixture
def key(cast: Cast) -> tuple[Authenticator, Caller]:
    """A passkey of alice, and the session that registered it."""
    authenticator = Authenticator("http://localhost")
    session = session_of(login(cast.alice).json, cast.alice.app)
    offered = session.post("auth/mfa/passkeys/options", {}).json
    authenticator.origin = f"http://{offered['options']['rp']['id']}"
    credential = authenticator.create(offered["options"])
    body = {"token": offered["token"], "name": "Laptop", "credential": credential}
    added = session.post("auth/mfa/passkeys", body)
    assert added.status_code == 200, added.json
    assert session.post("auth/mfa/passkeys", body).status_code in (400, 401), "used"
    return authenticator, session


def by_passkey(key: Authenticator, app: Flask, **changed: Any) -> Any:
    """The answer of a sign-in by a passkey alone."""
    anyone = Caller(app)
    offered = anyone.post("auth/passkeys/options").json
    body = {"token": offered["token"], "assertion": key.get(offered["options"] | changed)}
    return anyone.post("auth/passkeys/verify", body)


def test_passkey_signs_in_alone(key: tuple[Authenticator, Caller], cast: Cast) -> None:
    answer = by_passkey(key[0], cast.alice.app)
    assert answer.status_code == 200, answer.json
    assert answer.json["user"]["email"] == cast.alice.email


def test_passkey_works_as_second_factor(key: tuple[Authenticator, Caller], cast: Cast) -> None:
    asked = login(cast.alice).json
    assert asked["methods"] == ["passkey", "recovery_code"]
    assertion = key[0].get(asked["passkey_options"])
    body = {"mfa_token": asked["mfa_token"], "method": "passkey", "assertion": assertion}
    anyone = Caller(cast.alice.app)
    assert anyone.post("auth/mfa/verify", body).status_code == 200
    assert anyone.post("auth/mfa/verify", body).status_code == 401, "replayed"


def unverified(key: Authenticator) -> None:
    key.verifies = False


def other_origin(key: Authenticator) -> None:
    key.origin = "https://evil.example"


def other_key(key: Authenticator) -> None:
    key.key = Authenticator("x").key


def cloned(key: Authenticator) -> None:
    key.count = -1


@pytest.mark.parametrize("attack", [unverified, other_origin, other_key, cloned])
def test_passkey_assertion_that_does_not_verify_is_401(
    key: tuple[Authenticator, Caller], cast: Cast, attack: Callable[[Authenticator], None]
) -> None:
    authenticator = key[0]
    assert by_passkey(authenticator, cast.alice.app).status_code == 200
    attack(authenticator)
    assert outcome(by_passkey(authenticator, cast.alice.app)) == WRONG


def test_passkey_challenge_of_other_purpose_is_refused(
    key: tuple[Authenticator, Caller], cast: Cast
) -> None:
    offered = key[1].post("auth/mfa/options").json
    body = {"token": offered["token"], "assertion": key[0].get(offered["options"])}
    assert outcome(Caller(cast.alice.app).post("auth/passkeys/verify", body)) == ENDED


def test_passkey_assertion_with_user_handle_of_other_user_is_401(
    key: tuple[Authenticator, Caller], cast: Cast
) -> None:
    other = UUID(cast.bob.account_id).bytes + UUID(cast.bob.id).bytes
    key[0].handle = bytes_to_base64url(other)
    assert outcome(by_passkey(key[0], cast.alice.app)) == WRONG


@pytest.mark.parametrize(
    "assertion",
    [
        {},
        {"id": "x"},
        {"id": 1, "response": 2},
        {"id": "AA\u00e4", "response": {"userHandle": "\u00e4"}},
        {"id": "AAAA", "rawId": "AAAA", "type": "public-key", "response": {"userHandle": "A" * 44}},
    ],
)
def test_passkey_assertion_that_is_malformed_is_401(cast: Cast, assertion: dict[str, Any]) -> None:
    anyone = Caller(cast.alice.app)
    token = anyone.post("auth/passkeys/options").json["token"]
    answer = anyone.post("auth/passkeys/verify", {"token": token, "assertion": assertion})
    assert outcome(answer) == WRONG


def test_audit_log_of_second_factor_holds_no_secret(phone: Phone, cast: Cast) -> None:
    log = entries(cast.root, table_name="second_factors")
    values = {one["column_name"]: one["new_value"] for one in log if one["operation"] == "CREATE"}
    assert (values["name"], values["secret"]) == ("Phone", "***")
    assert not {"last_step", "sign_count"} & {one["column_name"] for one in log}


@pytest.mark.parametrize(
    "written", ["{}\n", " {}", "{} ", "{}\r\n", "\t{}", "{0[0]}{0[1]}{0[2]} {0[3]}{0[4]}{0[5]}"]
)
def test_totp_code_with_whitespace_is_accepted(bob: Caller, written: str) -> None:
    secret = bob.post("auth/mfa/totp", {"name": "Phone"}).json["secret"]
    code = written.format(pyotp.TOTP(secret).at(clock.now()))
    assert bob.post("auth/mfa/totp/confirm", {"code": code}).status_code == 200
