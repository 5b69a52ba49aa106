"""The instructions of a request, beside those of the floor: figures that no busy machine blurs.

    python -m bench.instructions [in-process|gunicorn|membership|hook] [--update]

Valgrind counts what the processor executes for warm requests on SQLite, to the product and to
`bench/floor.py`, in a process that calls the application, and in one of gunicorn's that it is sent
to. Their ratio hardly depends on the machine, Python or libraries. Exits with 1 if one is more than
5 % above that of `bench/instructions.json`, which `--update` writes. `membership` counts a create
under a rule that asks for a membership beside one under none, which may take 1.3 times as many;
`hook` one that an extension's handler, which does nothing, is called before, beside one without
any extension: 1.05 times as many.
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
import time
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
MEMBERSHIP, MOST_OF_MEMBERSHIP = "membership", 1.3
HOOK, MOST_OF_HOOK = "hook", 1.05
EXTENSION = {
    "nothing.py": """
from app.extend import before_create

@before_create("posts")
def nothing(caller, record):
    pass
""",
    "nothing-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: nothing\nVersion: 1\n",
    "nothing-1.dist-info/entry_points.txt": "[atrium.extensions]\nnothing = nothing\n",
}
MEMBER = "@any(members, project = @record.project && user = @request.auth.id)"
RECORDS = 1000
# Requests before, rounds, and requests that each of those counts.
MANY, FEW = (
    (30, 8, 4),
    {"sign-in": (1, 2, 1)},
)  # a password's hash takes a hundred times what the rest takes
IDLE_SECONDS, MAIN = 2.5, "01"
MOST = 1.05  # times what is kept
VALGRIND = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--quiet"]
VALGRIND += ["--separate-threads=yes", "--dump-line=no"]
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

    def prepare(self, requests: Sequence[Request]) -> Callable[[int], None]:
        """Return what sends the next so many of these requests and waits for the answers."""


class InProcess:
    """An application in a process that runs `answer`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.pid = process, process.pid

    def prepare(self, requests: Sequence[Request]) -> Callable[[int], None]:
        """Hand the requests over."""
        self._say(json.dumps(requests))
        return lambda number: self._say(str(number))

    def _say(self, line: str) -> None:
        print(line, file=self.process.stdin, flush=True)
        if self.process.stdout is None or self.process.stdout.readline() != "done\n":
            raise SystemExit("a request failed")


def answer(place: str) -> None:
    """Run the requests that stdin brings; what the application logs goes to stderr."""
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, _, name = place.partition(":")
    application: WSGIApplication = getattr(importlib.import_module(module), name)
    environs: Iterator[WSGIEnvironment] = iter([])
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, list):
            environs = iter(
                [
                    EnvironBuilder(path, method=method, json=body, headers=headers).get_environ()
                    for method, path, headers, body in asked
                ]
            )
        else:
            for environ in itertools.islice(environs, asked):
                _, status, _ = run_wsgi_app(application, environ, buffered=True)
                if not status.startswith("2"):
                    raise SystemExit(f"a request failed: {status}")
        print("done", file=said, flush=True)


class Served:
    """An application in a server's process."""

    def __init__(self, port: int, pid: int) -> None:
        self.port, self.pid = port, pid

    def prepare(self, requests: Sequence[Request]) -> Callable[[int], None]:
        """Return what sends them over one connection."""
        left = iter(requests)

        def send(number: int) -> None:
            connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
            for method, path, headers, body in itertools.islice(left, number):
                kind = {"Content-Type": "application/json"} if body else {}
                connection.request(method, path, json.dumps(body) if body else None, headers | kind)
                answer = connection.getresponse()
                text = answer.read()
                if answer.status >= 300:
                    raise SystemExit(f"a request failed: {text.decode()}")

        return send


def control(target: Target, option: str) -> None:
    """Tell the Valgrind of a process what to do."""
    command = ["callgrind_control", option, str(target.pid)]
    subprocess.run(command, check=True, capture_output=True)


def by_thread(target: Target, folder: Path, work: Callable[[], None]) -> dict[str, int]:
    """The instructions of each thread of a process while `work` is done."""
    control(target, "--zero")
    work()
    control(target, "--dump")
    dumps = [path.name.split("-") for path in folder.glob(f"{target.pid}.*-*")]
    newest = max((name for name, _ in dumps), key=lambda name: int(name.split(".")[1]))
    return {
        thread: int(TOTALS.findall((folder / f"{name}-{thread}").read_text())[0])
        for name, thread in dumps
        if name == newest
    }


def background(target: Target, folder: Path) -> set[str]:
    """The threads that work without a request, but for the one that waits for requests."""
    control(target, "--instr=on")
    found = by_thread(target, folder, lambda: time.sleep(IDLE_SECONDS))
    control(target, "--instr=off")
    return {thread for thread, number in found.items() if number and thread != MAIN}


def count(
    target: Target,
    folder: Path,
    requests: Iterator[Request],
    others: set[str],
    sizes: tuple[int, int, int],
) -> int:
    """The instructions of one warm request, without those of `others`."""
    warm, rounds, counted = sizes
    send = target.prepare([next(requests) for _ in range(warm + rounds * counted)])
    send(warm)
    control(target, "--instr=on")
    totals = []
    for _ in range(rounds):
        found = by_thread(target, folder, lambda: send(counted))
        totals.append(sum(found[thread] for thread in found.keys() - others))
    control(target, "--instr=off")
    return min(totals) // counted


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
        targets = [(target, background(target, folder)) for target in (product, floor)]
        for name, requests in kinds(ids, cast.alice.headers["Authorization"]).items():
            sizes = FEW.get(name, MANY)
            one, other = (
                count(target, folder, requests, others, sizes) for target, others in targets
            )
            ratios[name] = round(one / other, 3)
            say(f"  {name:8} {one:12,} of {other:12,} = {ratios[name]:.3f}")
    return ratios


def measure_membership() -> float:
    """Print the instructions of a create under no rule and under one; returns their ratio."""
    folder = Path(tempfile.mkdtemp())
    env = environment(folder, SERVICE_DATABASE_URL=f"sqlite:///{folder / 'atrium.db'}")
    app = application(Config.from_env(env))
    cast = builders.make_cast(app)
    project = {"name": "project", "type": "text", "options": {"index": True}}
    task = [{"name": "title", "type": "text"}, project]
    builders.make_collection(cast.root, "members", [project, {"name": "user", "type": "user"}])
    for name, rule in (("open", "true"), ("guarded", MEMBER)):
        builders.make_collection(cast.root, name, task, create_rule=rule)
    root = cast.root.acting_in("acme")
    for number in range(RECORDS):
        user = (cast.bob if number % 100 == 0 else cast.alice).id
        builders.make_record(root, "members", project=f"p{number % 50}", user=user)
    with app.app_context():
        db.db.engine.dispose()
    env |= {"PYTHONHASHSEED": "0"}
    caller = {"Authorization": cast.bob.headers["Authorization"]}
    counts = []
    with running("in-process", "wsgi:app", env, folder) as target:
        others = background(target, folder)
        for name in ("open", "guarded"):
            body = {"title": "A task", "project": "p0"}
            request = Request("POST", f"/api/v1/records/{name}", caller, body)
            counts.append(count(target, folder, itertools.repeat(request), others, MANY))
    ratio = round(counts[1] / counts[0], 3)
    say(f"  create, membership {counts[1]:12,} of {counts[0]:12,} = {ratio:.3f}")
    return ratio


def measure_hook() -> float:
    """Print the instructions of a create without an extension and with one; returns their ratio."""
    folder = Path(tempfile.mkdtemp())
    env = environment(folder, SERVICE_DATABASE_URL=f"sqlite:///{folder / 'atrium.db'}")
    app = application(Config.from_env(env))
    cast = builders.make_cast(app)
    filled(app, cast, RECORDS, NEW, schema=FIELDS)
    with app.app_context():
        db.db.engine.dispose()
    for name, text in EXTENSION.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    env |= {"PYTHONHASHSEED": "0"}
    with_one = {"SERVICE_EXTENSIONS": "nothing", "PYTHONPATH": str(folder)}
    caller = {"Authorization": cast.alice.headers["Authorization"]}
    request = Request("POST", "/api/v1/records/posts", caller, NEW)
    counts = []
    for more in ({}, with_one):
        with running("in-process", "wsgi:app", env | more, folder) as target:
            others = background(target, folder)
            counts.append(count(target, folder, itertools.repeat(request), others, MANY))
    ratio = round(counts[1] / counts[0], 3)
    say(f"  create, hook {counts[1]:12,} of {counts[0]:12,} = {ratio:.3f}")
    return ratio


def main() -> None:
    """Print the figures, and compare or keep their ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", nargs="?", choices=(*WAYS, MEMBERSHIP, HOOK))
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--answer", metavar="APPLICATION", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer(options.answer)
        return
    if options.way == MEMBERSHIP:
        if (ratio := measure_membership()) > MOST_OF_MEMBERSHIP:
            raise SystemExit(f"a create under a membership takes {ratio} times one under no rule")
        return
    if options.way == HOOK:
        if (ratio := measure_hook()) > MOST_OF_HOOK:
            say("Once more, as what a process allocates blurs it:")
            ratio = min(ratio, measure_hook())
        if ratio > MOST_OF_HOOK:
            raise SystemExit(f"a create with a hook takes {ratio} times one without an extension")
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
