"""One account's load does not take all threads of a process while others have requests."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from flask import Flask

from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.usage import fair_share
from app.usage.fair_share import Shares
from app.usage.quotas import QuotaExceeded
from tests.builders import Cast, make_collection


@pytest.fixture(autouse=True)
def shares(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shares]:
    """The shares of a process that serves nobody yet."""
    made = Shares()
    monkeypatch.setattr(fair_share, "_shares", made)
    yield made
    assert not made._active  # whoever has entered leaves


def test_an_account_alone_may_have_all_threads(shares: Shares) -> None:
    assert all(shares.enter("a", 2) for _ in range(4))
    for _ in range(4):
        shares.leave("a")


def test_beside_others_it_has_its_share_only(shares: Shares) -> None:
    assert [shares.enter(id, 2) for id in "abaaba"] == [True, True, True, False, True, False]
    shares.leave("a")
    assert shares.enter("a", 2)
    for id in "aabb":
        shares.leave(id)


def test_a_second_after_the_last_request_of_others_it_has_all_again(
    shares: Shares, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = [shares.enter(id, 2) for id in "baaa"]
    assert begun == [True, True, True, False]
    later = time.monotonic() + fair_share.RECENT_SECONDS + 0.1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert shares.enter("a", 2)
    for id in "baaa":
        shares.leave(id)


def test_a_request_beyond_the_share_is_refused(app: Flask, cast: Cast, shares: Shares) -> None:
    make_collection(cast.root)
    account = cast.alice.account_id
    for _ in range(2):
        shares.enter(account, 2)
    assert cast.charlie.get("records/posts").status_code == 200
    answer = cast.alice.get("records/posts")
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
    assert answer.json["quota"] == "concurrent_requests"
    assert cast.charlie.get("records/posts").status_code == 200
    for _ in range(2):
        shares.leave(account)
    assert cast.alice.get("records/posts").status_code == 200


def test_superadmins_always_get_in(app: Flask, shares: Shares) -> None:
    with app.app_context():
        shares.enter("a", 2)
        for _ in range(9):
            fair_share.enter(SYSTEM_ACCOUNT_ID)
        for _ in range(9):
            fair_share.leave(SYSTEM_ACCOUNT_ID)
        shares.enter("a", 2)
        with pytest.raises(QuotaExceeded, match="concurrent_requests"):
            fair_share.enter("a")
        for _ in range(2):
            shares.leave("a")
