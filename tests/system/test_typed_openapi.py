"""A client that a generator makes of the typed description."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import npm
from tests.builders import Caller
from tests.project import PROJECT
from tests.test_typed_openapi import (
    described,
    tasks,  # noqa: F401
)

CLIENT = PROJECT / "tests" / "typed"


@pytest.fixture
def tools() -> Path:
    """The generator and the compiler, installed beside the client that they check."""
    return npm.installed(CLIENT)


@pytest.mark.parametrize("database", ["sqlite"])
def test_typed_openapi_generates_typed_client(
    tmp_path: Path, tools: Path, root: Caller, tasks: dict[str, Any]
) -> None:
    root.put("collections/tasks/rules", {"update_fields": "*"})
    (tmp_path / "openapi.json").write_text(json.dumps(described(root)))
    shutil.copy(CLIENT / "client.ts", tmp_path)
    made = ["openapi-typescript", "openapi.json", "-o", "description.d.ts"]
    # Without the browser's types, and without a look at the language's own: half of the time.
    quick = ["--lib", "es2022", "--skipDefaultLibCheck"]
    checked = ["tsc", "--strict", "--noEmit", "--module", "nodenext", *quick, "client.ts"]
    for program, *arguments in (made, checked):
        run = subprocess.run(
            [tools / program, *arguments],
            cwd=tmp_path,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert run.returncode == 0, run.stdout + run.stderr
