"""Extensions of tests: folders that are copied, loaded into an application of their own, and
removed with it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from flask import Flask

from app.extensions import loading, migrations, registry
from tests import conftest
from tests.builders import Cast, make_cast

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Extended:
    """An application with extensions, and the callers of its accounts."""

    app: Flask
    cast: Cast
    folder: Path
    """The folder with the extensions."""


@contextmanager
def extended(
    database: str,
    *copied: str,
    files: Mapping[str, str] = {},
    changes: Mapping[str, object] = {},
    **settings: str,
) -> Iterator[Extended]:
    """Load copies of extensions of this folder, and others by the texts of their files.

    `settings` are environment variables, `changes` those of the application's settings.
    """
    folder = Path(tempfile.mkdtemp(prefix="atrium-test-"))
    extensions = folder / "extensions"
    names = list(copied)
    for name in copied:
        shutil.copytree(HERE / name, extensions / name)
    for path, text in files.items():
        file = extensions / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        names += [] if path.split("/")[0] in names else [path.split("/")[0]]
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(loading, "FOLDER", extensions)
        for name, value in settings.items():
            patch.setenv(name, value)
        stack.callback(registry.announce)
        stack.enter_context(registry.restored())
        app = conftest.make_own_app(database, folder, extensions=tuple(names), **changes)
        with app.app_context():
            migrations.upgrade()
        yield Extended(app, make_cast(app), extensions)
