"""The TypeScript client against running instances."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests

from app import web
from tests.builders import PASSWORD
from tests.conftest import settings_for
from tests.processes import environment, started, wait_for
from tests.project import PROJECT, free_port, procfile
from tests.system.clients import built
from tests.system.clients.built import run

SCRIPTS = PROJECT / "tests" / "system" / "clients" / "typescript"
ROOT, ALICE = "root@system.example", "alice@acme.example"


class Instance(NamedTuple):
    """A running server with the account acme, whose admin is Alice."""

    url: str
    log: Path


@pytest.fixture(scope="module")
def package() -> Path:
    """The folder of the package."""
    return built.package()


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Instance]]:
    """Starts an instance on a database, once."""
    with ExitStack() as stack:

        @cache
        def start(database: str) -> Instance:
            folder, port = tmp_path_factory.mktemp("instance"), free_port()
            url, log = f"http://127.0.0.1:{port}", folder / "log"
            env = environment(
                folder,
                PORT=str(port),
                SERVICE_BASE_URL=url,
                SERVICE_DATABASE_URL=settings_for(database, folder).database_url,
                SERVICE_SUPERADMIN_EMAIL=ROOT,
                SERVICE_SUPERADMIN_PASSWORD=PASSWORD,
                SERVICE_LOGIN_RATE_LIMIT="off",
            )
            commands = {name: shlex.split(command) for name, command in procfile().items()}
            subprocess.run(commands["release"], cwd=PROJECT, env=env, check=True)
            stack.enter_context(started(commands["web"], env, log))
            wait_for(f"{url}/ready", log)
            make_alice(url)
            return Instance(url, log)

        yield start


def make_alice(url: str) -> None:
    """Create the account and its admin."""
    with requests.Session() as session:

        def post(path: str, **body: Any) -> Any:
            answer = session.post(f"{url}/api/v1/{path}", json=body, timeout=10)
            assert answer.ok, answer.text
            return answer.json()

        token = post("auth/login", account="system", email=ROOT, password=PASSWORD)["token"]
        session.headers["Authorization"] = f"Bearer {token}"
        account = post("accounts", name="Acme", slug="acme")["id"]
        alice = {"email": ALICE, "password": PASSWORD, "role": "admin", "account_id": account}
        post(f"users/{post('users', **alice)['id']}/verify")


@pytest.fixture
def instance(instances: Callable[[str], Instance], database: str) -> Instance:
    """The instance on the database of the test."""
    return instances(database)


def settings_of(instance: Instance, package: Path) -> dict[str, str]:
    """What the scripts read from their environment."""
    return {"ATRIUM_URL": instance.url, "PASSWORD": PASSWORD, "PACKAGE": str(package)}


@contextmanager
def shown_log(instance: Instance) -> Iterator[None]:
    """Adds the end of the server's log to a failure."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error}\n{instance.log.read_text()[-3000:]}") from None


def test_typescript_client_suite_passes(package: Path, instance: Instance) -> None:
    scripts = [path.name for path in SCRIPTS.glob("*.test.mjs")]
    with shown_log(instance):
        run(["node", "--test", *scripts], SCRIPTS, **settings_of(instance, package))


@pytest.fixture
def project(package: Path, tmp_path: Path) -> Path:
    """The folder of a program that uses the package."""
    folder = tmp_path / "node_modules" / "@atrium"
    folder.mkdir(parents=True)
    (folder / "client").symlink_to(package)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    return tmp_path


def write_types(project: Path, instance: Instance, collection: str) -> None:
    """Create a collection, and write the types of all."""
    package = project / "node_modules" / "@atrium" / "client"
    settings = settings_of(instance, package.resolve())
    run(["node", "make_collection.mjs", collection], SCRIPTS, **settings)
    program = ["node", str(package / "dist" / "cli.js"), "types", "--url", instance.url]
    caller = ["--account", "acme", "--email", ALICE, "--output", "collections.d.ts"]
    with shown_log(instance):
        run([*program, *caller], project, ATRIUM_PASSWORD=PASSWORD)


def compile_program(project: Path, source: str) -> None:
    """Check a program strictly, and compile it."""
    tools = (project / "node_modules" / "@atrium" / "client").resolve() / "node_modules"
    checks = ["--strict", "--noUncheckedIndexedAccess", "--skipLibCheck"]
    target = ["--target", "es2022", "--module", "nodenext"]
    types = ["--typeRoots", str(tools / "@types"), "--types", "node"]
    run([str(tools / ".bin" / "tsc"), *checks, *target, *types, source], project)


def test_typescript_client_generated_types_check_collections(
    project: Path, instance: Instance
) -> None:
    write_types(project, instance, "posts")
    shutil.copy(SCRIPTS / "typed.ts", project)
    compile_program(project, "typed.ts")


@pytest.mark.parametrize(
    ("page", "collection", "expected"),
    [
        ("docs/clients.md", "tasks", "create Follow the plan"),
        ("clients/typescript/README.md", "todos", "Write the plan"),
    ],
)
def test_typescript_client_documented_examples_run(
    project: Path, instance: Instance, page: str, collection: str, expected: str
) -> None:
    write_types(project, instance, collection)
    text = (PROJECT / page).read_text()
    code = "".join(re.findall(r"^```ts\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    (project / "example.ts").write_text(code.replace("https://atrium.example", instance.url))
    (project / "photo.png").write_bytes(b"a photo")
    compile_program(project, "example.ts")
    with shown_log(instance):
        printed = run(["node", "example.js"], project, ATRIUM_PASSWORD=PASSWORD)
    assert expected in printed


def test_typescript_client_command_prints_usage(package: Path) -> None:
    command = ["node", str(package / "dist" / "cli.js")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr[:19]) == (1, "usage: atrium types")


def test_typescript_client_version_equals_api_version() -> None:
    assert json.loads((built.PACKAGE / "package.json").read_text())["version"] == web.VERSION
