"""Schemas that change under load, and in processes that are killed: nothing lost, nothing torn."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from threading import Event, Thread
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from app import db
from app.collections import definitions
from app.db import versioned_cache
from app.records.store import writes
from tests.builders import Caller, make_collection, make_record
from tests.collections import changer
from tests.collections.tables import agrees
from tests.conftest import WHOLE

TITLE = {"name": "title", "type": "text"}
NUMBER = {"name": "n", "type": "number"}


def assert_agreement(app: Flask) -> None:
    with app.app_context():
        for one in definitions.get_all():
            assert agrees(one.table) == []
        db.db.session.remove()


def all_records(caller: Caller, collection: str) -> list[dict[str, Any]]:
    total = caller.get(f"records/{collection}?limit=1").json["total"]
    pages = range(1, -(-total // 100) + 1)
    query = "limit=100&sort=id"
    answers = [caller.get(f"records/{collection}?{query}&page={page}") for page in pages]
    return [record for answer in answers for record in answer.json["items"]]


def schemas() -> list[list[dict[str, Any]]]:
    """What the schema becomes, step by step."""
    author = {"name": "author", "type": "reference", "collection": "authors"}
    code = {"name": "code", "type": "text", "default": "x"}
    needed = TITLE | {"required": True, "default": "none"}
    return [
        [TITLE, NUMBER, code],
        [needed, NUMBER, code, author],
        [needed, NUMBER | {"unique": True}, code, author],
        [TITLE, NUMBER | {"options": {"index": True}}, code, author | {"on_delete": "cascade"}],
        [TITLE, NUMBER, code | {"required": True}, author | {"on_delete": "set_null"}],
    ]


@pytest.mark.long
@WHOLE
def test_schema_change_concurrent_with_many_writers_loses_nothing(
    app: Flask, root: Caller, alice: Caller, whole: bool
) -> None:
    writers = 20 if whole else 8
    make_collection(root, "authors")
    made = make_collection(root, schema=[TITLE, NUMBER])
    stop, answers, statuses = Event(), dict[str, Any](), list[int]()

    def write(writer: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            body = {"title": f"{writer}.{number}", "n": writer * 100_000 + number}
            answer = alice.post("records/posts", body)
            statuses.append(answer.status_code)
            if answer.status_code != 201:
                continue
            id = answer.json["id"]
            answers[id] = body["title"]
            if number % 3 == 0:
                statuses.append(alice.patch(f"records/posts/{id}", {"title": "new"}).status_code)
                answers[id] = "new"
            if number % 3 == 1:
                del answers[id]
                statuses.append(alice.delete(f"records/posts/{id}").status_code)

    with ThreadPoolExecutor(writers) as pool:
        threads = [pool.submit(write, writer) for writer in range(writers)]
        try:
            for schema in schemas():
                done = len(statuses) + 3 * writers
                while len(statuses) < done:
                    time.sleep(0.01)
                changed = root.put(f"collections/{made['id']}", {"schema": schema})
                assert changed.status_code == 200, changed.json
        finally:
            stop.set()
        for thread in threads:
            thread.result()
    assert set(statuses) <= {200, 201, 204}
    stored = {record["id"]: record for record in all_records(alice, "posts")}
    assert {id: record["title"] for id, record in stored.items()} == answers
    assert {record["code"] for record in stored.values()} == {"x"}
    assert_agreement(app)


RENAMES: list[dict[str, Any]] = [
    {"schema": [{"name": "headline", "rename_from": "title"}]},
    {"remove_fields": ["code"]},
    {
        "schema": [{"name": "label", "rename_from": "headline", "options": {"index": True}}],
        "name": "essays",
    },
    {"schema": [{"name": "code", "type": "number"}, {"name": "title", "rename_from": "label"}]},
    {"name": "posts"},
]


@pytest.mark.long
@WHOLE
def test_rename_and_removal_concurrent_with_many_writers_lose_nothing(
    app: Flask, root: Caller, alice: Caller, whole: bool
) -> None:
    writers = 20 if whole else 6
    code = {"name": "code", "type": "text", "default": "x"}
    made = make_collection(root, schema=[TITLE, NUMBER, code])
    url, stop, current = f"collections/{made['id']}", Event(), ["title", "posts"]
    answers, codes, written = dict[str, list[str]](), set[str](), list[str]()

    def send(send_to: Any, path: str, title: str) -> Any:
        while True:
            field, collection = current
            answer = send_to(f"records/{collection}{path}", {field: title})
            if answer.status_code == 400:
                codes.update(one["code"] for one in answer.json["details"])
            elif answer.status_code != 404:
                assert answer.status_code in (200, 201), answer.json
                written.append(title)
                return answer.json

    def write(writer: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            titles = [f"{writer}.{number}", f"{writer}.{number} again"]
            id = send(alice.post, "", titles[0])["id"]
            send(alice.patch, f"/{id}", titles[1])
            answers[id] = titles

    with ThreadPoolExecutor(writers) as pool:
        threads = [pool.submit(write, writer) for writer in range(writers)]
        try:
            for change in RENAMES:
                enough = len(written) + 3 * writers
                while len(written) < enough and not any(one.done() for one in threads):
                    time.sleep(0.02)
                proposal = {key: value for key, value in change.items() if key == "remove_fields"}
                hash = {}
                if proposal:
                    planned = root.post(f"{url}/plan", proposal).json
                    hash = {"plan_hash": planned["plan_hash"]}
                changed = root.patch(url, change | hash)
                assert changed.status_code == 200, changed.json
                current[:] = changed.json["schema"][0]["name"], changed.json["name"]
        finally:
            stop.set()
        for thread in threads:
            thread.result()
    assert codes <= {"unknown_field"}
    stored = {record["id"]: record for record in all_records(alice, "posts")}
    assert {id: record["title"] for id, record in stored.items()} == {
        id: titles[-1] for id, titles in answers.items()
    }
    # Whatever the name was, the feed has each value under the present one.
    fed: dict[str, list[str]] = {id: [] for id in answers}
    since: int | None = 0
    while since is not None:
        page = alice.get(f"changes?since={since}&limit=1000").json
        for item in page["items"]:
            if item["event"] == "records.reset":
                continue
            fed[item["record_id"]].append(item["record"]["title"])
        since = page["next"] if page["has_more"] else None
    assert fed == answers
    assert_agreement(app)


@pytest.mark.long
def test_reference_field_created_during_target_rename_follows_it(app: Flask, root: Caller) -> None:
    made, statuses = make_collection(root, schema=[TITLE]), list[int]()

    def refer(writer: int) -> None:
        for number in range(6):
            for target in cycle(changer.NAMES):
                schema = [{"name": "target", "type": "reference", "collection": target}]
                body = {"name": f"one_{writer}_{number}", "schema": schema}
                answer = root.post("collections", body)
                statuses.append(answer.status_code)
                if answer.status_code == 201:
                    break

    with ThreadPoolExecutor(3) as pool:
        threads = [pool.submit(refer, writer) for writer in range(3)]
        while not all(one.done() for one in threads):
            for name in changer.NAMES[::-1]:
                renamed = root.patch(f"collections/{made['id']}", {"name": name})
                assert renamed.status_code in (200, 409), renamed.json  # one was made meanwhile
        for thread in threads:
            thread.result()
    assert set(statuses) <= {201, 400}
    name = root.get(f"collections/{made['id']}").json["name"]
    with app.app_context():
        targets = [
            one.schema[0]["collection"] for one in definitions.get_all() if one.id != made["id"]
        ]
        db.db.session.remove()
    assert targets == [name] * 18
    assert_agreement(app)


def test_record_written_with_older_schema_gets_default(
    app: Flask, root: Caller, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schema changes between a writer's look at it and its writing."""
    made = make_collection(root, schema=[TITLE])
    schema = [TITLE, {"name": "code", "type": "text", "default": "x"}]
    changes = Thread(target=lambda: root.put(f"collections/{made['id']}", {"schema": schema}))
    verify = versioned_cache.VersionChecks.verify

    def verify_then_change(checked: versioned_cache.VersionChecks) -> None:
        verify(checked)
        if not changes.ident and db.in_transaction():
            changes.start()
            changes.join(1)  # where it has to wait for the writer, it goes on after it

    monkeypatch.setattr(versioned_cache.VersionChecks, "verify", verify_then_change)
    made_record = make_record(alice, title="a")
    changes.join()
    assert alice.get(f"records/posts/{made_record['id']}").json["code"] == "x"
    assert_agreement(app)


def test_collection_deletion_counts_uncommitted_records(
    root: Caller, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection is deleted between a writer's statement and its commit."""
    schema = [TITLE | {"unique": True}]  # else it is written with the commit
    made, answers = make_collection(root, schema=schema), list[TestResponse]()
    deletion = Thread(target=lambda: answers.append(root.delete(f"collections/{made['id']}")))
    insert = writes.insert

    def insert_while_deleting(*given: Any) -> Any:
        rows = insert(*given)
        deletion.start()
        deletion.join(1)  # it has to wait for the writer
        return rows

    monkeypatch.setattr(writes, "insert", insert_while_deleting)
    make_record(alice, title="a")
    deletion.join()
    assert [one.json["records_deleted"] for one in answers] == [1]
    entries = root.get("audit-logs?table_name=col_posts&operation=DELETE").json["items"]
    assert [one["account_id"] for one in entries] == [alice.account_id]


@pytest.mark.not_on_citus(
    "a change of the collection may wait for the very writer that waits for it"
)
@pytest.mark.parametrize("database", ["postgresql"])  # on SQLite the change waits for the writer
@pytest.mark.parametrize(
    ("path", "body"), [("", {"title": "a"}), ("/batch", {"records": [{"title": "a"}]})]
)
def test_record_write_concurrent_with_unique_change_is_409(
    root: Caller, alice: Caller, monkeypatch: pytest.MonkeyPatch, path: str, body: Any
) -> None:
    made = make_collection(root, schema=[TITLE])
    make_record(alice, title="a")
    schema = {"schema": [TITLE | {"unique": True}]}
    change = Thread(target=lambda: root.put(f"collections/{made['id']}", schema))
    put = writes.write

    def change_then_put(*about: Any) -> None:
        change.start()
        change.join()
        put(*about)

    monkeypatch.setattr(writes, "write", change_then_put)
    answer = alice.post(f"records/posts{path}", body)
    assert (answer.status_code, answer.json["field"]) == (409, "title")
    assert [one["code"] for one in answer.json["details"]] == ["not_unique"]


@pytest.mark.timing
def test_schema_change_does_not_make_readers_wait_for_long_reader(
    app: Flask, root: Caller, alice: Caller
) -> None:
    """Whoever reads meanwhile waits a moment only, not until the long one is done."""
    made = make_collection(root)
    make_record(alice, title="a")
    reading, waits = Event(), list[float]()

    def read_long() -> None:
        with app.app_context(), db.db.engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection = connection.execution_options(isolation_level="READ COMMITTED")
            connection.exec_driver_sql("BEGIN") if connection.dialect.name == "sqlite" else None
            connection.exec_driver_sql("SELECT count(*) FROM col_posts").all()
            reading.set()
            time.sleep(2)
            connection.rollback()

    reader = Thread(target=read_long)
    reader.start()
    reading.wait()
    body = {"schema": [TITLE | {"required": True}]}
    answers = list[int]()
    changer = Thread(
        target=lambda: answers.append(root.put(f"collections/{made['id']}", body).status_code)
    )
    changer.start()
    while reader.is_alive():
        start = time.monotonic()
        assert alice.get("records/posts").status_code == 200
        waits.append(time.monotonic() - start)
        time.sleep(0.02)  # else it would be the processor that readers wait for
    reader.join()
    changer.join()
    assert answers == [200]
    assert max(waits) < 1.5
    assert_agreement(app)
