"""Users of all accounts as superadmins keep them."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
from flask import Flask

from app.accounts import service as accounts
from app.accounts.models import ADMIN, PII_GROUP, User
from app.db import db, transaction
from tests.builders import PASSWORD, Caller, Cast, make_collection, make_user
from tests.mailbox import body_of, link_in, outbox, run_jobs
from tests.parallel import at_once

NEW_PASSWORD = "Another-horse-2"
RANDOM_ID = "019a9f00-0000-7000-8000-00000000dead"
KEYS = {
    "attributes",
    "id",
    "kind",
    "email",
    "name",
    "account_id",
    "account_code",
    "account_name",
    "role",
    "role_id",
    "role_name",
    "groups",
    "is_active",
    "email_verified",
    "email_verified_at",
    "auth_provider",
    "created_at",
    "updated_at",
    "last_login",
    "token_type",
}


def emails(root: Caller, query: str) -> list[str]:
    answer = root.get(f"users?{query}")
    assert answer.status_code == 200, answer.json
    return [one["email"].partition("@")[0] for one in answer.json["items"]]


def codes(answer: Any) -> set[tuple[str, str]]:
    assert answer.status_code == 400, answer.json
    return {(one["field"], one["code"]) for one in answer.json["details"]}


def sign_in(caller: Caller, password: str = PASSWORD) -> Any:
    body = {"account": caller.slug, "email": caller.email, "password": password}
    return Caller(caller.app).post("auth/login", body)


def test_user_response_has_exact_keys(cast: Cast) -> None:
    shown = cast.root.get(f"users/{cast.alice.id}")
    assert set(shown.json) == KEYS
    assert shown.json["groups"] == ["pii_access"]
    listed = cast.root.get("users")
    made = cast.root.post("users", {"email": "d@x.example", "account_id": cast.bob.account_id})
    changed = cast.root.patch(f"users/{cast.bob.id}", {"name": "Bob"})
    assert [set(one) for one in listed.json["items"]] == [KEYS] * 4
    assert set(made.json) == set(changed.json) == KEYS
    for answer in (shown, listed, made, changed):
        assert "argon2" not in answer.text
        assert "hash" not in answer.text


@pytest.mark.both_databases
def test_user_list_filters_and_sorting(cast: Cast) -> None:
    root = cast.root
    root.patch(f"users/{cast.bob.id}", {"is_active": False, "name": "Bob"})
    admin, viewer = (one["role_id"] for one in map(me, (cast.alice, cast.charlie)))
    assert admin == viewer
    viewer = root.get(f"users/{cast.bob.id}").json["role_id"]
    order = "sort_by=email&sort_order=asc"
    table = {
        order: ["alice", "bob", "charlie", "root"],
        "sort=email": ["alice", "bob", "charlie", "root"],
        "sort=-email": ["root", "charlie", "bob", "alice"],
        "sort_by=email": ["root", "charlie", "bob", "alice"],
        "": ["root", "charlie", "bob", "alice"],
        "sort_order=asc": ["alice", "bob", "charlie", "root"],
        "sort_by=name&sort_order=desc&limit=1": ["bob"],
        f"{order}&skip=1&limit=2": ["bob", "charlie"],
        f"{order}&page=2&page_size=3": ["root"],
        f"{order}&account_id={cast.bob.account_id}": ["alice", "bob"],
        f"{order}&account_id={cast.bob.account_id.upper()}": ["alice", "bob"],
        f"account_id={RANDOM_ID}": [],
        f"{order}&role_id={admin}": ["alice", "charlie", "root"],
        f"role_id={viewer}": ["bob"],
        "role_id=99": [],
        "is_active=false": ["bob"],
        f"{order}&is_active=true": ["alice", "charlie", "root"],
        f"{order}&search=ACME": ["alice", "bob"],
        "search=%25": [],
        f"search=acme&role_id={admin}&is_active=true": ["alice"],
    }
    for query, expected in table.items():
        assert emails(root, query) == expected, query
    for query in ("sort_by=password_hash", "sort=id", "limit=101", "limit=0", "skip=-1", "x=1"):
        assert root.get(f"users?{query}").status_code == 422, query
    assert root.get("users?role_id=x").status_code == 422


def me(caller: Caller) -> dict[str, Any]:
    shown: dict[str, Any] = caller.get("auth/me").json["user"]
    return shown


def test_new_user_with_password_gets_verification_mail(app: Flask, cast: Cast) -> None:
    body = {
        "email": "Dora@acme.example",
        "password": PASSWORD,
        "account_id": cast.alice.account_id,
        "role_id": me(cast.alice)["role_id"],
    }
    answer = cast.root.post("users", body)
    assert answer.status_code == 201
    assert (answer.json["role"], answer.json["email_verified"]) == ("admin", False)
    credentials = {"account": "acme", "email": "dora@acme.example", "password": PASSWORD}
    refused = Caller(app).post("auth/login", credentials)
    assert (refused.status_code, refused.json["error"]) == (401, "email_not_verified")
    run_jobs(app)
    assert "/auth/verify-email?token=" in link_in(outbox(app)[0])
    verified = cast.root.post(f"users/{answer.json['id']}/verify")
    assert (verified.status_code, verified.json["email_verified"]) == (200, True)
    assert verified.json["email_verified_at"]
    assert verified.json["message"]
    assert Caller(app).post("auth/login", credentials).status_code == 200


def test_new_user_without_password_gets_mail_to_set_it(app: Flask, cast: Cast) -> None:
    body = {"email": "dora@acme.example", "account_id": cast.alice.account_id, "role": "editor"}
    assert cast.root.post("users", body).json["role"] == "editor"
    run_jobs(app)
    (mail,) = outbox(app)
    assert "/welcome/reset-password?token=" in link_in(mail)
    token = link_in(mail).partition("token=")[2]
    answer = Caller(app).post("auth/reset-password", {"token": token, "new_password": PASSWORD})
    assert answer.status_code == 200
    credentials = {"account": "acme", "email": "dora@acme.example", "password": PASSWORD}
    assert Caller(app).post("auth/login", credentials).status_code == 200


def test_user_body_reports_all_invalid_values_at_once(app: Flask, cast: Cast) -> None:
    body: dict[str, Any] = {"email": "x", "account_id": RANDOM_ID, "role": "boss", "password": "x"}
    found = codes(cast.root.post("users", body))
    assert found >= {
        ("email", "invalid_email"),
        ("account_id", "invalid_reference"),
        ("role", "invalid_reference"),
        ("password", "password_too_weak"),
    }
    body = {"email": "d@x.example", "account_id": cast.alice.account_id, "role_id": 99}
    assert codes(cast.root.post("users", body)) == {("role_id", "invalid_reference")}
    body = {"email": "d@x.example", "account_id": "nonsense", "name": "a\nb"}
    assert codes(cast.root.post("users", body)) == {
        ("account_id", "invalid_reference"),
        ("name", "name_invalid"),
    }
    for missing in ({"email": "d@x.example"}, {"account_id": RANDOM_ID}, {}):
        assert cast.root.post("users", missing).status_code == 422
    run_jobs(app)
    assert outbox(app) == []
    assert cast.root.get("users").json["total"] == 4


def test_user_email_is_unique_per_account(cast: Cast) -> None:
    body = {"email": "ALICE@acme.example", "account_id": cast.alice.account_id}
    answer = cast.root.post("users", body)
    assert (answer.status_code, answer.json["field"]) == (409, "email")
    assert cast.root.post("users", {**body, "account_id": cast.charlie.account_id}).status_code == (
        201
    )
    answer = cast.root.patch(f"users/{cast.bob.id}", {"email": "Alice@acme.example"})
    assert (answer.status_code, answer.json["field"]) == (409, "email")


def test_user_email_change_resets_verification(app: Flask, cast: Cast) -> None:
    path = f"users/{cast.bob.id}"
    same = cast.root.patch(path, {"email": "BOB@acme.example"})
    assert (same.json["email"], same.json["email_verified"]) == ("BOB@acme.example", True)
    answer = cast.root.patch(path, {"email": " robert@acme.example "})
    assert (answer.json["email"], answer.json["email_verified"]) == ("robert@acme.example", False)
    run_jobs(app)
    told = {"BOB@acme.example", "robert@acme.example"}  # the old one, and the one to be verified
    assert {mail["To"] for mail in outbox(app)} == told


def test_user_update_with_unknown_role_is_invalid_reference(cast: Cast) -> None:
    path = f"users/{cast.bob.id}"
    assert codes(cast.root.patch(path, {"role": ""})) == {("role", "invalid_reference")}
    assert codes(cast.root.patch(path, {"role": "boss", "email": "x"})) == {
        ("role", "invalid_reference"),
        ("email", "invalid_email"),
    }
    for body in ({"account_id": RANDOM_ID}, {"password": "x"}, {"is_active": 1}, {"role_id": "x"}):
        assert cast.root.patch(path, body).status_code == 422
    assert me(cast.bob)["role"] == "viewer"


@pytest.mark.parametrize("role", ["viewer", "boss", ""])
def test_user_role_id_and_role_that_disagree_are_invalid_reference(cast: Cast, role: str) -> None:
    both, refused = {"role_id": 1, "role": role}, {("role", "invalid_reference")}
    path, new = f"users/{cast.bob.id}", {"email": "dora@acme.example", **both}
    assert codes(cast.root.patch(path, both)) == refused
    assert codes(cast.alice.patch(f"account/{path}", both)) == refused
    assert codes(cast.root.post("users", {"account_id": cast.bob.account_id, **new})) == refused
    assert codes(cast.alice.post("account/users", new)) == refused
    assert codes(cast.alice.post("invitations", new)) == refused
    assert me(cast.bob)["role"] == "viewer"
    assert cast.root.patch(path, {"role_id": 2, "role": "editor"}).json["role"] == "editor"


@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize("name", ["new_password", "password"])
def test_password_set_by_superadmin_ends_all_sessions(cast: Cast, method: str, name: str) -> None:
    pairs = [sign_in(cast.bob).json for _ in range(2)]
    other = sign_in(cast.alice).json
    answer = cast.root(method, f"users/{cast.bob.id}/password", {name: NEW_PASSWORD})
    assert (answer.status_code, set(answer.json)) == (200, {"message"})
    for pair in pairs:
        assert refreshed(cast, pair) == 401
    assert refreshed(cast, other) == 200
    assert sign_in(cast.bob).status_code == 401
    assert sign_in(cast.bob, NEW_PASSWORD).status_code == 200


def refreshed(cast: Cast, pair: dict[str, str]) -> int:
    body = {"refresh_token": pair["refresh_token"]}
    return Caller(cast.root.app).post("auth/refresh", body).status_code


def test_password_reset_link_by_superadmin_ends_all_sessions(app: Flask, cast: Cast) -> None:
    pair = sign_in(cast.bob).json
    answer = cast.root.put(f"users/{cast.bob.id}/password", {"send_reset_link": True})
    assert (answer.status_code, set(answer.json)) == (200, {"message"})
    assert refreshed(cast, pair) == 401
    run_jobs(app)
    assert "/welcome/reset-password?token=" in body_of(outbox(app)[0])


def test_password_set_with_invalid_value_changes_nothing(cast: Cast) -> None:
    pair, path = sign_in(cast.bob).json, f"users/{cast.bob.id}/password"
    weak = cast.root.put(path, {"new_password": "x"})
    assert {code for _, code in codes(weak)} == {"password_too_weak"}
    for body in ({}, {"send_reset_link": False}, {"new_password": None}, {"new_password": 1}):
        assert cast.root.put(path, body).status_code == 422
    assert refreshed(cast, pair) == 200
    assert sign_in(cast.bob).status_code == 200


def test_verification_resend_mails_only_unverified_user(app: Flask, cast: Cast) -> None:
    user = make_user(app, cast.bob.account_id, "dora@acme.example", verified=False)
    assert cast.root.post(f"users/{user.id}/resend-verification").status_code == 200
    assert cast.root.post(f"users/{cast.bob.id}/resend-verification").status_code == 200
    run_jobs(app)
    assert [mail["To"] for mail in outbox(app)] == ["dora@acme.example"]


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_user_deactivation_applies_to_next_request(cast: Cast, method: str) -> None:
    make_collection(cast.root)
    pair = sign_in(cast.bob).json
    key = Caller(
        cast.root.app, **{"X-API-Key": cast.bob.post("api-keys", {"name": "k"}).json["key"]}
    )
    for caller in (cast.bob, key):
        assert caller.get("records/posts").status_code == 200
    path = f"users/{cast.bob.id}"
    assert cast.root(method, path, {"is_active": False}).json["is_active"] is False
    for caller in (cast.bob, key):
        assert caller.get("records/posts").status_code == 401
        assert caller.get("auth/me").status_code == 401
    assert sign_in(cast.bob).status_code == 401
    assert cast.root(method, path, {"is_active": True}).status_code == 200
    # What was issued before stays void; who is back signs in.
    assert cast.bob.get("auth/me").status_code == 401
    assert refreshed(cast, pair) == 401
    assert sign_in(cast.bob).status_code == 200
    assert key.get("auth/me").status_code == 200


def test_user_role_change_applies_to_next_request(cast: Cast) -> None:
    path, pair = f"users/{cast.bob.id}", sign_in(cast.bob).json
    assert cast.bob.get("account").status_code == 403
    cast.root.patch(path, {"role": ADMIN})
    assert cast.bob.get("account").status_code == 200
    assert refreshed(cast, pair) == 401
    cast.root.patch(path, {"role": "viewer"})
    assert cast.bob.get("account").status_code == 403


def test_deleted_user_is_401_and_404(cast: Cast) -> None:
    path = f"users/{cast.bob.id}"
    answer = cast.root.delete(path)
    assert (answer.status_code, answer.data) == (204, b"")
    assert cast.bob.get("auth/me").status_code == 401
    for method in ("GET", "DELETE"):
        assert cast.root(method, path).status_code == 404
    assert cast.root.patch(path, {"name": "x"}).status_code == 404
    assert cast.root.get("users/7").json["detail"][0]["loc"] == ["path", "user_id"]


LOSSES = {"deactivate": {"is_active": False}, "demote": {"role": "viewer"}, "delete": None}


def lose(by: Caller, path: str, loss: str) -> int:
    method = "DELETE" if LOSSES[loss] is None else "PATCH"
    return by(method, path, LOSSES[loss]).status_code


@pytest.mark.parametrize("loss", LOSSES)
def test_admin_self_lockout_is_403_and_last_admin_loss_is_409(
    app: Flask, cast: Cast, loss: str
) -> None:
    second = make_user(app, cast.root.account_id, "second@system.example", ADMIN)
    assert lose(cast.root, f"users/{cast.root.id}", loss) == 403
    assert lose(cast.alice, f"account/users/{cast.alice.id}", loss) == 403
    assert lose(cast.root, f"users/{cast.alice.id}", loss) == 409
    assert lose(cast.root.acting_in("acme"), f"account/users/{cast.alice.id}", loss) == 409
    assert me(cast.alice)["role"] == "admin"
    assert lose(cast.root, f"users/{second.id}", loss) in (200, 204)
    assert cast.alice.patch(f"account/users/{cast.alice.id}", {"name": "Al"}).status_code == 200


def test_last_admin_check_ignores_inactive_admins(app: Flask, cast: Cast) -> None:
    second = make_user(app, cast.alice.account_id, "second@acme.example", ADMIN)
    assert cast.root.patch(f"users/{second.id}", {"is_active": False}).status_code == 200
    assert lose(cast.root, f"users/{cast.alice.id}", "demote") == 409
    assert lose(cast.root, f"users/{second.id}", "delete") == 204


@pytest.mark.parametrize("loss", LOSSES)
def test_last_admin_check_holds_under_concurrent_losses(app: Flask, cast: Cast, loss: str) -> None:
    dora = Caller(app, make_user(app, cast.alice.account_id, "dora@acme.example", ADMIN))
    pair = (cast.alice, dora)
    statuses = at_once(2, lambda i: lose(pair[i], f"account/users/{pair[1 - i].id}", loss))
    assert sorted(statuses)[0] in (200, 204)
    assert sorted(statuses)[1] in (401, 403, 409)
    left = cast.root.get(f"users?account_id={cast.alice.account_id}&is_active=true").json["items"]
    assert [one["role"] for one in left].count("admin") == 1


def test_user_concurrent_deletions_are_204_once(cast: Cast) -> None:
    statuses = at_once(4, lambda i: cast.root.delete(f"users/{cast.bob.id}").status_code)
    assert sorted(statuses) == [204, 404, 404, 404]


def test_user_concurrent_changes_bump_version_twice(app: Flask, cast: Cast) -> None:
    other = Thread(target=cast.alice.patch, args=(f"account/users/{cast.bob.id}", {"name": "Bob"}))
    with app.app_context(), transaction() as session:
        bob = session.get_one(User, (cast.bob.account_id, cast.bob.id))
        before = bob.version
        other.start()
        other.join(0.3)  # where the database does not have it wait
        accounts.join_group(bob, PII_GROUP)
    other.join()
    with app.app_context():
        bob = db.session.get_one(User, (cast.bob.account_id, cast.bob.id))
        assert (bob.name, bob.version) == ("Bob", before + 2)
