"""The instructions of a request, beside those of the floor: figures that no busy machine blurs.

    python -m bench.instructions [in-process|gunicorn] [--update]

Valgrind counts what the processor executes for warm requests on SQLite, to the product and to
`bench/floor.py`, in a process that calls the application, and in one of gunicorn's that it is sent
to. Their ratio hardly depends on the machine, Python or libraries. Exits with 1 if one is more than
5 % above that of `bench/instructions.json`, which `--update` writes.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple, Protocol
from wsgiref.types import WSGIApplication, WSGIEnvironment

from werkzeug.test import EnvironBuilder, run_wsgi_app

from app import db
from app.config import Config
from app.types import JSONObject
from bench.product import application
from bench.serve import FIELDS, NEW, filled, say, server_command
from tests import builders
from tests.processes import environment, started, wait_for
from tests.project import PROGRAMS, PROJECT, free_port

KEPT = Path(__file__).with_suffix(".json")
WAYS = ("in-process", "gunicorn")
RECORDS, WARM, ROUNDS, COUNTED = 1000, 30, 4, 10
FEW = {"sign-in": 1}  # a password's hash takes a hundred times what the rest takes
MOST = 1.05  # times what is kept
VALGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--quiet")
TOTALS = re.compile(r"^totals: (\d+)", re.M)


class Request(NamedTuple):
    """A request to the product and to the floor."""

    method: str
    path: str
    headers: dict[str, str]
    body: JSONObject | None = None


def kinds(ids: Sequence[str], bearer: str) -> dict[str, Iterator[Request]]:
    """Requests without end, by their name in the result."""
    records, caller = "/api/v1/records/posts", {"Authorization": bearer}
    paths = [f"{records}/{id}" for id in ids]
    sign_in = {
        "account": "acme",
        "email": "alice@acme.example",
        "password": builders.PASSWORD,
    }
    return {
        "get": itertools.cycle([Request("GET", path, caller) for path in paths]),
        "list": itertools.repeat(Request("GET", f"{records}?limit=30", caller)),
        "create": itertools.repeat(Request("POST", records, caller, NEW)),
        "patch": (
            Request("PATCH", path, caller, {"title": f"title {number}"})
            for number, path in enumerate(itertools.cycle(paths))
        ),
        "sign-in": itertools.repeat(Request("POST", "/api/v1/auth/login", {}, sign_in)),
    }


class Target(Protocol):
    """What is asked: the product or the floor."""

    pid: int

    def prepare(self, requests: Sequence[Request]) -> Callable[[], None]:
        """Return what sends these requests and waits for the answers."""


class InProcess:
    """An application in a process that runs `answer`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.pid = process, process.pid

    def prepare(self, requests: Sequence[Request]) -> Callable[[], None]:
        """Hand the requests over."""
        self._say(json.dumps(requests))
        return lambda: self._say("run")

    def _say(self, line: str) -> None:
        print(line, file=self.process.stdin, flush=True)
        if self.process.stdout is None or self.process.stdout.readline() != "done\n":
            raise SystemExit("a request failed")


def answer(application: WSGIApplication) -> None:
    """Run the requests that stdin brings; what the application logs goes to stderr."""
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    environs: list[WSGIEnvironment] = []
    for line in sys.stdin:
        if line != "run\n":
            environs = [
                EnvironBuilder(path, method=method, json=body, headers=headers).get_environ()
                for method, path, headers, body in json.loads(line)
            ]
        for environ in environs if line == "run\n" else ():
            _, status, _ = run_wsgi_app(application, environ, buffered=True)
            if not status.startswith("2"):
                raise SystemExit(f"a request failed: {status}")
        print("done", file=said, flush=True)


class Served:
    """An application in a server's process."""

    def __init__(self, port: int, pid: int) -> None:
        self.port, self.pid = port, pid

    def prepare(self, requests: Sequence[Request]) -> Callable[[], None]:
        """Return what sends them over one connection."""

        def send() -> None:
            connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
            for method, path, headers, body in requests:
                kind = {"Content-Type": "application/json"} if body else {}
                connection.request(method, path, json.dumps(body) if body else None, headers | kind)
                answer = connection.getresponse()
                text = answer.read()
                if answer.status >= 300:
                    raise SystemExit(f"a request failed: {text.decode()}")

        return send


def count(
    target: Target, folder: Path, requests: Iterator[Request], *, warm: int, counted: int
) -> int:
    """The instructions of one warm request."""

    def control(option: str) -> None:
        command = ["callgrind_control", option, str(target.pid)]
        subprocess.run(command, check=True, capture_output=True)

    target.prepare([next(requests) for _ in range(warm)])()
    control("--instr=on")
    totals = []
    for _ in range(ROUNDS):
        run = target.prepare([next(requests) for _ in range(counted)])
        control("--zero")
        run()
        control("--dump")
        dump = max(folder.glob(f"{target.pid}.*"), key=lambda path: int(path.suffix[1:]))
        totals.append(int(TOTALS.findall(dump.read_text())[0]))
    control("--instr=off")
    return min(totals) // counted  # other threads work now and then


@contextmanager
def running(way: str, kind: str, env: dict[str, str], folder: Path) -> Iterator[Target]:
    """An application, `wsgi:app` or `bench.floor:app`, in a process under Valgrind."""
    valgrind = [*VALGRIND, f"--callgrind-out-file={folder}/%p"]
    log = folder / f"{kind}.log"
    if way == "gunicorn":
        port = free_port()
        command = [*valgrind, "--trace-children=yes", *server_command(kind)]
        env = env | {"PORT": str(port), "WEB_CONCURRENCY": "1"}
        with started(command, env, log) as process:
            wait_for(f"http://127.0.0.1:{port}/health", log)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            (worker,) = map(int, children.split())
            yield Served(port, worker)
        return
    command = [*valgrind, str(PROGRAMS / "python"), "-m", "bench.instructions", "--answer", kind]
    pipe = subprocess.PIPE
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, cwd=PROJECT, env=env, stdin=pipe, stdout=pipe, stderr=errors, text=True
        ) as process,
    ):
        yield InProcess(process)


def measure(way: str) -> dict[str, float]:
    """Print the instructions of each kind of request; returns their ratios to the floor's."""
    folder = Path(tempfile.mkdtemp())
    env = environment(folder, SERVICE_DATABASE_URL=f"sqlite:///{folder / 'atrium.db'}")
    app = application(Config.from_env(env))
    cast = builders.make_cast(app)
    ids = filled(app, cast, RECORDS, NEW, schema=FIELDS)
    with app.app_context():
        db.db.engine.dispose()
    env |= {"PYTHONHASHSEED": "0"} | {
        "FLOOR_DATABASE": env["SERVICE_DATABASE_URL"],
        "FLOOR_ACCOUNT": cast.alice.account_id,
        "FLOOR_USER": cast.alice.id,
    }
    ratios = {}
    with ExitStack() as stack:
        product, floor = [
            stack.enter_context(running(way, kind, env, folder))
            for kind in ("wsgi:app", "bench.floor:app")
        ]
        for name, requests in kinds(ids, cast.alice.headers["Authorization"]).items():
            warm, counted = FEW.get(name, WARM), FEW.get(name, COUNTED)
            one, other = (
                count(target, folder, requests, warm=warm, counted=counted)
                for target in (product, floor)
            )
            ratios[name] = round(one / other, 3)
            say(f"  {name:8} {one:12,} of {other:12,} = {ratios[name]:.3f}")
    return ratios


def main() -> None:
    """Print the figures, and compare or keep their ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", nargs="?", choices=WAYS)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--answer", metavar="APPLICATION", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        module, _, name = options.answer.partition(":")
        answer(getattr(importlib.import_module(module), name))
        return
    kept: dict[str, dict[str, float]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    found = {}
    for way in [options.way] if options.way else WAYS:
        say(f"{way}, instructions of the product and of the floor:")
        found[way] = measure(way)
    if options.update:
        KEPT.write_text(json.dumps(kept | found, indent=2) + "\n")
        return
    for way in found:
        if _risen(found[way], kept[way]):
            say("Once more, as other threads of a server blur it:")
            found[way] = {
                name: min(found[way][name], ratio) for name, ratio in measure(way).items()
            }
        if risen := _risen(found[way], kept[way]):
            raise SystemExit(f"{way}: {', '.join(risen)}")


def _risen(ratios: dict[str, float], kept: dict[str, float]) -> list[str]:
    return [
        f"{name} takes {ratio} times the instructions of the floor, and took {kept[name]}"
        for name, ratio in ratios.items()
        if ratio > MOST * kept[name]
    ]


if __name__ == "__main__":
    main()
