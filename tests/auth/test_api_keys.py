"""API keys: whom they stand for, what ends them, and what they never open."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
import time_machine
from flask import Flask

from app import clock, db
from app.accounts import service as accounts
from app.accounts.models import Account, Role, User
from app.auth.account_settings import NO_SETTINGS
from app.auth.models import ApiKey
from app.auth.principal import NO_ADMINS, NO_PII_MEMBERS
from app.rules import OPERATIONS
from tests.builders import (
    PASSWORD,
    Caller,
    Cast,
    change_user,
    make_collection,
    make_record,
)
from tests.parallel import at_once
from tests.sql import statements

FORM = re.compile(r"svc_sk_AA0001_[A-Za-z0-9]{32}")
WRITES_USE = "UPDATE api_keys SET last_used_at"


def make_key(owner: Caller, **body: Any) -> dict[str, Any]:
    answer = owner.post("api-keys", {"name": "import", **body})
    assert answer.status_code == 201, answer.json
    made: dict[str, Any] = answer.json
    return made


def machine(app: Flask, owner: Caller, **body: Any) -> Caller:
    """A program that uses a new key of that user."""
    return Caller(app, **{"X-API-Key": make_key(owner, **body)["key"]})


def set_key(app: Flask, key_id: str, **values: Any) -> None:
    """Change a key as another process would: behind the caches, with its version."""
    with app.app_context(), db.transaction() as session:
        account_id = session.scalar(sa.select(ApiKey.account_id).where(ApiKey.id == key_id))
        table = ApiKey.__table__
        mine = sa.update(table).where(table.c.account_id == account_id, table.c.id == key_id)
        session.execute(mine.values(version=ApiKey.version + 1, **values))


def used_at(app: Flask, key_id: str) -> Any:
    with app.app_context():
        return db.db.session.scalar(sa.select(ApiKey.last_used_at).where(ApiKey.id == key_id))


def test_api_key_format_and_single_display(app: Flask, alice: Caller) -> None:
    made = make_key(alice, description="Every night.")
    text = made["key"]
    assert FORM.fullmatch(text)
    assert (made["name"], made["description"]) == ("import", "Every night.")
    assert (made["account_id"], made["created_by"]) == (alice.account_id, alice.id)
    assert made["account_code"] == "AA0001"
    assert (made["is_revoked"], made["is_active"], made["last_used_at"]) == (False, True, None)
    hidden = (text, hashlib.sha256(text.encode()).hexdigest())
    Caller(app, **{"X-API-Key": text}).get("auth/me")
    for path in ("api-keys", f"api-keys/{made['id']}", "admin/api-keys"):
        answer = alice.get(path)
        assert answer.status_code == 200
        assert not any(secret in answer.text for secret in hidden)
    revoked = alice.post(f"api-keys/{made['id']}/revoke")
    assert set(revoked.json) == {"id", "is_revoked", "revoked_at", "revoked_by"}
    assert (revoked.json["is_revoked"], revoked.json["revoked_by"]) == (True, alice.id)


def test_api_key_is_stored_as_hash(app: Flask, alice: Caller) -> None:
    text = make_key(alice)["key"]
    with app.app_context():
        row = db.db.session.execute(sa.select(ApiKey.__table__)).one()
    assert row.key_hash == hashlib.sha256(text.encode()).hexdigest()
    assert text.rpartition("_")[2] not in str(row)


def test_api_keys_are_unique(alice: Caller) -> None:
    assert len({make_key(alice)["key"] for _ in range(5)}) == 5


def test_api_key_is_never_logged(
    app: Flask, alice: Caller, capsys: pytest.CaptureFixture[str]
) -> None:
    text = make_key(alice)["key"]
    for key in (text, text[:-1] + "x"):
        for headers in ({"X-API-Key": key}, {"Authorization": f"Bearer {key}"}):
            Caller(app, **headers).get("auth/me")
    told = "".join(capsys.readouterr())
    assert '"event":"request"' in told
    assert text.rpartition("_")[2][:-1] not in told
    assert hashlib.sha256(text.encode()).hexdigest() not in told


@pytest.mark.parametrize("who", ["alice", "bob", "root"])
def test_api_key_acts_as_its_owner(app: Flask, cast: Cast, who: str) -> None:
    owner: Caller = getattr(cast, who)
    text = make_key(owner)["key"]
    for headers in ({"X-API-Key": text}, {"Authorization": f"bearer {text}"}):
        me = Caller(app, **headers).get("auth/me")
        assert (me.status_code, me.json["user_id"]) == (200, owner.id)
        assert me.json["is_superadmin"] is (who == "root")


def test_bearer_credential_wins_over_x_api_key(app: Flask, alice: Caller, bob: Caller) -> None:
    by_bob = {"X-API-Key": make_key(bob)["key"]}
    assert alice.get("auth/me", headers=by_bob).json["user_id"] == alice.id
    bad = {**by_bob, "Authorization": "Bearer nonsense"}
    assert Caller(app, **bad).get("auth/me").status_code == 401


@pytest.mark.parametrize("who", ["alice", "root"])
def test_api_key_in_another_account_is_403(app: Flask, cast: Cast, who: str) -> None:
    make_collection(cast.root)
    owner: Caller = getattr(cast, who)
    program = machine(app, owner)
    for path in ("auth/me", "records/posts"):
        for other in ("globex", "*", cast.charlie.account_id, "nowhere"):
            assert program.acting_in(other).get(path).status_code == 403, (path, other)
        assert program.acting_in(owner.slug).get(path).status_code == 200


def test_api_key_of_superadmin_writes_records_in_own_account_only(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    program, own = machine(app, cast.root), cast.root.account_id
    for other in (cast.alice.account_id, "acme"):
        body = {"title": "x", "account_id": other}
        assert program.post("records/posts", body).status_code == 403, other
        many = {"records": [{"title": "y"}, body]}
        assert program.post("records/posts/batch", many).status_code == 403, other
    assert cast.root.acting_in("*").get("records/posts").json["total"] == 0
    assert program.post("records/posts", {"title": "x", "account_id": own}).status_code == 201


def test_api_key_follows_current_role_and_groups_of_owner(app: Flask, cast: Cast) -> None:
    program = machine(app, cast.bob)
    assert program.get("invitations").status_code == 403
    with app.app_context(), db.transaction() as session:
        admin = session.scalars(sa.select(Role.id).where(Role.name == "admin")).one()
    change_user(app, cast.bob.id, role_id=admin)
    assert program.get("invitations").status_code == 200
    assert program.get("auth/me").json["role"] == "admin"
    with app.app_context(), db.transaction() as session:
        accounts.join_group(session.get_one(User, (cast.bob.account_id, cast.bob.id)), "pii_access")
    assert program.get("auth/me").json["groups"] == ["pii_access"]


def suspend(app: Flask, account_id: str) -> None:
    with app.app_context(), db.transaction() as session:
        account = session.get_one(Account, account_id)
        account.is_active, account.version = False, account.version + 1


End = Callable[[Flask, Cast, dict[str, Any]], Any]
ENDS: dict[str, End] = {
    "revoked": lambda app, cast, key: cast.bob.post(f"api-keys/{key['id']}/revoke"),
    "revoked by an admin": lambda app, cast, key: cast.alice.post(f"api-keys/{key['id']}/revoke"),
    "deleted": lambda app, cast, key: cast.bob.delete(f"api-keys/{key['id']}"),
    "revoked by another process": lambda app, cast, key: set_key(app, key["id"], is_revoked=True),
    "expired by another process": lambda app, cast, key: set_key(
        app, key["id"], expires_at=clock.now()
    ),
    "maker deactivated": lambda app, cast, key: cast.root.patch(
        f"users/{cast.bob.id}", {"is_active": False}
    ),
    "maker deactivated by another process": lambda app, cast, key: change_user(
        app, cast.bob.id, is_active=False
    ),
    "maker deleted": lambda app, cast, key: cast.root.delete(f"users/{cast.bob.id}"),
    "account suspended": lambda app, cast, key: suspend(app, cast.bob.account_id),
}


@pytest.mark.parametrize("end", ENDS)
def test_api_key_that_ended_is_401_on_next_request(app: Flask, cast: Cast, end: str) -> None:
    make_collection(cast.root)
    record = make_record(cast.alice, title="One")
    key = make_key(cast.bob)
    program = Caller(app, **{"X-API-Key": key["key"]})
    asked = [
        ("GET", "records/posts", None),
        ("GET", f"records/posts/{record['id']}", None),
        ("POST", "records/posts", {"title": "Two"}),
        ("PATCH", f"records/posts/{record['id']}", {"title": "Three"}),
        ("GET", "auth/me", None),
    ]
    assert {program(*one).status_code for one in asked} <= {200, 201}
    ENDS[end](app, cast, key)
    assert [program(*one).status_code for one in asked] == [401] * len(asked)
    assert cast.root.acting_in("*").get(f"records/posts/{record['id']}").json["title"] == "Three"


def test_api_key_expires_at_expires_at(app: Flask, alice: Caller) -> None:
    make_ends = clock.iso(clock.now() + timedelta(hours=1))
    program = machine(app, alice, expires_at=make_ends)
    assert program.get("auth/me").status_code == 200
    with time_machine.travel(clock.now() + timedelta(minutes=59)):
        assert program.get("auth/me").status_code == 200
    with time_machine.travel(clock.now() + timedelta(minutes=61)):
        assert program.get("auth/me").status_code == 401
    (shown,) = alice.get("api-keys").json["items"]
    assert (shown["expires_at"], shown["is_active"]) == (make_ends, True)


def test_api_key_with_past_expires_at_is_400(alice: Caller) -> None:
    over = alice.post("api-keys", {"name": "x", "expires_at": "2020-01-01T00:00:00Z"})
    assert over.status_code == 400
    assert [(d["field"], d["code"]) for d in over.json["details"]] == [
        ("expires_at", "invalid_datetime")
    ]


def test_api_key_last_used_at_is_written_once_a_minute(app: Flask, alice: Caller) -> None:
    key = make_key(alice)
    program = Caller(app, **{"X-API-Key": key["key"]})
    with statements(app) as sent:
        at_once(6, lambda _: program.get("auth/me"))
        for _ in range(3):
            program.get("auth/me")
    first = used_at(app, key["id"])
    assert first is not None
    assert 1 <= sum(WRITES_USE in one for one in sent) <= 6
    app.extensions["atrium.caches"].pop("api_keys_noted")  # as in another process
    program.get("auth/me")
    assert used_at(app, key["id"]) == first
    with statements(app) as sent:
        program.get("auth/me")
    assert not any(WRITES_USE in one for one in sent)
    with time_machine.travel(clock.now() + timedelta(seconds=61)):
        program.get("auth/me")
        assert used_at(app, key["id"]) > first
    assert alice.get(f"api-keys/{key['id']}").json["last_used_at"] is not None


FORBIDDEN = [
    ("POST", "api-keys", {"name": "another"}),
    ("POST", "admin/api-keys", {"name": "another"}),
    (
        "POST",
        "auth/change-password",
        {"current_password": PASSWORD, "new_password": "Correct-horse-2"},
    ),
    ("PATCH", "auth/me", {"email": "elsewhere@acme.example"}),
]


@pytest.mark.parametrize(("method", "path", "body"), FORBIDDEN)
def test_api_key_on_privileged_routes_is_403(
    app: Flask, alice: Caller, method: str, path: str, body: Any
) -> None:
    answer = machine(app, alice)(method, path, body)
    assert (answer.status_code, answer.json["error"]) == (403, "forbidden")
    assert alice.get("api-keys").json["total"] == 1


@pytest.mark.parametrize(
    ("who", "list_total", "status"),
    [("alice", 2, 200), ("bob", 1, 200), ("charlie", 0, 404), ("anyone", None, 401)],
)
def test_api_key_visibility_and_revocation_per_caller(
    app: Flask, cast: Cast, who: str, list_total: int | None, status: int
) -> None:
    key = make_key(cast.bob)
    make_key(cast.alice)
    caller: Caller = Caller(app) if who == "anyone" else getattr(cast, who)
    for prefix in ("api-keys", "admin/api-keys"):
        assert caller.get(prefix).json.get("total") == list_total
        assert caller.get(f"{prefix}/{key['id']}").status_code == status
    assert caller.post(f"admin/api-keys/{key['id']}/revoke").status_code == status
    assert Caller(app, **{"X-API-Key": key["key"]}).get("auth/me").status_code == (
        401 if status == 200 else 200
    )


def test_api_key_of_colleague_is_404(cast: Cast) -> None:
    key = make_key(cast.alice)
    for method, path in (("GET", ""), ("POST", "/revoke"), ("DELETE", "")):
        assert cast.bob(method, f"api-keys/{key['id']}{path}").status_code == 404


def test_api_key_second_revocation_is_409(alice: Caller) -> None:
    key = make_key(alice)
    answers = at_once(8, lambda _: alice.post(f"api-keys/{key['id']}/revoke").status_code)
    assert sorted(answers) == [200] + [409] * 7
    assert alice.delete(f"api-keys/{key['id']}").status_code == 409
    assert alice.get(f"api-keys/{key['id']}").json["is_revoked"] is True


def test_api_key_revocation_sets_updated_at(alice: Caller) -> None:
    key = make_key(alice)
    revoked_at = alice.post(f"api-keys/{key['id']}/revoke").json["revoked_at"]
    shown = alice.get(f"api-keys/{key['id']}").json
    assert shown["created_at"] < shown["updated_at"] == revoked_at


def test_api_key_deletion_is_revocation(alice: Caller) -> None:
    key = make_key(alice)
    assert alice.delete(f"admin/api-keys/{key['id']}").status_code == 204
    assert alice.get(f"api-keys/{key['id']}").json["is_active"] is False


def test_api_key_write_across_all_accounts_is_400(root: Caller) -> None:
    key = make_key(root)
    everywhere = root.acting_in("*")
    assert everywhere.get("api-keys").json["total"] == 1
    assert everywhere.post("api-keys", {"name": "x"}).status_code == 400
    assert everywhere.post(f"api-keys/{key['id']}/revoke").status_code == 400


@pytest.mark.parametrize(
    "text", ["", "x", "svc_sk_", "svc_sk_AA0001_", "svc_sk_AA0001_" + "a" * 32]
)
def test_api_key_with_malformed_text_is_401(anyone: Caller, alice: Caller, text: str) -> None:
    for headers in ({"X-API-Key": text}, {"Authorization": f"Bearer {text}"}):
        answer = anyone.get("auth/me", headers=headers)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")


def test_api_key_with_code_of_other_account_is_401(app: Flask, alice: Caller) -> None:
    text = make_key(alice)["key"].replace("AA0001", "AA0002")
    assert Caller(app, **{"X-API-Key": text}).get("auth/me").status_code == 401


SCOPES = {"collections": ["Posts"], "operations": ["list", "create"]}


@pytest.fixture
def scoped(app: Flask, cast: Cast) -> Caller:
    """A program of an admin, for listing and making posts."""
    for name in ("authors", "drafts"):
        make_collection(cast.root, name)
    fields = [
        {"name": "title", "type": "text"},
        {"name": "author", "type": "reference", "collection": "authors"},
    ]
    make_collection(cast.root, "posts", fields)
    return machine(app, cast.alice, scopes=SCOPES)


def test_api_key_scopes_limit_collections_and_operations(scoped: Caller, alice: Caller) -> None:
    made = scoped.post("records/posts", {"title": "One"})
    assert made.status_code == 201
    assert "title" not in made.json  # viewing is another operation
    assert scoped.get("records/posts").json["total"] == 1
    post = f"records/posts/{made.json['id']}"
    draft = f"records/drafts/{make_record(alice, 'drafts', title='x')['id']}"
    closed = [
        ("GET", post, None),
        ("PATCH", post, {"title": "Two"}),
        ("PUT", post, {"title": "Two"}),
        ("DELETE", post, None),
        ("GET", "records/drafts", None),
        ("POST", "records/drafts", {"title": "x"}),
        ("DELETE", draft, None),
        ("GET", "auth/me", None),
        ("GET", "users", None),
        ("GET", "api-keys", None),
        ("GET", "invitations", None),
        ("GET", "account", None),
        ("GET", "account/collections", None),
        ("GET", "collections", None),
        ("POST", "auth/logout", {}),
        ("POST", "auth/resend-verification", {}),
    ]
    for method, path, body in closed:
        answer = scoped(method, path, body)
        seen = (answer.status_code, answer.json["error"])
        assert seen == (403, "scope_denied"), (method, path)
    assert alice.get(post).json["title"] == "One"


def test_api_key_scope_blocks_lookups_through_references(scoped: Caller, alice: Caller) -> None:
    author = make_record(alice, "authors", title="Ann")
    answer = scoped.post("records/posts", {"title": "One", "author": author["id"]})
    assert (answer.status_code, answer.json["error"]) == (403, "scope_denied")
    assert answer.json["message"] == "This API key may not view authors."
    assert alice.post("records/posts", {"author": author["id"]}).status_code == 201


@pytest.mark.parametrize(
    ("scopes", "opened"),
    [
        ({"collections": ["posts"]}, {("posts", "list"), ("posts", "create")}),
        ({"operations": ["list"]}, {("posts", "list"), ("drafts", "list")}),
    ],
)
def test_api_key_scope_of_one_kind_leaves_other_kind_open(
    app: Flask, alice: Caller, scoped: Caller, scopes: Any, opened: set[tuple[str, str]]
) -> None:
    program = machine(app, alice, scopes=scopes)
    found = set()
    for name in ("posts", "drafts"):
        if program.get(f"records/{name}").status_code == 200:
            found.add((name, "list"))
        if program.post(f"records/{name}", {"title": "x"}).status_code == 201:
            found.add((name, "create"))
    assert found == opened


@pytest.mark.parametrize(
    "scopes",
    [{"collections": []}, {"operations": ["destroy"]}, {"more": 1}, {"collections": "posts"}, []],
)
def test_api_key_scopes_with_wrong_shape_are_422(alice: Caller, scopes: Any) -> None:
    assert alice.post("api-keys", {"name": "x", "scopes": scopes}).status_code == 422


def test_api_key_scopes_do_not_exceed_owner_rights(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, list_rule=None)
    program = machine(app, cast.bob, scopes={"collections": ["posts"]})
    answer = program.get("records/posts")
    assert (answer.status_code, answer.json["error"]) == (403, "rule_denied")


def test_api_key_of_superadmin_sets_no_passwords_or_emails(app: Flask, cast: Cast) -> None:
    program, bob = machine(app, cast.root), f"users/{cast.bob.id}"
    new = {"email": "dora@acme.example", "account_id": cast.bob.account_id}
    closed: list[tuple[str, str, Any]] = [
        ("PUT", f"{bob}/password", {"new_password": "Correct-horse-2"}),
        ("POST", f"{bob}/password", {"password": "Correct-horse-2"}),
        ("POST", f"{bob}/password", {"send_reset_link": True}),
        ("POST", "users", {**new, "password": "Correct-horse-2"}),
        ("PATCH", bob, {"email": "elsewhere@acme.example"}),
        ("PUT", bob, {"email": "elsewhere@acme.example"}),
    ]
    for method, path, body in closed:
        answer = program(method, path, body)
        assert (answer.status_code, answer.json["error"]) == (403, "forbidden"), (method, path)
    assert cast.root.get(bob).json["email"] == cast.bob.email
    login = {"account": "acme", "email": cast.bob.email, "password": PASSWORD}
    assert Caller(app).post("auth/login", login).status_code == 200
    assert program.post("users", new).status_code == 201
    assert program.patch(bob, {"name": "Bob"}).status_code == 200


def test_api_key_of_admin_sets_no_passwords_or_emails(app: Flask, cast: Cast) -> None:
    program, bob = machine(app, cast.alice), f"account/users/{cast.bob.id}"
    for method in ("PUT", "PATCH"):
        answer = program(method, bob, {"email": "elsewhere@acme.example"})
        assert (answer.status_code, answer.json["error"]) == (403, "forbidden")
    assert cast.alice.get(bob).json["email"] == cast.bob.email
    new = {"email": "dora@acme.example"}
    assert program.post("account/users", {**new, "password": PASSWORD}).status_code == 422
    assert program.post("account/users", new).status_code == 201
    assert program.post("invitations", {"email": "emil@acme.example"}).status_code == 201


@pytest.mark.parametrize("body", [{"role": "admin"}, {"role_id": 1}])
def test_api_key_that_makes_an_admin_is_403(app: Flask, cast: Cast, body: dict[str, Any]) -> None:
    invited = {"email": "dora@acme.example", **body}
    waiting = cast.alice.post("invitations", invited).json["id"]
    alice, root = machine(app, cast.alice), machine(app, cast.root)
    for key, method, path, sent in (
        (alice, "POST", "invitations", {"email": "eve@acme.example", **body}),
        (alice, "POST", f"invitations/{waiting}/resend", None),
        (alice, "POST", "account/users", {"email": "eve@acme.example", **body}),
        (alice, "PATCH", f"account/users/{cast.bob.id}", body),
        (
            root,
            "POST",
            "users",
            {"email": "e@acme.example", "account_id": cast.bob.account_id, **body},
        ),
        (root, "PATCH", f"users/{cast.bob.id}", body),
    ):
        answer = key(method, path, sent)
        assert (answer.status_code, answer.json["message"]) == (403, NO_ADMINS), path
    editor = {"email": "eve@acme.example", "role": "editor"}
    assert alice.post("invitations", editor).status_code == 201


def test_api_key_that_makes_a_superadmin_is_403(app: Flask, cast: Cast) -> None:
    program, new = machine(app, cast.root), {"email": "eve@system.example", "role": "viewer"}
    waiting = cast.root.post("invitations", {**new, "email": "rita@system.example"}).json["id"]
    for path, sent in (
        ("users", {**new, "account_id": cast.root.account_id}),
        ("account/users", new),
        ("invitations", new),
        (f"invitations/{waiting}/resend", None),
    ):
        answer = program.post(path, sent)
        assert (answer.status_code, answer.json["message"]) == (403, NO_ADMINS), path
    assert cast.root.get("account/users").json["total"] == 1
    assert program.patch(f"account/users/{cast.root.id}", {"name": "Root"}).status_code == 200


@pytest.mark.parametrize("name", [" ", "two\nlines", "\u200b"])
def test_api_key_name_with_unreadable_text_is_name_invalid(alice: Caller, name: str) -> None:
    answer = alice.post("api-keys", {"name": name})
    assert answer.status_code == 400
    assert [one["code"] for one in answer.json["details"]] == ["name_invalid"]


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
@pytest.mark.parametrize(
    "body",
    [
        {"allowed_redirect_uris": ["http://thief.example/in"]},
        {"default_redirect_uri": "http://thief.example/in"},
        {"cors_origins": ["http://thief.example"]},
        {"sso_allow_admin": True, "name": "Acme"},
    ],
)
def test_api_key_change_of_redirect_uris_is_403(
    app: Flask, cast: Cast, method: str, body: dict[str, Any]
) -> None:
    before = cast.alice.get("account").json
    answer = machine(app, cast.alice)(method, "account", body)
    assert (answer.status_code, answer.json["message"]) == (403, NO_SETTINGS)
    assert cast.alice.get("account").json == before
    assert machine(app, cast.alice)(method, "account", {"name": "Acme Ltd"}).status_code == 200


def test_api_key_that_adds_pii_access_member_is_403(app: Flask, cast: Cast) -> None:
    program = machine(app, cast.alice)
    group = next(g for g in cast.alice.get("groups").json["items"] if g["name"] == "pii_access")
    invited = {"email": "dora@acme.example", "groups": ["pii_access"]}
    waiting = cast.alice.post("invitations", invited).json["id"]
    member = {"user_id": cast.bob.id}
    for path, sent in (
        (f"groups/{group['id']}/users", member),
        (f"groups/{group['id'].upper()}/members", member),
        ("invitations", {**invited, "email": "emil@acme.example"}),
        ("invitations", {"email": "emil@acme.example", "groups": [group["id"]]}),
        (f"invitations/{waiting}/resend", None),
    ):
        answer = program.post(path, sent)
        assert (answer.status_code, answer.json["message"]) == (403, NO_PII_MEMBERS), path
    assert len(cast.alice.get(f"groups/{group['id']}").json["users"]) == 1


def test_api_key_scope_with_repeated_operation_is_422(alice: Caller) -> None:
    for operations in (["list"] * 2, ["list"] * 100_000, [*OPERATIONS, "list"], []):
        answer = alice.post("api-keys", {"name": "x", "scopes": {"operations": operations}})
        assert (answer.status_code, answer.json["error"]) == (422, "validation_error")
        assert len(answer.data) < 2000
    made = alice.post("api-keys", {"name": "x", "scopes": {"operations": list(OPERATIONS)}})
    assert made.status_code == 201


@pytest.mark.both_databases
def test_api_key_rotation_keeps_former_secret_for_a_while(app: Flask, alice: Caller) -> None:
    made = make_key(alice)
    former = Caller(app, **{"X-API-Key": made["key"]})
    assert former.get("auth/me").status_code == 200
    rotated = alice.post(f"api-keys/{made['id']}/rotate", {"overlap_seconds": 3600})
    assert rotated.status_code == 200
    assert FORM.fullmatch(rotated.json["key"])
    assert rotated.json["key"] != made["key"]
    present = Caller(app, **{"X-API-Key": rotated.json["key"]})
    assert {caller.get("auth/me").status_code for caller in (former, present)} == {200}
    shown = alice.get(f"api-keys/{made['id']}").json
    assert "key" not in shown
    assert shown["previous_valid_until"]
    set_key(app, made["id"], previous_valid_until=clock.now())
    assert former.get("auth/me").status_code == 401
    assert present.get("auth/me").status_code == 200
    at_once = alice.post(f"api-keys/{made['id']}/rotate", {"overlap_seconds": 0}).json
    assert present.get("auth/me").status_code == 401
    assert Caller(app, **{"X-API-Key": at_once["key"]}).get("auth/me").status_code == 200


def test_api_key_second_rotation_ends_first_secret(app: Flask, alice: Caller) -> None:
    made = make_key(alice)
    first = Caller(app, **{"X-API-Key": made["key"]})
    assert first.get("auth/me").status_code == 200
    for _ in range(2):
        assert alice.post(f"api-keys/{made['id']}/rotate").status_code == 200
    assert first.get("auth/me").status_code == 401


def test_api_key_rotation_and_change_per_caller(app: Flask, cast: Cast) -> None:
    made = make_key(cast.bob)
    path = f"api-keys/{made['id']}"
    assert cast.alice.post(f"{path}/rotate").status_code == 403  # it acts as bob
    assert cast.alice.patch(path, {"ip_addresses": ["192.0.2.0/24"]}).status_code == 200
    assert cast.charlie.patch(path, {"name": "mine"}).status_code == 404
    itself = Caller(app, **{"X-API-Key": make_key(cast.bob)["key"]})
    for answer in (itself.post(f"{path}/rotate"), itself.patch(path, {"name": "mine"})):
        assert answer.status_code == 403
    assert cast.bob.post(f"{path}/revoke").status_code == 200
    assert cast.bob.post(f"{path}/rotate").status_code == 409
    assert cast.bob.patch(path, {"name": "x"}).status_code == 409


@pytest.mark.parametrize(
    ("allowed", "address", "status"),
    [
        (["192.0.2.0/24"], "192.0.2.77", 200),
        (["192.0.2.0/24"], "198.51.100.7", 403),
        (["192.0.2.1", "2001:db8::/32"], "2001:db8::5", 200),
        (["192.0.2.1/24"], "192.0.2.9", 200),
        (["2001:db8::/32"], "192.0.2.1", 403),
        (["::/0"], "192.0.2.1", 403),
        (["192.0.2.0/24"], "::ffff:192.0.2.7", 200),
        (["::/0"], "::ffff:192.0.2.7", 403),
        (None, "192.0.2.1", 200),
        ([], "192.0.2.1", 200),
    ],
)
def test_api_key_from_address_outside_its_list_is_403(
    app: Flask, alice: Caller, allowed: list[str] | None, address: str, status: int
) -> None:
    caller = machine(app, alice, ip_addresses=allowed)
    answer = caller.get("auth/me", environ_overrides={"REMOTE_ADDR": address})
    assert answer.status_code == status
    if status == 403:
        assert answer.json["error"] == "address_not_allowed"


def test_api_key_address_list_change_applies_to_next_request(app: Flask, alice: Caller) -> None:
    made = make_key(alice)
    caller = Caller(app, **{"X-API-Key": made["key"]})
    assert caller.get("auth/me").status_code == 200
    changed = alice.patch(f"api-keys/{made['id']}", {"ip_addresses": ["192.0.2.5"]})
    assert changed.json["ip_addresses"] == ["192.0.2.5/32"]
    assert caller.get("auth/me").status_code == 403
    assert alice.patch(f"api-keys/{made['id']}", {"ip_addresses": None}).status_code == 200
    assert caller.get("auth/me").status_code == 200


def test_api_key_address_list_names_all_invalid_addresses(alice: Caller) -> None:
    answer = alice.post("api-keys", {"name": "x", "ip_addresses": ["here", "192.0.2.0/99", "::1"]})
    assert answer.status_code == 400
    assert [one["code"] for one in answer.json["details"]] == ["invalid_address"] * 2


def test_api_key_address_list_turns_mapped_ranges_into_ipv4(app: Flask, alice: Caller) -> None:
    ranges = ["::ffff:192.0.2.0/120", "::ffff:198.51.100.7", "::/0", "2001:db8::/32"]
    made = alice.post("api-keys", {"name": "x", "ip_addresses": ranges}).json
    expected = ["192.0.2.0/24", "198.51.100.7/32", "::/0", "2001:db8::/32"]
    assert made["ip_addresses"] == expected
    caller = machine(app, alice, ip_addresses=["::ffff:192.0.2.0/120"])
    for address, status in [("192.0.2.9", 200), ("::ffff:192.0.2.9", 200), ("192.0.3.9", 403)]:
        answer = caller.get("auth/me", environ_overrides={"REMOTE_ADDR": address})
        assert answer.status_code == status, address
