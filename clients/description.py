"""`python -m clients.description` writes the API description that the clients are built from.

With SERVICE_EXTENSIONS it has the endpoints of these extensions, for clients of one's own.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from flask import Flask

from app import create_app
from app.config import Config

DESCRIPTION = Path(__file__).with_name("openapi.json")
BASE_URL = "https://atrium.example"


def describe(app: Flask) -> str:
    """Return what /openapi.json answers, as the text of a file, with the address of no instance."""
    description = app.test_client().get("/openapi.json").get_json()
    description["servers"] = [{"url": BASE_URL}]
    description["info"]["contact"]["url"] = BASE_URL
    # Sorted, as the order of imports decides otherwise.
    description["paths"] = dict(sorted(description["paths"].items()))
    for kind, named in description["components"].items():
        description["components"][kind] = dict(sorted(named.items()))
    return json.dumps(description, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the description."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"SERVICE_ENV": "test", "SERVICE_INSTANCE_DIR": folder}
        settings["SERVICE_EXTENSIONS"] = os.environ.get("SERVICE_EXTENSIONS", "")
        DESCRIPTION.write_text(describe(create_app(Config.from_env(settings))))


if __name__ == "__main__":
    main()
