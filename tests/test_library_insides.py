"""The insides of libraries that we lean on: each test fails when a release changes them.

One module per library holds the use, and its docstring says what that buys. Before raising an upper
bound in `requirements.in`, run these.
"""

from __future__ import annotations

import socket
import sqlite3
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import flask
import jwt
import pytest
import requests
import sqlalchemy as sa
import urllib3
from cronsim import CronSim
from flask import Flask, g, request
from flask.globals import _cv_app, _cv_request, request_ctx
from gunicorn.workers.gthread import STOP_KEEPALIVE_LINGER, TConn, ThreadWorker
from jwt.algorithms import HMACAlgorithm
from requests.adapters import HTTPAdapter
from sqlalchemy.dialects import postgresql, sqlite
from urllib3.connection import HTTPConnection
from werkzeug.routing import Map, Rule

from app.db.engine import Pool

DIALECTS = [sqlite.dialect(), postgresql.dialect()]
EVENTS = sa.table("events", sa.column("id", sa.Text), sa.column("at", sa.DateTime))


def test_flask_context_variables_contract() -> None:
    """`app/web/app.py`, `app/config/settings.py`."""
    app = Flask(__name__)
    with app.test_request_context("/x", headers={"X-Test": "1"}):
        assert _cv_request.get().request is request._get_current_object()  # type: ignore[attr-defined]
        assert _cv_request.get() is request_ctx._get_current_object()
        assert _cv_app.get().app is flask.current_app._get_current_object()  # type: ignore[attr-defined]
        assert _cv_app.get().g is g._get_current_object()  # type: ignore[attr-defined]
        assert request.environ["HTTP_X_TEST"] == "1"
    with pytest.raises(LookupError):
        _cv_app.get()


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_sqlalchemy_compiled_statement_contract(dialect: sa.Dialect) -> None:
    """`app/db/prepared.py`."""
    statement = sa.select(EVENTS.c.id, EVENTS.c.at).where(
        EVENTS.c.id == sa.bindparam("id"), EVENTS.c.at > sa.bindparam("at"), EVENTS.c.id != "x"
    )
    compiled = statement.compile(dialect=dialect)
    assert not compiled.post_compile_params
    assert [column.type for column in compiled._result_columns] == [
        EVENTS.c.id.type,
        EVENTS.c.at.type,
    ]
    names = {parameter.key: (name, parameter) for parameter, name in compiled.bind_names.items()}
    assert (names["id"][0], names["id"][1].unique, names["id"][1].required) == ("id", False, True)
    constant = next(parameter for parameter in compiled.bind_names if parameter.unique)
    assert constant.effective_value == "x"
    assert compiled.positiontup is None or compiled.positiontup[:2] == ["id", "at"]
    assert "at" in compiled._bind_processors or dialect.name == "postgresql"
    process = EVENTS.c.at.type._cached_result_processor(dialect, None)
    assert process is None or process("2026-01-01 00:00:00.000000").year == 2026


def test_sqlalchemy_pool_entry_contract() -> None:
    """`app/db/engine.py`."""
    pool = Pool(
        lambda: sqlite3.connect(":memory:", check_same_thread=False), pool_size=1, use_lifo=True
    )
    entry = pool.acquire()
    assert isinstance(entry.dbapi_connection, sqlite3.Connection)
    assert pool.checkedout() == 1
    pool.release(entry)
    assert (pool.checkedout(), pool.checkedin()) == (0, 1)
    failed = pool._do_get()
    failed._checkin_failed(ValueError(), _fairy_was_created=False)  # type: ignore[attr-defined]
    assert pool.checkedout() == 0
    pool.dispose()


def test_werkzeug_rule_converters_contract() -> None:
    """`app/web/app.py`."""
    rule = Rule("/records/<uuid:id>/<path:rest>", endpoint="x")
    Map([rule])
    assert [c.part_isolating for c in rule._converters.values()] == [True, False]


def test_werkzeug_rule_builder_contract() -> None:
    """`app/web/app.py`: it puts this off."""
    compiled = []

    class Postponing(Rule):
        def _compile_builder(self, append_unknown: bool = True) -> Any:
            def build(rule: Rule, /, **values: Any) -> tuple[str, str]:
                compiled.append(append_unknown)
                made: Any = super(Postponing, rule)._compile_builder(append_unknown)
                name = "_build_unknown" if append_unknown else "_build"
                setattr(rule, name, made.__get__(rule, None))
                return made(rule, **values)

            return build

    urls = Map([Postponing("/records/<id>", endpoint="x")]).bind("atrium.test")
    assert not compiled
    assert urls.build("x", {"id": "a b", "sort": "id"}) == "/records/a%20b?sort=id"
    assert urls.build("x", {"id": "a"}, append_unknown=False) == "/records/a"
    assert urls.build("x", {"id": "b", "sort": "id"}) == "/records/b?sort=id"
    assert compiled == [True, False]


def test_gunicorn_thread_worker_contract() -> None:
    """`deploy/worker.py`; nginx closes its connections before a stopping worker does."""
    steps = "accept", "handle", "handle_error", "handle_quit", "set_accept_enabled"
    assert [step for step in steps if not callable(getattr(ThreadWorker, step, None))] == []
    assert callable(TConn.close)
    assert STOP_KEEPALIVE_LINGER > 1


def test_pyjwt_prepare_key_contract() -> None:
    """`app/auth/tokens.py`."""

    class Cached(HMACAlgorithm):
        prepare_key = lru_cache(HMACAlgorithm.prepare_key)

    algorithm, secret = Cached(Cached.SHA256), "a secret of thirty-two characters"
    key = algorithm.prepare_key(secret)
    assert algorithm.prepare_key(secret) is key
    assert Cached.prepare_key.cache_info().hits == 1
    token = jwt.encode({"sub": "alice"}, secret, algorithm="HS256")
    assert jwt.decode(token, secret, algorithms=["HS256"]) == {"sub": "alice"}


def test_cronsim_field_values_contract() -> None:
    """`app/workflows/language/cron.py`."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    parsed = CronSim("5,7 */12 1-3 feb 5-7", at)
    assert (parsed.minutes, parsed.hours, parsed.days) == ({5, 7}, {0, 12}, {1, 2, 3})
    assert (parsed.months, parsed.weekdays) == ({2}, {5, 6, 7})
    # A star in front is what makes both day fields count.
    found = [next(CronSim(f"0 0 {day} * {weekday}", at)) for day, weekday in DAY_FIELDS]
    assert [one.day for one in found] == [6, 2, 6]


DAY_FIELDS = (("*", "tue"), ("2", "tue"), ("*/1", "tue"))


def test_requests_pool_connection_contract() -> None:
    """`app/outbound/client.py`."""

    class Reached(Exception):
        pass

    class Connection(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            raise Reached

    class Adapter(HTTPAdapter):
        def get_connection_with_tls_context(self, *_: object, **__: object) -> Any:
            pool = urllib3.HTTPConnectionPool("elsewhere.example", 1)
            pool.ConnectionCls = Connection
            return pool

        def cert_verify(self, *_: object, **__: object) -> None:
            pass

    prepared = requests.Request("GET", "https://named.example/").prepare()
    with pytest.raises(Reached):
        Adapter().send(prepared, stream=True)
