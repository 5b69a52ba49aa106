"""Fixtures of all tests: servers, an application per database, and the cast."""

from __future__ import annotations

import gc
import itertools
import os

if "PYTEST_VERSION" in os.environ:  # and not where a benchmark imports this
    gc.disable()  # until all tests are collected: nothing of what is loaded is garbage

import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import flask_migrate
import pytest
from argon2 import PasswordHasher
from flask import Flask
from hypothesis import HealthCheck, settings
from jinja2 import FileSystemBytecodeCache

from app import create_app, db, features
from app.accounts.usage import request_counter
from app.auth import passwords, principal
from app.config import Config
from app.db import row_security, sharding, versioned_cache
from app.ops import cli
from app.portability.bundle import frames
from app.sso.saml import keys as saml_keys
from tests import builders, databases, services, states
from tests.builders import Caller, Cast
from tests.databases import DATABASES
from tests.project import PROJECT

features()  # modules of tests list tables and jobs when they are imported

# What a hash really costs, and what it costs where only its answer is of interest.
REAL_HASHER = passwords._hasher
QUICK_HASHER = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
REAL_SCRYPT, QUICK_SCRYPT = dict(frames.SCRYPT), {"n": 2, "r": 8, "p": 1}
# Tests take turns with a few key pairs: each costs as much as several tests.
SAML_KEY_PAIRS = 6
REAL_PAIR = saml_keys.generate
# What a test may take of the processor, and so many times that in all; the file that lists tests
# which take more, instead of a failure: coverage slows them down.
BUDGET = float(os.environ.get("TEST_BUDGET", "0"))
WAIT = 10
OVER_BUDGET = os.environ.get("TEST_OVER_BUDGET")
DAY = 86_400
LOOP_SECONDS = 0.045
"""What `_machine_factor` measures on the machine that budgets are for."""
# The short form of a test runs with all others, the whole one with `make slow`.
WHOLE = pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "whole"]
)
_started: list[services.Server] = []
_pair_seconds: list[float] = []
_made: dict[str, Made] = {}
# The names of empty databases, and the migrated one of each kind that later ones are copies of.
_empty: set[str] = set()
_migrated: dict[str, states.Migrated] = {}


# Examples take as long as the machine is busy; the first text makes a table of all characters.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    """Have templates compiled once, and start the servers of a run on PostgreSQL."""
    if "PYTEST_XDIST_WORKER" in os.environ or config.option.collectonly:
        return
    os.environ["TEST_TEMPLATES"] = str(compiled_templates())
    if databases.RUN != "sqlite":
        start_servers()


def compiled_templates() -> Path:
    """The folder of templates that this or an earlier run of the same code has compiled.

    Jinja compiles one anew if its text changes, but not if what the application gives it does.
    """
    files = sorted((PROJECT / "app").rglob("*.py"))
    code = [(str(file), file.stat().st_mtime_ns) for file in files]
    digest = sha256(f"{version('jinja2')} {code}".encode()).hexdigest()[:16]
    folder = PROJECT / ".pytest_cache" / "templates" / digest
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    for other in folder.parent.iterdir():
        if other.stat().st_mtime < time.time() - DAY:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def start_servers() -> None:
    """Start the servers once, before the test processes, which inherit their addresses."""
    if "PYTEST_XDIST_WORKER" in os.environ or _started:
        return
    for server in (services.Postgres(), services.Redis()):
        _started.append(server)
        server.start()
        os.environ[f"TEST_{server.name.upper()}_URL"] = server.url


def pytest_sessionstart() -> None:
    """Use cheap hashes and few key pairs: thousands of them would take minutes."""
    hash_with(QUICK_HASHER)
    frames.SCRYPT.update(QUICK_SCRYPT)
    turns = itertools.count()
    saml_keys.generate = lambda: _pair(next(turns) % SAML_KEY_PAIRS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their folder, and leave out those of another database than that of the run."""
    for item in databases.left_to_slow(items):
        item.add_marker(pytest.mark.slow)
    for item in items:
        if databases.is_apart(item):
            item.add_marker(databases.folder_of(item))
        for reason in item.iter_markers("not_on_citus") if services.CITUS_NODES else ():
            item.add_marker(pytest.mark.skip(*reason.args))
    chosen, left_out = databases.parted(items)
    config.hook.pytest_deselected(items=left_out)
    items[:] = chosen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that takes more than its share, where TEST_BUDGET names the seconds.

    It is of processor time, as a busy machine has a test wait; what waits is bounded, too.
    """
    is_exempt = any(map(item.get_closest_marker, ("long", "timing", "slow", "system", "browser")))
    if not BUDGET or is_exempt:
        return (yield)
    before = len(_pair_seconds)
    with _collections() as searches:
        began, worked = time.monotonic(), time.process_time()
        yield
        worked, took = time.process_time() - worked, time.monotonic() - began
    worked -= sum(searches)  # for garbage of all tests before
    worked -= sum(_pair_seconds[before:])  # whose keys all tests after use, too
    spent = max(worked, took / WAIT)
    if spent > BUDGET and spent > BUDGET * _machine_factor():
        if OVER_BUDGET:
            with Path(OVER_BUDGET).open("a") as listed:
                listed.write(f"{item.nodeid}\n")
            return
        pytest.fail(
            f"It took {worked:.1f} s of the processor and {took:.1f} s in all. "
            f"Make it quicker than {BUDGET} s, or mark it `long`.",
            pytrace=False,
        )


@contextmanager
def _collections() -> Iterator[list[float]]:
    """The seconds that each search for garbage takes meanwhile."""
    seconds, began = [], 0.0

    def note(phase: str, _info: object) -> None:
        nonlocal began
        if phase == "start":
            began = time.process_time()
        else:
            seconds.append(time.process_time() - began)

    gc.callbacks.append(note)
    try:
        yield seconds
    finally:
        gc.callbacks.remove(note)


def _machine_factor() -> float:
    """How much slower this machine is than the one that budgets are for; at least 1."""
    numbers: dict[int, str] = {}
    began = time.process_time()
    for number in range(300_000):
        numbers[number % 1000] = str(number)
    return max(1.0, (time.process_time() - began) / LOOP_SECONDS)


def pytest_collection_finish() -> None:
    """Look for garbage seldom, and never among the modules and tests that stay to the end: a whole
    search takes seconds, and they would be the test's.
    """
    gc.freeze()
    gc.set_threshold(100_000, 50, 20)
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the servers, and remove what is temporary."""
    for server in _started:
        server.stop()
    for made in _made.values():
        shutil.rmtree(made.folder, ignore_errors=True)


@lru_cache
def _pair(number: int) -> saml_keys.NewPair:
    began = time.process_time()
    pair = REAL_PAIR()
    _pair_seconds.append(time.process_time() - began)
    return pair


def hash_with(hasher: PasswordHasher) -> None:
    """Set the hasher, and forget hashes of the previous one."""
    passwords._hasher = hasher
    passwords._dummy.cache_clear()
    builders.password_hash.cache_clear()


@pytest.fixture
def real_hashes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Real password hashes, for tests of their cost or duration."""
    hash_with(REAL_HASHER)
    if "cast" in request.fixturenames:
        builders.change_passwords(request.getfixturevalue("app"))
    yield
    hash_with(QUICK_HASHER)


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def app(database: str, request: pytest.FixtureRequest) -> Iterator[Flask]:
    """The application on an empty database, or with the cast if the test requests it."""
    made = _shared(database)
    made.restore("cast" in request.fixturenames)
    yield made.app
    with made.app.app_context():
        db.db.session.remove()


def _shared(database: str) -> Made:
    if database not in _made:
        _made[database] = Made(database)
    return _made[database]


class Made:
    """An application that tests share, with the initial states of its database."""

    def __init__(self, database: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="atrium-test-"))
        self.settings = settings_for(database, self.folder)
        self.app = make_app(self.settings)
        self.empty = states.State(self.app, "empty")
        self.people = builders.make_people(self.app)
        self.peopled = states.State(self.app, "peopled")
        with self.app.app_context():
            keys = [(user.account_id, user.id) for user in self.people]
            self._principals = {key: principal.for_user(*key) for key in keys}

    def restore(self, peopled: bool) -> None:
        """Restore a state, with what the application remembers of the cast in it."""
        with self.app.app_context():
            db.db.session.remove()
            (self.peopled if peopled else self.empty).restore()
            for key, caller in self._principals.items() if peopled else ():
                versioned_cache.cache("principals").put(key, caller)
        self.app.extensions["atrium.config"] = self.settings
        request_counter.of(self.app).close()
        del self.app.extensions[request_counter.KEY]
        for name in ("outbox", "files", "usage"):
            shutil.rmtree(self.folder / name, ignore_errors=True)


def settings_for(database: str, folder: Path, **changes: object) -> Config:
    """Create a database of a kind; returns its settings."""
    name = str(folder / "atrium.db")
    url = f"sqlite:///{name}"
    if database == "postgresql":
        name = f"test_{secrets.token_hex(6)}"
        url = services.Postgres().create_database(name)
    if not Path(name).exists():
        _empty.add(name)
    environ = {
        "SERVICE_ENV": "test",
        "SERVICE_INSTANCE_DIR": str(folder),
        "SERVICE_DATABASE_URL": url,
        "SERVICE_BASE_URL": "http://atrium.test",
        "SERVICE_BASE_DOMAIN": "atrium.test",
        "SERVICE_LOGIN_RATE_LIMIT": "off",  # the tests of the limits turn it on
        "SERVICE_STATEMENT_SECONDS": "60",  # other tests keep the processors busy
    }
    return replace(Config.from_env(environ), **changes)  # type: ignore[arg-type]


def fill_by_hand(url: str) -> None:
    """Have a new database migrated as it is, and not replaced by a copy."""
    _empty.discard(urlsplit(url).path[1:])


def make_own_app(database: str, folder: Path, **changes: object) -> Flask:
    """An application with a database of its own, by a login that may back it up.

    On Citus, where a new one takes a minute, it is the emptied one of other tests.
    """
    if database == "sqlite" or not services.CITUS_NODES:
        return make_app(settings_for(database, folder, **changes))
    made = _shared(database)
    made.restore(False)
    url = made.app.extensions["atrium.config"].database_url
    changes["database_url"] = services.as_login(url, services.CITUS_BACKUP_LOGIN)
    return _create_app(settings_for("sqlite", folder, **changes))


def _create_app(settings: Config) -> Flask:
    made = create_app(settings)
    if folder := os.environ.get("TEST_TEMPLATES"):
        made.jinja_env.bytecode_cache = FileSystemBytecodeCache(folder)  # each is compiled once
    cli.bind_migrate(made)
    return made


def make_app(settings: Config) -> Flask:
    """An application whose database is created by the real migrations, or is a copy of one."""
    made = _create_app(settings)
    with made.app_context():
        kind, name = db.db.engine.dialect.name, db.db.engine.url.database
        if name in _empty and kind in _migrated and not services.CITUS_NODES:
            _migrated[kind].copy_into(db.db.engine)
        else:
            flask_migrate.upgrade()
            if name in _empty and not (services.CITUS_NODES and kind == "postgresql"):
                _migrated[kind] = states.Migrated(db.db.engine)
        _empty.discard(str(name))
        if services.CITUS_NODES and not db.has_one_writer():
            sharding.shard()
            row_security.install(db.db.engine)
    return made


@pytest.fixture
def anyone(app: Flask) -> Caller:
    """An anonymous client."""
    return Caller(app)


@pytest.fixture
def cast(app: Flask, database: str) -> Cast:
    """alice: admin of acme; bob: viewer of acme; charlie: admin of globex; root: superadmin."""
    return builders.cast_of(app, _made[database].people)


@pytest.fixture
def alice(cast: Cast) -> Caller:
    return cast.alice


@pytest.fixture
def bob(cast: Cast) -> Caller:
    return cast.bob


@pytest.fixture
def charlie(cast: Cast) -> Caller:
    return cast.charlie


@pytest.fixture
def root(cast: Cast) -> Caller:
    return cast.root
