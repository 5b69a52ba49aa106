"""The examples of the console, run by a shell."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from html import unescape

import pytest
from flask import Flask

from tests.builders import Caller, Cast
from tests.console.browser import Browser
from tests.console.test_api_examples import (
    NASTY,
    served,  # noqa: F401
)


def codes(page: str, language: str) -> list[str]:
    """The set-up and the examples of a language on a page, in order."""
    found = re.findall(
        rf'data-language="{language}".*?<pre[^>]*><code[^>]*>(.*?)</code></pre>', page, re.DOTALL
    )
    return [unescape(one) for one in found]


def run(language: str, code: str, caller: Caller, record_id: str) -> str:
    token = caller.headers["Authorization"].removeprefix("Bearer ")
    env = {**os.environ, "TOKEN": token, "RECORD_ID": record_id}
    if language == "JavaScript":
        for name, value in (("token", token), ("recordId", record_id)):
            code = code.replace(f'const {name} = "…";', f'const {name} = "{value}";')
        code = f"console.log = value => process.stdout.write(JSON.stringify(value));\n{code}"
    command = {
        "curl": ["bash", "-ec", code.replace("curl ", "curl --silent --fail-with-body ", 1)],
        "JavaScript": ["node", "--input-type=module", "--eval", code],
        "Python": [sys.executable, "-c", code],
    }[language]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, (code, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.parametrize("language", ["curl", "JavaScript", "Python"])
@pytest.mark.parametrize("who", ["admin", "superadmin"])
def test_api_examples_of_console_run(served: tuple[Flask, Cast], language: str, who: str) -> None:
    app, cast = served
    if who == "admin":
        caller, path = cast.alice, f"records/{cast.alice.account_id}/orders/api"
    else:
        id = cast.root.get("collections/orders").json["id"]
        caller, path = cast.root, f"collections/{id}/api?account=acme"
    browser = Browser(app, caller)
    browser.get(f"{path.partition('?')[0]}?language={language.lower()}")
    setup, lists, get, create, update, delete = codes(browser.get(path).text, language)
    prefix = "" if language == "curl" else f"{setup}\n"  # its own would replace the test's
    record_id = ""

    def answer(code: str) -> dict[str, object]:
        printed = run(language, prefix + code, caller, record_id)
        found: dict[str, object] = (ast.literal_eval if language == "Python" else json.loads)(
            printed
        )
        return found

    created = answer(create)
    record_id = str(created["id"])
    assert created["account_id"] == cast.alice.account_id
    assert (created["kind"], created["tags"], created["price"]) == (NASTY, [NASTY], 3)
    assert answer(get) == created
    listed = answer(lists)["items"]
    assert isinstance(listed, list)
    assert record_id in [one["id"] for one in listed]
    assert answer(update)["title"] == created["title"]
    run(language, prefix + delete, caller, record_id)
    assert cast.alice.get(f"records/orders/{record_id}").status_code == 404
