"""The general limit of requests, whom it counts together, and what is kept of the counts."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
import time_machine
from flask import Flask

from app import clock, create_app, db
from app.errors import TooManyRequests
from app.web import rate_limits
from app.web.rate_limits import PURGED_AT_ONCE, Counter, Limit
from tests import services
from tests.builders import Caller, Cast
from tests.parallel import at_once
from tests.sql import statements

Use = Callable[..., None]


def address() -> str:
    """An address that no other test counts, as the tests share one Redis."""
    return ".".join(str(secrets.randbelow(254) + 1) for _ in range(4))


def network() -> str:
    """The first half of an IPv6 address that no other test counts."""
    return f"2001:db8:{secrets.token_hex(2)}:{secrets.token_hex(2)}"


@pytest.fixture
def use(app: Flask, monkeypatch: pytest.MonkeyPatch) -> Use:
    """Change settings of the running application."""

    def change(**changes: Any) -> None:
        settings = replace(app.extensions["atrium.config"], **changes)
        monkeypatch.setitem(app.extensions, "atrium.config", settings)

    return change


@pytest.fixture(params=["database", pytest.param("redis", marks=pytest.mark.needs_servers)])
def limited(request: pytest.FixtureRequest, use: Use) -> None:
    """Five requests an hour, counted in the one place or the other."""
    url = services.Redis().emptied() if request.param == "redis" else ""
    use(rate_limit="5/hour", redis_url=url)


def statuses(caller: Caller, count: int, path: str = "auth/me", **options: Any) -> list[int]:
    seen = []
    for _ in range(count):
        answer = caller.get(path, **options)
        seen.append(answer.status_code)
        answer.close()  # a static file stays open else
    return seen


def sent_from(origin: str) -> dict[str, Any]:
    return {"environ_overrides": {"REMOTE_ADDR": origin}}


def count_of(app: Flask) -> int:
    with app.app_context():
        counted = sa.select(sa.func.count()).select_from(Counter)
        return db.db.session.scalar(counted) or 0


def test_rate_limit_per_caller_is_429(cast: Cast, limited: None) -> None:
    assert statuses(cast.alice, 5) == [200] * 5
    for path in ("auth/me", "account/users", "records/none", "users/nonsense"):
        answer = cast.alice.get(path, **sent_from(address()))
        assert (answer.status_code, answer.json["error"]) == (429, "rate_limited")
        assert set(answer.json) == {"error", "message"}
        assert 0 < int(answer.headers["Retry-After"]) <= 3600
        assert answer.headers["X-Correlation-ID"]
    assert statuses(cast.bob, 5) == [200] * 5


def test_rate_limit_counts_api_key_separately(app: Flask, cast: Cast, limited: None) -> None:
    text = cast.alice.post("api-keys", {"name": "import"}).json["key"]
    by_key = Caller(app, **{"X-API-Key": text})
    assert statuses(cast.alice, 5) == [200] * 4 + [429]
    assert statuses(by_key, 6) == [200] * 5 + [429]


def test_rate_limit_counts_anonymous_callers_by_address(app: Flask, limited: None) -> None:
    here, there, anyone = address(), address(), Caller(app)
    seen = statuses(anyone, 2, "invitations/x", **sent_from(here))
    seen += statuses(anyone, 1, "auth/me", **sent_from(here))
    seen += statuses(anyone, 1, "nowhere", **sent_from(here))
    seen += statuses(anyone, 1, "/docs", **sent_from(here))
    assert seen == [404, 404, 401, 404, 200]
    forged = Caller(app, Authorization="Bearer svc_sk_AA0001_" + "x" * 32)
    for path in ("invitations/x", "auth/me", "nowhere", "/docs"):
        assert statuses(anyone, 1, path, **sent_from(here)) == [429], path
    assert statuses(forged, 1, **sent_from(here)) == [429]
    assert statuses(anyone, 1, "/docs", **sent_from(there)) == [200]


def test_rate_limit_counts_signed_in_callers_of_one_address_separately(
    cast: Cast, limited: None
) -> None:
    here = address()
    for caller in (cast.alice, cast.bob, cast.charlie):
        assert statuses(caller, 5, **sent_from(here)) == [200] * 5
    assert statuses(Caller(cast.bob.app), 1, "/docs", **sent_from(here)) == [200]


def test_rate_limit_exempts_health_and_static_files(app: Flask, limited: None) -> None:
    here, anyone = sent_from(address()), Caller(app)
    assert statuses(anyone, 20, "/health", **here) == [200] * 20
    assert statuses(anyone, 8, "/static/pages/pages.css", **here) == [200] * 8
    assert statuses(anyone, 6, "/docs", **here) == [200] * 5 + [429]


def test_rate_limit_is_shared_between_processes(app: Flask, alice: Caller, limited: None) -> None:
    other = Caller(create_app(app.extensions["atrium.config"]), **alice.headers)
    seen = [caller.get("auth/me").status_code for _ in range(4) for caller in (alice, other)]
    assert sorted(seen) == [200] * 5 + [429] * 3


def test_rate_limit_holds_for_concurrent_requests(alice: Caller, limited: None) -> None:
    seen = at_once(12, lambda _: alice.get("auth/me").status_code)
    assert sorted(seen) == [200] * 5 + [429] * 7


def test_rate_limit_window_ends(alice: Caller, use: Use) -> None:
    use(rate_limit="2/minute")
    assert statuses(alice, 3) == [200, 200, 429]
    with time_machine.travel(clock.now() + timedelta(seconds=61)):
        assert statuses(alice, 3) == [200, 200, 429]


def test_rate_limit_off_runs_no_statement(app: Flask, alice: Caller, use: Use) -> None:
    alice.get("auth/me")
    with statements(app) as unlimited:
        assert alice.get("auth/me").status_code == 200
    assert "rate_limits" not in str(unlimited)
    assert count_of(app) == 0
    use(rate_limit="9/hour")
    with statements(app) as limited:
        assert alice.get("auth/me").status_code == 200
    assert "rate_limits" in str(limited)
    with statements(app) as counted:  # in a window that has begun, nothing is purged
        assert alice.get("auth/me").status_code == 200
    assert len([one for one in counted if "rate_limits" in one]) == 1


def test_rate_limit_refusal_has_cors_headers(alice: Caller, use: Use) -> None:
    origin = "https://acme.example"
    assert alice.patch("account", {"cors_origins": [origin]}).status_code == 200
    use(rate_limit="1/hour")
    answers = [alice.get("auth/me", headers={"Origin": origin}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert {answer.headers["Access-Control-Allow-Origin"] for answer in answers} == {origin}


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("{n}::1", "{n}:ffff:ffff:ffff:ffff", True),
        ("{n}::1", "{n}::1%eth0", True),
        ("{n}::1", "2001:db8:0:0::1", False),
        ("::ffff:192.0.2.7", "192.0.2.7", True),
        ("192.0.2.7", "192.0.2.8", False),
    ],
)
def test_rate_limit_counts_addresses_of_one_network_together(
    app: Flask, use: Use, first: str, second: str, together: bool
) -> None:
    use(rate_limit="1/hour")
    n, anyone = network(), Caller(app)
    seen = [statuses(anyone, 1, "/docs", **sent_from(one.format(n=n))) for one in (first, second)]
    assert seen == [[200], [429 if together else 200]]


@pytest.mark.parametrize("odd", ["unknown", "", "192.0.2.7:4711", "[::1]:80", "x" * 300, "é"])
def test_rate_limit_counts_malformed_address_as_is(odd: str) -> None:
    assert rate_limits.client_network(odd) == odd


def test_lockout_counts_failures_per_network(app: Flask, bob: Caller, use: Use) -> None:
    use(login_rate_limit="on", login_tries_per_address=3)
    n, anyone, seen = network(), Caller(app), []
    for number in range(4):
        body = {"account": "acme", "email": f"{number}@acme.example", "password": "x" * 200}
        here = sent_from(f"{n}::{number + 1}")
        seen.append(anyone.post("auth/login", body, **here).status_code)
    assert seen == [401] * 3 + [429]


def counted(app: Flask, who: str) -> None:
    """Count one try of somebody."""
    with app.app_context():
        rate_limits.consume(Limit("test", 10, 60).of(who))


def test_rate_limit_counters_that_expired_are_purged(app: Flask) -> None:
    for number in range(7):
        counted(app, f"old {number}")
    assert count_of(app) == 7
    with time_machine.travel(clock.now() + timedelta(seconds=30)):
        counted(app, "present")
        assert count_of(app) == 8
    with time_machine.travel(clock.now() + timedelta(seconds=70)):
        counted(app, "present")
        assert count_of(app) == 8, "counting on takes nothing away"
        counted(app, "new")
        assert count_of(app) == 2
        for _ in range(8):
            counted(app, "present")
        with app.app_context(), pytest.raises(TooManyRequests):
            rate_limits.check(Limit("test", 10, 60).of("present"))


def test_rate_limit_counters_are_purged_in_batches(app: Flask) -> None:
    many = PURGED_AT_ONCE * 2 + 30
    with app.app_context(), db.transaction() as session:
        old = [{"key": f"old {n}", "count": 1, "expires_at": float(n)} for n in range(many)]
        session.execute(sa.insert(Counter), old)
    left = []
    for number in range(4):
        counted(app, f"new {number}")
        left.append(count_of(app) - number - 1)
    assert left == [many - PURGED_AT_ONCE, 30, 0, 0]


def test_rate_limit_counters_can_be_purged_concurrently(app: Flask) -> None:
    with app.app_context(), db.transaction() as session:
        old = [{"key": f"old {n}", "count": 1, "expires_at": float(n)} for n in range(500)]
        session.execute(sa.insert(Counter), old)
    at_once(12, lambda number: counted(app, f"new {number}"))
    assert count_of(app) == 12
