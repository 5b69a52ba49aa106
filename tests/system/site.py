"""A whole site as its operator runs it: nginx, two web processes, PostgreSQL, Redis, two workers.

The commands are those of the systemd units, nginx has the configuration of `deploy/`: only
addresses and places differ.
"""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from tests import certificates, services
from tests.builders import PASSWORD
from tests.processes import environment, started, unit, wait_for
from tests.project import PROJECT, free_port

NGINX = PROJECT / "deploy" / "nginx.conf"
ROOT, ALICE, BOB = "root@system.example", "alice@acme.example", "bob@acme.example"
WORKERS = ("worker-1", "worker-2")


class Durable(services.Postgres):
    """A PostgreSQL server that has what it confirmed, even when it is killed."""

    SETTINGS = {**services.Postgres.SETTINGS, "synchronous_commit": "on"}  # noqa: RUF012


class Client(requests.Session):
    """Somebody at an address of loopback, who sends JSON, with a token or without."""

    def __init__(self, base: str, certificate: Path, address: str, token: str = "") -> None:
        super().__init__()
        self.base, self.address, self.verify = base, address, str(certificate)
        self.mount("https://", _From(address))
        self.trust_env = False
        self.token = token
        if token:
            self.headers["Authorization"] = f"Bearer {token}"

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Send a request to the API, or to a path that begins with a slash."""
        url = f"{self.base}{path if path.startswith('/') else f'/api/v1/{path}'}"
        return self.request(method, url, json=body, headers=headers, timeout=60)

    def sign_in(self, account: str, email: str, password: str = PASSWORD) -> str:
        """Sign in for good; returns the refresh token."""
        body = {"account": account, "email": email, "password": password}
        answer = self("POST", "auth/login", body)
        assert answer.status_code == 200, answer.text
        self.token = answer.json()["token"]
        self.headers["Authorization"] = f"Bearer {self.token}"
        return str(answer.json()["refresh_token"])


class _From(HTTPAdapter):
    def __init__(self, address: str) -> None:
        self.address = address
        super().__init__(max_retries=0)

    def init_poolmanager(self, *args: Any, **options: Any) -> Any:
        return super().init_poolmanager(*args, source_address=(self.address, 0), **options)


@dataclass
class Site:
    """What runs, and how to stop and start its parts."""

    folder: Path
    env: dict[str, str]
    stack: ExitStack
    certificate: Path
    postgres: services.Postgres
    redis: services.Redis
    nginx: services.Nginx
    shared: socket.socket  # of all web processes, as nginx knows it
    listening: dict[int, socket.socket]  # those of one web process each
    web: dict[int, subprocess.Popen[bytes]]
    workers: dict[str, subprocess.Popen[bytes]]

    def client(self, token: str = "", *, address: str = "127.0.0.1", port: int = 0) -> Client:
        """Somebody in front of nginx, or one who reaches a web process itself."""
        base = f"http://127.0.0.1:{port}" if port else self.nginx.url
        made = Client(base, self.certificate, address, token)
        return self.stack.enter_context(closing(made))

    def start_web(self, *ports: int) -> None:
        """Start web processes on the sockets that systemd has open, and wait until they answer."""
        for port in ports:
            command = unit("atrium-web@.service", str(port))
            passed = self.shared, self.listening[port]
            process = started(command, self.env, self._log(port), passed)
            self.web[port] = self.stack.enter_context(process)
        for port in ports:
            wait_for(f"http://127.0.0.1:{port}/live", self._log(port))

    def start_worker(self, name: str) -> None:
        """Start a worker."""
        command = unit("atrium-worker@.service", name)
        self.workers[name] = self.stack.enter_context(started(command, self.env, self._log(name)))

    def _log(self, called: int | str) -> Path:
        return self.folder / f"{called}.log"

    def mailed(self, to: str, path: str, *, within: float = 20) -> str:
        """The token of the newest link to a path that was mailed to somebody."""
        outbox, link = self.folder / "instance" / "outbox", f"{path}?token="
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            for mail in sorted(outbox.glob("*.eml"), reverse=True):
                text = mail.read_text()
                if f"To: {to}" in text and link in text:
                    return text.partition(link)[2].split()[0]
            time.sleep(0.05)
        raise AssertionError(f"no mail to {to} came")

    @property
    def database(self) -> str:
        """The address of the database."""
        return self.env["DATABASE_URL"]

    @property
    def logs(self) -> dict[str, str]:
        """All that anything of the site has written down, by file."""
        own = {file.name: file.read_text() for file in self.folder.glob("*.log")}
        return own | self.nginx.logs


@contextmanager
def running(folder: Path, **settings: str) -> Iterator[Site]:
    """A migrated site with everything started."""
    certificate = certificates.make(folder)
    with ExitStack() as stack:
        sockets = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3))
        listening = {one.getsockname()[1]: one for one in sockets}
        port, *ports = listening
        shared = listening.pop(port)
        postgres = stack.enter_context(Durable(private=True))
        redis = stack.enter_context(services.Redis(private=True))
        files = folder / "instance" / "files"
        nginx = stack.enter_context(services.Nginx(nginx_site(certificate, port, files)))
        env = _settings(folder, postgres, redis) | settings
        subprocess.run(unit("atrium-release.service", ""), cwd=PROJECT, env=env, check=True)
        servers = postgres, redis, nginx
        site = Site(folder, env, stack, certificate, *servers, shared, listening, {}, {})
        for name in WORKERS:
            site.start_worker(name)
        site.start_web(*ports)
        yield site
        for process in (*site.web.values(), *site.workers.values()):
            process.send_signal(signal.SIGINT)  # to all at once, then they are waited for


def nginx_site(certificate: Path, upstream: int, files: Path) -> Any:
    """The site of `deploy/nginx.conf` with addresses and folders of a test."""

    def adapted(folder: Path, port: int) -> str:
        text = NGINX.read_text()
        (folder / "pem").write_bytes(certificate.read_bytes())
        changes = {
            "listen 80;": f"listen 127.0.0.1:{free_port()};",
            "listen [::]:80;": f"listen 127.0.0.1:{free_port()};",
            "listen 443 ": f"listen 127.0.0.1:{port} ",
            "listen [::]:443 ": f"listen 127.0.0.1:{free_port()} ",
            "127.0.0.1:8000": f"127.0.0.1:{upstream}",
            "/etc/ssl/certs/atrium.pem": str(folder / "pem"),
            "/etc/ssl/private/atrium.key": str(folder / "pem"),
            "/var/log/nginx": str(folder),
            "/srv/atrium/instance/files": str(files),
        }
        for there, here in changes.items():
            assert there in text, there
            text = text.replace(there, here)
        return text

    return adapted


def _settings(folder: Path, postgres: services.Postgres, redis: services.Redis) -> dict[str, str]:
    return environment(
        folder,
        WEB_CONCURRENCY="2",
        GUNICORN_CMD_ARGS="--access-logfile -",
        SERVICE_ENV="production",
        SERVICE_SECRET_KEY=secrets.token_urlsafe(48),
        SERVICE_ENCRYPTION_KEY=_key(),
        SERVICE_AUDIT_CHECKPOINT_KEY=_key(),
        SERVICE_METRICS_TOKEN=secrets.token_urlsafe(32),
        SERVICE_BASE_URL="https://atrium.example",
        SERVICE_SUPERADMIN_EMAIL=ROOT,
        SERVICE_SUPERADMIN_PASSWORD=PASSWORD,
        SERVICE_TRUSTED_PROXIES="1",
        SERVICE_FILES_REDIRECT="true",
        DATABASE_URL=postgres.create_database("atrium"),
        REDIS_URL=redis.url,
    )


def _key() -> str:
    return urlsafe_b64encode(secrets.token_bytes(32)).decode()
