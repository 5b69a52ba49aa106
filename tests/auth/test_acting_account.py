"""Which account a request acts in: the caller's, one named, or all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from flask import Flask

from app.accounts.models import SYSTEM_ACCOUNT_ID, Account
from app.db import transaction
from tests.builders import Caller, Cast, make_account, make_collection, make_record
from tests.parallel import at_once

NOBODY_HOME = "019a9f00-0000-7000-8000-00000000000a"
OPEN_TO_ALL = dict.fromkeys(("list_rule", "view_rule", "create_rule"), "")


@pytest.fixture
def stage(cast: Cast) -> dict[str, str]:
    """A record in each account; what stands for what in the tables below."""
    make_collection(cast.root, **OPEN_TO_ALL)
    make_record(cast.alice, title="acme")
    make_record(cast.charlie, title="globex")
    make_record(cast.root, title="system")
    return {
        "acme_id": cast.alice.account_id,
        "ACME_ID": cast.alice.account_id.upper(),
        "globex_id": cast.charlie.account_id,
        "system_id": SYSTEM_ACCOUNT_ID,
        "nobody_id": NOBODY_HOME,
    }


def caller_of(cast: Cast, who: str) -> Caller:
    return Caller(cast.root.app) if who == "anyone" else getattr(cast, who)


def ask(
    cast: Cast, stage: dict[str, str], who: str, named: str | None, host: str | None
) -> tuple[int, set[str] | str]:
    """What a list shows: the titles, or the code of the error."""
    headers = {"X-Account-ID": named.format(**stage)} if named is not None else {}
    headers |= {"Host": host} if host else {}
    answer = caller_of(cast, who).get("records/posts", headers=headers)
    if answer.status_code == 200:
        return 200, {item["title"] for item in answer.json["items"]}
    return answer.status_code, str(answer.json["error"])


ACME, GLOBEX, SYSTEM = (200, {"acme"}), (200, {"globex"}), (200, {"system"})
ALL = (200, {"acme", "globex", "system"})
NONE_NAMED, FORBIDDEN = (401, "unauthorized"), (403, "forbidden")
NO_SUCH, DISAGREE = (404, "not_found"), (400, "bad_request")

TABLE: list[tuple[str, str | None, str | None, Any]] = [
    # Anonymous callers name the account.
    ("anyone", None, None, NONE_NAMED),
    ("anyone", "", None, NONE_NAMED),
    ("anyone", "acme", None, ACME),
    ("anyone", " Acme ", None, ACME),
    ("anyone", "AA0001", None, ACME),
    ("anyone", "aa0001", None, ACME),
    ("anyone", "{acme_id}", None, ACME),
    ("anyone", "{ACME_ID}", None, ACME),
    ("anyone", "AA0002", None, GLOBEX),
    ("anyone", "system", None, SYSTEM),
    ("anyone", "nowhere", None, NO_SUCH),
    ("anyone", "{nobody_id}", None, NO_SUCH),
    ("anyone", "AA0009", None, NO_SUCH),
    ("anyone", "*", None, NO_SUCH),
    ("anyone", "' OR 1=1 --", None, NO_SUCH),
    ("anyone", "é", None, NO_SUCH),
    ("anyone", "x" * 5000, None, NO_SUCH),
    ("anyone", None, "acme.atrium.test", ACME),
    ("anyone", None, "ACME.ATRIUM.TEST", ACME),
    ("anyone", None, "acme.atrium.test:8443", ACME),
    ("anyone", None, "acme.atrium.test.", ACME),
    ("anyone", None, "nowhere.atrium.test", NO_SUCH),
    ("anyone", None, "atrium.test", NONE_NAMED),
    ("anyone", None, "a.acme.atrium.test", NONE_NAMED),
    ("anyone", None, "acme.atrium.test.evil.example", NONE_NAMED),
    ("anyone", None, "acmeatrium.test", NONE_NAMED),
    ("anyone", None, "127.0.0.1:8000", NONE_NAMED),
    # Host name and header together.
    ("anyone", "acme", "acme.atrium.test", ACME),
    ("anyone", "AA0001", "acme.atrium.test", ACME),
    ("anyone", "{acme_id}", "acme.atrium.test", ACME),
    ("anyone", "globex", "acme.atrium.test", DISAGREE),
    ("anyone", "AA0002", "acme.atrium.test", DISAGREE),
    ("anyone", "{globex_id}", "acme.atrium.test", DISAGREE),
    ("anyone", "*", "acme.atrium.test", DISAGREE),
    ("anyone", "acme", "nowhere.atrium.test", DISAGREE),
    ("anyone", "nowhere", "acme.atrium.test", DISAGREE),
    ("alice", "globex", "acme.atrium.test", DISAGREE),
    ("alice", "acme", "globex.atrium.test", DISAGREE),
    ("root", "acme", "globex.atrium.test", DISAGREE),
    ("root", "*", "acme.atrium.test", DISAGREE),
    # Any other caller acts in the own account only.
    ("alice", None, None, ACME),
    ("alice", "", None, ACME),
    ("alice", "acme", None, ACME),
    ("alice", "ACME", None, ACME),
    ("alice", "aa0001", None, ACME),
    ("alice", "{ACME_ID}", None, ACME),
    ("alice", "globex", None, FORBIDDEN),
    ("alice", "AA0002", None, FORBIDDEN),
    ("alice", "{globex_id}", None, FORBIDDEN),
    ("alice", "system", None, FORBIDDEN),
    ("alice", "{system_id}", None, FORBIDDEN),
    ("alice", "nowhere", None, FORBIDDEN),
    ("alice", "*", None, FORBIDDEN),
    ("alice", None, "acme.atrium.test", ACME),
    ("alice", None, "globex.atrium.test", FORBIDDEN),
    ("alice", None, "nowhere.atrium.test", FORBIDDEN),
    ("alice", None, "atrium.test", ACME),
    ("bob", "acme", None, ACME),
    ("bob", "globex", None, FORBIDDEN),
    # A superadmin acts in the system account, in any that is named, and reads all.
    ("root", None, None, SYSTEM),
    ("root", "system", None, SYSTEM),
    ("root", "SY0000", None, SYSTEM),
    ("root", "{system_id}", None, SYSTEM),
    ("root", "acme", None, ACME),
    ("root", "AA0002", None, GLOBEX),
    ("root", "{ACME_ID}", None, ACME),
    ("root", "nowhere", None, NO_SUCH),
    ("root", "{nobody_id}", None, NO_SUCH),
    ("root", "*", None, ALL),
    ("root", None, "globex.atrium.test", GLOBEX),
    ("root", None, "nowhere.atrium.test", NO_SUCH),
    ("root", "acme", "acme.atrium.test", ACME),
]


def test_acting_account_per_caller_header_and_host(cast: Cast, stage: dict[str, str]) -> None:
    """One stage for the whole table: no row changes anything."""
    expected = [(who, named, host, wanted) for who, named, host, wanted in TABLE]
    got = [(who, named, host, ask(cast, stage, who, named, host)) for who, named, host, _ in TABLE]
    assert [row for row in zip(got, expected, strict=True) if row[0] != row[1]] == []


def test_acting_account_is_independent_of_other_requests(cast: Cast, stage: dict[str, str]) -> None:
    rows = [row for row in TABLE if row[3] in (ACME, GLOBEX, SYSTEM, ALL)]
    answers = at_once(len(rows), lambda i: ask(cast, stage, *rows[i][:3]))
    assert answers == [row[3] for row in rows]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "records/posts", {"title": "x"}),
        ("PUT", "records/posts/{id}", {"title": "x"}),
        ("PATCH", "records/posts/{id}", {"title": "x"}),
        ("DELETE", "records/posts/{id}", None),
    ],
)
def test_write_across_all_accounts_is_400(
    cast: Cast, stage: dict[str, str], method: str, path: str, body: Any
) -> None:
    everywhere = cast.root.acting_in("*")
    before = everywhere.get("records/posts").json
    made = before["items"][0]["id"]
    answer = everywhere(method, path.format(id=made), body)
    assert (answer.status_code, answer.json["error"]) == (400, "bad_request")
    assert everywhere.get("records/posts").json == before


def test_superadmin_write_goes_into_acting_account(cast: Cast, stage: dict[str, str]) -> None:
    made = make_record(cast.root.acting_in("acme"), title="from root")
    assert (made["account_id"], made["created_by"]) == (stage["acme_id"], cast.root.id)
    assert cast.alice.get(f"records/posts/{made['id']}").status_code == 200
    assert cast.charlie.get(f"records/posts/{made['id']}").status_code == 404
    assert cast.root.get(f"records/posts/{made['id']}").status_code == 404
    assert cast.root.acting_in("*").get(f"records/posts/{made['id']}").status_code == 200


def test_cross_account_write_is_403_and_stores_nothing(cast: Cast, stage: dict[str, str]) -> None:
    answer = cast.alice.acting_in("globex").post("records/posts", {"title": "x"})
    assert answer.status_code == 403
    at_globex = {"Host": "globex.atrium.test"}
    assert cast.alice.post("records/posts", {"title": "x"}, headers=at_globex).status_code == 403
    assert cast.charlie.get("records/posts").json["total"] == 1


def test_auth_me_is_own_user_in_any_acting_account(cast: Cast, stage: dict[str, str]) -> None:
    me = cast.root.acting_in("acme").get("auth/me").json
    assert (me["id"], me["account"]["slug"]) == (cast.root.id, "system")
    assert me["is_superadmin"] is True
    assert cast.alice.get("auth/me").json["is_superadmin"] is False


def test_superadmin_status_is_not_given_by_role_or_slug_name(app: Flask, cast: Cast) -> None:
    make_account(app, "superadmin")
    answer = cast.alice.get("collections")
    assert (answer.status_code, answer.json["error"]) == (403, "superadmin_required")


def test_suspended_account_cannot_be_acted_in(
    app: Flask, cast: Cast, stage: dict[str, str]
) -> None:
    assert ask(cast, stage, "anyone", "globex", None) == GLOBEX
    with app.app_context(), transaction() as session:
        account = session.get_one(Account, stage["globex_id"])
        account.is_active, account.version = False, account.version + 1
    assert ask(cast, stage, "anyone", "globex", None) == NO_SUCH


@pytest.mark.parametrize("host", ["acme.atrium.test", "acme."])
def test_host_name_without_base_domain_names_no_account(
    app: Flask, cast: Cast, stage: dict[str, str], host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(app.extensions["atrium.config"], base_domain="")
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    assert ask(cast, stage, "anyone", None, host) == NONE_NAMED
    assert ask(cast, stage, "charlie", None, host) == GLOBEX


def test_host_name_of_service_names_no_account(
    app: Flask, cast: Cast, stage: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(app.extensions["atrium.config"], base_url="https://api.atrium.test")
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    assert ask(cast, stage, "anyone", None, "api.atrium.test") == NONE_NAMED
    at_the_service = {"Host": "api.atrium.test", "Authorization": "Bearer nonsense"}
    assert Caller(app).get("auth/me", headers=at_the_service).status_code == 401
    assert ask(cast, stage, "anyone", None, "acme.atrium.test") == ACME


def test_account_slug_change_applies_to_next_request(
    app: Flask, cast: Cast, stage: dict[str, str]
) -> None:
    at_acme = "acme.atrium.test"
    assert ask(cast, stage, "alice", "acme", at_acme) == ACME
    with app.app_context(), transaction() as session:
        for account_id, slug in ((stage["acme_id"], "other"), (stage["globex_id"], "acme")):
            account = session.get_one(Account, account_id)
            account.slug, account.version = slug, account.version + 1
            session.flush()
    assert ask(cast, stage, "alice", "other", None) == ACME
    assert ask(cast, stage, "alice", "acme", None) == FORBIDDEN
    assert ask(cast, stage, "charlie", "{globex_id}", at_acme) == GLOBEX
    assert ask(cast, stage, "anyone", None, at_acme) == GLOBEX
