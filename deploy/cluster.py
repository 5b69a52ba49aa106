"""Atrium on several machines, tried on one: each process has a port of its own on loopback.

    python -m deploy.cluster FOLDER [--port 8443] [--asynchronous]   # until Ctrl-C
    python -m deploy.cluster FOLDER restart                          # web and workers, in turn
    python -m deploy.cluster FOLDER failover                         # to the replica

nginx, 3 web processes, 2 for streams, 3 workers, PgBouncer, PostgreSQL with a replica, and Redis,
from Debian's packages. What dies is started again after a second, as systemd does it. FOLDER has
the data, and `atrium.env` in it the settings. Not for production: PostgreSQL trusts everybody on
this machine.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg2

PROJECT = Path(__file__).resolve().parent.parent
START_SECONDS, STOP_SECONDS, PAUSE_SECONDS = 60, 30, 1
WEB, REALTIME, WORKERS = 3, 2, 3
SHARED_UPSTREAM = "server 127.0.0.1:8000 max_fails=0;\n    server 127.0.0.1:8000 max_fails=0;"
REALTIME_LOCATION = "location /api/v1/realtime/ {\n        proxy_pass http://atrium;"


class StartError(Exception):
    """A part does not start."""


@dataclass
class Part:
    """A process that is started again whenever it ends."""

    name: str
    command: list[str]
    folder: Path
    env: Mapping[str, str]
    is_ready: Callable[[], object]
    """Raises OSError or psycopg2.Error until the process works."""
    stop_signal: signal.Signals = signal.SIGTERM
    options: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    is_wanted: bool = False

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.folder / f"{self.name}.log"

    def launch(self) -> None:
        """Start the process."""
        self.is_wanted = True
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=PROJECT if "user" not in self.options else self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self.options,
            )

    def wait(self) -> None:
        """Wait until it works. Raises StartError."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.is_ready()
            except (OSError, psycopg2.Error) as error:
                if time.monotonic() > deadline:
                    raise StartError(f"{self.name}: {error}; see {self.log}") from error
                time.sleep(0.05)
            else:
                return

    def start(self) -> None:
        """Start the process, and wait until it works."""
        self.launch()
        self.wait()

    def kill(self) -> None:
        """End it and its children at once; `is_wanted` decides whether it is started again."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def stop(self) -> None:
        """Have it end what it has begun."""
        self.is_wanted = False
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()


class Cluster:
    """All parts, in the order in which they start."""

    def __init__(self, folder: Path, port: int, *, synchronous: bool = True) -> None:
        self.folder, self.port = folder.resolve(), port
        self.parts: dict[str, Part] = {}
        self._ports = iter(range(port + 1, port + 100))
        self._port_of: dict[str, int] = {}
        self._synchronous = synchronous
        self._lock = threading.Lock()
        self._ends = threading.Event()
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.env = self._environment()
        self.databases = [self._postgres(f"postgres-{n}") for n in (1, 2)]
        self._redis()
        self._pgbouncer()
        web = [self._web(f"web-{n}") for n in range(1, WEB + 1)]
        realtime = [self._web(f"realtime-{n}") for n in range(1, REALTIME + 1)]
        for n in range(1, WORKERS + 1):
            self._worker(f"worker-{n}")
        self._nginx(web, realtime)

    @property
    def primary(self) -> Part:
        """The server that accepts writes."""
        file = self.folder / "primary"
        return self.parts[file.read_text() if file.exists() else self.databases[0].name]

    @property
    def replica(self) -> Part:
        """The server that follows it."""
        (other,) = (one for one in self.databases if one is not self.primary)
        return other

    @property
    def url(self) -> str:
        """Where everybody connects to."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def certificate(self) -> Path:
        """The certificate of nginx, with its key."""
        return self.folder / "atrium.pem"

    def named(self, prefix: str) -> list[Part]:
        """The parts with a prefix of their names."""
        return [part for name, part in self.parts.items() if name.startswith(prefix)]

    def start(self, say: Callable[[str], None] = lambda text: None) -> None:
        """Start all parts, migrate the database, and watch the parts from now on."""
        say(f"starting {self.primary.name}, and {self.replica.name} as its replica")
        self._start_primary()
        self._start_replica()
        for name in ("redis", "pgbouncer"):
            say(f"starting {name}")
            self.parts[name].start()
        say("migrating the database")
        release = [str(PROJECT / "bin/atrium"), "release"]
        subprocess.run(release, cwd=PROJECT, env=self.env, check=True, stdout=subprocess.DEVNULL)
        atrium = [part for part in self.parts.values() if part.process is None]
        say(f"starting {', '.join(part.name for part in atrium)}")
        for part in atrium:
            part.launch()
        for part in atrium:
            part.wait()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def stop(self) -> None:
        """Stop all parts, the last one first."""
        self._ends.set()
        with self._lock:
            atrium = [*self.named("web-"), *self.named("realtime-"), *self.named("worker-")]
            for part in atrium:
                part.is_wanted = False
                if part.process is not None and part.process.poll() is None:
                    part.process.send_signal(part.stop_signal)
            for part in reversed(self.parts.values()):
                part.stop()

    def restart(self, say: Callable[[str], None] = lambda text: None) -> None:
        """Restart web processes and workers, one after the other."""
        for part in (*self.named("web-"), *self.named("realtime-"), *self.named("worker-")):
            say(f"restarting {part.name}")
            with self._lock:
                part.stop()
                part.start()

    def failover(self, say: Callable[[str], None] = lambda text: None) -> None:
        """Promote the replica for PgBouncer, and rebuild the old primary as its replica."""
        with self._lock:
            old, new = self.primary, self.replica
            say(f"stopping {old.name}")
            old.is_wanted = False
            old.kill()
            say(f"promoting {new.name}")
            self._run(new, "SELECT pg_promote()")
            (self.folder / "primary").write_text(new.name)
            self._write_pgbouncer_settings()
            bouncer = self.parts["pgbouncer"].process
            if bouncer is not None:
                bouncer.send_signal(signal.SIGHUP)
            say(f"{new.name} is the primary now")
            (old.folder / "data").rename(old.folder / f"data-until-{datetime.now(UTC):%H%M%S}")
            self._start_replica()
            say(f"{old.name} follows it")

    def _watch(self) -> None:
        died_at: dict[str, float] = {}
        while not self._ends.wait(0.1):
            with self._lock:
                for part in self.parts.values():
                    if not part.is_wanted or (part.process and part.process.poll() is None):
                        died_at.pop(part.name, None)
                    elif time.monotonic() - died_at.setdefault(part.name, time.monotonic()) > (
                        PAUSE_SECONDS
                    ):
                        part.launch()

    # --- The parts ------------------------------------------------------------------------------

    def _add(self, name: str, command: list[str], is_ready: Callable[[], object]) -> Part:
        part = Part(name, command, self._own(name), self.env, is_ready)
        self.parts[name] = part
        return part

    def _own(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return folder

    def _postgres(self, name: str) -> Part:
        port = self._port_of[name] = next(self._ports)
        data = self.folder / name / "data"
        command = [_postgres_program("postgres"), "-D", str(data), "-p", str(port)]
        settings = {"listen_addresses": "127.0.0.1", "max_connections": "400", "timezone": "UTC"}
        settings |= {"unix_socket_directories": "", "hot_standby_feedback": "on"}
        for setting, value in settings.items():
            command += ["-c", f"{setting}={value}"]
        part = self._add(name, command, lambda: _connect(port).close())
        part.stop_signal = signal.SIGINT
        part.options = _unprivileged()
        part.env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        if part.options:
            shutil.chown(part.folder, part.options["user"], part.options["group"])
        return part

    def _start_primary(self) -> None:
        part = self.primary
        is_new = not (part.folder / "data").exists()
        if is_new:
            access = ["--auth=trust", "--encoding=UTF8", "--no-locale"]
            self._make_data(part, "initdb", "--username=postgres", *access)
        part.start()
        if is_new:
            self._run(part, "CREATE ROLE atrium LOGIN CREATEROLE")
            self._run(part, "CREATE DATABASE atrium OWNER atrium")

    def _start_replica(self) -> None:
        """Start the replica, and have commits wait for it from then on, if they are to."""
        part = self.replica
        standby, reload = "synchronous_standby_names", "SELECT pg_reload_conf()"
        if not (part.folder / "data").exists():
            self._run(self.primary, f"ALTER SYSTEM RESET {standby}", reload)
            source = f"host=127.0.0.1 port={self._port_of[self.primary.name]} user=postgres"
            options = ["--checkpoint=fast", "--write-recovery-conf", "--dbname", source]
            self._make_data(part, "pg_basebackup", *options)
        part.start()
        if self._synchronous:
            self._run(self.primary, f"ALTER SYSTEM SET {standby} = '*'", reload)

    def _make_data(self, part: Part, program: str, *options: str) -> None:
        command = [_postgres_program(program), "--pgdata", str(part.folder / "data"), *options]
        with part.log.open("ab") as log:
            done = subprocess.run(
                command, cwd=part.folder, env=part.env, stdout=log, stderr=log, **part.options
            )
        if done.returncode:
            raise StartError(f"{part.name}: {program} failed; see {part.log}")

    def _run(self, part: Part, *statements: str) -> list[tuple[object, ...]]:
        """Run statements as the server's superuser; returns the rows of the last one."""
        rows: list[tuple[object, ...]] = []
        with closing(_connect(self._port_of[part.name])) as connection:
            connection.autocommit = True
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)
                rows = cursor.fetchall() if cursor.description else []
        return rows

    def _redis(self) -> None:
        port = next(self._ports)
        program = _program("redis-server")
        command = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", ""]
        self._add("redis", [*command, "--dir", str(self._own("redis"))], lambda: _reach(port))
        self.env["SERVICE_REDIS_URL"] = f"redis://127.0.0.1:{port}/0"

    def _pgbouncer(self) -> None:
        port, file = next(self._ports), self._own("pgbouncer") / "pgbouncer.ini"
        self._bouncer_port = port
        part = self._add(
            "pgbouncer",
            [_program("pgbouncer"), str(file)],
            lambda: _connect(port, "atrium").close(),
        )
        if os.geteuid() == 0:
            part.options = _unprivileged()
        part.stop_signal = signal.SIGINT
        self._write_pgbouncer_settings()
        server = f"postgresql://atrium@127.0.0.1:{port}"
        self.env["SERVICE_DATABASE_URL"] = f"{server}/atrium"
        self.env["SERVICE_DATABASE_REPLICA_URL"] = f"{server}/atrium_replica"

    def _write_pgbouncer_settings(self) -> None:
        def at(server: Part) -> str:
            port = self._port_of[server.name]
            return f"host=127.0.0.1 port={port} dbname=atrium user=atrium"

        lines = [
            "[databases]",
            f"atrium = {at(self.primary)}",
            f"atrium_replica = {at(self.replica)}",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {self._bouncer_port}",
            "unix_socket_dir =",
            "auth_type = any",
            "pool_mode = session",  # docs/deployment.md says why
            "max_client_conn = 1000",
            "default_pool_size = 300",
            "server_login_retry = 1",
        ]
        (self.folder / "pgbouncer/pgbouncer.ini").write_text("\n".join(lines) + "\n")

    def _web(self, name: str) -> int:
        port = next(self._ports)
        gunicorn = [_program("gunicorn"), "-c", str(PROJECT / "deploy/gunicorn.conf.py")]
        command = [*gunicorn, "--bind", f"127.0.0.1:{port}", "wsgi:app"]
        self._add(name, command, lambda: _reach(port))
        return port

    def _worker(self, name: str) -> None:
        self._add(name, [str(PROJECT / "bin/atrium"), "worker"], lambda: None)

    def _nginx(self, web: list[int], realtime: list[int]) -> None:
        folder = self._own("nginx")
        _make_certificate(self.certificate)
        (folder / "site").write_text(self._site(folder, web, realtime))
        places = " ".join(
            f"{name}_temp_path {folder}/{name};"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (folder / "nginx.conf").write_text(
            f"daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 2;\n"
            "events { worker_connections 4096; }\n"
            f"http {{ include {folder}/site; {places} }}\n"
        )
        program = _program("nginx")
        command = [program, "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
        self._add("nginx", command, lambda: _reach(self.port)).stop_signal = signal.SIGQUIT

    def _site(self, folder: Path, web: list[int], realtime: list[int]) -> str:
        """`deploy/nginx.conf` with these addresses and places."""

        def servers(ports: list[int]) -> str:
            return "\n    ".join(f"server 127.0.0.1:{port} max_fails=0;" for port in ports)

        streams = f"upstream atrium_realtime {{\n    {servers(realtime)}\n}}\n\n"
        changes = {
            SHARED_UPSTREAM: servers(web),
            "# The client's correlation id": f"{streams}# The client's correlation id",
            REALTIME_LOCATION: REALTIME_LOCATION.replace("//atrium;", "//atrium_realtime;"),
            "    listen [::]:80;\n": "",
            "    listen [::]:443 ssl http2;\n": "",
            "listen 80;": f"listen 127.0.0.1:{next(self._ports)};",
            "listen 443 ": f"listen 127.0.0.1:{self.port} ",
            "/etc/ssl/certs/atrium.pem": str(self.certificate),
            "/etc/ssl/private/atrium.key": str(self.certificate),
            "/var/log/nginx": str(folder),
            "/srv/atrium/instance": self.env["SERVICE_INSTANCE_DIR"],
        }
        text = (PROJECT / "deploy/nginx.conf").read_text()
        for there, here in changes.items():
            if there not in text:
                raise StartError(f"deploy/nginx.conf has no {there!r}")
            text = text.replace(there, here)
        return text

    def _environment(self) -> dict[str, str]:
        """The settings of all Atrium processes, the same at each start."""
        file = self.folder / "atrium.env"
        if not file.exists():
            own = {
                "SERVICE_ENV": "production",
                "SERVICE_SECRET_KEY": secrets.token_urlsafe(48),
                "SERVICE_ENCRYPTION_KEY": _key(),
                "SERVICE_AUDIT_CHECKPOINT_KEY": _key(),
                "SERVICE_BASE_URL": self.url,
                "SERVICE_SUPERADMIN_EMAIL": "root@example.org",
                "SERVICE_SUPERADMIN_PASSWORD": f"{secrets.token_urlsafe(12)}-Aa1",
                "SERVICE_TRUSTED_PROXIES": "1",
                "SERVICE_FILES_REDIRECT": "false",
                "SERVICE_INSTANCE_DIR": str(self.folder / "instance"),
                "WEB_CONCURRENCY": "1",
            }
            file.touch(mode=0o600)
            file.write_text("".join(f"{name}={value}\n" for name, value in own.items()))
        lines = (line.partition("=") for line in file.read_text().splitlines())
        path = f"{PROJECT}/.venv/bin:{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(self.folder), **{name: text for name, _, text in lines}}


def _program(name: str) -> str:
    path = f"{PROJECT}/.venv/bin:{os.environ['PATH']}:/usr/sbin"
    found = shutil.which(name, path=path)
    if found is None:
        raise StartError(f"{name} is missing: install Debian's nginx, pgbouncer and redis-server")
    return found


def _postgres_program(name: str) -> str:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=_version)
    if not found:
        raise StartError(f"{name} is missing: install Debian's postgresql")
    return str(found[-1])


def _version(program: Path) -> int:
    version = program.parent.parent.name
    return int(version) if version.isdecimal() else 0


def _unprivileged() -> dict[str, Any]:
    """PostgreSQL and PgBouncer refuse to run as root."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("postgres")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _connect(port: int, name: str = "postgres") -> Any:
    return psycopg2.connect(host="127.0.0.1", port=port, user=name, dbname=name, connect_timeout=2)


def _reach(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), timeout=2).close()


def _key() -> str:
    return urlsafe_b64encode(secrets.token_bytes(32)).decode()


def _make_certificate(file: Path) -> None:
    if file.exists():
        return
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=365))
        .add_extension(host, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(encoding, private, serialization.NoEncryption())
    file.touch(mode=0o600)
    file.write_bytes(secret + made.public_bytes(encoding))


@contextmanager
def running(folder: Path, port: int, *, synchronous: bool = True) -> Iterator[Cluster]:
    """A started cluster; stopped at the end."""
    cluster = Cluster(folder, port, synchronous=synchronous)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start()
        yield cluster


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _serve(folder: Path, port: int, *, synchronous: bool) -> None:
    cluster = Cluster(folder, port, synchronous=synchronous)
    orders: list[Callable[[Callable[[str], None]], None]] = []
    ends = threading.Event()
    signal.signal(signal.SIGHUP, lambda *_: orders.append(cluster.restart))
    signal.signal(signal.SIGUSR1, lambda *_: orders.append(cluster.failover))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ends.set())
    control = cluster.folder / "pid"
    control.write_text(str(os.getpid()))
    try:
        cluster.start(_say)
        _say(json.dumps({"url": cluster.url, "settings": str(cluster.folder / "atrium.env")}))
        while not ends.wait(0.2):
            while orders:
                orders.pop(0)(_say)
    except StartError as error:
        sys.exit(str(error))
    finally:
        _say("stopping")
        cluster.stop()
        control.unlink()


def main() -> None:
    """Serve, or give an order to the process that does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "order", nargs="?", choices=("serve", "restart", "failover"), default="serve"
    )
    parser.add_argument("--port", type=int, default=8443, help="nginx's; further ones follow it")
    parser.add_argument(
        "--asynchronous", action="store_true", help="commits do not wait for the replica"
    )
    arguments = parser.parse_args()
    if arguments.order == "serve":
        _serve(arguments.folder, arguments.port, synchronous=not arguments.asynchronous)
        return
    number = {"restart": signal.SIGHUP, "failover": signal.SIGUSR1}[arguments.order]
    os.kill(int((arguments.folder / "pid").read_text()), number)


if __name__ == "__main__":
    main()
