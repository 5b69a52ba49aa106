"""Linters and client generators read the API description without a warning."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import npm, services
from tests.builders import Caller, make_collection
from tests.project import PROJECT

FOLDER = PROJECT / "tests" / "openapi"
SETTINGS = (".spectral.yaml", "spectral-quick.yaml", "redocly.yaml", ".redocly.lint-ignore.yaml")
CHOICES = {"options": {"choices": ["low", "high"]}}
FIELDS = [
    {"name": "title", "type": "text", "required": True, "options": {"max_length": 80}},
    {"name": "points", "type": "number", "options": {"integer": True, "min": 0}},
    {"name": "done", "type": "boolean", "default": False},
    {"name": "due", "type": "date"},
    {"name": "due_at", "type": "datetime"},
    {"name": "mail", "type": "email", "pii": True},
    {"name": "site", "type": "url"},
    {"name": "extra", "type": "json"},
    {"name": "attachment", "type": "file"},
    {"name": "level", "type": "select", **CHOICES},
    {"name": "tags", "type": "multi_select", **CHOICES},
    {"name": "project", "type": "reference", "collection": "projects"},
    {"name": "loud", "type": "computed", "expression": "upper(title)", "return_type": "text"},
]
TSC = ["tsc", "--strict", "--noEmit", "--module", "nodenext", "--lib", "es2022,dom,dom.iterable"]
# What openapi-generator remarks on itself: its support of OpenAPI 3.1, and in Python its own names
# of unions and of an object that is always empty.
ITS_OWN = re.compile(
    "OpenAPI 3.1 support is still in beta|Failed to get the schema name: null"
    "|Codegen property is null .* Default to typing.Any"
)

pytestmark = pytest.mark.parametrize("database", ["sqlite"])


@pytest.fixture
def folder(tmp_path: Path, root: Caller) -> Path:
    """A folder with the plain and the typed description, and the tools' settings."""
    make_collection(root, "projects", [{"name": "name", "type": "text"}])
    make_collection(root, "tasks", FIELDS)
    for name, query in (("plain", ""), ("typed", "?collections=1")):
        description = json.dumps(root.get(f"/openapi.json{query}").json, indent=1)
        (tmp_path / f"{name}.json").write_text(description)
    for settings in SETTINGS:
        shutil.copy(FOLDER / settings, tmp_path)
    return tmp_path


def run(folder: Path, program: Path, *arguments: str) -> str:
    """What a program prints; fails the test if the program fails."""
    quiet = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}
    done = subprocess.run(
        [program, *arguments],
        cwd=folder,
        env=os.environ | quiet | {"NO_COLOR": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    return printed


def spectral(folder: Path, description: str, rules: str = ".spectral.yaml") -> None:
    """Lint by Spectral; a warning fails."""
    options = ("lint", "--fail-severity=hint", "--ruleset", rules)
    run(folder, npm.installed(FOLDER) / "spectral", *options, description)


def redocly(folder: Path, description: str) -> None:
    """Lint by Redocly; a warning fails."""
    printed = run(folder, npm.installed(FOLDER) / "redocly", "lint", description)
    assert "warning was generated" not in printed.lower(), printed


def test_openapi_linters_report_nothing(folder: Path) -> None:
    redocly(folder, "plain.json")
    spectral(folder, "plain.json", "spectral-quick.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("description", ["plain.json", "typed.json"])
def test_openapi_linters_report_nothing_by_all_rules(folder: Path, description: str) -> None:
    redocly(folder, description)
    spectral(folder, description)


@pytest.mark.slow
@pytest.mark.parametrize("description", ["plain.json", "typed.json"])
@pytest.mark.parametrize(
    ("generator", "client"),
    [
        (["openapi-ts", "-o", "client", "-i"], ["client/index.ts", "client/sdk.gen.ts"]),
        (["orval", "--client", "fetch", "--output", "client.ts", "--input"], ["client.ts"]),
    ],
    ids=["hey-api", "orval"],
)
def test_openapi_typescript_clients_compile(
    folder: Path, generator: list[str], client: list[str], description: str
) -> None:
    programs = npm.installed(FOLDER)
    printed = run(folder, programs / generator[0], *generator[1:], description)
    assert not re.search("warn|error", printed, re.IGNORECASE), printed
    run(folder, programs / TSC[0], *TSC[1:], "--skipDefaultLibCheck", *client)


@pytest.fixture
def generators() -> Path:
    """The folder of the generators that are no Node programs."""
    programs = services.client_generators()
    if not (programs and shutil.which("java")):
        reason = "Java or the client generators are missing"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(f"{reason}; `python -m tests.services install system` installs them")
    return programs


@pytest.mark.slow
@pytest.mark.parametrize("description", ["plain.json", "typed.json"])
def test_openapi_python_client_generates_without_warning(
    folder: Path, generators: Path, description: str
) -> None:
    settings = str(FOLDER / "openapi-python-client.yaml")
    program = generators / "openapi-python-client"
    into = ["--meta", "none", "--output-path", "client", "--fail-on-warning"]
    printed = run(folder, program, "generate", *into, "--config", settings, "--path", description)
    assert "warning" not in printed.lower(), printed


@pytest.mark.slow
@pytest.mark.parametrize("description", ["plain.json", "typed.json"])
@pytest.mark.parametrize("language", ["python", "typescript-axios", "go"])
def test_openapi_generator_generates_without_warning(
    folder: Path, generators: Path, language: str, description: str
) -> None:
    settings = str(FOLDER / f"{language}.yaml")
    program = generators / "openapi-generator-cli"
    printed = run(folder, program, "generate", "-c", settings, "-i", description, "-o", "client")
    remarks = [line for line in printed.splitlines() if re.search("WARN|ERROR", line)]
    assert [line for line in remarks if not ITS_OWN.search(line)] == []
