"""The total of an unfiltered list is exact, whoever writes, and no record is counted for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.collections import service as collections
from app.collections import totals
from app.context import tenancy
from app.ids import new_id
from app.jobs import worker
from tests.builders import Caller, Cast, make_collection, make_record
from tests.parallel import at_once
from tests.sql import statements

REFERENCE = {"name": "parent", "type": "reference", "collection": "posts", "on_delete": "cascade"}
SCHEMA = [{"name": "title", "type": "text"}, REFERENCE]
COPY = sa.text(
    "INSERT INTO col_posts (account_id, id, created_at, updated_at)"
    " SELECT account_id, id || :suffix, created_at, updated_at FROM col_posts"
)


def totals_of(callers: Sequence[Caller], path: str = "records/posts?limit=1") -> list[int]:
    return [caller.get(path).json["total"] for caller in callers]


def check(app: Flask, cast: Cast, expected: int, others: int = 1) -> None:
    """Every place says the same, which is what there is."""
    callers = (cast.alice, cast.bob, cast.charlie)
    assert totals_of(callers) == [expected, expected, others]
    assert totals_of(callers, "records/posts?skip=1000") == [expected, expected, others]
    assert totals_of([cast.root.acting_in("*")]) == [expected + others]
    listed = cast.root.get("collections").json["items"]
    one = cast.root.get("collections/posts").json
    assert [one["record_count"] for one in (*listed, one)] == [expected + others] * 2
    with app.app_context():
        accounts = (cast.alice.account_id, cast.charlie.account_id)
        counted = [
            db.connection().scalar(
                sa.text("SELECT count(*) FROM col_posts WHERE account_id = :id"), {"id": id}
            )
            for id in accounts
        ]
    assert counted == [expected, others]


def copy(app: Flask, *suffixes: str) -> None:
    """Copy all records once per suffix, in one transaction."""
    with app.app_context(), db.transaction() as session:
        for suffix in suffixes:
            session.execute(COPY, {"suffix": suffix})


def test_list_total_follows_every_write(app: Flask, cast: Cast) -> None:
    collection = make_collection(cast.root, schema=SCHEMA)
    alice = cast.alice
    assert totals_of([alice, cast.root], "records/posts?skip=3") == [0, 0]
    make_record(cast.charlie)
    check(app, cast, 0)
    first = make_record(alice)["id"]
    children = [make_record(alice, parent=first)["id"] for _ in range(2)]
    check(app, cast, 3)
    assert alice.post("records/posts", {"parent": new_id()}).status_code == 400
    assert alice.patch(f"records/posts/{first}", {"title": "b"}).status_code == 200
    check(app, cast, 3)
    batch = {"records": [{"title": "x"}] * 60}
    assert alice.post("records/posts/batch", batch).status_code == 201
    wrong = {"records": [{"title": "x"}] * 60 + [{"title": 1}]}
    assert alice.post("records/posts/batch", wrong).status_code == 400
    check(app, cast, 63)
    lines = b'{"title": "y"}\n' * 3
    answer = alice.post("records/posts/import", data=lines, content_type="application/x-ndjson")
    assert answer.status_code in (200, 201), answer.json
    check(app, cast, 66)
    assert alice.delete(f"records/posts/{children[0]}").status_code == 204
    check(app, cast, 65)
    assert alice.delete(f"records/posts/{first}").status_code == 204
    check(app, cast, 63)
    wider = [*SCHEMA, {"name": "size", "type": "number", "required": True, "default": 1}]
    path = f"collections/{collection['id']}"
    assert cast.root.put(path, {"schema": wider}).status_code == 200
    make_record(alice)
    check(app, cast, 64)


def test_list_total_counts_no_records(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    make_record(cast.alice)
    for caller, path in [
        (cast.alice, "records/posts"),
        (cast.alice, "records/posts?sort=title&skip=1"),
        (cast.root.acting_in("*"), "records/posts"),
        (cast.root, "collections"),
    ]:
        caller.get(path)  # what is loaded once only
        with statements(app) as seen:
            assert caller.get(path).status_code == 200
        # The list of collections counts themselves.
        assert [text for text in seen if "count(" in text and "col_posts" in text] == []


def test_list_total_with_filter_or_rule_counts_matches(cast: Cast) -> None:
    make_collection(cast.root, list_rule="title = 'seen' || @has_role(admin)")
    for title in ("seen", "unseen", "unseen"):
        make_record(cast.alice, title=title)
    assert totals_of([cast.alice, cast.bob, cast.charlie]) == [3, 1, 0]
    assert totals_of([cast.alice], "records/posts?title=unseen") == [2]


def test_list_total_counts_concurrent_writes(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    make_record(cast.charlie)

    def write(number: int) -> None:
        caller = (cast.alice, cast.bob)[number % 2]
        made = [make_record(cast.alice)["id"] for _ in range(5)]
        assert cast.alice.delete(f"records/posts/{made[0]}").status_code == 204
        assert caller.get("records/posts").status_code == 200

    at_once(6, write)
    check(app, cast, 24)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_list_total_update_does_not_block_other_writers(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    make_record(cast.charlie)
    make_record(cast.alice)
    with app.app_context(), db.transaction() as session:
        session.execute(COPY, {"suffix": "a"})
        with db.db.engine.connect() as other:
            other.exec_driver_sql("SET statement_timeout = '5s'")
            other.execute(COPY, {"suffix": "b"})
            other.exec_driver_sql("RESET statement_timeout")
    check(app, cast, 3, 3)


def test_list_total_follows_statement_on_many_accounts(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    for caller in (cast.alice, cast.alice, cast.charlie):
        make_record(caller)
    copy(app, "y", "z")
    check(app, cast, 8, 4)
    with app.app_context(), db.transaction() as session:
        session.execute(sa.text("DELETE FROM col_posts WHERE id LIKE '%z'"))
        session.execute(sa.text("DELETE FROM col_posts WHERE id = 'none'"))
    check(app, cast, 4, 2)


def test_list_total_ignores_rolled_back_writes(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    make_record(cast.charlie)
    make_record(cast.alice)
    with pytest.raises(sa.exc.IntegrityError):
        copy(app, "a", "a")
    check(app, cast, 1)


def test_list_total_without_triggers_of_older_release_is_counted(app: Flask, cast: Cast) -> None:
    made = make_collection(cast.root)
    with app.app_context(), tenancy.as_owner(), db.transaction():
        for event in totals.EVENTS:
            name = totals.TRIGGER.format(event=event, id=made["id"])
            table = "" if db.has_one_writer() else "ON col_posts"
            db.connection().exec_driver_sql(f'DROP TRIGGER "{name}" {table}')
    make_record(cast.charlie)
    for _ in range(2):
        make_record(cast.alice)
    check(app, cast, 2)
    with app.app_context():
        collections.ensure_totals()
    make_record(cast.alice)
    check(app, cast, 3)


def test_list_total_rows_are_deleted_with_collection_or_account(app: Flask, cast: Cast) -> None:
    for name in ("posts", "others"):
        make_collection(cast.root, name)
        make_record(cast.alice, name)
        make_record(cast.charlie, name)
    numbers = sa.text("SELECT account_id, records FROM record_counts ORDER BY 1")
    assert cast.root.delete("collections/" + id_of(cast.root, "others")).status_code == 200
    assert cast.root.delete(f"accounts/{cast.charlie.account_id}").status_code == 204
    with app.app_context():
        worker.run_due()
        left = db.connection().execute(numbers).all()
    assert left == [(cast.alice.account_id, 1)]


def id_of(root: Caller, name: str) -> str:
    return str(root.get(f"collections/{name}").json["id"])
