"""How records are written: always many, in a few statements; one record is a list of one.

All of it runs inside `service.writing`. What is sent is first checked (`prepare_...`), for all
records of a request, and only then stored (`store_...`); whatever fails rolls all of it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from app import clock, db, events
from app.auth import principal as principals
from app.auth.principal import ELSEWHERE, Principal
from app.collections import access as accesses
from app.collections.access import Access
from app.collections.definition import Definition
from app.db import versioned_cache
from app.db.versioned_cache import Checked
from app.errors import Forbidden, NotFound, Unauthorized, problem
from app.ids import new_id
from app.records import store
from app.records.read import etags, event_view, views
from app.records.read.views import Shown
from app.records.store import Row, reads, writes
from app.records.write import conflicts, values
from app.records.write.values import Body, Problems

NO_RECORD = "There is no such record."


@dataclass(frozen=True)
class Change:
    """Records that are about to be stored; `before` is empty where they are new."""

    access: Access
    before: Sequence[store.Row]
    values: Sequence[Mapping[str, Any]]
    sent: Sequence[Mapping[str, Any]]
    problems: Problems


def prepare_new(
    definition: Definition, bodies: Sequence[Body], problems: Problems, by: Principal
) -> Change:
    """New records, checked as far as `problems` tell. Raises Forbidden, Unauthorized."""
    access = accesses.of(by, definition, "create")
    access.check_open()
    system = new_system_values(_accounts_to_write(by, bodies, problems), by.user_id)
    rows = values.clean_new(access, bodies, system, problems)
    return Change(access, (), rows, values.sent_to(access, bodies), problems)


def prepare_changes(
    access: Access,
    rows: Sequence[store.Row],
    bodies: Sequence[Body],
    problems: Problems,
    absent: Body = views.NOTHING,
) -> Change:
    """Changes of locked records, checked as far as `problems` tell."""
    changes = values.clean_changes(access, rows, bodies, absent, problems)
    stamp = {"updated_at": clock.now(), "updated_by": access.caller.user_id}
    stamped = [{**one, **stamp} for one in changes]
    return Change(access, rows, stamped, values.sent_to(access, bodies), problems)


def check(*prepared: Change) -> None:
    """Refuse a batch of which anything is at fault: then all is told, also what would clash.

    Raises InvalidValues.
    """
    if any(one.problems.noted.count for one in prepared):
        for one in prepared:
            _note_told_clashes(faultless(one))
        prepared[0].problems.check()


def _note_told_clashes(change: Change) -> None:
    # Nor does a refusal show here: nobody has asked yet whether the rule refuses the others.
    for index, names in _clashing(change):
        if names:
            change.problems.add(index, _taken(names))


def faultless(change: Change) -> Change:
    """The records of a batch with which nothing is wrong."""
    places = change.problems.places or ()
    faulty = change.problems.noted.places
    kept = [index for index, place in enumerate(places) if place not in faulty]
    return replace(
        change,
        before=[change.before[index] for index in kept] if change.before else (),
        values=[change.values[index] for index in kept],
        sent=[change.sent[index] for index in kept],
        problems=change.problems.of([places[index] for index in kept]),
    )


def note_clashes(change: Change) -> None:
    """Add to the problems which records have a unique value that another has already."""
    for index, names in _clashing(change):
        _note_clash(change, index, names)


def note_repeated(change: Change, taken: set[tuple[Any, ...]]) -> None:
    """The same for values that are `taken` by records not stored; adds those of these records."""
    names = [name for name, field in change.access.definition.fields.items() if field.unique]
    before = frozenset(taken)
    for index, row in enumerate(change.values if names else ()):
        own = {name: (row["account_id"], name, row[name]) for name in names}
        repeated = [name for name, key in own.items() if key in before and row[name] is not None]
        if repeated:
            may = conflicts.is_allowed(change.access, row, change.sent[index])
            _note_clash(change, index, repeated if may else ())
        taken.update(own.values())


def _note_clash(change: Change, index: int, names: Sequence[str]) -> None:
    refused = [problem(None, "rule_denied", str(change.access.refusal()))]
    change.problems.add(index, _taken(names) if names else refused)


def _clashing(change: Change) -> Iterator[tuple[int, Sequence[str]]]:
    """The unique fields by place; none where the rule refuses the record, as it must not tell."""
    access, rows = change.access, _after(change) or change.values
    for index, names in reads.clashing(access.definition, rows).items():
        yield index, names if conflicts.is_allowed(access, rows[index], change.sent[index]) else ()


def _taken(names: Sequence[str]) -> list[dict[str, Any]]:
    return [problem(name, "not_unique", conflicts.TAKEN) for name in names]


def _after(change: Change) -> list[store.Row]:
    both = zip(change.before, change.values, strict=bool(change.before))
    return [{**row, **one} for row, one in both]


def store_all(change: Change) -> list[Shown]:
    """Store what was prepared. Raises Clash, and Forbidden where the rule refuses what was made."""
    definition, before = change.access.definition, change.before
    rows = _after(change) or change.values
    with conflicts.refusable(change.access, rows, change.sent, change.problems):
        if before:
            stored = writes.update(definition, before, change.values)
        else:
            stored = writes.insert(definition, change.values)
    return _announced(change, stored)


def store_deferred(change: Change, unchecked: Checked = versioned_cache.NONE) -> list[Shown]:
    """Store new records, or one changed record, as the transaction's last statement.

    Where the database computes or may refuse a value, they are stored at once. Raises Stale, too.
    """
    stored = writes.predict(change.access.definition, change.before, change.values)
    if stored is None:
        unchecked.verify()
        return store_all(change)
    # Announced first: the write lock of SQLite is then held for 0.43 ms instead of 0.63 ms (median
    # of 900 creates), as events and the answer are ready before the transaction begins.
    db.put_off(partial(_write, change, unchecked))
    return _announced(change, stored)


def _write(change: Change, unchecked: Checked) -> None:
    unchecked.verify()
    writes.put(change.access.definition, change.before, change.values)


def _announced(change: Change, stored: Sequence[store.Row]) -> list[Shown]:
    access, before = change.access, change.before
    _check_allowed(access, stored, change)
    operation = "update" if before else "create"
    previously: Sequence[store.Row | None] = before or [None] * len(stored)
    for row, previous in zip(stored, previously, strict=True):
        announce(access.definition, operation, row, previous, access.caller)
    return views.viewed(access.definition, stored, access.caller)


def announce(
    definition: Definition, operation: str, record: Row | None, previous: Row | None, by: Principal
) -> None:
    """Publish RecordChanged for one record."""
    account_id = (record or previous or {})["account_id"]
    rows = (record, previous)
    view = event_view.access_to
    events.publish(events.RecordChanged(definition, account_id, operation, *rows, by, view))


def within_reach(
    access: Access,
    record_ids: Sequence[str],
    bodies: Sequence[Body],
    problems: Problems,
    unchecked: Checked = versioned_cache.NONE,
) -> list[store.Row]:
    """Records that the caller may change, locked. Raises NotFound where one is out of sight.

    One record is read along with a look at stamps that nothing has checked. Raises Stale.
    """
    definition, by = access.definition, access.caller
    by.one_account()
    locked = _locked(definition, by, record_ids, unchecked)
    gone = [index for index, id in enumerate(record_ids) if id not in locked]
    if gone:
        raise problems.placed(missing(access), gone, "not_found", NO_RECORD)
    rows = [locked[id] for id in record_ids]
    check_may(access, rows, values.sent_to(access, bodies), problems)
    return rows


def _locked(
    definition: Definition, by: Principal, record_ids: Sequence[str], unchecked: Checked
) -> Mapping[str, store.Row]:
    if len(record_ids) > 1:
        return writes.lock(definition, store.scope(definition, by.account_id), record_ids)
    row = writes.lock_one(definition, by.account_id, record_ids[0], unchecked)
    return {} if row is None else {record_ids[0]: row}


def check_may(
    access: Access, rows: Sequence[store.Row], sent: Sequence[Body], problems: Problems
) -> None:
    """Refuse records that the rule refuses: NotFound where the caller does not even see them."""
    may = views.allowed(access, rows, sent)
    refused = [index for index, open_ in enumerate(may) if not open_]
    if not refused:
        return
    view = views.access_to_view(access.definition, access.caller)
    seen = views.allowed(view, [rows[i] for i in refused]) if view else [False] * len(refused)
    hidden = [index for index, open_ in zip(refused, seen, strict=True) if not open_]
    if hidden:
        raise problems.placed(missing(access), hidden, "not_found", NO_RECORD)
    raise problems.refusal(access, refused)


def check_etag(access: Access, row: store.Row, if_match: str | None) -> None:
    """Refuse where the caller has not seen the record as it is. Raises PreconditionFailed."""
    if if_match is not None:
        seen = views.viewed(access.definition, [row], access.caller)[0]
        etags.check(if_match, seen.etag)


def missing(access: Access) -> Exception:
    """No such record, or none for the caller: whoever might see it once signed in is told so."""
    if not access.caller.signed_in and access.about_caller:
        return Unauthorized()
    return NotFound(NO_RECORD)


def _check_allowed(access: Access, stored: Sequence[store.Row], change: Change) -> None:
    may = views.allowed(access, stored, change.sent)
    refused = [index for index, open_ in enumerate(may) if not open_]
    if refused:
        raise change.problems.refusal(access, refused)


def _accounts_to_write(by: Principal, bodies: Sequence[Body], problems: Problems) -> list[str]:
    # Only a superadmin may name the account; others get `field_read_only` for it.
    chosen = [body.get("account_id") for body in bodies] if by.is_superadmin else []
    if not any(one is not None for one in chosen):
        return [by.one_account()] * len(bodies)
    texts = {one for one in chosen if isinstance(one, str)}
    named = {one: principals.account_as_it_is(one) for one in texts}
    if not by.may_act_elsewhere and any(one and one.id != by.account_id for one in named.values()):
        raise Forbidden(ELSEWHERE)
    accounts = []
    for index, one in enumerate(chosen):
        account = named.get(one) if isinstance(one, str) else None
        if one is None:
            accounts.append(by.one_account())
        elif account is None:
            problems.add(index, [problem("account_id", "invalid_reference", "No such account.")])
        else:
            accounts.append(account.id)
    problems.check()
    return accounts


def new_system_values(accounts: Sequence[str | None], user_id: str | None) -> list[dict[str, Any]]:
    """What the service gives new records, each of an account."""
    now = clock.now()
    return [
        {
            "account_id": account_id,
            "id": new_id(),
            "created_at": now,
            "updated_at": now,
            "created_by": user_id,
            "updated_by": user_id,
        }
        for account_id in accounts
    ]
