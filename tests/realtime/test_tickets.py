"""Tickets and the other credentials of streams: once, for half a minute, in their own account."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
import sqlalchemy as sa
import time_machine
from flask import Flask

from app import clock, db
from app.auth import purge, stream_credentials
from app.auth.models import StreamTicket
from app.context import tenancy
from app.realtime.connections import Connection
from tests.builders import Caller, Cast, change_user
from tests.realtime.clients import UPGRADE, Events, Socket, Stream, until

SUBSCRIBE = "realtime/subscribe"


def ticket_of(caller: Caller) -> str:
    """A new ticket."""
    answer = caller.post("realtime/tickets")
    assert (answer.status_code, answer.json["expires_in"]) == (201, 30)
    return str(answer.json["ticket"])


def test_stream_ticket_opens_one_stream(bob: Caller, port: int, attached: list[Connection]) -> None:
    ticket = ticket_of(bob)
    first, second = (Events(port, f"ticket={ticket}") for _ in range(2))
    assert (first.status, second.status) == (200, 401)
    assert second.json()["error"] == "unauthorized"
    until(lambda: attached)
    assert attached[0].credential.user_id == bob.id
    assert attached[0].account_id == bob.account_id


def test_stream_ticket_race_of_twenty_has_one_winner(bob: Caller, port: int) -> None:
    ticket, together = ticket_of(bob), Barrier(20)

    def race(_: int) -> int:
        together.wait()
        return Stream(port, f"ws?ticket={ticket}", UPGRADE).status

    with ThreadPoolExecutor(20) as pool:
        assert sorted(pool.map(race, range(20))) == [101, *[401] * 19]


def test_stream_ticket_expires_after_30_seconds(app: Flask, bob: Caller, port: int) -> None:
    early, late = ticket_of(bob), ticket_of(bob)
    with time_machine.travel(clock.now() + timedelta(seconds=29)):
        assert Events(port, f"ticket={early}").status == 200
    with time_machine.travel(clock.now() + timedelta(seconds=31)):
        assert Events(port, f"ticket={late}").status == 401


def test_stream_tickets_that_expired_are_purged(app: Flask, bob: Caller) -> None:
    old = ticket_of(bob)
    with time_machine.travel(clock.now() + timedelta(seconds=31)), app.app_context():
        purge.purge({})
        count = sa.select(sa.func.count()).select_from(StreamTicket)
        assert db.connection().scalar(count) == 0
    assert old


def test_stream_ticket_of_superadmin_is_bound_to_acting_account(
    cast: Cast, port: int, attached: list[Connection]
) -> None:
    acting = cast.root.acting_in("acme")
    assert Events(port, f"ticket={ticket_of(acting)}").status == 200
    until(lambda: attached)
    assert attached[0].account_id == cast.alice.account_id
    other = Events(port, f"ticket={ticket_of(acting)}", headers={"X-Account-ID": "globex"})
    assert (other.status, other.json()["error"]) == (403, "forbidden")


def test_stream_across_all_accounts_is_400(cast: Cast, port: int) -> None:
    everywhere = cast.root.acting_in("*")
    assert everywhere.post("realtime/tickets").status_code == 400
    assert Events(port, headers=everywhere.headers).status == 400


def test_stream_ticket_limit_per_user_is_429(
    bob: Caller, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_credentials, "MAX_OPEN_TICKETS", 2)
    ticket_of(bob)
    ticket_of(bob)
    refused = bob.post("realtime/tickets")
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "30")
    ticket_of(alice)
    with time_machine.travel(clock.now() + timedelta(seconds=31)):
        ticket_of(bob)


def test_stream_ticket_retry_with_idempotency_key_is_already_done(cast: Cast, port: int) -> None:
    for caller in (cast.bob, cast.root.acting_in("acme")):
        key = {"Idempotency-Key": "once"}
        first, again = (caller.post("realtime/tickets", headers=key) for _ in range(2))
        assert (first.status_code, again.status_code) == (201, 409)
        assert again.json["error"] == "already_done"
        assert Events(port, f"ticket={first.json['ticket']}").status == 200


def test_stream_ticket_of_deactivated_user_is_401(app: Flask, cast: Cast, port: int) -> None:
    tickets = {name: ticket_of(getattr(cast, name)) for name in ("alice", "bob")}
    change_user(app, cast.bob.id, is_active=False)
    assert Events(port, f"ticket={tickets['bob']}").status == 401
    assert Events(port, f"ticket={tickets['alice']}").status == 200


def test_stream_ticket_is_stored_as_hash_only(app: Flask, bob: Caller) -> None:
    ticket = ticket_of(bob)
    with app.app_context(), tenancy.across_accounts():
        row = db.connection().execute(sa.select(StreamTicket.__table__)).one()
    assert ticket not in str(row)
    assert bob.headers["Authorization"].split()[1] not in str(row)


def test_stream_and_ticket_without_credential_are_401(anyone: Caller, cast: Cast) -> None:
    for account in ({}, {"X-Account-ID": "acme"}):
        for method, path in (("POST", "realtime/tickets"), ("GET", SUBSCRIBE)):
            answer = anyone(method, path, headers=account)
            assert (answer.status_code, answer.json["error"]) == (401, "unauthorized")


def test_query_credential_outside_streams_is_401(bob: Caller) -> None:
    token, nobody = bob.headers["Authorization"].split()[1], Caller(bob.app)
    for query in (f"token={token}", f"ticket={ticket_of(bob)}"):
        assert nobody.get(f"auth/me?{query}").status_code == 401
        assert nobody.post(f"realtime/tickets?{query}").status_code == 401


def test_stream_credential_order_is_header_ticket_token(
    cast: Cast, port: int, attached: list[Connection]
) -> None:
    token = cast.charlie.headers["Authorization"].split()[1]
    query = f"ticket={ticket_of(cast.alice)}&token={token}"
    for headers in (cast.bob.headers, {}):
        assert Socket(port, query, headers=headers).status == 101
    assert Socket(port, f"token={token}").status == 101
    until(lambda: len(attached) == 3)
    users = [stream.credential.user_id for stream in attached]
    assert users == [cast.bob.id, cast.alice.id, cast.charlie.id]
    assert Events(port, f"token={token}", headers={"X-API-Key": "svc_sk_wrong"}).status == 401


def test_stream_with_scoped_api_key(alice: Caller, port: int, attached: list[Connection]) -> None:
    body = {"name": "nightly", "scopes": {"collections": ["posts"], "operations": ["list"]}}
    key = alice.post("api-keys", body).json
    keyed = Caller(alice.app, **{"X-API-Key": key["key"]})
    assert Events(port, headers=keyed.headers).status == 200
    assert Events(port, f"ticket={ticket_of(keyed)}").status == 200
    assert Events(port, f"token={key['key']}").status == 200
    until(lambda: len(attached) == 3)
    with alice.app.app_context():
        assert {stream.credential.principal().api_key_id for stream in attached} == {key["id"]}
    left = ticket_of(keyed)
    assert alice.post(f"api-keys/{key['id']}/revoke").status_code == 200
    assert Events(port, f"ticket={left}").status == 401


def test_stream_with_read_only_api_key(
    alice: Caller, port: int, attached: list[Connection]
) -> None:
    key = alice.post("api-keys", {"name": "reports", "read_only": True}).json["key"]
    keyed = Caller(alice.app, **{"X-API-Key": key})
    assert Events(port, headers=keyed.headers).status == 200
    assert Socket(port, f"ticket={ticket_of(keyed)}").status == 101
    until(lambda: len(attached) == 2)
    with alice.app.app_context():
        assert all(stream.credential.principal().read_only for stream in attached)


@pytest.mark.parametrize("ticket", ["", "x", "AB0001-x", "-", "é", "%00", "x" * 2000])
def test_stream_ticket_that_is_malformed_is_401_or_422(cast: Cast, port: int, ticket: str) -> None:
    assert Events(port, f"ticket={ticket}".encode().decode("latin1")).status in (401, 422)
