"""What a process loads, and what that costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import starts
from tests.processes import environment
from tests.project import on_linux
from tests.test_architecture import PROJECT, is_edge

# Of rare features, each imported by the function that uses it.
RARE = {"authlib", "dns", "lxml", "onelogin", "opentelemetry", "PIL", "puremagic", "segno"}
RARE |= {"webauthn", "xmlsec", "rq", "redis", "alembic", "flask_migrate"}
# What only requests need.
OF_ROUTES = {"apispec", "flask_smorest", "flask_wtf", "marshmallow", "webargs", "wtforms"}
# The modules of ours that a command loads before it is known which one it is.
FIRST = 15


def loaded(tmp_path: Path, code: str) -> set[str]:
    """The modules that a process has loaded after running some code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        cwd=PROJECT,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_create_app_loads_settings_only(tmp_path: Path) -> None:
    modules = loaded(tmp_path, "import app; app.create_app()")
    assert len({name for name in modules if name.startswith("app.")}) <= FIRST
    assert not modules & {*RARE, *OF_ROUTES, "cryptography", "requests", "sqlalchemy.orm"}


def test_features_load_no_routes_and_no_rare_libraries(tmp_path: Path) -> None:
    modules = loaded(tmp_path, "import app; app.create_app().app_context()")
    assert not modules & (RARE | OF_ROUTES)
    below = ("app.ops.", "app.console.records.saved_views")
    declaring = {name for name in modules if name.endswith(".feature")}
    edges = {name for name in modules if name.startswith("app.") and is_edge(name)}
    packages = {"app.ops", "app.console", "app.console.records", "app.welcome"}
    assert {name for name in edges - declaring - packages if not name.startswith(below)} == set()


def test_routes_load_no_rare_libraries(tmp_path: Path) -> None:
    assert not RARE & loaded(tmp_path, starts.LOADED)


@on_linux
@pytest.mark.parametrize(
    ("start", "times"), [("`create_app()`", 1.8), ("`bin/atrium --help`", 2)], ids=["app", "help"]
)
def test_start_costs_little_more_than_its_libraries(start: str, times: float) -> None:
    reference, _ = starts.cost("The libraries alone", 5)
    seconds, mebibytes = starts.cost(start, 5)
    assert seconds <= times * reference
    assert mebibytes <= 80
