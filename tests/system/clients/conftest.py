"""The Python client, and a server that it talks to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from tests.builders import Caller, Cast, make_collection
from tests.realtime.conftest import port
from tests.system.clients import installed

__all__ = ["port"]
TASKS = [
    {"name": "title", "type": "text", "required": True},
    {"name": "points", "type": "number"},
    {"name": "done", "type": "boolean"},
    {"name": "due", "type": "datetime"},
    {"name": "day", "type": "date"},
    {"name": "tags", "type": "multi_select", "options": {"choices": ["a", "b"]}},
    {"name": "code", "type": "text", "unique": True},
    {"name": "cover", "type": "file"},
]


@pytest.fixture(scope="session")
def atrium() -> ModuleType:
    """The package, as it is installed."""
    folder = str(installed.install())
    if folder not in sys.path:
        sys.path.append(folder)  # behind the packages of the tests
    return import_module("atrium_client")


@pytest.fixture
def tasks(root: Caller) -> None:
    make_collection(root, "tasks", TASKS)


@pytest.fixture
def address(port: int) -> str:
    return f"http://127.0.0.1:{port}"


@pytest.fixture
def key(cast: Cast) -> str:
    """An API key of Alice."""
    return str(cast.alice.post("api-keys", {"name": "client"}).json["key"])


@pytest.fixture
def client(atrium: ModuleType, address: str, key: str) -> Iterator[Any]:
    with atrium.Client(address, api_key=key) as made:
        yield made
