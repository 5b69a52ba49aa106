"""The code that the console prints for receivers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from flask import Flask

from tests.builders import Cast, make_collection, make_record
from tests.console.browser import Browser
from tests.receivers import receiving
from tests.webhooks.delivering import deliver, make_webhook
from tests.webhooks.test_sent_requests import STRANGE, path_of, shown


def verdict(code: str, language: str, secret: str, folder: Path) -> str:
    """What a snippet prints."""
    command = {"Python": [sys.executable], "JavaScript": [shutil.which("node")]}[language]
    (folder / "verify").write_text(code)
    environment = {**os.environ, "WEBHOOK_SECRET": secret}
    ran = subprocess.run(
        [*map(str, command), "verify"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.strip()


@pytest.mark.parametrize("language", ["Python", "JavaScript"])
@pytest.mark.parametrize("length", [1, 300])
def test_console_signature_code_verifies_delivery(
    app: Flask, cast: Cast, language: str, length: int, tmp_path: Path
) -> None:
    make_collection(cast.root)
    with receiving() as receiver:
        made = make_webhook(cast.alice, receiver.url)
        make_record(cast.alice, title=STRANGE * length)
        before = Browser(app, cast.alice).get(path_of(app, cast.alice)).text
        deliver(app)
        rotated = cast.alice.post(f"webhooks/{made['id']}/rotate-secret").json
    after = Browser(app, cast.alice).get(path_of(app, cast.alice)).text
    (tmp_path / "body.json").write_bytes(receiver.requests[0].body)
    codes = [shown(page, language) for page in (before, after)]
    assert all(("body.json" in code) is (length > 1) for code in codes)
    for code in codes:
        assert verdict(code, language, made["secret"], tmp_path) == "genuine"
        assert verdict(code, language, rotated["secret"], tmp_path) == "not genuine"
    forged = re.sub(r'(timestamp": ")[0-9]+', r"\g<1>1", codes[1])
    assert verdict(forged, language, made["secret"], tmp_path) == "not genuine"
