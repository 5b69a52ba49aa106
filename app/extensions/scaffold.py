"""Writes a new extension: a copy of `examples/starter`, by its own name."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

from app.config import PROJECT
from app.errors import BadRequest, Conflict
from app.extensions import loading
from app.extensions.registry import Extension

TEMPLATE = PROJECT / "examples" / "starter"
STARTER = "starter"
"""The name of the extension there."""
VERSION = re.compile(r"""^__version__ = ["'](.+)["']""", re.MULTILINE)
NAME = re.compile(r"[a-z][a-z0-9_]{1,39}")


def version(extension: Extension) -> str:
    """The version of an extension that need not be loaded; empty if it says none."""
    files = extension.folder.glob("**/__init__.py") if extension.folder else ()
    found = (VERSION.search(file.read_text(errors="replace")) for file in sorted(files))
    return extension.version or next((one[1] for one in found if one), "")


def create(name: str) -> Path:
    """Write the project of an extension into `extensions/`; returns its folder.

    Raises BadRequest for a name that no package can have, Conflict for one that is taken.
    """
    if not NAME.fullmatch(name):
        message = "Use 2 to 40 small letters, digits and underscores, with a letter first."
        raise BadRequest(message)
    folder = loading.FOLDER / name
    if folder.exists():
        raise Conflict(f"{folder} exists already: choose another name, or remove it.")
    if name in sys.stdlib_module_names or find_spec(name):
        raise Conflict(f"Python knows another package {name}: choose another name.")
    for source in sorted(TEMPLATE.rglob("*.*")):
        if "__pycache__" not in source.parts:
            place = folder / str(source.relative_to(TEMPLATE)).replace(STARTER, name)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(source.read_text().replace(STARTER, name))
    return folder
