"""Adds to a wheel what is not written by hand: the REST client and the synchronous code."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import unasync
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent
SOURCE = HERE / "src" / "atrium_client" / "_async"
# In a checkout the description is shared by all clients, in an sdist it is part of the package.
DESCRIPTIONS = (HERE / "openapi.json", HERE.parent / "openapi.json")
SYNCHRONOUS = {
    "_async": "_sync",
    "AsyncClient": "Client",
    "AsyncSession": "Session",
    "AsyncRecords": "Records",
    "AsyncFiles": "Files",
    "AsyncChanges": "Changes",
    "AsyncLock": "Lock",
    "aclose": "close",
    "aiter_bytes": "iter_bytes",
    "aread": "read",
    "async_shielded": "shielded",
    "async_sleep": "sleep",
    "set_async_httpx_client": "set_httpx_client",
}


class GeneratedCode(BuildHookInterface):  # type: ignore[type-arg]
    """Generates code outside of the checkout, and removes it after the build."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate the code."""
        self._folder = Path(tempfile.mkdtemp(prefix="atrium-client-"))
        for name, generate in (("rest", generate_rest), ("_sync", generate_sync)):
            generate(self._folder / name)
            build_data["force_include"][str(self._folder / name)] = f"atrium_client/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove it."""
        shutil.rmtree(self._folder)


def generate_rest(target: Path) -> None:
    """Write the functions and models of all operations."""
    description = json.loads(next(filter(Path.exists, DESCRIPTIONS)).read_text())
    described = target.with_name("openapi.json")
    described.write_text(json.dumps(adapted(without_errors(description))))
    config = target.with_name("config.json")
    config.write_text(json.dumps({"post_hooks": [], "literal_enums": True}))
    options = ["--path", described, "--config", config, "--output-path", target, "--meta", "none"]
    templates = ["--custom-template-path", HERE / "templates"]
    program = [sys.executable, "-m", "openapi_python_client", "generate"]
    run = subprocess.run(
        [*program, *options, *templates], check=False, capture_output=True, text=True
    )
    if run.returncode:  # else it names what it leaves out
        raise RuntimeError(run.stdout + run.stderr)


def without_errors(description: dict[str, Any]) -> dict[str, Any]:
    """Return the description without error responses: the client raises them."""
    for path in description["paths"].values():
        for operation in path.values():
            if isinstance(operation, dict):
                responses = operation["responses"]
                operation["responses"] = {
                    status: answer for status, answer in responses.items() if status[0] == "2"
                }
    return description


def adapted(value: Any) -> Any:
    """Return the description without types that may be arrays, of which the generator drops all."""
    if isinstance(value, list):
        return [adapted(one) for one in value]
    if not isinstance(value, dict):
        return value
    is_any = isinstance(value.get("type"), list) and "array" in value["type"]
    dropped = {"type", "items"} if is_any else set()
    return {name: adapted(one) for name, one in value.items() if name not in dropped}


def generate_sync(target: Path) -> None:
    """Write the synchronous twin of the asynchronous code."""
    rule = unasync.Rule(f"{SOURCE}/", f"{target}/", additional_replacements=SYNCHRONOUS)
    unasync.unasync_files([str(path) for path in SOURCE.glob("*.py")], [rule])
