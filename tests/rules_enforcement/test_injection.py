"""Hostile texts, in every parameter that takes text, are refused or inert, and quickly answered."""

from __future__ import annotations

import gc
import json
import random
import string
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import EnvironBuilder, run_wsgi_app

from tests.builders import Caller, Cast, make_collection, make_record
from tests.rules_enforcement.stored import rows

QUOTES = ["'", '"', "''", "\\", "\\'"]
PLACEHOLDERS = ["%", "%s", "%(title)s", "%%", ":title", ":_caller_id", "?", "$1", "{0}"]
SQL = [
    "title'; DROP TABLE users; --",
    'title"; DROP TABLE users; --',
    "title) OR 1=1 --",
    "1 OR 1=1",
    "(SELECT 1)",
    "/* x */",
    "title COLLATE NOCASE",
    "title::text",
    "x' || (SELECT name FROM users) || '",
]
CHARACTERS = ["\0", "\ud800", "\u202e", "٣"]
UNSTORABLE = ["\0", "\ud800"]
HOSTILE = QUOTES + PLACEHOLDERS + SQL + CHARACTERS
SCHEMA = [
    {"name": "title", "type": "text"},
    {"name": "views", "type": "number"},
    {"name": "loud", "type": "computed", "expression": "upper(title)", "return_type": "text"},
]
MAX_SECONDS = 0.05


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@pytest.fixture
def posts(cast: Cast) -> Cast:
    make_collection(cast.root, schema=SCHEMA)
    make_record(cast.alice, title="a", views=1)
    return cast


@pytest.mark.one_database
def test_list_parameters_with_hostile_names_are_never_sql(app: Flask, posts: Cast) -> None:
    before = rows(app)
    for text in HOSTILE:
        text = text.encode("utf-8", "replace").decode()  # lone surrogates have no UTF-8
        for place in ("sort", "fields", "filter"):
            answer = posts.bob.get("records/posts", query_string={place: text})
            # No text may have a NUL; the others name nothing, or are no expressions.
            assert answer.status_code == (422 if "\0" in text else 400), (place, text)
        named = posts.bob.get("records/posts", query_string={text: "x"})
        assert named.status_code in (400, 422), text
    assert rows(app) == before


@pytest.mark.long
def test_filter_and_rule_texts_are_only_compared(app: Flask, posts: Cast) -> None:
    for text in HOSTILE:
        if text in UNSTORABLE:
            continue
        made = make_record(posts.alice, title=text)
        queries: list[dict[str, Any]] = [
            {"filter": f"title = {quoted(text)}"},
            {"filter": f"title IN [{quoted(text)}, 'nothing']"},
            {"filter": f"concat(title, '') = {quoted(text)} && loud = upper({quoted(text)})"},
            {"title": text},
        ]
        if "%" not in text and "\\" not in text:
            queries.append({"filter": f"title ~ {quoted(text)}"})
        for query in queries:
            answer = posts.bob.get("records/posts", query_string=query)
            assert answer.status_code == 200, (query, answer.json)
            assert [record["id"] for record in answer.json["items"]] == [made["id"]], query
        rule = {"list_rule": f"title = {quoted(text)}"}
        assert posts.root.put("collections/posts/rules", rule).status_code == 200
        assert posts.bob.get("records/posts").json["total"] == 1
        posts.root.put("collections/posts/rules", {"list_rule": "true"})
    assert len(rows(app)) == len(HOSTILE) - len(UNSTORABLE) + 1  # the record of `posts`


def test_filter_with_nul_or_lone_surrogate_is_refused(posts: Cast) -> None:
    for text in ("title = '%00'", "title = 'a%00b' || true", "title%00 = 'a'"):
        answer = posts.bob.get(f"records/posts?filter={text}")
        assert answer.status_code in (400, 422), answer.json
    assert posts.bob.get("records/posts?filter=title = '%ED%A0%80'").status_code in (400, 422)


@pytest.mark.one_database
def test_body_keys_with_hostile_names_are_never_sql(app: Flask, posts: Cast) -> None:
    before = rows(app)
    record = before[0]
    for text in HOSTILE:
        for method, path in (("POST", "records/posts"), ("PATCH", f"records/posts/{record['id']}")):
            answer = posts.alice(method, path, {text: "x"})
            assert answer.status_code in (400, 422), (text, answer.json)
        schema = [*SCHEMA, {"name": text, "type": "text"}]
        new = posts.root.post("collections", {"name": "others", "schema": schema})
        assert new.status_code in (400, 422), text
        listed = posts.root.put("collections/posts/rules", {"view_fields": [text]})
        assert listed.status_code in (400, 422), text
    assert rows(app) == before


BINDS = ["param_1", "title_1", "upper_1", "atrium_add_1", "coalesce_1", "total", "version0"]
BINDS += ["anon_1", "caller_id", "now", "length_1", "atrium_upper_1"]


def test_field_names_equal_to_bind_names_work_with_expressions(root: Caller, alice: Caller) -> None:
    texts = [{"name": name, "type": "text", "options": {"index": True}} for name in BINDS]
    computed = [
        {
            "name": f"{name}_c",
            "type": "computed",
            "expression": f"concat({name}, 'x', upper({name}), coalesce({name}, 'y'), 1 + 2)",
            "return_type": "text",
        }
        for name in BINDS
    ]
    rule = " && ".join(f"{name} != 'z{name}'" for name in BINDS[:6])
    rules = dict.fromkeys(("list_rule", "view_rule", "create_rule", "update_rule"), rule)
    make_collection(root, schema=[*texts, *computed], **rules)
    made = make_record(alice, **dict.fromkeys(BINDS, "v"))
    assert {made[f"{name}_c"] for name in BINDS} == {"vxVv3"}
    for name in BINDS:
        answer = alice.patch(f"records/posts/{made['id']}", {name: "w"})
        assert (answer.status_code, answer.json[f"{name}_c"]) == (200, "wxWw3")
        query = {"filter": f"{name}_c = 'wxWw3' && {name} = 'w'", "sort": f"-{name}_c,{name}"}
        assert alice.get("records/posts", query_string=query).json["total"] == 1
    refused = alice.patch(f"records/posts/{made['id']}", {"param_1": "zparam_1"})
    assert refused.status_code == 403


NAMES = ["title", "views", "@owns_record()", "@request.auth.id"]
LITERALS = ["'a'", "1", "1e308", "null"]
OPERATORS = ["=", "!=", "~", "&&", "||", "!", "NOT", "IN", "-", "%"]
PUNCTUATION = ["(", ")", "[", "]", "round(", ",", "."]
WORDS = NAMES + LITERALS + OPERATORS + PUNCTUATION


def noise(rng: random.Random) -> str:
    """Return random text: words of the language or any characters."""
    if rng.random() < 0.6:
        return " ".join(rng.choices(WORDS, k=rng.randint(1, 40)))
    alphabet = string.printable + "äß🎈\u0000\u2028"
    return "".join(rng.choices(alphabet, k=rng.randint(1, 300)))


@dataclass(frozen=True)
class Answer:
    """An answer, and the processor time that it took."""

    path: str
    status: int
    text: str
    seconds: float


def send_everywhere(cast: Cast, text: str) -> Iterator[Answer]:
    """Send a text as an expression wherever one is taken."""
    computed = {"name": "c", "type": "computed", "expression": text, "return_type": "text"}
    for caller, method, path, sent in (
        (cast.bob, "GET", "records/posts", {"query_string": {"filter": text}}),
        (cast.root, "POST", "rules/validate", {"json": {"rule": text, "collection": "posts"}}),
        (cast.root, "POST", "rules/test", {"json": {"rule": text, "record": {"title": "a"}}}),
        (cast.root, "PUT", "collections/posts/rules", {"json": {"view_rule": text}}),
        (cast.root, "POST", "collections", {"json": {"name": "no", "schema": [computed]}}),
    ):
        answer = send(caller, method, path, sent)
        if answer.seconds > MAX_SECONDS:
            # Only what is slow in itself is slow again.
            further = [send(caller, method, path, sent) for _ in range(2)]
            answer = min(answer, *further, key=lambda one: one.seconds)
        yield answer


def send(caller: Caller, method: str, path: str, sent: dict[str, Any]) -> Answer:
    """Send a request, of which only the application's part is timed."""
    environ = EnvironBuilder(
        f"/api/v1/{path}", method=method, headers=caller.headers, **sent
    ).get_environ()
    gc.disable()  # else it might collect what earlier tests left
    start = time.process_time()
    body, status, _ = run_wsgi_app(caller.app.wsgi_app, environ, buffered=True)
    seconds = time.process_time() - start
    gc.enable()
    return Answer(path, int(status[:3]), b"".join(body).decode(), seconds)


@pytest.mark.one_database
@pytest.mark.timing
def test_random_text_in_every_parameter_is_answered_quickly(posts: Cast) -> None:
    rng = random.Random(4)
    list(send_everywhere(posts, "title = 'a'"))
    for _ in range(40):
        text = noise(rng)
        for answer in send_everywhere(posts, text):
            allowed = {200, 400} if "\0" not in text else {200, 400, 422}
            assert answer.status in allowed, (text, answer)
            assert answer.seconds < MAX_SECONDS, (text, answer)


# Each with the status of a list that is filtered by it.
OVERSIZED = {
    "or": ("true" + " || true" * 10_000, 400),
    "bare or": ("||" * 10_000, 400),
    "parentheses": ("(" * 2_000 + "true" + ")" * 2_000, 400),
    "open": ("(" * 2_000, 400),
    "short of long": ("(" * 990 + "1" + ")" * 990, 400),
    "not": ("!" * 1_999 + "1", 400),
    "minus": ("-" * 1_990 + "1 = 1", 400),
    "megabyte": ("a" * 2**20, 400),
    "quotes": ("'" * 2**20, 400),
    "digits": ("1" * 1_990 + " = 1", 400),
    "list": ("1 IN [" + "1," * 900 + "1]", 400),
    "dots": ("a." * 900 + "a", 400),
    "percent": ("title ~ '" + "%a" * 900 + "'", 200),
}


@pytest.mark.one_database
@pytest.mark.timing
def test_oversized_expressions_in_every_parameter_are_refused_quickly(posts: Cast) -> None:
    list(send_everywhere(posts, "title = 'a'"))
    for name, (text, expected) in OVERSIZED.items():
        for answer in send_everywhere(posts, text):
            status = expected
            if answer.path == "rules/validate":  # which reports what the others refuse
                status = 200
                assert json.loads(answer.text)["valid"] is (expected == 200)
            elif answer.path == "collections":  # whose computed field is a text, no boolean
                status = 400
            assert answer.status == status, (name, answer.path, answer.text[:300])
            assert answer.seconds < MAX_SECONDS, (name, answer.path, answer.seconds)
