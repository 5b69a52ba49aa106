"""What files cost: a large one up and down, beside nginx serving it, and many small uploads.

    python -m bench.files [--large MIB] [--seconds S]

Two web processes by deploy/gunicorn.conf.py, on SQLite with files in a folder. Memory is the growth
of the peak of all web processes.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from app import create_app
from app.config import Config
from tests import builders, services
from tests.processes import environment, mebibytes, started, wait_for
from tests.project import free_port, procfile

PIECE, MIB = bytes(2**18), 2**20
SMALL, CONNECTIONS = os.urandom(10_000), 8
HEAD = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n\r\n'
END = b"\r\n--x--\r\n"
SITE = """
server {{
    listen 127.0.0.1:{port};
    access_log off;
    location / {{ root {files}; }}
}}
"""


class Service(NamedTuple):
    """A running service."""

    port: int
    processes: list[int]
    files: Path
    headers: dict[str, str]

    def peak(self) -> float:
        """The highest memory of its processes so far, in MiB."""
        return sum(mebibytes(pid, "VmHWM") for pid in self.processes)


@contextmanager
def service(largest: int) -> Iterator[Service]:
    """Start the service on an empty database."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp")))
        port, log = free_port(), folder / "log"
        changes = {"SERVICE_FILE_MAX_BYTES": str(largest), "SERVICE_LOGIN_RATE_LIMIT": "off"}
        env = environment(folder, PORT=str(port), **changes)
        app = create_app(Config.from_env(env))
        app.test_cli_runner().invoke(args=["db", "upgrade"], catch_exceptions=False)
        headers = builders.make_cast(app).alice.headers
        web = stack.enter_context(started(shlex.split(procfile()["web"]), env, log))
        wait_for(f"http://127.0.0.1:{port}/ready", log)
        children = Path(f"/proc/{web.pid}/task/{web.pid}/children").read_text().split()
        files = Path(env["SERVICE_INSTANCE_DIR"]) / "files"
        yield Service(port, [web.pid, *map(int, children)], files, headers)


def upload(connection: http.client.HTTPConnection, headers: dict[str, str], size: int) -> str:
    """Upload so many bytes; returns the path of the file."""
    connection.putrequest("POST", "/api/v1/files/upload")
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.putheader("Content-Type", "multipart/form-data; boundary=x")
    connection.putheader("Content-Length", str(len(HEAD) + size + len(END)))
    connection.endheaders()
    connection.send(HEAD)
    for start in range(0, size, len(PIECE)):
        connection.send(PIECE[: size - start])
    connection.send(END)
    answer = connection.getresponse()
    body = answer.read()
    check(answer, 201)
    return str(json.loads(body)["file"]["path"])


def download(port: int, path: str, headers: dict[str, str]) -> int:
    """Read a file; returns its size."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", path, headers=headers)
    answer, size = connection.getresponse(), 0
    check(answer, 200)
    while piece := answer.read(2**18):
        size += len(piece)
    connection.close()
    return size


def check(answer: http.client.HTTPResponse, status: int) -> None:
    """Raise RuntimeError for another status."""
    if answer.status != status:
        raise RuntimeError(f"HTTP {answer.status}")


def timed(act: Callable[[], object]) -> float:
    """The seconds that something takes."""
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def measure(mebibyte_count: int, seconds: float) -> None:
    """Print the figures."""
    size = mebibyte_count * MIB
    with service(size) as running:
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=120)
        upload(connection, running.headers, 1000)
        before = running.peak()
        begun = time.perf_counter()
        path = upload(connection, running.headers, size)
        up = time.perf_counter() - begun
        after_upload = running.peak()
        address = f"/api/v1/files/{path}"
        down = timed(lambda: download(running.port, address, running.headers))
        say(f"upload of {mebibyte_count} MiB: {mebibyte_count / up:.0f} MiB/s")
        say(f"download: {mebibyte_count / down:.0f} MiB/s")
        say(
            f"memory: +{after_upload - before:.0f} MiB by the upload,"
            f" +{running.peak() - after_upload:.0f} MiB by the download"
        )
        _beside_nginx(running, path, mebibyte_count)
        _many(running, seconds)


def _beside_nginx(running: Service, path: str, mebibyte_count: int) -> None:
    if not services.nginx():
        say("nginx is not installed")
        return
    for folder in [running.files / path, *(running.files / path).parents]:
        with suppress(PermissionError):
            folder.chmod(folder.stat().st_mode | 0o055)

    def site(folder: Path, port: int) -> str:
        return SITE.format(port=port, files=running.files)

    with services.Nginx(site) as nginx:
        port = int(nginx.url.rpartition(":")[2])
        seconds = timed(lambda: download(port, f"/{path}", {}))
    say(f"nginx, the same file: {mebibyte_count / seconds:.0f} MiB/s")


def _many(running: Service, seconds: float) -> None:
    end = time.monotonic() + seconds

    def work(_: int) -> int:
        connection, count = http.client.HTTPConnection("127.0.0.1", running.port), 0
        body = HEAD + SMALL + END
        headers = {**running.headers, "Content-Type": "multipart/form-data; boundary=x"}
        while time.monotonic() < end:
            connection.request("POST", "/api/v1/files/upload", body, headers)
            answer = connection.getresponse()
            if answer.status == 429:  # too many wait for a record
                break
            answer.read()
            check(answer, 201)
            count += 1
        return count

    begun = time.perf_counter()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        count = sum(pool.map(work, range(CONNECTIONS)))
    rate = count / (time.perf_counter() - begun)
    say(f"uploads of 10 kB, {CONNECTIONS} connections: {rate:.0f}/s ({count} in all)")


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", type=int, default=2048, metavar="MIB")
    parser.add_argument("--seconds", type=float, default=3)
    arguments = parser.parse_args()
    measure(arguments.large, arguments.seconds)


if __name__ == "__main__":
    main()
