"""Settings that several people change at the same moment: every change answered 200 stays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from app import db
from app.accounts.models import Account
from app.sso import service, validation
from tests.parallel import at_once
from tests.sso.flows import Stage
from tests.sso.test_settings import PATH

validate = validation.validate


def held_up(times: int) -> Callable[..., Any]:
    """The check of settings; its first calls wait for each other, so that all have read by then."""
    barrier, left = threading.Barrier(times), iter(range(times))

    def check(*args: Any, **options: Any) -> Any:
        if next(left, None) is not None:
            barrier.wait(5)
        return validate(*args, **options)

    return check


def version(stage: Stage) -> int:
    """How often acme was changed."""
    with stage.app.app_context():
        return db.db.session.get_one(Account, stage.cast.alice.account_id).version


def test_provider_concurrent_changes_all_stay(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = stage.cast.alice
    one = f"{PATH}/{stage.oauth(alice)['id']}"
    given = [
        {"issuer": "https://issuer.example"},
        {"default_role": "editor"},
        {"scopes": ["openid"]},
    ]
    monkeypatch.setattr(service.validation, "validate", held_up(len(given)))
    answers = at_once(len(given), lambda n: alice.patch(one, {"config": given[n]}))
    assert {answer.status_code for answer in answers} == {200}
    config = alice.get(one).json["config"]
    for setting in given:
        assert setting.items() <= config.items()


def test_provider_secret_is_never_sent_to_address_changed_concurrently(stage: Stage) -> None:
    alice, elsewhere = stage.cast.alice, f"{stage.provider.url}/elsewhere"
    path = f"{PATH}/{stage.oauth(alice)['id']}"
    reached, done = threading.Event(), threading.Event()

    def hold(session: Session, *args: Any) -> None:
        if session.dirty and not reached.is_set():
            reached.set()
            done.wait(0.3)  # the other change, as long as it does not wait for this one

    def change(number: int) -> None:
        if number == 0:
            alice.patch(path, {"config": {}})
            return
        reached.wait(5)
        alice.patch(path, {"config": {"token_url": elsewhere, "client_secret": "known"}})
        done.set()

    sa.event.listen(Session, "before_flush", hold)
    try:
        at_once(2, change)
    finally:
        sa.event.remove(Session, "before_flush", hold)
    named = {"category": "auth_providers", "provider_name": "google", "config": {}}
    alice.post(f"{PATH}/test-connection", named)
    assert alice.get(path).json["config"]["token_url"] == elsewhere
    assert [form["client_secret"] for form in stage.provider.forms] == ["known"]


def test_account_concurrent_changes_all_stay(stage: Stage) -> None:
    alice = stage.cast.alice
    given: list[dict[str, Any]] = [
        {"sso_email_domains": ["acme.example"]},
        {"sso_allow_admin": True},
        {"sso_tokens_in_fragment": True},
        {"sso_group_roles": [{"group": "Finance", "role": "editor"}]},
        {"cors_origins": ["https://client.example.com"]},
        {"name": "Acme Ltd"},
    ]
    before = version(stage)
    answers = at_once(len(given), lambda n: alice.patch("account", given[n]))
    assert {answer.status_code for answer in answers} == {200}
    assert version(stage) == before + len(given)  # by which caches know what is out of date
    shown = alice.get("account").json
    for setting in given:
        assert setting.items() <= shown.items()
