"""The description that the clients are built from is that of the API."""

from __future__ import annotations

from pathlib import Path

from app import create_app
from clients import description
from tests.conftest import settings_for


def test_api_description_file_equals_generated_one(tmp_path: Path) -> None:
    answered = description.describe(create_app(settings_for("sqlite", tmp_path)))
    # Else run `make description`.
    assert answered == description.DESCRIPTION.read_text()
