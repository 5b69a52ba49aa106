"""Log lines: JSON for programs, text for people; nobody can forge a line."""

import subprocess
import sys
from dataclasses import replace

import orjson
import pytest
from flask import Flask

LOG = """
from app.web import logging
import structlog
logging.configure(as_text={text})
structlog.get_logger().info("request", method="GET", route="/health", status=200, ms=1.5)
structlog.get_logger().warning("refused", reason="caf\\xe9\\n00:00:00 info forged", none=None)
"""


def lines(*, text: bool) -> list[str]:
    """What is printed for a request and for a warning."""
    done = subprocess.run(
        [sys.executable, "-c", LOG.format(text=text)], capture_output=True, check=True, text=True
    )
    return done.stdout.splitlines()


def test_log_text_format_is_one_line_per_event() -> None:
    request, warning = lines(text=True)
    assert request[8:] == " info    GET /health 200 1.5 ms"
    assert warning[8:] == r" warning refused reason=caf\xe9\n00:00:00 info forged"


def test_log_json_format_is_one_object_per_event() -> None:
    request, warning = map(orjson.loads, lines(text=False))
    assert (request["event"], request["route"], request["level"]) == ("request", "/health", "info")
    assert warning["reason"] == "café\n00:00:00 info forged"


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.parametrize(
    ("env", "format", "is_text"),
    [
        ("development", "auto", True),
        ("test", "auto", False),
        ("production", "auto", False),
        ("production", "text", True),
        ("development", "json", False),
    ],
)
def test_log_format_follows_environment_or_setting(
    app: Flask, env: str, format: str, is_text: bool
) -> None:
    settings = app.extensions["atrium.config"]
    assert replace(settings, env=env, log_format=format).logs_as_text is is_text
