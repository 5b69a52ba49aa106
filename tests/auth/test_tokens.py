"""Access and refresh tokens: what is refused, rotation, and changes obeyed at once."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import jwt
import pytest
import sqlalchemy as sa
import time_machine
from cryptography.hazmat.primitives.asymmetric import rsa
from flask import Flask
from flask_jwt_extended.exceptions import (
    CSRFError,
    JWTDecodeError,
    NoAuthorizationError,
    RevokedTokenError,
    WrongTokenError,
)

from app import clock
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.auth import purge, sessions
from app.auth.devices import Origin
from app.auth.mfa.gate import Proof
from app.auth.models import MailedToken, SignInSession
from app.db import db, transaction
from tests import services
from tests.audit.chains import entries
from tests.builders import (
    PASSWORD,
    Caller,
    Cast,
    change_user,
    make_account,
    make_collection,
    make_user,
)
from tests.parallel import at_once

LOGIN = {"account": "acme", "email": "ann@acme.example", "password": PASSWORD}
RSA_KEY = rsa.generate_private_key(65537, 2048)


def part(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class Forge:
    """Makes tokens that differ from a good one in what a case says."""

    def __init__(self, app: Flask, good: str) -> None:
        self.key = app.extensions["atrium.config"].secret_key
        self.header = jwt.get_unverified_header(good)
        self.claims = jwt.decode(good, options={"verify_signature": False})

    def without(self, *names: str) -> str:
        """Signed by our key, without these claims."""
        return self.signed({k: v for k, v in self.claims.items() if k not in names})

    def claiming(self, **changes: Any) -> str:
        """Signed by our key, with other claims."""
        return self.signed({**self.claims, **changes})

    def signed(self, claims: dict[str, Any], algorithm: str = "HS256", **header: Any) -> str:
        """Signed by our key whatever it says."""
        headers = {**self.header, **header}
        headers.pop("alg")  # it would win over the argument
        if isinstance(claims.get("exp"), int | float | None):
            return jwt.encode(claims, self.key, algorithm=algorithm, headers=headers)
        return self.by_hand({**headers, "alg": algorithm}, claims)

    def by_hand(self, header: Any, claims: Any) -> str:
        """Signed by our key, past the checks of the library."""
        text = f"{part(header)}.{part(claims)}"
        signer = jwt.get_algorithm_by_name("HS256")
        return f"{text}.{part(signer.sign(text.encode(), signer.prepare_key(self.key)))}"


def _other_key(forge: Forge) -> str:
    return jwt.encode(forge.claims, "k" * 64, algorithm="HS256", headers=forge.header)


def _rs256(forge: Forge) -> str:
    kid = {"kid": forge.header["kid"]}
    return jwt.encode(forge.claims, RSA_KEY, algorithm="RS256", headers=kid)


def _none(forge: Forge) -> str:
    return f"{part({**forge.header, 'alg': 'none'})}.{part(forge.claims)}."


def _own_jwk(forge: Forge) -> str:
    jwk = {"kty": "oct", "k": part(b"k" * 64)}
    header = {**forge.header, "jwk": jwk}
    return jwt.encode(forge.claims, "k" * 64, algorithm="HS256", headers=header)


def _swapped(forge: Forge) -> str:
    header, _, signature = forge.claiming().split(".")
    return f"{header}.{part({**forge.claims, 'role': 'superadmin'})}.{signature}"


def _deep(forge: Forge) -> str:
    return f"{part(b'[' * 20_000)}.{part(forge.claims)}.x"


ATTACKS: dict[str, Callable[[Forge], str]] = {
    "alg none": _none,
    "alg None in capitals": lambda f: f"{part({**f.header, 'alg': 'NONE'})}.{part(f.claims)}.",
    "HS512": lambda f: f.signed(f.claims, "HS512"),
    "HS384": lambda f: f.signed(f.claims, "HS384"),
    "RS256": _rs256,
    "alg is a number": lambda f: f.by_hand({**f.header, "alg": 5}, f.claims),
    "another key": _other_key,
    "claims swapped": _swapped,
    "no exp": lambda f: f.without("exp"),
    "no iat": lambda f: f.without("iat"),
    "no iss": lambda f: f.without("iss"),
    "no sub": lambda f: f.without("sub"),
    "no jti": lambda f: f.without("jti"),
    "no type": lambda f: f.without("type"),
    "no account": lambda f: f.without("account_id"),
    "expired": lambda f: f.claiming(exp=f.claims["iat"] - 1),
    "exp as text": lambda f: f.claiming(exp=str(f.claims["exp"])),
    "exp is no number": lambda f: f.claiming(exp="tomorrow"),
    "exp without end": lambda f: f.claiming(exp=1e308 * 10),
    "exp is a list": lambda f: f.claiming(exp=[f.claims["exp"]]),
    "exp is null": lambda f: f.claiming(exp=None),
    "exp is true": lambda f: f.claiming(exp=True),
    "iat as text": lambda f: f.by_hand(f.header, {**f.claims, "iat": str(f.claims["iat"])}),
    "nbf tomorrow": lambda f: f.claiming(nbf=f.claims["exp"]),
    "unknown crit": lambda f: f.signed(f.claims, crit=["x"], x=1),
    "empty crit": lambda f: f.by_hand({**f.header, "crit": []}, f.claims),
    "jwk": _own_jwk,
    "jku": lambda f: f.signed(f.claims, jku="https://evil.example/keys"),
    "x5u": lambda f: f.signed(f.claims, x5u="https://evil.example/cert"),
    "zipped": lambda f: f.signed(f.claims, zip="DEF"),
    "unknown kid": lambda f: f.signed(f.claims, kid="unknown"),
    "kid is a path": lambda f: f.signed(f.claims, kid="../../dev/null"),
    "kid is a list": lambda f: f.by_hand({**f.header, "kid": ["x"]}, f.claims),
    "no kid": lambda f: f.by_hand({"alg": "HS256", "typ": "JWT"}, f.claims),
    "another issuer": lambda f: f.claiming(iss="http://evil.example"),
    "issuer is a list": lambda f: f.by_hand(f.header, {**f.claims, "iss": [f.claims["iss"]]}),
    "an audience": lambda f: f.claiming(aud="somebody else"),
    "unknown type": lambda f: f.claiming(type="id"),
    "type is a list": lambda f: f.claiming(type=["access", "refresh"]),
    "sub is a number": lambda f: f.by_hand(f.header, {**f.claims, "sub": 1}),
    "sub is unknown": lambda f: f.claiming(sub="00000000-0000-7000-8000-000000000000"),
    "sub with NUL": lambda f: f.claiming(sub="\0"),
    "sub is half a character": lambda f: f.claiming(sub="\ud800"),
    "account is half a character": lambda f: f.claiming(account_id="\ud800"),
    "jti is half a character": lambda f: f.claiming(jti="\ud800"),
    "account is another": lambda f: f.claiming(account_id="00000000-0000-0000-0000-000000000000"),
    "account is null": lambda f: f.claiming(account_id=None),
    "claims are a list": lambda f: f.by_hand(f.header, [f.claims]),
    "claims are no JSON": lambda f: f.by_hand(f.header, b"{"),
    "claims are no UTF-8": lambda f: f.by_hand(f.header, b'{"sub":"\xff"}'),
    "claims are deep": lambda f: f.by_hand(f.header, b'{"a":' * 5000 + b"1" + b"}" * 5000),
    "header is a list": lambda f: f.by_hand([], f.claims),
    "header is deep": _deep,
    "empty": lambda f: "",
    "dots": lambda f: "..",
    "four parts": lambda f: f.claiming() + ".x",
    "garbage": lambda f: "nonsense",
    "not ASCII": lambda f: "é.é.é",
    "an API key": lambda f: "svc_sk_AA0001_" + "x" * 32,
    "SQL": lambda f: "' OR 1=1 --",
}


@pytest.fixture
def signed_in(app: Flask, anyone: Caller) -> dict[str, Any]:
    """The answer of a login."""
    make_user(app, make_account(app, "acme"), "ann@acme.example", "admin")
    answer: dict[str, Any] = anyone.post("auth/login", LOGIN).json
    return answer


def bearing(caller: Caller, token: str, path: str = "auth/me", **headers: str) -> Any:
    return caller.get(path, headers={"Authorization": f"Bearer {token}", **headers})


def refused(answer: Any) -> bool:
    right_shape = set(answer.json) == {"error", "message"}
    right_header = answer.headers.get("WWW-Authenticate") == "Bearer"
    return answer.status_code == 401 and right_shape and right_header


def refresh(caller: Caller, token: str) -> Any:
    return caller.post("auth/refresh", {"refresh_token": token})


@pytest.mark.parametrize("attack", ATTACKS)
def test_access_token_that_is_forged_is_401(
    app: Flask, anyone: Caller, signed_in: dict[str, Any], attack: str
) -> None:
    token = ATTACKS[attack](Forge(app, signed_in["token"]))
    assert refused(bearing(anyone, token))


def test_forged_credential_on_public_routes_is_401(
    app: Flask, anyone: Caller, root: Caller, alice: Caller
) -> None:
    make_collection(root)
    forge = Forge(app, alice.headers["Authorization"].partition(" ")[2])
    for name, attack in ATTACKS.items():
        for header in ({}, {"X-Account-ID": "acme"}):
            assert refused(bearing(anyone, attack(forge), "records/posts", **header)), name


def test_refresh_token_that_is_forged_is_401_and_keeps_session(
    app: Flask, anyone: Caller, signed_in: dict[str, Any]
) -> None:
    forge = Forge(app, signed_in["refresh_token"])
    for name, attack in ATTACKS.items():
        assert refused(refresh(anyone, attack(forge))), name
    assert refresh(anyone, signed_in["refresh_token"]).status_code == 200


def test_token_of_other_kind_is_401(anyone: Caller, signed_in: dict[str, Any]) -> None:
    assert refused(bearing(anyone, signed_in["refresh_token"]))
    assert refused(refresh(anyone, signed_in["access_token"]))


def test_token_claims_equal_specification(app: Flask, signed_in: dict[str, Any]) -> None:
    access = Forge(app, signed_in["token"])
    assert access.header == {"alg": "HS256", "typ": "JWT", "kid": access.header["kid"]}
    # Flask-JWT-Extended adds `fresh`, which nothing reads: ADR 26.
    common = {"sub", "account_id", "exp", "iat", "type", "iss", "jti", "fresh"}
    assert set(access.claims) == common | {"email", "role", "sid", "auth_time"}
    assert access.claims["exp"] - access.claims["iat"] == 3600
    renewing = Forge(app, signed_in["refresh_token"]).claims
    assert set(renewing) == common | {"sid"}
    assert renewing["sid"] == access.claims["sid"]
    assert 0 <= access.claims["iat"] - access.claims["auth_time"] <= 1
    assert renewing["exp"] - renewing["iat"] == 7 * 86_400


@pytest.mark.parametrize(
    "error",
    [
        NoAuthorizationError("no token"),
        CSRFError("no CSRF token"),
        JWTDecodeError("no claim"),
        RevokedTokenError({}, {}),
        WrongTokenError("a refresh token"),
        jwt.DecodeError("no token"),
        jwt.InvalidIssuerError("another issuer"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_jwt_library_errors_are_401(app: Flask, error: Exception) -> None:
    with app.test_request_context("/api/v1/auth/me"):
        answer: Any = app.handle_user_exception(error)
    assert answer.status_code == 401
    assert answer.json == {"error": "unauthorized", "message": "The token is invalid."}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer {token}"}, 200),
        ({"Authorization": "bearer {token}"}, 200),
        ({"Authorization": "BEARER   {token} "}, 200),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "{token}"}, 401),
        ({"Authorization": "Basic {token}"}, 401),
        ({"Authorization": "Basic YTpi"}, 401),
        ({"Authorization": "Token {token}"}, 401),
        ({"Authorization": "Bearer {token}, Bearer {token}"}, 401),
        ({"Authorization": "Bearer nonsense", "X-API-Key": "{token}"}, 401),
        ({"X-API-Key": "nonsense"}, 401),
        ({"X-API-Key": ""}, 401),
        ({}, 401),
    ],
)
def test_authorization_header_must_be_bearer(
    anyone: Caller, signed_in: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    filled = {k: v.format(token=signed_in["token"]) for k, v in headers.items()}
    answer = anyone.get("auth/me", headers=filled)
    assert answer.status_code == status
    assert status == 200 or refused(answer)


def test_access_token_expires_after_lifetime(anyone: Caller, signed_in: dict[str, Any]) -> None:
    for minutes, status in ((59, 200), (61, 401)):
        with time_machine.travel(clock.now() + timedelta(minutes=minutes)):
            assert bearing(anyone, signed_in["token"]).status_code == status


def test_token_is_accepted_with_clock_5_seconds_behind(
    anyone: Caller, signed_in: dict[str, Any]
) -> None:
    with time_machine.travel(clock.now() - timedelta(seconds=5)):
        assert bearing(anyone, signed_in["token"]).status_code == 200
        assert refresh(anyone, signed_in["refresh_token"]).status_code == 200


def test_signing_key_rotation_accepts_previous_key_until_dropped(
    app: Flask, anyone: Caller, signed_in: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = app.extensions["atrium.config"]
    old, new = settings.secret_key, "another-secret-key-of-the-right-length"
    rotated = replace(settings, secret_key=new, secret_key_previous=("x" * 40, old))
    monkeypatch.setitem(app.extensions, "atrium.config", rotated)
    assert bearing(anyone, signed_in["token"]).status_code == 200
    renewed = refresh(anyone, signed_in["refresh_token"])
    assert renewed.status_code == 200
    assert old not in str(renewed.json)
    dropped = replace(rotated, secret_key_previous=())
    monkeypatch.setitem(app.extensions, "atrium.config", dropped)
    assert refused(bearing(anyone, signed_in["token"]))
    assert bearing(anyone, renewed.json["token"]).status_code == 200


def test_signing_key_rotation_process_by_process_keeps_sessions(
    app: Flask, anyone: Caller, signed_in: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = app.extensions["atrium.config"]
    old, new = settings.secret_key, "another-secret-key-of-the-right-length"
    before = replace(settings, secret_key_previous=(new,))
    after = replace(settings, secret_key=new, secret_key_previous=(old,))
    had = signed_in
    for its in (after, before, after):
        monkeypatch.setitem(app.extensions, "atrium.config", its)
        assert bearing(anyone, had["token"]).status_code == 200
        renewed = refresh(anyone, had["refresh_token"])
        assert renewed.status_code == 200
        had = renewed.json


def test_refresh_returns_new_token_pair(anyone: Caller, signed_in: dict[str, Any]) -> None:
    answer = refresh(anyone, signed_in["refresh_token"])
    assert answer.status_code == 200
    got = answer.json
    assert set(got) == {"token", "access_token", "refresh_token", "token_type", "expires_in"}
    assert got["token"] == got["access_token"]
    assert got["refresh_token"] != signed_in["refresh_token"]
    assert (got["token_type"], got["expires_in"]) == ("bearer", 3600)
    assert f"service_refresh={got['refresh_token']};" in answer.headers["Set-Cookie"]
    assert bearing(anyone, got["token"]).status_code == 200
    assert refresh(anyone, got["refresh_token"]).status_code == 200


def test_refresh_token_reuse_ends_its_session(anyone: Caller, signed_in: dict[str, Any]) -> None:
    other_family = anyone.post("auth/login", LOGIN).json["refresh_token"]
    second = refresh(anyone, signed_in["refresh_token"]).json["refresh_token"]
    third = refresh(anyone, second).json["refresh_token"]
    assert refused(refresh(anyone, signed_in["refresh_token"]))
    assert refused(refresh(anyone, third))
    assert refresh(anyone, other_family).status_code == 200


def test_refresh_token_reuse_is_audited_once(anyone: Caller, root: Caller, alice: Caller) -> None:
    body = {"account": "acme", "email": alice.email, "password": PASSWORD}
    first = anyone.post("auth/login", body).json["refresh_token"]
    refresh(anyone, first)
    for _ in range(2):
        assert refused(refresh(anyone, first))
    (entry,) = entries(root, table_name="sessions")
    assert (entry["operation"], entry["column_name"]) == ("UPDATE", "revoked_at")
    assert entry["record_id"] == jwt.decode(first, options={"verify_signature": False})["sid"]
    assert entry["account_id"] == alice.account_id
    assert entry["extra_metadata"] == {"reason": "refresh_token_reused"}
    assert (entry["user_id"], entry["ip_address"]) == ("anonymous", "127.0.0.1")


@pytest.mark.parametrize("sid", ["\ud800", "a\0", 5, None])
def test_session_id_claim_that_is_malformed_is_401(
    app: Flask, anyone: Caller, signed_in: dict[str, Any], sid: Any
) -> None:
    forged = Forge(app, signed_in["refresh_token"]).claiming(sid=sid)
    assert refused(refresh(anyone, forged))
    headers = {"Authorization": f"Bearer {signed_in['token']}"}
    answer = anyone.post("auth/logout", {"refresh_token": forged}, headers=headers)
    assert answer.status_code == 401
    assert refresh(anyone, signed_in["refresh_token"]).status_code == 200


def test_refresh_concurrently_50_times_with_one_token_succeeds_once(
    anyone: Caller, signed_in: dict[str, Any]
) -> None:
    answers = at_once(50, lambda _: refresh(anyone, signed_in["refresh_token"]))
    assert sorted(answer.status_code for answer in answers) == [200] + [401] * 49
    (winner,) = [answer.json for answer in answers if answer.status_code == 200]
    # The others used it again, which ends the family.
    assert refused(refresh(anyone, winner["refresh_token"]))


def test_refresh_token_is_valid_only_in_allowed_accounts(app: Flask, anyone: Caller) -> None:
    for slug in ("acme", "globex"):
        make_user(app, make_account(app, slug), f"ann@{slug}.example")
    make_user(app, SYSTEM_ACCOUNT_ID, "ann@system.example")
    for who, header, host, status in (
        ("acme", "globex", None, 403),
        ("acme", "nowhere", None, 403),
        ("acme", "*", None, 403),
        ("acme", None, "globex.atrium.test", 403),
        ("acme", "acme", "globex.atrium.test", 400),
        ("acme", " ACME ", None, 200),
        ("acme", None, "acme.atrium.test", 200),
        ("system", "nowhere", None, 404),
        ("system", None, "globex.atrium.test", 200),
        ("system", "*", None, 200),
    ):
        user = {"account": who, "email": f"ann@{who}.example"}
        pair = anyone.post("auth/login", {**LOGIN, **user}).json
        headers = {"X-Account-ID": header, "Host": host}
        headers = {name: value for name, value in headers.items() if value}
        body = {"refresh_token": pair["refresh_token"]}
        answer = anyone.post("auth/refresh", body, headers=headers)
        assert answer.status_code == status, (who, header, host)
        # What is refused is not used up.
        again = refresh(anyone, pair["refresh_token"])
        assert again.status_code == (401 if status == 200 else 200), (who, header, host)


def test_refresh_cookie_is_used_without_body_token(
    anyone: Caller, signed_in: dict[str, Any]
) -> None:
    cookie = {"Cookie": f"service_refresh={signed_in['refresh_token']}"}
    assert anyone.post("auth/refresh", {}, headers=cookie).status_code == 200
    assert refused(anyone.post("auth/refresh", {}, headers=cookie))


def test_refresh_body_token_wins_over_cookie(anyone: Caller, signed_in: dict[str, Any]) -> None:
    cookie = {"Cookie": "service_refresh=nonsense"}
    body = {"refresh_token": signed_in["refresh_token"]}
    assert anyone.post("auth/refresh", body, headers=cookie).status_code == 200


def test_refresh_without_token_is_401(anyone: Caller, signed_in: dict[str, Any]) -> None:
    assert refused(anyone.post("auth/refresh", {}))


def test_refresh_token_expires_after_lifetime(anyone: Caller, signed_in: dict[str, Any]) -> None:
    with time_machine.travel(clock.now() + timedelta(days=6)):
        renewed = refresh(anyone, signed_in["refresh_token"]).json["refresh_token"]
    with time_machine.travel(clock.now() + timedelta(days=12)):
        renewed = refresh(anyone, renewed).json["refresh_token"]
    with time_machine.travel(clock.now() + timedelta(days=20)):
        assert refused(refresh(anyone, renewed))


def test_refresh_token_is_stored_as_hash_only(app: Flask, signed_in: dict[str, Any]) -> None:
    jti = Forge(app, signed_in["refresh_token"]).claims["jti"]
    with app.app_context():
        stored = str(db.session.execute(sa.select(SignInSession.__table__)).one())
    assert jti not in stored
    assert signed_in["refresh_token"] not in stored


def login(caller: Caller) -> Any:
    return caller.post("auth/login", LOGIN).json


def logout(anyone: Caller, pair: dict[str, Any], body: Any, **headers: str) -> Any:
    credential = {"Authorization": f"Bearer {pair['token']}", **headers}
    return anyone.post("auth/logout", body, headers=credential)


@pytest.mark.parametrize("by", ["body", "cookie", "neither", "cookie of another", "all"])
def test_logout_ends_one_session_or_all(anyone: Caller, signed_in: dict[str, Any], by: str) -> None:
    other = login(anyone)
    token = signed_in["refresh_token"]
    body: dict[str, Any] = {"refresh_token": token} if by == "body" else {}
    cookies = {"cookie": token, "cookie of another": other["refresh_token"]}
    headers = {"Cookie": f"service_refresh={cookies[by]}"} if by in cookies else {}
    if by == "all":
        body = {"all": True}
    answer = logout(anyone, signed_in, body, **headers)
    assert (answer.status_code, set(answer.json)) == (200, {"message"})
    assert "service_refresh=;" in answer.headers["Set-Cookie"]
    assert refused(refresh(anyone, token))
    me = {"Authorization": f"Bearer {other['token']}"}
    assert anyone.get("auth/me", headers=me).status_code == (401 if by == "all" else 200)
    expected = 401 if by == "all" else 200
    assert refresh(anyone, other["refresh_token"]).status_code == expected


def test_logout_with_api_key_ends_no_session(
    app: Flask, anyone: Caller, signed_in: dict[str, Any]
) -> None:
    made = Caller(app, Authorization=f"Bearer {signed_in['token']}").post("api-keys", {"name": "k"})
    key = Caller(app, **{"X-API-Key": made.json["key"]})
    assert key.post("auth/logout", {}).status_code == 200
    assert key.post("auth/logout", {"all": True}).status_code == 403
    assert refresh(anyone, signed_in["refresh_token"]).status_code == 200


@pytest.mark.parametrize("all", ["true", 1, None])
def test_logout_all_that_is_no_boolean_is_422(
    anyone: Caller, signed_in: dict[str, Any], all: object
) -> None:
    assert logout(anyone, signed_in, {"all": all}).status_code == 422


def test_logout_with_refreshed_token_ends_its_session(
    anyone: Caller, signed_in: dict[str, Any]
) -> None:
    renewed = refresh(anyone, signed_in["refresh_token"]).json
    assert logout(anyone, renewed, {"refresh_token": renewed["refresh_token"]}).status_code == 200
    assert refused(refresh(anyone, renewed["refresh_token"]))


def test_logout_with_refresh_token_of_other_user_is_403(
    anyone: Caller, bob: Caller, app: Flask, cast: Cast
) -> None:
    body = {"account": "acme", "email": "alice@acme.example", "password": PASSWORD}
    alices = anyone.post("auth/login", body).json["refresh_token"]
    assert bob.post("auth/logout", {"refresh_token": alices}).status_code == 403
    assert bob.post("auth/logout", {}).status_code == 200
    assert refresh(anyone, alices).status_code == 200


@pytest.mark.parametrize("cookie", ["nonsense", "{access}", "{expired}"])
def test_logout_ignores_unusable_refresh_cookie(
    app: Flask, anyone: Caller, signed_in: dict[str, Any], cookie: str
) -> None:
    forge = Forge(app, signed_in["refresh_token"])
    stale = cookie.format(access=signed_in["token"], expired=forge.claiming(exp=1))
    answer = logout(anyone, signed_in, {}, Cookie=f"service_refresh={stale}")
    assert answer.status_code == 200
    assert refused(refresh(anyone, signed_in["refresh_token"]))


def test_logout_without_credential_is_401(anyone: Caller, signed_in: dict[str, Any]) -> None:
    body = {"refresh_token": signed_in["refresh_token"]}
    assert refused(anyone.post("auth/logout", body))
    assert refresh(anyone, signed_in["refresh_token"]).status_code == 200


def by_service(app: Flask, user_id: str, **values: Any) -> None:
    """A change by this process."""
    change_user(app, user_id, **values)


def by_another_process(app: Flask, user_id: str, **values: Any) -> None:
    """A change over a connection that this process knows nothing of."""
    url = app.extensions["atrium.config"].database_url
    if services.CITUS_NODES:  # where policies bind the service's login
        url = services.as_login(url, services.CITUS_BACKUP_LOGIN)
    engine = sa.create_engine(url)
    changes = ", ".join(f"{name} = :{name}" for name in values)
    statement = f"UPDATE users SET {changes}, version = version + 1 WHERE id = :id"  # noqa: S608
    with engine.begin() as connection:
        connection.execute(sa.text(statement), {**values, "id": user_id})
    engine.dispose()


CHANGES = pytest.mark.parametrize("change", [by_service, by_another_process])


@CHANGES
@pytest.mark.parametrize("path", ["auth/me", "records/posts", "records/posts/none"])
def test_deactivated_user_is_401_on_next_request(
    app: Flask, root: Caller, bob: Caller, change: Callable[..., None], path: str
) -> None:
    make_collection(root)
    assert bob.get(path).status_code in (200, 404)
    change(app, bob.id, is_active=False)
    assert refused(bob.get(path))
    assert refused(bob.get(path))
    change(app, bob.id, is_active=True)
    assert bob.get(path).status_code in (200, 404)


@CHANGES
def test_deactivated_user_writes_are_401(
    app: Flask, root: Caller, alice: Caller, bob: Caller, change: Callable[..., None]
) -> None:
    make_collection(root)
    made = bob.post("records/posts", {"title": "a"}).json
    change(app, bob.id, is_active=False)
    assert refused(bob.post("records/posts", {"title": "b"}))
    assert refused(bob.patch(f"records/posts/{made['id']}", {"title": "b"}))
    assert refused(bob.delete(f"records/posts/{made['id']}"))
    assert [one["title"] for one in alice.get("records/posts").json["items"]] == ["a"]


@CHANGES
def test_deactivated_user_refresh_is_401(
    app: Flask, anyone: Caller, bob: Caller, change: Callable[..., None]
) -> None:
    body = {"account": "acme", "email": "bob@acme.example", "password": PASSWORD}
    token = anyone.post("auth/login", body).json["refresh_token"]
    change(app, bob.id, is_active=False)
    assert refused(refresh(anyone, token))
    change(app, bob.id, is_active=True)
    assert refused(refresh(anyone, token)), "the attempt ended the family"


@CHANGES
def test_role_change_applies_to_existing_token(
    app: Flask, bob: Caller, change: Callable[..., None]
) -> None:
    admin, viewer = 1, 3
    body = {"email": "alice@acme.example"}
    for role, role_id, status in (
        ("viewer", viewer, 403),
        ("admin", admin, 200),
        ("viewer", viewer, 403),
    ):
        change(app, bob.id, role_id=role_id)
        assert bob.post("auth/send-verification", body).status_code == status
        assert bob.get("auth/me").json["role"] == role


@CHANGES
def test_token_of_deactivated_superadmin_is_401(
    app: Flask, root: Caller, change: Callable[..., None]
) -> None:
    assert root.get("collections").status_code == 200
    change(app, root.id, is_active=False)
    assert refused(root.get("collections"))


def test_token_of_suspended_account_is_401(
    app: Flask, anyone: Caller, root: Caller, alice: Caller
) -> None:
    make_collection(root)
    body = {"account": "acme", "email": "alice@acme.example", "password": PASSWORD}
    token = anyone.post("auth/login", body).json["refresh_token"]
    paths = ("auth/me", "records/posts")
    assert {alice.get(path).status_code for path in paths} == {200}
    with app.app_context(), transaction() as session:
        statement = "UPDATE accounts SET is_active = false, version = version + 1 WHERE id = :id"
        session.execute(sa.text(statement), {"id": alice.account_id})
    assert all(refused(alice.get(path)) for path in paths)
    assert refused(refresh(anyone, token))


def test_token_of_deleted_user_is_401(app: Flask, root: Caller, bob: Caller) -> None:
    make_collection(root)
    assert bob.get("records/posts").status_code == 200
    with app.app_context(), transaction() as session:
        session.execute(sa.text("DELETE FROM users WHERE id = :id"), {"id": bob.id})
    assert refused(bob.get("records/posts"))
    assert refused(bob.get("auth/me"))


@CHANGES
def test_console_session_ends_with_user_deactivation(
    app: Flask, bob: Caller, change: Callable[..., None]
) -> None:
    with app.app_context():
        user = db.session.get_one(User, (bob.account_id, bob.id))
        secret = sessions.start_in_console(user, Origin("127.0.0.1", "a browser"), Proof.PASSWORD)
    cookie = {"Cookie": f"atrium_console={secret}"}
    browser = Caller(app)
    assert browser.get("/console", headers=cookie).status_code == 200
    change(app, bob.id, is_active=False)
    assert browser.get("/console", headers=cookie).status_code == 302


def test_expired_sessions_and_mailed_tokens_are_purged(
    app: Flask, signed_in: dict[str, Any]
) -> None:
    """Sign-ins and mailed links that ended more than a day ago; hundreds at once."""
    late = clock.now() - timedelta(days=1, seconds=1)
    with app.app_context():
        account_id = db.session.scalar(sa.select(SignInSession.account_id))
        user = {"account_id": account_id, "user_id": signed_in["user"]["id"], "expires_at": late}
        with transaction() as session:
            old = {**user, "kind": "api", "token_hash": "x"}
            session.execute(sa.insert(SignInSession), [old] * 1001)
            mail = {"purpose": "reset", "email": "a@acme.example", "token_hash": "x"}
            session.execute(sa.insert(MailedToken), [{**user, **mail}])
        purge.purge({})
        kept = [
            db.session.scalars(sa.select(model.expires_at)).all()
            for model in (SignInSession, MailedToken)
        ]
    assert kept[0]
    assert min([*kept[0], *kept[1]]) > clock.now()
