"""Threads that wait for hosts that users name are few, and wait for a short time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
import time_machine
from flask import Flask

from app import clock, db
from app.outbound import address_policy, web_waits
from app.sso.models import IssuerDocument
from tests.builders import Caller
from tests.mailbox import run_jobs
from tests.parallel import at_once
from tests.sso import openid
from tests.sso.flows import HTML, Stage, query_of
from tests.sso.loopback import Answer
from tests.sso.test_settings import PATH

DELAY = 9.5


class SlowProvider(openid.Provider):
    """Takes its time for some paths; `most` is how many requests it answered at once."""

    def __init__(self) -> None:
        self.delay, self.paths = 0.0, (openid.DOCUMENT,)
        self.now, self.most, self._lock = 0, 0, threading.Lock()
        super().__init__()
        # Whoever asked has often left by then.
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]

    def answer(self, path: str, body: str | None) -> Answer:
        """The same, later."""
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        if path in self.paths and self.delay:
            time.sleep(self.delay)
        with self._lock:
            self.now -= 1
        return super().answer(path, body)


@pytest.fixture
def slow() -> Iterator[SlowProvider]:
    provider = SlowProvider()
    provider.reset()
    yield provider
    provider.close()


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which nobody has waited before."""
    monkeypatch.setattr(web_waits, "_places", web_waits.Places(web_waits.IN_ALL))


def set_up(by: Caller, provider: openid.Provider, number: int, **more: Any) -> list[str]:
    """Set up providers of this issuer; returns their slugs."""
    slugs = [f"slow{n}" for n in range(number)]
    for slug in slugs:
        issuer = provider.issuer_config()
        row = {"category": "auth_providers", "provider_name": "oidc", "slug": slug, **more}
        made = by.post(PATH, {**row, "config": issuer})
        assert made.status_code == 201, made.text
    return slugs


def forget_documents(app: Flask) -> None:
    """As if they had been read long ago."""
    with app.app_context(), db.transaction() as session:
        session.execute(sa.delete(IssuerDocument))


def start(stage: Stage, slug: str, account: str) -> tuple[str, float]:
    """Start a sign-in as a stranger: the error that it returns with, and the seconds it took."""
    began = time.monotonic()
    answer = stage.browser().get(f"/oauth/{slug}/authorize?account={account}", headers=HTML)
    assert answer.status_code == 302, answer.text
    took = time.monotonic() - began
    return query_of(answer.headers["Location"]).get("error", ""), took


@pytest.mark.long
@pytest.mark.both_databases
def test_slow_issuers_of_one_account_hold_one_request_per_process(
    stage: Stage, slow: SlowProvider
) -> None:
    charlie = stage.cast.charlie
    slugs = set_up(charlie, slow, 4)
    forget_documents(stage.app)
    slow.delay, slow.most = DELAY, 0
    found = at_once(16, lambda n: start(stage, slugs[n % 4], "globex"))
    assert {error for error, _ in found} == {"temporarily_unavailable"}
    took = sorted(seconds for _, seconds in found)
    # One waits for the issuer, three for it, and nobody else.
    assert took[-1] < 4.5
    assert took[-2] < 2.2
    assert took[10] < 1
    assert slow.most == 1
    # Nobody tries again for half a minute.
    again = [start(stage, slugs[n], "globex")[1] for n in range(4)]
    assert max(again) < 1
    assert slow.most == 1


def test_slow_issuers_of_several_accounts_leave_a_place_to_others(
    stage: Stage, slow: SlowProvider
) -> None:
    cast = stage.cast
    set_up(cast.charlie, slow, 1)
    stage.oidc(cast.alice, "acme-id")
    forget_documents(stage.app)
    places = web_waits._places
    for account in ("globex", "third", "fourth"):
        places._charge(account, 10)
    with places.hold("third"):
        for account in ("globex", "fourth"):
            with pytest.raises(web_waits.Busy), places.hold(account):
                pass
        assert stage.sign_in("acme-id").status_code == 302
    with places.hold("third"), places.hold("fresh"):
        places._charge(web_waits.ALL_WAITING, 10)  # so nobody waits for a place
        with pytest.raises(web_waits.Busy), places.hold("another"):
            pass


@pytest.mark.long
@pytest.mark.parametrize("path", [openid.DOCUMENT, "/token", "/keys", "/userinfo"])
def test_slow_issuer_request_times_out_after_3_seconds(
    stage: Stage, slow: SlowProvider, path: str
) -> None:
    set_up(stage.cast.charlie, slow, 1)
    forget_documents(stage.app)
    browser = stage.browser()
    slow.paths = (path,)
    began = time.monotonic()
    if path == openid.DOCUMENT:
        slow.delay = DELAY
        error, took = start(stage, "slow0", "globex")
    else:
        target, values = slow.authorize(stage.begin(browser, "slow0", "globex"))
        slow.delay = DELAY
        began = time.monotonic()
        back = browser.get(
            target.removeprefix("http://atrium.test"), query_string=values, headers=HTML
        )
        error, took = query_of(back.headers["Location"])["error"], time.monotonic() - began
    assert (error, took < 4.5) == ("temporarily_unavailable", True)


def test_slow_issuer_documents_are_cached_and_renewed_by_job(
    stage: Stage, slow: SlowProvider
) -> None:
    set_up(stage.cast.charlie, slow, 1)
    browser = stage.browser()
    target, values = slow.authorize(stage.begin(browser, "slow0", "globex"))
    path = target.removeprefix("http://atrium.test")
    assert "code=" in browser.get(path, query_string=values).headers["Location"]
    slow.paths, slow.delay = (openid.DOCUMENT, "/keys"), DELAY
    slow.asked.clear()
    with time_machine.travel(clock.now().timestamp() + 660):
        for _ in range(3):  # the first asks a job to renew it
            assert start(stage, "slow0", "globex") == ("", pytest.approx(0, abs=1.5))
        assert slow.asked == []
        slow.delay = 0
        slow.document = {"authorization_endpoint": f"{slow.url}/elsewhere"}
        assert run_jobs(stage.app) > 0
        assert (slow.asked.count(openid.DOCUMENT), slow.asked.count("/keys")) == (1, 1)
        # All processes have the new one at once, as they read it from the database.
        assert stage.begin(stage.browser(), "slow0", "globex").startswith(f"{slow.url}/elsewhere")
    slow.answers[openid.DOCUMENT] = Answer(503)
    with time_machine.travel(clock.now().timestamp() + 660 + 1000):  # a failed renewal keeps it
        assert start(stage, "slow0", "globex")[0] == ""
        run_jobs(stage.app)
        assert start(stage, "slow0", "globex")[0] == ""
    with time_machine.travel(clock.now().timestamp() + 660 + 3700):  # but not for ever
        assert start(stage, "slow0", "globex")[0] == "temporarily_unavailable"


def test_provider_change_invalidates_cached_documents(stage: Stage, slow: SlowProvider) -> None:
    made = stage.oidc(stage.cast.alice, "acme-id")
    assert stage.sign_in("acme-id").status_code == 302
    config = {"issuer": slow.url, "client_secret": openid.SECRET}
    assert stage.cast.alice.patch(f"{PATH}/{made['id']}", {"config": config}).status_code == 200
    assert stage.begin(stage.browser(), "acme-id").startswith(f"{slow.url}/authorize")


@pytest.mark.long
def test_provider_saves_and_tests_of_one_account_do_not_block_others(
    stage: Stage, slow: SlowProvider
) -> None:
    cast = stage.cast
    slow.delay = DELAY
    row = {"category": "auth_providers", "provider_name": "oidc", "config": slow.issuer_config()}
    with ThreadPoolExecutor(4) as pool:
        saves = [pool.submit(cast.charlie.post, PATH, {**row, "slug": f"eve{n}"}) for n in range(4)]
        time.sleep(0.5)
        began = time.monotonic()
        tried = cast.alice.post(
            f"{PATH}/test-connection",
            {**row, "config": slow.issuer_config(issuer=stage.provider.url)},
        )
        assert (tried.status_code, time.monotonic() - began < 2) == (200, True), tried.text
        assert tried.json["success"], tried.json
        statuses = sorted(save.result().status_code for save in saves)
    assert statuses[0] == 400  # its issuer cannot be read
    assert set(statuses[1:]) <= {400, 429}
    assert statuses.count(400) < 3


@pytest.mark.long
@pytest.mark.parametrize("kind", ["webhook", "stream", "metadata", "saml test"])
def test_slow_receiver_request_times_out_after_3_seconds(
    stage: Stage, slow: SlowProvider, kind: str
) -> None:
    alice = stage.cast.alice
    slow.paths, slow.delay = ("/slow",), DELAY
    url = f"{slow.url}/slow"
    saml = stage.saml(alice)
    if kind == "webhook":
        hook = alice.post("webhooks", {"url": url, "collection": "posts", "events": ["create"]})
        send = (f"webhooks/{hook.json['id']}/test", {})
    elif kind == "stream":
        assert alice.put("account/security-log/stream", {"url": url}).status_code == 200
        send = ("account/security-log/stream/test", {})
    elif kind == "metadata":
        config = {"metadata_url": url}
        named = {"category": "saml_providers", "provider_name": "generic", "config": config}
        send = (PATH, named)
    else:
        assert alice.patch(f"{PATH}/{saml['id']}", {"config": {"idp_sso_url": url}})
        named = {"category": "saml_providers", "provider_name": "okta", "config": {}}
        send = (f"{PATH}/test-connection", named)
    began = time.monotonic()
    answer = alice.post(*send)
    took = time.monotonic() - began
    assert answer.status_code in (200, 400), answer.text
    assert 2.5 < took < 4.5
    assert "within 3 seconds" in answer.text


@pytest.mark.long
def test_slow_name_server_lookup_times_out_after_3_seconds(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = stage.cast.alice

    def resolve(host: str, port: int) -> list[str]:
        time.sleep(5)
        return ["93.184.216.34"]

    stage.changed(monkeypatch, webhook_allow_private=False)
    monkeypatch.setattr(address_policy, "_resolve", resolve)
    hook = {"url": "https://slow.example/", "collection": "posts", "events": ["create"]}
    addresses = ("token_url", "userinfo_url", "jwks_url", "authorize_url")
    google = stage.provider.config(**{name: f"https://{name[:4]}.example/" for name in addresses})
    row = {"category": "auth_providers", "provider_name": "google", "config": google}
    for path, body in (("webhooks", hook), (PATH, row)):
        began = time.monotonic()
        assert alice.post(path, body).status_code == 201
        assert time.monotonic() - began < 4.5
    # While the account's place is taken, nothing is looked up; addresses are refused all the same.
    with web_waits._places.hold(alice.account_id):
        web_waits._places._charge(alice.account_id, 10)
        began = time.monotonic()
        assert alice.post("webhooks", hook).status_code == 201
        for url in ("https://127.0.0.1/", "https://[::1]/", "https://10.0.0.1/"):
            assert alice.post("webhooks", {**hook, "url": url}).status_code == 400
        assert time.monotonic() - began < 2
