"""`flask account restore --at`: records become what they were, as audited changes."""

from __future__ import annotations

from flask import Flask

from app import clock
from app.accounts.models import SYSTEM_ACCOUNT_ID
from tests.builders import Cast, make_record
from tests.bundle.accounts import furnish, hashes, run

ROOT = ("--as", "root@system.example")
LISTS = ("records/posts?sort=title", "records/authors?sort=name")
EDITS = ("updated_at", "updated_by", "created_at", "created_by")


def values(cast: Cast) -> list[object]:
    """The records of acme without who changed them when."""
    lists = [cast.alice.get(path).json["items"] for path in LISTS]
    return [[{k: v for k, v in one.items() if k not in EDITS} for one in items] for items in lists]


def test_records_become_what_they_were(cast: Cast, app: Flask) -> None:
    furnish(cast)
    before, moment = values(cast), clock.iso(clock.now())
    first, second = cast.alice.get("records/posts?sort=title").json["items"]
    author = cast.alice.get("records/authors").json["items"][0]
    cast.alice.patch(f"records/posts/{first['id']}", {"title": "changed", "meta": {"c": 1}})
    cast.alice.patch(f"records/authors/{author['id']}", {"best": None, "name": "Other"})
    assert cast.alice.delete(f"records/posts/{second['id']}").status_code == 204
    make_record(cast.alice, title="later", parent=first["id"])
    after = values(cast)
    others = hashes(app, cast.charlie.account_id, SYSTEM_ACCOUNT_ID)
    planned = run(app, "account", "restore", "acme", "--at", moment, *ROOT)
    assert planned.exit_code == 0, planned.output
    lines = ("authors: change 1", "posts: change 1", "posts: create 1", "posts: delete 1")
    assert planned.output.splitlines()[:-1] == list(lines)
    assert values(cast) == after
    restored = run(app, "account", "restore", "acme", "--at", moment, "--yes", *ROOT)
    assert restored.exit_code == 0, restored.output
    assert values(cast) == before
    assert hashes(app, cast.charlie.account_id, SYSTEM_ACCOUNT_ID) == others
    assert run(app, "audit", "verify").exit_code == 0
    again = run(app, "account", "restore", "acme", "--at", moment, "--yes", *ROOT)
    assert "All records are what they were" in again.output
    history = cast.alice.get(f"records/posts/{first['id']}/history").json["items"]
    assert history[0]["user_email"] == "root@system.example"


def test_a_moment_that_is_none_is_refused(cast: Cast, app: Flask) -> None:
    refused = run(app, "account", "restore", "acme", "--at", "yesterday", *ROOT)
    assert (refused.exit_code, "is no time" in refused.output) == (1, True)
