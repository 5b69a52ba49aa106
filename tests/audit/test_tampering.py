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
from app.audit import change_index, checkpoints, digest, entries, erase, verify
from app.audit.entries import CHANGES
from app.audit.models import AuditChange, AuditCheckpoint, AuditEntry, AuditHead
from tests.audit.chains import stand_alone
from tests.builders import Cast, make_collection, make_record
from tests.conftest import WHOLE
from tests.logs import unguarded

Entry = dict[str, Any]
LOG = AuditEntry.__table__
COLUMNS = tuple(column.name for column in LOG.columns)
NULLABLE = tuple(column.name for column in LOG.columns if column.nullable)
ERASABLE = {
    "salt": ("old_value", "new_value", "salt"),
    "actor_salt": (*digest.ACTOR_COLUMNS, "actor_salt"),
}
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
        yield acme, globex


def stored(account_id: str) -> list[Entry]:
    """The chain as it stands, columns as the database gives them."""
    mine = sa.select(LOG).where(LOG.c.account_id == account_id).order_by(LOG.c.id)
    return [dict(row._mapping) for row in db.connection().execute(mine)]


def some(together: list[Entry]) -> list[Entry]:
    """Of each kind of entry the first and the last, in their order."""
    ids = {entry["id"] for pair in by_kind(together) for entry in pair}
    return [entry for entry in together if entry["id"] in ids]


def by_kind(together: list[Entry]) -> list[tuple[Entry, Entry]]:
    """The first and the last entry of each kind."""
    kinds: dict[Any, list[Entry]] = {}
    for entry in together:
        kind = (entry["operation"], entry["table_name"][:4], entry["salt"] is None)
        kinds.setdefault(kind, []).append(entry)
    return [(kind[0], kind[-1]) for kind in kinds.values()]


def edits(together: list[Entry], whole: bool) -> Iterator[tuple[Entry, str]]:
    """Of each kind of entry every column: in the first or in the last entry, or in both."""
    for first, last in by_kind(together):
        yield from product([first], COLUMNS if whole else COLUMNS[::2])
        yield from product([last], COLUMNS if whole else COLUMNS[1::2])


def put(entry: Entry, **values: Any) -> None:
    """Change an entry behind everybody's back."""
    mine = (LOG.c.account_id == entry["account_id"], LOG.c.id == entry["id"])
    db.connection().execute(sa.update(LOG).where(*mine).values(values))


@contextmanager
def tampering() -> Iterator[None]:
    """A transaction without the triggers, whose changes are taken back."""
    try:
        with db.transaction(), unguarded():
            yield
            raise Undo
    except Undo:
        pass


def other(entry: Entry, column: str) -> Any:
    """Another value of the same kind."""
    value = entry[column]
    if column == "id":
        return value + 1_000_000
    if column in ("occurred_at", "es_timestamp"):
        return (value or entry["occurred_at"]) + timedelta(microseconds=1)
    if column == "extra_metadata":
        return {"count": 1}
    if column == "account_id":
        return "00000000-0000-0000-0000-000000000000"
    return "0" * 64 if value is None else f"{value}0"


def found(account_id: str, what: str) -> None:
    """The tampering must show, in this chain or over all."""
    assert not verify.verify_all(account_id)["valid"] or not verify.verify_all()["valid"], what


def test_untouched_it_is_valid(chain: tuple[str, str]) -> None:
    assert verify.verify_all()["valid"]
    checkpoints.create_due()
    assert verify.verify_all()["valid"]
    assert verify.verify_all(chain[0])["values_erased"] == 3


@WHOLE
@pytest.mark.one_database
def test_an_edited_column_shows_in_every_entry(chain: tuple[str, str], whole: bool) -> None:
    for entry, column in edits(stored(chain[0]), whole):
        with tampering():
            put(entry, **{column: other(entry, column)})
            found(chain[0], f"{column} of {entry['id']}")
    assert verify.verify_all()["valid"]


@pytest.mark.one_database
def test_a_column_set_to_null_shows(chain: tuple[str, str]) -> None:
    for entry, column in product(some(stored(chain[0])), NULLABLE):
        if entry[column] is not None:
            with tampering():
                put(entry, **{column: None})
                found(chain[0], f"{column} of {entry['id']}")


def test_values_emptied_with_their_salt_show(chain: tuple[str, str]) -> None:
    for entry, salt in product(some(stored(chain[0])), ERASABLE):
        if entry[salt] is not None:
            with tampering():
                put(entry, **dict.fromkeys(ERASABLE[salt]))
                report = verify.verify_all(chain[0])
                assert report["first_broken_id"] == entry["id"]


def test_what_lists_go_by_shows_when_it_is_not_what_the_log_tells(chain: tuple[str, str]) -> None:
    mine = sa.select(CHANGES).where(CHANGES.c.account_id == chain[0]).order_by(CHANGES.c.first_id)
    for change in map(dict, db.connection().execute(mine).mappings().all()[2:6]):
        first, last = change["first_id"], change["last_id"]
        place = (CHANGES.c.account_id == chain[0], CHANGES.c.first_id == first)
        others = {name: other({**change, "id": 0}, name) for name in change_index.COPIED_COLUMNS}
        others |= {"account_id": chain[1], "entries": change["entries"] + 1}
        others |= {"first_id": first + 1, "last_id": last + 1_000_000}
        edited = [sa.update(CHANGES).where(*place).values({n: v}) for n, v in others.items()]
        made = [
            change | {"first_id": -5, "user_id": "mallory"},
            change | {"first_id": 10**12, "last_id": 10**12},
            change | {"account_id": "nobody"},
        ]
        inserted = [sa.insert(CHANGES).values(values) for values in made]
        for what in (*edited, *inserted, sa.delete(CHANGES).where(*place)):
            with tampering():
                db.connection().execute(what)
                found(chain[0], str(what))
    assert verify.verify_all()["valid"]


def test_lists_that_leave_one_entry_out_and_tell_another_twice_show(
    chain: tuple[str, str],
) -> None:
    mine = sa.select(CHANGES).where(CHANGES.c.account_id == chain[0]).order_by(CHANGES.c.first_id)
    changes = [dict(row) for row in db.connection().execute(mine).mappings()]
    alone = next(one for one in changes if one["entries"] == 1)
    several = next(one for one in changes if one["entries"] > 1)
    with tampering():
        gone = CHANGES.c.first_id == alone["first_id"]
        db.connection().execute(sa.delete(CHANGES).where(gone))
        twice = several | {"first_id": several["last_id"], "entries": 1}
        db.connection().execute(sa.insert(CHANGES).values(twice))
        found(chain[0], "one for the other")


@pytest.mark.one_database
def test_columns_swapped_between_neighbours_show(chain: tuple[str, str]) -> None:
    columns = set(COLUMNS) - {"account_id", "id"}
    for (one, next_one), column in product(pairwise(some(stored(chain[0]))), columns):
        if one[column] != next_one[column]:
            with tampering():
                put(one, **{column: next_one[column]})
                put(next_one, **{column: one[column]})
                found(chain[0], f"{column} of {one['id']}")


def test_whole_entries_swapped_show(chain: tuple[str, str]) -> None:
    together = stored(chain[0])
    for one, next_one in pairwise(some(together)):
        with tampering():
            rest = [name for name in COLUMNS if name not in ("account_id", "id")]
            put(one, **{name: next_one[name] for name in rest})
            put(next_one, **{name: one[name] for name in rest})
            found(chain[0], f"{one['id']}")


def test_a_deleted_entry_shows(chain: tuple[str, str]) -> None:
    for entry in some(stored(chain[0])):
        with tampering():
            remove(chain[0], entry["id"], entry["id"])
            found(chain[0], f"{entry['id']}")


def remove(account_id: str, first: int, last: int) -> None:
    """Delete entries of a chain."""
    mine = (LOG.c.account_id == account_id, LOG.c.id.between(first, last))
    db.connection().execute(sa.delete(LOG).where(*mine))


def linked(account_id: str, changed: Callable[[list[Entry]], None]) -> None:
    """Change a chain and compute every hash of it anew, its head included."""
    together = stored(account_id)
    remove(account_id, 0, 2**62)
    changed(together)
    previous = digest.FIRST_PREVIOUS
    for entry in together:
        text = entries.to_dict(type("Row", (), {"_mapping": entry}))
        if entry["salt"] is not None:
            values = (entry["old_value"], entry["new_value"])
            text["values_digest"] = digest.values_digest(entry["salt"], *values)
        entry["values_digest"] = text["values_digest"]
        entry["entry_digest"] = digest.entry_digest(text)
        entry["previous_hash"] = previous
        previous = digest.checksum(previous, entry["id"], entry["entry_digest"])
        entry["checksum"] = previous
    db.connection().execute(sa.insert(LOG), together)
    head = {"last_id": together[-1]["id"], "checksum": previous}
    mine = AuditHead.account_id == account_id
    db.connection().execute(sa.update(AuditHead).where(mine).values(head))


def rewrite(together: list[Entry]) -> None:
    """A small lie."""
    together[3]["new_value"] = "a lie"


def test_a_chain_written_anew_shows_by_a_checkpoint(chain: tuple[str, str]) -> None:
    with tampering():
        linked(chain[0], rewrite)
        assert verify.verify_all(chain[0])["valid"]  # without a checkpoint nothing tells
    checkpoints.create_due()
    kept = list(checkpoints.for_account(chain[0]))
    with tampering():
        linked(chain[0], rewrite)
        assert verify.verify_all(chain[0])["first_broken_id"] == kept[0]["entry_id"]
        db.connection().execute(sa.delete(AuditCheckpoint))
        assert verify.verify_all(chain[0])["valid"]
        assert verify.verify_all(chain[0], kept)["first_broken_id"] == kept[0]["entry_id"]
    assert verify.verify_all(chain[0], kept)["valid"]


def test_a_cut_off_end_shows(chain: tuple[str, str]) -> None:
    checkpoints.create_due()
    kept = list(checkpoints.for_account(chain[0]))
    together = stored(chain[0])
    for cut in range(0, len(together), 9):
        last = together[cut]["id"]
        with tampering():
            remove(chain[0], last, 2**62)
            db.connection().execute(sa.delete(AuditCheckpoint))
            found(chain[0], f"from {last} on")
            before = together[cut - 1] if cut else {"id": 0, "checksum": digest.FIRST_PREVIOUS}
            head = {"last_id": before["id"], "checksum": before["checksum"]}
            mine = AuditHead.account_id == chain[0]
            db.connection().execute(sa.update(AuditHead).where(mine).values(head))
            assert not verify.verify_all(chain[0], kept)["valid"]
            assert not verify.verify_all(None, kept)["valid"]


def test_a_chain_that_is_gone_shows(chain: tuple[str, str]) -> None:
    checkpoints.create_due()
    kept = list(checkpoints.for_account())
    with tampering():
        remove(chain[0], 0, 2**62)
        for model in (AuditHead, AuditCheckpoint, AuditChange):
            db.connection().execute(sa.delete(model).where(model.account_id == chain[0]))
        assert verify.verify_all()["valid"]
        assert verify.verify_all(None, kept)["account_id"] == chain[0]


@pytest.mark.one_database
def test_an_inserted_entry_shows(chain: tuple[str, str]) -> None:
    """Copied within the chain, from another chain, before, between and behind."""
    together = stored(chain[0])
    places = [-5, 0, *(entry["id"] for entry in some(together)), together[-1]["id"] + 7]
    used = {entry["id"] for entry in together}
    for copied in (*together[:2], *stored(chain[1])[:2]):
        for place in places:
            id = next(i for i in range(place, 2**62) if i not in used)
            with tampering():
                new = {**copied, "account_id": chain[0], "id": id}
                db.connection().execute(sa.insert(LOG), [new])
                found(chain[0], f"{copied['id']} at {id}")


def test_an_entry_moved_to_another_place_shows(chain: tuple[str, str]) -> None:
    together = stored(chain[0])
    free = [-(2**63), 0, together[-1]["id"] + 1]
    for entry in some(together):
        for id in free:
            with tampering():
                put(entry, id=id)
                found(chain[0], f"{entry['id']} to {id}")


def test_an_appended_entry_that_fits_shows_by_the_head(chain: tuple[str, str]) -> None:
    last = stored(chain[0])[-1]
    forged = {**last, "id": last["id"] + 1, "previous_hash": last["checksum"]}
    forged["checksum"] = digest.checksum(last["checksum"], forged["id"], last["entry_digest"])
    with tampering():
        db.connection().execute(sa.insert(LOG), [forged])
        assert verify.verify_all(chain[0])["first_broken_id"] == forged["id"]


@WHOLE
@pytest.mark.one_database
def test_the_same_shows_in_an_export(app: Flask, chain: tuple[str, str], whole: bool) -> None:
    """By the application and by the stand-alone verifier alike."""
    mine = [LOG.c.account_id == chain[0]]
    written = list(entries.iter_entries(mine))
    checkpoints.create_due()
    kept = list(checkpoints.for_account(chain[0]))
    for name, tampered in exports(written, whole):
        given = json.loads(json.dumps(tampered))
        broken = not verify.verify_export(given, kept)["valid"]
        chains = alone.verify(given, kept).values()
        assert broken == any(one.fault is not None for one in chains) == (name != "untouched"), name


def edited(written: list[Entry], at: int, change: Entry) -> list[Entry]:
    """An export of which one entry is another."""
    return [*written[:at], written[at] | change, *written[at + 1 :]]


def exports(written: list[Entry], whole: bool) -> Iterator[tuple[str, list[Entry]]]:
    """An export, untouched and in every way tampered with: by turns half of the columns, or all."""
    yield "untouched", written
    for turn, at in enumerate(range(0, len(written), 5)):
        yield f"{at} left out", written[:at] + written[at + 1 :]
        yield f"{at} twice", written[: at + 1] + written[at:]
        for column in COLUMNS if whole else COLUMNS[turn % 2 :: 2]:
            value = written[at][column]
            change = {column: value + 1 if column == "id" else f"{value}0"}
            yield f"{column} of {at}", edited(written, at, change)
        for salt, columns in ERASABLE.items():
            if written[at][salt] is not None:
                yield f"{salt} of {at}", edited(written, at, dict.fromkeys(columns))
    for at in range(0, len(written) - 1, 1 if whole else 3):
        yield f"{at} swapped", [*written[:at], written[at + 1], written[at], *written[at + 2 :]]
