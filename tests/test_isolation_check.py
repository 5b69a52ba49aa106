"""`flask isolation-check` passes on an instance as it is, and finds what is made to leak."""

from __future__ import annotations

import time

import pytest
from flask import Flask

from app.isolation import prover
from tests.builders import Caller, Cast, make_collection

EVERY_TYPE = [
    {"name": "title", "type": "text", "required": True, "unique": True},
    {"name": "code", "type": "text", "options": {"pattern": "^[a-z]{3}-[0-9]{4}$"}},
    {"name": "kind", "type": "text", "options": {"choices": ["one", "other"]}},
    {"name": "price", "type": "number", "required": True},
    {"name": "open", "type": "boolean"},
    {"name": "at", "type": "datetime"},
    {"name": "day", "type": "date"},
    {"name": "mail", "type": "email", "pii": True, "mask_type": "email"},
    {"name": "link", "type": "url"},
    {"name": "more", "type": "json"},
    {"name": "twice", "type": "computed", "expression": "price * 2", "return_type": "number"},
]


@pytest.fixture
def furnished(app: Flask, cast: Cast) -> Flask:
    """An instance with collections of every type of field, that refer to each other."""
    make_collection(cast.root, "posts", EVERY_TYPE)
    referring = [
        {"name": "post", "type": "reference", "collection": "posts", "required": True},
        {"name": "body", "type": "text"},
    ]
    make_collection(cast.root, "comments", referring)
    return app


def test_nothing_leaks(furnished: Flask) -> None:
    with furnished.app_context():
        start = time.process_time()
        report = prover.prove(furnished)
        print(time.process_time() - start)
    for one in report.leaks + report.uncovered: print(one)
    print(report.requests, report.routes)
    assert (report.leaks, report.uncovered) == ([], [])
