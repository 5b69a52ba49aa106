"""Accounts as superadmins keep them: made, listed, suspended, closed."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db, jobs
from app.accounts.models import SYSTEM_ACCOUNT_ID, Group, User
from app.auth.models import Invitation, SignInSession
from app.db import connection
from app.db.functions import database_now
from app.jobs import worker
from app.operator.models import EVENTS
from app.records import purge
from tests.builders import PASSWORD, Caller, Cast, make_account, make_collection, make_record
from tests.mailbox import run_jobs
from tests.parallel import under_way
from tests.sql import statements

KEYS = {"attributes", "id", "slug", "name", "account_code", "created_at", "is_active", "updated_at"}
KEYS |= {"may_brand"}
KEYS |= {"plan", "flags", "quotas", "overrides"}
KEYS |= {"template", "template_version"}
HOME = "https://x.example/"
RANDOM_ID = "019a9f00-0000-7000-8000-00000000dead"


def slugs(root: Caller, query: str = "") -> list[str]:
    answer = root.get(f"accounts?{query}")
    assert answer.status_code == 200, answer.json
    return [one["slug"] for one in answer.json["items"]]


def codes(answer: Any) -> list[tuple[str, str]]:
    assert answer.status_code == 400, answer.json
    return [(one["field"], one["code"]) for one in answer.json["details"]]


def test_new_account_has_all_keys_and_no_users(root: Caller) -> None:
    answer = root.post("accounts", {"name": "Initech Ltd.", "slug": "initech"})
    assert answer.status_code == 201
    made = answer.json
    assert set(made) == KEYS
    assert (made["name"], made["slug"], made["is_active"]) == ("Initech Ltd.", "initech", True)
    assert made["account_code"] == "AA0003"
    assert root.get(f"accounts/{made['id']}").json == made
    assert root.get(f"accounts/{made['id'].upper()}").json == made
    assert root.get(f"accounts/{made['id']}/users").json["total"] == 0
    groups = root.acting_in("initech").get("groups").json["items"]
    assert [group["name"] for group in groups] == ["pii_access"]


@pytest.mark.parametrize(
    ("name", "slug"), [("Crème  Brûlée & Co.", "creme-brulee-co"), ("INITECH", "initech")]
)
def test_account_slug_is_derived_from_name(root: Caller, name: str, slug: str) -> None:
    assert root.post("accounts", {"name": name}).json["slug"] == slug


NO_SLUGS: list[dict[str, str]] = [
    {"name": "x", "slug": "ab"},
    {"name": "x", "slug": "a" * 33},
    {"name": "x", "slug": "1abc"},
    {"name": "x", "slug": "Abc"},
    {"name": "x", "slug": "a_b_c"},
    {"name": "x", "slug": "ab1234"},
]


def test_account_slug_with_invalid_characters_is_slug_invalid(root: Caller) -> None:
    for body in NO_SLUGS:
        assert codes(root.post("accounts", body)) == [("slug", "slug_invalid")]
    assert slugs(root, "sort_by=slug&sort_order=asc") == ["acme", "globex", "system"]


@pytest.mark.parametrize("body", [{"name": "x", "slug": "acme"}, {"name": "ACME"}])
def test_account_with_taken_slug_is_409(root: Caller, body: dict[str, str]) -> None:
    answer = root.post("accounts", body)
    assert (answer.status_code, answer.json["field"]) == (409, "slug")
    assert answer.json["details"][0]["code"] == "not_unique"


MALFORMED: list[dict[str, Any]] = [
    {},
    {"name": ""},
    {"name": None},
    {"name": 7},
    {"name": "x" * 201},
    {"name": "x", "slug": 7},
    {"name": "x", "id": RANDOM_ID},
    {"name": "x", "account_code": "ZZ0001"},
]


def test_account_body_with_wrong_shape_is_422(root: Caller) -> None:
    for body in MALFORMED:
        answer = root.post("accounts", body)
        assert answer.status_code == 422, body
        assert answer.json["detail"][0]["loc"][0] == "body"


@pytest.mark.parametrize("name", ["Acme\nPay here", "  ", "\u3000", "\u200b"])
def test_account_name_with_line_break_or_invisible_text_is_name_invalid(
    root: Caller, alice: Caller, name: str
) -> None:
    body = {"name": name}
    assert codes(root.post("accounts", {**body, "slug": "ok-slug"})) == [("name", "name_invalid")]
    path = f"accounts/{alice.account_id}"
    assert codes(root.patch(path, body)) == [("name", "name_invalid")]
    assert codes(alice.patch("account", body)) == [("name", "name_invalid")]
    assert root.get(path).json["name"] == "Acme"


def test_account_name_is_stripped_of_whitespace(root: Caller, alice: Caller) -> None:
    body = {"name": "  Other \n"}
    assert root.post("accounts", body).json["name"] == "Other"
    path = f"accounts/{alice.account_id}"
    assert root.patch(path, body).json["name"] == "Other"
    assert alice.patch("account", {"name": " Own "}).json["name"] == "Own"


LISTINGS = [
    ("sort_by=slug&sort_order=asc", ["acme", "globex", "system"]),
    ("sort_by=name&sort_order=desc", ["system", "globex", "acme"]),
    ("sort_by=account_code&sort_order=asc", ["acme", "globex", "system"]),
    ("search=LOB", ["globex"]),
    ("search=aa0001", ["acme"]),
    ("search=%25", []),
    ("is_active=false", []),
    ("is_active=true&sort_by=slug", ["system", "globex", "acme"]),
    ("sort_by=slug&sort_order=asc&skip=1&limit=1", ["globex"]),
    ("sort_by=slug&sort_order=asc&page=2&page_size=2", ["system"]),
]


@pytest.mark.both_databases
def test_account_list_filters_and_sorting(root: Caller) -> None:
    for query, expected in LISTINGS:
        assert slugs(root, query) == expected, query


def test_account_list_reports_skip_limit_and_page(root: Caller) -> None:
    answer = root.get("accounts?skip=1&limit=1").json
    shape = {key: value for key, value in answer.items() if key != "items"}
    assert shape == {
        "total": 3,
        "skip": 1,
        "limit": 1,
        "page": 2,
        "page_size": 1,
        "total_pages": 3,
    }
    assert [set(item) for item in answer["items"]] == [KEYS]


def test_account_list_with_unknown_parameter_is_422(root: Caller) -> None:
    for query in ("sort_by=settings", "sort_order=up", "limit=101", "nonsense=1"):
        assert root.get(f"accounts?{query}").status_code == 422


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_account_rename_by_put_and_patch(root: Caller, alice: Caller, method: str) -> None:
    path = f"accounts/{alice.account_id}"
    before = root.get(path).json
    answer = root(method, path, {"name": "Acme Two"})
    assert answer.status_code == 200
    assert answer.json == {**before, "name": "Acme Two", "updated_at": answer.json["updated_at"]}
    assert root.get(path).json == answer.json
    for body in ({"slug": "other"}, {"is_active": 1}, {"account_code": "AA0009"}, {"name": ""}):
        assert root(method, path, body).status_code == 422


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
def test_account_with_unknown_id_is_404_and_malformed_id_is_422(root: Caller, method: str) -> None:
    body = {"name": "x"} if method in ("PUT", "PATCH") else None
    assert root(method, f"accounts/{RANDOM_ID}", body).status_code == 404
    answer = root(method, "accounts/acme", body)
    assert (answer.status_code, answer.json["detail"][0]["loc"]) == (422, ["path", "account_id"])


def test_account_users_list_holds_only_users_of_that_account(root: Caller, alice: Caller) -> None:
    path = f"accounts/{alice.account_id}/users"
    found = root.get(f"{path}?sort_by=email&sort_order=asc").json
    assert [one["email"] for one in found["items"]] == ["alice@acme.example", "bob@acme.example"]
    assert root.get(f"{path}?search=BOB").json["total"] == 1
    assert root.get(f"accounts/{RANDOM_ID}/users").status_code == 404


def sign_in(caller: Caller) -> Any:
    body = {"account": caller.slug, "email": caller.email, "password": PASSWORD}
    return Caller(caller.app).post("auth/login", body)


def reached(cast: Cast, caller: Caller) -> set[int]:
    """The statuses of everything that a user of acme could do."""
    calls = [
        caller.get("records/posts"),
        caller.post("records/posts", {"title": "x"}),
        caller.get("auth/me"),
        caller.get("account"),
    ]
    return {answer.status_code for answer in calls}


def test_suspended_account_credentials_are_401_until_reactivation(cast: Cast) -> None:
    alice, root = cast.alice, cast.root
    make_collection(root)
    key = Caller(root.app, **{"X-API-Key": alice.post("api-keys", {"name": "k"}).json["key"]})
    pair = sign_in(alice).json
    assert reached(cast, alice) == reached(cast, key) == {200, 201}
    path = f"accounts/{alice.account_id}"
    assert root.patch(path, {"is_active": False}).json["is_active"] is False
    assert slugs(root, "is_active=false") == ["acme"]
    assert reached(cast, alice) == reached(cast, key) == {401}
    assert sign_in(alice).status_code == 401
    assert Caller(root.app).post("auth/refresh", pair_token(pair)).status_code == 401
    assert reached(cast, cast.charlie) == {200, 201}
    anonymous = Caller(root.app, **{"X-Account-ID": "acme"})
    assert anonymous.get("records/posts").status_code == 404
    assert root.patch(path, {"is_active": True}).status_code == 200
    assert reached(cast, alice) == reached(cast, key) == {200, 201}
    assert sign_in(alice).status_code == 200


def pair_token(pair: dict[str, str]) -> dict[str, str]:
    return {"refresh_token": pair["refresh_token"]}


def test_system_account_suspension_and_deletion_are_409(root: Caller) -> None:
    path = f"accounts/{SYSTEM_ACCOUNT_ID}"
    assert root.patch(path, {"is_active": False}).status_code == 409
    assert root.delete(path).status_code == 409
    assert root.get(path).json["is_active"] is True
    assert root.patch(path, {"name": "Ours"}).status_code == 200


def test_deleted_account_is_404_and_its_slug_is_free(root: Caller, alice: Caller) -> None:
    path = f"accounts/{alice.account_id}"
    answer = root.delete(path)
    assert (answer.status_code, answer.data) == (204, b"")
    for method, body in (("GET", None), ("PATCH", {"is_active": True}), ("DELETE", None)):
        assert root(method, path, body).status_code == 404
    assert root.get(f"{path}/users").status_code == 404
    assert slugs(root, "sort_by=slug&sort_order=asc") == ["globex", "system"]
    assert alice.get("auth/me").status_code == 401
    assert root.acting_in(alice.account_id).get("groups").status_code == 404
    again = root.post("accounts", {"name": "Acme", "slug": "acme"}).json
    assert again["account_code"] == "AA0003"
    assert again["id"] != alice.account_id
    assert alice.get("auth/me").status_code == 401
    assert sign_in(alice).status_code == 401


# What others refer to comes first in the alphabet, in the middle, and last.
REFERRING = {
    "authors": [{"name": "title", "type": "text"}],
    "books": [
        {"name": "author", "type": "reference", "collection": "authors", "required": True},
        {"name": "sequel", "type": "reference", "collection": "books"},
    ],
    "about": [{"name": "book", "type": "reference", "collection": "books", "required": True}],
    "zines": [{"name": "by", "type": "reference", "collection": "authors", "unique": True}],
}


def fill(caller: Caller) -> None:
    author = make_record(caller, "authors", title="x")["id"]
    one = make_record(caller, "books", author=author)["id"]
    two = make_record(caller, "books", author=author, sequel=one)["id"]
    assert caller.patch(f"records/books/{one}", {"sequel": two}).status_code == 200
    make_record(caller, "about", book=two)
    make_record(caller, "zines", by=author)


def rows(account_id: str) -> dict[str, int]:
    """How much each table holds of an account."""
    tables = [model.__table__ for model in (User, Group, Invitation, SignInSession)]
    tables += [sa.table(f"col_{name}", sa.column("account_id")) for name in REFERRING]
    return {
        table.name: connection().scalar(
            sa.select(sa.func.count()).select_from(table).where(table.c.account_id == account_id)
        )
        for table in tables
    }


@pytest.mark.parametrize("piece", [1, 500])
def test_account_cleanup_job_removes_all_rows_of_deleted_account(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(purge, "PIECE", piece)
    for name, schema in REFERRING.items():
        make_collection(cast.root, name, schema)
    for admin in (cast.alice, cast.charlie):
        fill(admin)
        assert sign_in(admin).status_code == 200
        assert admin.post("invitations", {"email": "new@x.example"}).status_code == 201
    with app.app_context():
        kept = rows(cast.charlie.account_id)
    assert 0 not in kept.values()
    assert cast.root.delete(f"accounts/{cast.alice.account_id}").status_code == 204
    run_jobs(app)
    with app.app_context():
        assert set(rows(cast.alice.account_id).values()) == {0}
        assert rows(cast.charlie.account_id) == kept
        purge.remove_account({"account_id": cast.alice.account_id})
        assert rows(cast.charlie.account_id) == kept
        failed = sa.select(jobs.Job.kind).where(jobs.Job.kind == "records.remove_account")
        assert connection().scalar(failed.where(jobs.Job.attempts > 1)) is None


def left_of(account_id: str) -> set[str]:
    """The tables that hold anything of an account, but its logs'."""
    inspected = sa.inspect(connection())
    tables = [
        sa.table(name, sa.column("account_id"))
        for name in inspected.get_table_names()
        if any(column["name"] == "account_id" for column in inspected.get_columns(name))
    ]
    chosen = {one.name: sa.select(one).where(one.c.account_id == account_id) for one in tables}
    found = {name for name, rows in chosen.items() if connection().execute(rows).first()}
    logs = ("audit_", "security_events", "security_heads", "security_pending")
    return {name for name in found if not name.startswith(logs)}


def let_an_hour_pass() -> None:
    with db.transaction() as session:
        later = sa.update(jobs.Job).where(jobs.Job.status == "pending")
        session.execute(later.values(due_at=database_now()))


def test_account_cleanup_job_does_not_rescan_finished_rows(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge, "PIECE", 3)
    make_collection(cast.root, schema=[{"name": "up", "type": "reference", "collection": "posts"}])
    first = make_record(cast.alice)["id"]
    batch = {"records": [{"up": first}] * 8}
    assert cast.alice.post("records/posts/batch", batch).status_code == 201
    assert cast.root.delete(f"accounts/{cast.alice.account_id}").status_code == 204
    with statements(app) as sent:
        run_jobs(app)
    for change, pieces in (("UPDATE col_posts", 3), ("DELETE FROM col_posts", 4)):
        some = [one for one in sent if one.startswith(change)][:pieces]
        assert [one.count("(col_posts.id) > ") for one in some] == [0, *[1] * (pieces - 1)]


def test_account_cleanup_keeps_only_audit_entries(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=[{"name": "mail", "type": "email", "pii": True}])
    once = {"Idempotency-Key": "once"}
    made = cast.alice.post("records/posts", {"mail": "ada@x.example"}, headers=once)
    assert made.status_code == 201, made.text
    settings = {"cors_origins": ["https://x.example"], "allowed_redirect_uris": [HOME]}
    assert cast.alice.patch("account", settings).status_code == 200
    known = {"client_id": "x", "client_secret": "y", "allowed_redirect_uris": [HOME]}
    github = {"category": "auth_providers", "provider_name": "github", "config": known}
    assert cast.alice.post("admin/configuration", github).status_code == 201
    begun = {"account": "acme", "redirect_uri": HOME, "state": "s"}
    assert cast.alice.post("auth/oauth/github/authorize", begun).status_code == 200
    assert cast.alice.patch("auth/me", {"email": "ada@x.example"}).status_code == 200
    run_jobs(app)
    assert cast.root.delete(f"accounts/{cast.alice.account_id}").status_code == 204
    run_jobs(app)
    with app.app_context():
        # Events outlive what they tell of: the operator hears of the deletion (docs/events.md).
        assert left_of(cast.alice.account_id) == {"jobs", "operator_events"}
        kept = connection().scalars(sa.select(sa.cast(jobs.TABLE.c.payload, sa.Text))).all()
        told = connection().execute(sa.select(EVENTS.c.actor, EVENTS.c.data)).all()
    assert "ada@x.example" not in "".join(kept) + str(told)


def test_account_cleanup_removes_rows_written_during_deletion(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL, where whoever closes an account does not wait for who writes in it."""
    make_collection(cast.root)
    with app.app_context():
        if db.db.engine.dialect.name == "sqlite":
            return
    with under_way(cast.alice, monkeypatch):
        assert cast.root.delete(f"accounts/{cast.alice.account_id}").status_code == 204
        run_jobs(app)
    with app.app_context():
        assert "col_posts" in left_of(cast.alice.account_id)
        let_an_hour_pass()
        worker.run_due()
        assert left_of(cast.alice.account_id) == {"jobs", "operator_events"}


def test_account_slug_is_free_after_deletion_not_after_suspension(app: Flask, root: Caller) -> None:
    id = make_account(app, "initech")
    root.patch(f"accounts/{id}", {"is_active": False})
    assert root.post("accounts", {"name": "Initech"}).status_code == 409
    root.delete(f"accounts/{id}")
    assert root.post("accounts", {"name": "Initech"}).status_code == 201
