"""The types of the Python client: of the package, and of a caller's collections."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from app import web
from tests.builders import PASSWORD, Cast, make_collection
from tests.project import PROJECT
from tests.system.clients import installed

FIELDS = [
    {"name": "title", "type": "text", "required": True},
    {"name": "state", "type": "text", "options": {"choices": ["open", "done"]}},
    {"name": "points", "type": "number", "options": {"integer": True}},
    {"name": "price", "type": "number"},
    {"name": "tags", "type": "multi_select", "options": {"choices": ["a", "b"]}},
    {"name": "amount", "type": "decimal"},
    {"name": "labels", "type": "text_list"},
    {"name": "extra", "type": "json"},
    {"name": "cover", "type": "file"},
    {"name": "parent", "type": "reference", "collection": "open_tasks"},
    {"name": "loud", "type": "computed", "expression": "upper(title)", "return_type": "text"},
]
PROGRAM = """
from decimal import Decimal
from atrium_client import AsyncClient, Client
from collections_of_mine import AsyncCollections, Collections, OpenTasksCreate

async def asynchronous(client: AsyncClient) -> None:
    tasks = AsyncCollections(client).open_tasks
    async for task in tasks.iterate():
        title: str = task["title"]
        await tasks.update(task["id"], {"title": title})

def synchronous(client: Client) -> None:
    tasks = Collections(client).open_tasks
    new: OpenTasksCreate = {"title": "x", "state": "open", "tags": ["a"]}
    task = tasks.create(new)
    points: int | None = task["points"]
    amount: str | None = task["amount"]
    labels: list[str] = task["labels"] or []
    tasks.update(task["id"], {"amount": 7, "labels": {"$add": [*labels, amount]}})
    tasks.create({"title": "x", "amount": Decimal("12.50")})
    tasks.import_file("tasks.csv", upsert="title", encoding="latin-1", separator="tab")
    cover = client.files.upload(b"x")
    tasks.replace(task["id"], {"title": "x", "points": points, "cover": cover["id"]})
    first = Collections(client).log.list().items[0]
    print(first["class"], task["loud"], task["created_at"])
    shown = tasks.get(task["id"], expand="open_tasks_via_parent.parent", file_links=60)
    children = shown["expand"]["open_tasks_via_parent"]
    more: bool = children["has_more"]
    titles: list[str] = [one["expand"]["parent"]["title"] for one in children["items"]]
    print(more, titles)
    found = [*tasks.list(search="x", highlight=True).items, *tasks.iterate(search="x")]
    marked: list[str] = [one["_highlights"]["title"] for one in found]
    print(marked)
"""
WRONG = {
    'tasks.create({"state": "open"})': 'Missing key "title"',
    'tasks.create({"title": 1})': "Incompatible types",
    'tasks.create({"title": "x", "state": "odd"})': "Incompatible types",
    'tasks.create({"title": "x", "amount": 1.5})': "Incompatible types",
    'tasks.create({"title": "x", "labels": "a"})': "Incompatible types",
    'tasks.create({"title": "x", "loud": "X"})': 'Extra key "loud"',
    'tasks.update("1", {"titel": "x"})': 'Extra key "titel"',
    'tasks.get("1")["titel"]': 'no key "titel"',
    'Collections(client).log.create({"title": "x"})': '"create" of "Records"',
    "tasks.list(search=1)": 'Argument "search"',
    'first_mark: int = tasks.list().items[0]["_highlights"]["title"]': "Incompatible types",
    "Collections(client).absent": 'no attribute "absent"',
    'tasks.get("1")["expand"]["log_via_parent"]': 'no key "log_via_parent"',
}


@pytest.fixture
def module(atrium: ModuleType, address: str, cast: Cast, tmp_path: Path) -> str:
    """The types of Alice's collections, written by the command."""
    make_collection(cast.root, "open_tasks", FIELDS)
    make_collection(cast.root, "log", [{"name": "class", "type": "text"}], create_rule=None)
    make_collection(cast.root, "closed", list_rule=None, view_rule=None, **dict.fromkeys(OTHERS))
    found = run_types("--url", address, "--account", "acme", "--email", cast.alice.email)
    assert found.returncode == 0, found.stderr
    return found.stdout


OTHERS = ("create_rule", "update_rule", "delete_rule")


def run_types(*options: str, password: str = PASSWORD) -> subprocess.CompletedProcess[str]:
    command = [installed.PROGRAMS / "atrium", "types", *options]
    env = {"ATRIUM_PASSWORD": password}
    return subprocess.run(command, env=env, check=False, capture_output=True, text=True)


def mypy(*arguments: str, folder: Path) -> str:
    """What the type checker finds."""
    config = folder / "mypy.ini"
    # The generator's own, in which two models break its types.
    config.write_text("[mypy]\nstrict = True\n[mypy-atrium_client.rest.*]\nignore_errors = True\n")
    python = installed.PROGRAMS / "python"
    program = [sys.executable, "-m", "mypy", "--config-file", config, "--python-executable", python]
    cache = ["--cache-dir", installed.FOLDER / "mypy_cache"]
    run = subprocess.run(
        [*program, *cache, *arguments], cwd=folder, check=False, capture_output=True, text=True
    )
    return run.stdout + run.stderr


def test_python_client_generated_types_check_collections(module: str, tmp_path: Path) -> None:
    assert "closed" not in module.lower()
    (tmp_path / "collections_of_mine.py").write_text(module)
    mistakes = [f"    {line}" for line in WRONG]
    (tmp_path / "program.py").write_text("\n".join([PROGRAM.rstrip(), *mistakes, ""]))
    found = mypy("program.py", folder=tmp_path).splitlines()
    errors = {line.split(":")[1]: line for line in found if " error: " in line}
    begin = PROGRAM.rstrip().count("\n") + 2
    for number, (line, expected) in enumerate(WRONG.items(), begin):
        assert expected in errors.pop(str(number), "no error"), line
    assert not errors


def test_python_client_package_is_typed(atrium: ModuleType, tmp_path: Path) -> None:
    assert mypy("-p", "atrium_client", folder=tmp_path).startswith("Success")


def test_python_client_types_command_reports_errors(
    atrium: ModuleType, address: str, cast: Cast
) -> None:
    options = ("--url", address, "--account", "acme", "--email", cast.alice.email)
    found = run_types(*options, password="wrong")
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith("atrium: ")


def test_python_client_version_equals_api_version(atrium: ModuleType) -> None:
    assert atrium.__version__ == web.VERSION


def test_python_client_modules_are_under_300_lines() -> None:
    for path in (PROJECT / "clients" / "python").rglob("*.py"):
        assert len(path.read_text().splitlines()) < 300, path
