"""Whatever is done to a stored chain shows: generated for every column and every kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise, product
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.audit import checkpoints, entries, erase, exports, sealing
from app.audit.chain import digest, verify
from app.audit.entries import CHANGES
from app.audit.log import AUDIT
from app.audit.models import AuditChange, AuditCheckpoint, AuditHead
from app.db.citus import COLUMN
from tests import services
from tests.audit.chains import stand_alone
from tests.builders import Cast, make_collection, make_record
from tests.conftest import WHOLE
from tests.logs import unguarded

Entry = dict[str, Any]
Change = dict[str, Any]
# The change feed's columns are no part of the entries.
OF_FEED = {"unchanged", "size"}
COLUMNS = tuple(column.name for column in CHANGES.columns if column.name not in OF_FEED)
UNCHANGEABLE = (COLUMN,) if services.CITUS_NODES else ()  # Citus moves no row between accounts
NULLABLE = tuple(name for name in COLUMNS if CHANGES.c[name].nullable)
ERASABLE = {
    "salts": ("old_values", "new_values", "salts"),
    "actor_salts": (*digest.ACTOR_COLUMNS, "actor_salts"),
}
ERASABLE_OF_ENTRY = {
    "salt": ("old_value", "new_value", "salt"),
    "actor_salt": (*digest.ACTOR_COLUMNS, "actor_salt"),
}
ENTRY = tuple(name for name in exports.NAMES if name != "masked")
alone = stand_alone()


class Undo(Exception):
    """Takes back what a test did to the log."""


@pytest.fixture
def chain(cast: Cast) -> Iterator[tuple[str, str]]:
    """The ids of two accounts whose chains hold every kind of entry, erased ones too."""
    acme, globex = cast.alice.account_id, cast.charlie.account_id
    make_collection(cast.root, schema=[{"name": n, "type": "text"} for n in ("title", "body")])
    made = [make_record(cast.alice, title=f"number {i}", body="same") for i in range(3)]
    make_record(cast.charlie, title="of globex", body="same")
    cast.alice.patch(f"records/posts/{made[0]['id']}", {"title": "changed"})
    cast.alice.delete(f"records/posts/{made[1]['id']}")
    with cast.alice.app.app_context():
        assert erase.erase_values(acme, "col_posts", made[2]["id"]) == 3
        assert erase.erase_actor(acme, cast.bob.id, cast.bob.email) == 0
        sealing.settle(None)
        yield acme, globex


def stored(account_id: str) -> list[Change]:
    """The chain as it stands, columns as the database gives them."""
    mine = sa.select(CHANGES).where(CHANGES.c.account_id == account_id)
    rows = db.connection().execute(mine.order_by(CHANGES.c.first_id))
    return [dict(row._mapping) for row in rows]


def some(together: list[Change]) -> list[Change]:
    """Of each kind of change the first and the last, in their order."""
    ids = {change["first_id"] for pair in by_kind(together) for change in pair}
    return [change for change in together if change["first_id"] in ids]


def by_kind(together: list[Change]) -> list[tuple[Change, Change]]:
    """The first and the last change of each kind."""
    kinds: dict[Any, list[Change]] = {}
    for change in together:
        kind = (change["operation"], change["table_name"][:4], change["salts"] is None)
        kinds.setdefault(kind, []).append(change)
    return [(kind[0], kind[-1]) for kind in kinds.values()]


def edits(together: list[Change], whole: bool) -> Iterator[tuple[Change, str]]:
    """Of each kind of change every column: in the first or in the last one, or in both."""
    for first, last in by_kind(together):
        yield from product([first], COLUMNS if whole else COLUMNS[::2])
        yield from product([last], COLUMNS if whole else COLUMNS[1::2])


def put(change: Change, **values: Any) -> None:
    """Edit a change behind everybody's back."""
    db.connection().execute(sa.update(CHANGES).where(*place(change)).values(values))


def place(change: Change) -> tuple[Any, ...]:
    """The condition for a change."""
    return (
        CHANGES.c.account_id == change["account_id"],
        CHANGES.c.first_id == change["first_id"],
    )


def add(*changes: Change) -> None:
    """Insert changes behind everybody's back."""
    db.connection().execute(sa.insert(CHANGES), list(changes))


@contextmanager
def tampering() -> Iterator[None]:
    """A transaction without the triggers, whose changes are taken back."""
    try:
        with db.transaction(), unguarded():
            yield
            raise Undo
    except Undo:
        pass


def other(change: Change, column: str) -> Any:
    """Another value of the same kind."""
    value = change[column]
    if column in ("first_id", "last_id"):
        return value + 1_000_000
    if column in ("entries", "digest_version"):
        return value + 1
    if column in ("occurred_at", "es_timestamp"):
        return (value or change["occurred_at"]) + timedelta(microseconds=1)
    if column == "extra_metadata":
        return '{"count":1}'
    if column == "account_id":
        return "00000000-0000-0000-0000-000000000000"
    if column in ("salts", "actor_salts", "checksum"):
        return bytes(len(value or b"0" * 16))
    if column in ("columns", "old_values", "new_values"):
        return json.dumps(["another"] * change["entries"])
    if column == "ids":
        return json.dumps([change["first_id"] + 2 * place for place in range(change["entries"])])
    if column == "erased_digests":
        return json.dumps({kind: ["0" * 64] * change["entries"] for kind in ("values", "actor")})
    return f"{value}0"


def found(account_id: str, what: str) -> None:
    """The tampering must show, in this chain or over all."""
    assert (
        not verify.verify_all(AUDIT, account_id)["valid"] or not verify.verify_all(AUDIT)["valid"]
    ), what


def test_untouched_chain_is_valid(chain: tuple[str, str]) -> None:
    assert verify.verify_all(AUDIT)["valid"]
    checkpoints.create_due()
    assert verify.verify_all(AUDIT)["valid"]
    assert verify.verify_all(AUDIT, chain[0])["values_erased"] == 3


@pytest.mark.long
@WHOLE
@pytest.mark.one_database
def test_edited_column_breaks_chain(chain: tuple[str, str], whole: bool) -> None:
    for change, column in edits(stored(chain[0]), whole):
        # The ids of a single entry are the same, however they are stored.
        if (column != "ids" or change["entries"] > 1) and column not in UNCHANGEABLE:
            with tampering():
                put(change, **{column: other(change, column)})
                found(chain[0], f"{column} of {change['first_id']}")
    assert verify.verify_all(AUDIT)["valid"]


@pytest.mark.one_database
@pytest.mark.parametrize("text", ["", "null", "{}", "[1", "[]", '["a"]', "7"])
def test_malformed_array_column_breaks_chain(chain: tuple[str, str], text: str) -> None:
    change = next(one for one in stored(chain[0]) if one["entries"] > 1)
    for column in ("columns", "old_values", "new_values"):
        with tampering():
            put(change, **{column: text})
            found(chain[0], column)


JSON_COLUMNS = ("columns", "old_values", "new_values", "ids", "erased_digests", "extra_metadata")
UNREADABLE = [
    *product(JSON_COLUMNS, ("", "null", "[1", '["a",{"b":1}]')),
    ("erased_digests", '{"values":["a"]}'),
]
LISTS = ("audit-logs?limit=500", "audit-logs?limit=500&sort_by=id", "audit-logs/export?format=json")


@pytest.mark.long
def test_malformed_json_value_is_listed_and_reported_as_broken(cast: Cast) -> None:
    make_collection(cast.root, schema=[{"name": n, "type": "text"} for n in ("title", "body")])
    made = make_record(cast.alice, title="old", body="old")
    cast.alice.patch(f"records/posts/{made['id']}", {"title": "new", "body": "new"})
    before = cast.root.get(LISTS[0]).json["items"]
    id = min(entry["id"] for entry in before if is_of(entry, made))
    for column, text in UNREADABLE:
        change = edited_for_good(cast, id, {column: text})
        for path in LISTS:
            found = cast.root.get(path)
            assert found.status_code == 200, (column, text, path)
            rest = {entry["id"]: entry for entry in found.json["items"]}
            broken = rest[id]
            assert (broken["record_id"], broken["user_id"]) == (made["id"], cast.alice.id)
            assert (broken["old_value"], broken["new_value"]) == (None, None)
            assert broken["column_name"] == ("" if column == "columns" else "title")
            unbroken = [entry for entry in before if entry["id"] not in (id, id + 1)]
            assert [rest[entry["id"]] for entry in unbroken] == unbroken
        assert cast.root.get(f"audit-logs/{id}").json == broken
        told = cast.root.get("audit-logs/verify").json
        assert (told["valid"], told["first_broken_id"]) == (False, id), (column, text)
        edited_for_good(cast, id, {column: change[column]})
    assert cast.root.get("audit-logs/verify").json["valid"]
    assert cast.root.get(LISTS[0]).json["items"] == before


def is_of(entry: Entry, record: Entry) -> bool:
    """Whether an entry is of the update of a record."""
    return entry["record_id"] == record["id"] and entry["operation"] == "UPDATE"


def edited_for_good(cast: Cast, id: int, values: Change) -> Change:
    """Edit a change; returns what it was."""
    with cast.root.app.app_context(), db.transaction(), unguarded():
        change = next(one for one in stored(cast.alice.account_id) if one["first_id"] == id)
        put(change, **values)
    return change


@pytest.mark.long
@pytest.mark.one_database
def test_column_set_to_null_breaks_chain(chain: tuple[str, str]) -> None:
    for change, column in product(some(stored(chain[0])), NULLABLE):
        if change[column] is not None:
            with tampering():
                put(change, **{column: None})
                found(chain[0], f"{column} of {change['first_id']}")


@pytest.mark.parametrize("keeps_digests", [True, False])
def test_erasure_without_audit_entry_breaks_chain(
    chain: tuple[str, str], keeps_digests: bool
) -> None:
    for change, salts in product(some(stored(chain[0])), ERASABLE):
        if change[salts] is None:
            continue
        with tampering():
            digests = json.loads(change["erased_digests"] or "{}")
            name = "values_digest" if salts == "salts" else "actor_digest"
            digests[name.removesuffix("_digest")] = [one[name] for one in computed(change)]
            kept = {"erased_digests": json.dumps(digests)} if keeps_digests else {}
            put(change, **dict.fromkeys(ERASABLE[salts]), **kept)
            assert verify.verify_all(AUDIT, chain[0])["first_broken_id"] == change["first_id"]


def computed(change: Change, previous: bytes = b"") -> list[Entry]:
    """The entries of a change."""
    return entries.of_change({**change, "previous": previous})


def test_list_columns_that_differ_from_entries_break_chain(
    chain: tuple[str, str],
) -> None:
    for change in stored(chain[0])[2:6]:
        made = [
            change | {"first_id": -5, "user_id": "mallory"},
            change | {"first_id": 10**12, "last_id": 10**12},
            change | {"account_id": "nobody"},
        ]
        for one in made:
            with tampering():
                add(one)
                found(chain[0], str(one))
    assert verify.verify_all(AUDIT)["valid"]


@pytest.mark.long
@pytest.mark.one_database
def test_columns_swapped_between_changes_break_chain(chain: tuple[str, str]) -> None:
    columns = set(COLUMNS) - {"account_id", "first_id"}
    for (one, next_one), column in product(pairwise(some(stored(chain[0]))), columns):
        if one[column] != next_one[column]:
            with tampering():
                put(one, **{column: next_one[column]})
                put(next_one, **{column: one[column]})
                found(chain[0], f"{column} of {one['first_id']}")


def test_swapped_changes_break_chain(chain: tuple[str, str]) -> None:
    together = stored(chain[0])
    for one, next_one in pairwise(some(together)):
        with tampering():
            rest = [name for name in COLUMNS if name not in ("account_id", "first_id", "last_id")]
            put(one, **{name: next_one[name] for name in rest})
            put(next_one, **{name: one[name] for name in rest})
            found(chain[0], f"{one['first_id']}")


def test_deleted_change_breaks_chain(chain: tuple[str, str]) -> None:
    for change in some(stored(chain[0])):
        with tampering():
            remove(chain[0], change["first_id"], change["first_id"])
            found(chain[0], f"{change['first_id']}")


def remove(account_id: str, first: int, last: int) -> None:
    """Delete changes of a chain."""
    mine = (CHANGES.c.account_id == account_id, CHANGES.c.first_id.between(first, last))
    db.connection().execute(sa.delete(CHANGES).where(*mine))


def linked(account_id: str, changed: Callable[[list[Change]], None]) -> None:
    """Edit a chain and compute every hash of it anew, its head included."""
    together = stored(account_id)
    remove(account_id, 0, 2**62)
    changed(together)
    previous = b""
    for change in together:
        found = computed(change, previous)
        link = digest.checksums(
            previous.hex() or digest.FIRST_PREVIOUS,
            [entry["id"] for entry in found],
            [entry["entry_digest"] for entry in found],
        )
        *_, last = link
        change["checksum"] = previous = bytes.fromhex(last)
    add(*together)
    head = {"last_id": together[-1]["last_id"], "checksum": previous.hex()}
    mine = AuditHead.account_id == account_id
    db.connection().execute(sa.update(AuditHead).where(mine).values(head))


def rewrite(together: list[Entry]) -> None:
    """A small lie."""
    change = next(one for one in together if one["new_values"])
    change["new_values"] = json.dumps(["a lie"] * change["entries"])


def test_rewritten_chain_contradicts_checkpoint(chain: tuple[str, str]) -> None:
    with tampering():
        linked(chain[0], rewrite)
        assert verify.verify_all(AUDIT, chain[0])["valid"]  # without a checkpoint nothing tells
    checkpoints.create_due()
    kept = list(checkpoints.for_account(chain[0]))
    with tampering():
        linked(chain[0], rewrite)
        assert verify.verify_all(AUDIT, chain[0])["first_broken_id"] == kept[0]["entry_id"]
        db.connection().execute(sa.delete(AuditCheckpoint))
        assert verify.verify_all(AUDIT, chain[0])["valid"]
        assert verify.verify_all(AUDIT, chain[0], kept)["first_broken_id"] == kept[0]["entry_id"]
    assert verify.verify_all(AUDIT, chain[0], kept)["valid"]


def test_truncated_chain_contradicts_checkpoint(chain: tuple[str, str]) -> None:
    checkpoints.create_due()
    kept = list(checkpoints.for_account(chain[0]))
    together = stored(chain[0])
    for cut in range(0, len(together), 4):
        last = together[cut]["first_id"]
        with tampering():
            remove(chain[0], last, 2**62)
            db.connection().execute(sa.delete(AuditCheckpoint))
            found(chain[0], f"from {last} on")
            before = together[cut - 1] if cut else {"last_id": 0, "checksum": bytes(32)}
            head = {"last_id": before["last_id"], "checksum": before["checksum"].hex()}
            mine = AuditHead.account_id == chain[0]
            db.connection().execute(sa.update(AuditHead).where(mine).values(head))
            assert not verify.verify_all(AUDIT, chain[0], kept)["valid"]
            assert not verify.verify_all(AUDIT, None, kept)["valid"]


def test_missing_chain_contradicts_checkpoint(chain: tuple[str, str]) -> None:
    checkpoints.create_due()
    kept = list(checkpoints.for_account())
    with tampering():
        remove(chain[0], 0, 2**62)
        for model in (AuditHead, AuditCheckpoint, AuditChange):
            db.connection().execute(sa.delete(model).where(model.account_id == chain[0]))
        assert verify.verify_all(AUDIT)["valid"]
        assert verify.verify_all(AUDIT, None, kept)["account_id"] == chain[0]


@pytest.mark.long
@pytest.mark.one_database
def test_inserted_change_breaks_chain(chain: tuple[str, str]) -> None:
    """Copied within the chain, from another chain, before, between and behind."""
    together = stored(chain[0])
    places = [-5, 0, *(one["first_id"] for one in some(together)), together[-1]["last_id"] + 7]
    used = {change["first_id"] for change in together}
    for copied in (*together[:2], *stored(chain[1])[:2]):
        for place in places:
            id = next(i for i in range(place, 2**62) if i not in used)
            with tampering():
                ends = {"first_id": id, "last_id": id + copied["entries"] - 1}
                add({**copied, "account_id": chain[0], **ends})
                found(chain[0], f"{copied['first_id']} at {id}")


def test_moved_change_breaks_chain(chain: tuple[str, str]) -> None:
    together = stored(chain[0])
    free = [-(2**63), 0, together[-1]["last_id"] + 1]
    for change in some(together):
        for id in free:
            with tampering():
                put(change, first_id=id, last_id=id + change["entries"] - 1)
                found(chain[0], f"{change['first_id']} to {id}")


def test_appended_change_contradicts_chain_head(chain: tuple[str, str]) -> None:
    last = stored(chain[0])[-1]
    ends = {"first_id": last["last_id"] + 1, "last_id": last["last_id"] + last["entries"]}
    forged = {**last, **ends, "ids": None}
    found = computed(forged, last["checksum"])
    ids, digests = ([one[name] for one in found] for name in ("id", "entry_digest"))
    *_, checksum = digest.checksums(last["checksum"].hex(), ids, digests)
    with tampering():
        add({**forged, "checksum": bytes.fromhex(checksum)})
        assert verify.verify_all(AUDIT, chain[0])["first_broken_id"] == ends["last_id"]


@pytest.mark.long
@WHOLE
@pytest.mark.one_database
def test_tampered_export_is_detected_by_both_verifiers(
    app: Flask, chain: tuple[str, str], whole: bool
) -> None:
    """By the application and by the stand-alone verifier alike."""
    mine = [CHANGES.c.account_id == chain[0]]
    written = list(entries.iter_entries(mine))
    checkpoints.create_due()
    kept = list(checkpoints.for_account(chain[0]))
    for name, tampered in tampered_exports(written, whole):
        given = json.loads(json.dumps(tampered))
        broken = not verify.verify_export(given, kept)["valid"]
        chains = alone.verify(given, kept).values()
        assert broken == any(one.fault is not None for one in chains) == (name != "untouched"), name


def edited(written: list[Entry], at: int, change: Entry) -> list[Entry]:
    """An export of which one entry is another."""
    return [*written[:at], written[at] | change, *written[at + 1 :]]


def tampered_exports(written: list[Entry], whole: bool) -> Iterator[tuple[str, list[Entry]]]:
    """An export, untouched and in every way tampered with: by turns half of the columns, or all."""
    yield "untouched", written
    for turn, at in enumerate(range(0, len(written), 5)):
        yield f"{at} left out", written[:at] + written[at + 1 :]
        yield f"{at} twice", written[: at + 1] + written[at:]
        for column in ENTRY if whole else ENTRY[turn % 2 :: 2]:
            value = written[at][column]
            change = {column: value + 1 if column == "id" else f"{value}0"}
            yield f"{column} of {at}", edited(written, at, change)
        for salt, columns in ERASABLE_OF_ENTRY.items():
            if written[at][salt] is not None:
                yield f"{salt} of {at}", edited(written, at, dict.fromkeys(columns))
    for at in range(0, len(written) - 1, 1 if whole else 3):
        yield f"{at} swapped", [*written[:at], written[at + 1], written[at], *written[at + 2 :]]
