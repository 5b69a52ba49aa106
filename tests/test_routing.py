"""The route of a path is remembered by its form: never another one than werkzeug finds."""

from __future__ import annotations

import random
import re
from functools import partial
from typing import Any

import pytest
from flask import Flask
from werkzeug.exceptions import HTTPException
from werkzeug.routing import MapAdapter

from app.ids import new_id
from app.web import app as application

PATHS = 4000
METHODS = ("GET", "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "get", "FOO", "")
WORDS = ("posts", "1", "", "self", "batch", "*", "a/b", "-" * 36, "é" * 36, "\n" * 36, "x" * 300)


def some_path(rule: str, chance: random.Random) -> str:
    """A path that the rule may match, or nearly."""

    def word(_: object = None) -> str:
        return chance.choice((new_id(), new_id(), chance.choice(WORDS)))

    parts = re.sub(r"<[^>]*>", word, rule).split("/")
    if chance.random() < 0.2:
        parts[chance.randrange(len(parts))] = word()
    return "/" * (chance.random() < 0.05) + "/".join(parts) + "/" * (chance.random() < 0.1)


def found(match: Any) -> Any:
    try:
        return match(return_rule=True)
    except HTTPException as error:
        described = error.get_response()
        return error.code, described.headers.get("Allow"), described.location


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.long
def test_route_cache_equals_werkzeug_matching(app: Flask) -> None:
    chance, rules = random.Random(7), [rule.rule for rule in app.url_map.iter_rules()]
    matched = 0
    for _ in range(PATHS):
        path, method = some_path(chance.choice(rules), chance), chance.choice(METHODS)
        with app.test_request_context("/", method=method) as context:
            adapter: Any = app.create_url_adapter(context.request)
        adapter.path_info = path
        known = found(adapter.match)
        assert known == found(partial(MapAdapter.match, adapter)), (method, path)
        matched += isinstance(known[1], dict)
    assert matched > PATHS / 20


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/static/" + "\n" * 36), ("OPTIONS", "/static/" + "\n" * 36), ("", "/api/v1/account")],
)
def test_route_cache_refuses_what_werkzeug_refuses(app: Flask, method: str, path: str) -> None:
    context = app.test_request_context("/").request
    adapter: Any = app.create_url_adapter(context)
    adapter.path_info, adapter.default_method = path, method
    assert found(adapter.match) == found(partial(MapAdapter.match, adapter))


@pytest.mark.parametrize("database", ["sqlite"])
def test_route_parts_are_never_as_long_as_an_id(app: Flask) -> None:
    parts = {part for rule in app.url_map.iter_rules() for part in rule.rule.split("/")}
    long = {part for part in parts if len(part) == application.ID_LENGTH}
    assert all(part.startswith("<") for part in long)
