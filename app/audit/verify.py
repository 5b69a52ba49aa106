"""Whether a chain is as it was written (contract section 7; docs/audit.md says how, in words).

`Chain` takes the entries of one account in their order, from wherever they come, and remembers only
what is still open: so a log of any size is verified in little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa

from app import db
from app.accounts.models import Account
from app.audit import checkpoints, digest, entries, listed
from app.audit.models import AuditCheckpoint, AuditEntry, AuditHead
from app.errors import NotFound

Entry = Mapping[str, Any]
Progress = Callable[[int], None]
LOWEST = -(2**63)  # nobody hides below the first entry
VALUES, ACTOR = ("old_value", "new_value"), digest.ACTOR_COLUMNS


@dataclass
class Report:
    """What was found of one chain; the first fault ends it."""

    account_id: str
    valid: bool = True
    checked: int = 0
    first_broken_id: int | None = None
    reason: str | None = None
    head: dict[str, Any] | None = None
    values_masked: int = 0
    values_erased: int = 0

    def blame(self, id: int | None, reason: str) -> None:
        """Note the first fault."""
        if self.valid:
            self.valid, self.first_broken_id, self.reason = False, id, reason


@dataclass
class Chain:
    """One account's chain while it is read."""

    report: Report
    checkpoints: dict[int, str] = field(default_factory=dict)
    """Checksums by the ids of the entries that must have them."""
    last_id: int = 0
    last_checksum: str = digest.FIRST_PREVIOUS
    erased: dict[tuple[str, str], int] = field(default_factory=dict)

    def take(self, entry: Entry) -> None:
        """Check the next entry."""
        if not self.report.valid:
            return
        try:
            fault = self._fault(entry)
        except (KeyError, TypeError, ValueError, AttributeError):
            fault = "it is no entry"
        if fault:
            self.report.blame(entry.get("id"), fault)
            return
        self.report.checked += 1
        self.last_id, self.last_checksum = entry["id"], entry["checksum"]

    def close(self) -> Report:
        """What is left open at the end of the chain is a fault."""
        for id in sorted(self.erased.values())[:1]:
            self.report.blame(id, "a value is missing, and no erasure names it")
        for id in sorted(self.checkpoints)[:1]:
            self.report.blame(id, "a checkpoint tells of this entry, which is missing")
        if self.last_id:
            self.report.head = {"id": self.last_id, "checksum": self.last_checksum}
        return self.report

    def _fault(self, entry: Entry) -> str | None:
        id = entry["id"]
        if type(id) is not int or id <= self.last_id:
            return "its id is not above the one before"
        if entry["account_id"] != self.report.account_id:
            return "it belongs to another account"
        if entry["previous_hash"] != self.last_checksum:
            return "it does not follow the entry before"
        if entry["entry_digest"] != digest.entry_digest(entry):
            return "it was changed"
        if entry["checksum"] != digest.checksum(self.last_checksum, id, entry["entry_digest"]):
            return "its checksum is wrong"
        if self.checkpoints.pop(id, entry["checksum"]) != entry["checksum"]:
            return "a checkpoint tells otherwise: the chain was written anew"
        return self._fault_of_parts(entry)

    def _fault_of_parts(self, entry: Entry) -> str | None:
        if entry["operation"] == "UPDATE" and entry["table_name"] == "audit_log":
            self.erased.pop((entry["column_name"], entry["record_id"]), None)
        if entry.get("masked") is True:
            self.report.values_masked += 1
        elif self._differs(entry, "salt", VALUES, entry["values_digest"]):
            return "its values were changed"
        elif entry["salt"] is None:
            self.report.values_erased += 1
        if self._differs(entry, "actor_salt", ACTOR, entry["actor_digest"]):
            return "its actor was changed"
        return None

    def _differs(self, entry: Entry, salt: str, names: Iterable[str], known: str) -> bool:
        parts = [entry[name] for name in names]
        if entry[salt] is None:
            self.erased[salt, str(entry["id"])] = entry["id"]
            return any(part is not None for part in parts)
        return digest.salted(entry[salt], parts) != known


def everything(
    account_id: str | None = None,
    kept: Iterable[checkpoints.Checkpoint] = (),
    progress: Progress = lambda checked: None,
) -> dict[str, Any]:
    """Verify the chain of an account, or all, against checkpoints kept elsewhere, too."""
    reports: list[Report] = []
    for step in steps(account_id, kept):
        if isinstance(step, Report):
            reports.append(step)
        else:
            progress(step)
    return summary(reports, alone=account_id is not None)


def known(account_id: str | None, found: dict[str, Any]) -> dict[str, Any]:
    """What was found, unless it is only that nothing is known of an account. Raises NotFound."""
    nothing = account_id is not None and found["valid"] and not found["checked"]
    if nothing and db.db.session.get(Account, account_id) is None:
        raise NotFound(f"There is neither an account {account_id} nor a chain of it.")
    return found


def steps(
    account_id: str | None = None, kept: Iterable[checkpoints.Checkpoint] = ()
) -> Iterator[int | Report]:
    """Verify chain by chain: how many entries are checked so far, and each chain's report."""
    kept, before = list(kept), 0
    for one in [account_id] if account_id else _accounts(kept):
        for step in _verify(one, kept):
            if isinstance(step, Report):
                before += step.checked
                yield step
            else:
                yield before + step


def exported(
    given: Iterable[Entry],
    kept: Iterable[checkpoints.Checkpoint] = (),
    progress: Progress = lambda checked: None,
) -> dict[str, Any]:
    """Verify an export: chain after chain, as it was written."""
    kept = list(kept)
    chains: dict[str, Chain] = {}
    for count, entry in enumerate(given, 1):
        account_id = str(entry.get("account_id"))
        if account_id not in chains:
            chains[account_id] = _begin(account_id, kept)
        chains[account_id].take(entry)
        if count % entries.PIECE == 0:
            progress(count)
    for one in kept:
        chains.setdefault(one["account_id"], _begin(one["account_id"], kept))
    return summary([chain.close() for chain in chains.values()], alone=len(chains) == 1)


def summary(reports: list[Report], *, alone: bool) -> dict[str, Any]:
    """The answer: of one chain, or of all with each."""
    broken = next((report for report in reports if not report.valid), None)
    found = asdict(broken or Report(""))
    for name in ("checked", "values_masked", "values_erased"):
        found[name] = sum(getattr(report, name) for report in reports)
    one = reports[0] if alone and reports else None
    found["account_id"] = broken.account_id if broken else one and one.account_id
    found["head"] = one and one.head
    return found | {"chains": [asdict(report) for report in reports]}


def _accounts(kept: Iterable[checkpoints.Checkpoint]) -> list[str]:
    session = db.db.session
    found = {*session.scalars(sa.select(AuditHead.account_id)), *(c["account_id"] for c in kept)}
    found |= set(session.scalars(sa.select(AuditCheckpoint.account_id).distinct()))
    return sorted(found.union(listed.accounts()))


def _begin(account_id: str, kept: Iterable[checkpoints.Checkpoint]) -> Chain:
    chain = Chain(Report(account_id))
    for one in kept:
        if one["account_id"] == account_id:
            wrong = checkpoints.fault(one)
            if wrong or chain.checkpoints.get(one["entry_id"], one["checksum"]) != one["checksum"]:
                chain.report.blame(one["entry_id"], wrong or "checkpoints contradict each other")
            chain.checkpoints[one["entry_id"]] = one["checksum"]
    return chain


def _verify(account_id: str, kept: list[checkpoints.Checkpoint]) -> Iterator[int | Report]:
    chain = _begin(account_id, [*checkpoints.of(account_id), *kept])
    where = [AuditEntry.account_id == account_id]
    while chain.report.valid:
        for entry in entries.in_order(where, (account_id, chain.last_id or LOWEST)):
            chain.take(entry)
            if chain.report.checked % entries.PIECE == 0:
                yield chain.report.checked
        newest, head = _ends(account_id)
        if newest == chain.last_id or not chain.report.valid:  # else more was written meanwhile
            _check_head(chain, head)
            break
    if chain.report.valid:
        wrong = listed.fault(account_id, chain.last_id, chain.report.checked)
        if wrong is not None:
            chain.report.blame(wrong, "lists do not tell the entries as they are")
    yield chain.close()


def _ends(account_id: str) -> tuple[int, tuple[int, str]]:
    # One statement, so that no entry comes between the two.
    newest = sa.select(sa.func.max(AuditEntry.id)).where(AuditEntry.account_id == account_id)
    mine = AuditHead.account_id == account_id
    last_id = sa.select(AuditHead.last_id).where(mine).scalar_subquery()
    checksum = sa.select(AuditHead.checksum).where(mine).scalar_subquery()
    ends = sa.select(newest.scalar_subquery(), last_id, checksum)
    found, *head = db.connection().execute(ends).one()
    return found or 0, (head[0] or 0, head[1] or digest.FIRST_PREVIOUS)


def _check_head(chain: Chain, head: tuple[int, str]) -> None:
    last_id, checksum = head
    if last_id > chain.last_id:
        chain.report.blame(last_id, "the end of the chain is missing")
    elif (last_id, checksum) != (chain.last_id, chain.last_checksum):
        chain.report.blame(chain.last_id, "the chain goes on where its head does not")


def faults(found: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with which chain, in words."""
    for report in found["chains"]:
        if not report["valid"]:
            place = f"entry {report['first_broken_id']} of account {report['account_id']}"
            yield f"{place}: {report['reason']}"
