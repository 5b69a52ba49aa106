"""Verifying chains (docs/audit.md explains it).

`Chain` takes the entries of one chain in order, from the database or an export. It stores only
open checkpoints and erasures, so a log of any size is verified in constant memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from operator import itemgetter

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from app import db
from app.accounts.models import Account
from app.audit import verifications
from app.audit.chain import digest, signing
from app.audit.chain.log import LOWEST, BrokenRow, Log, Row
from app.errors import NotFound, Unavailable, error_location
from app.types import JSONMapping, JSONObject

logger = structlog.get_logger()
Entry = JSONMapping
Summary = JSONObject
Progress = Callable[[int], None]
BATCH_SIZE = 1000
VALUES = ("old_value", "new_value")


@dataclass
class Report:
    """The verification result of one chain, up to its first fault."""

    account_id: str
    valid: bool = True
    checked: int = 0
    first_broken_id: int | None = None
    reason: str | None = None
    start: JSONObject | None = None
    """The signed start, where the log was cut."""
    head: JSONObject | None = None
    unsealed: int = 0
    """The changes that have no place in the chain yet."""
    values_masked: int = 0
    values_erased: int = 0

    def fail(self, id: int | None, reason: str) -> None:
        """Set the first fault."""
        if self.valid:
            self.valid, self.first_broken_id, self.reason = False, id, reason


@dataclass
class Chain:
    """The state of one account's chain during verification."""

    report: Report
    checkpoints: dict[int, str] = field(default_factory=dict)
    """Expected checksums by entry id."""
    last_id: int = 0
    last_checksum: str = digest.FIRST_PREVIOUS
    erased: dict[tuple[str, str], int] = field(default_factory=dict)

    def expect(self, checkpoint: signing.Checkpoint, fault: str | None) -> None:
        """Expect the checksum of a checkpoint, with the fault of its signature."""
        id, checksum = checkpoint["entry_id"], checkpoint["checksum"]
        if fault or self.checkpoints.get(id, checksum) != checksum:
            self.report.fail(id, fault or "checkpoints contradict each other")
        self.checkpoints[id] = checksum

    def start_after(self, start: Entry) -> None:
        """Begin after a signed start; checkpoints of what was removed no longer count."""
        id, checksum = start["entry_id"], start["checksum"]
        if fault := signing.fault(start):
            self.report.fail(id, fault)
        if self.checkpoints.get(id, checksum) != checksum:
            self.report.fail(id, "a checkpoint contradicts the start")
        self.checkpoints = {other: sum for other, sum in self.checkpoints.items() if other > id}
        self.last_id, self.last_checksum, self.report.start = id, checksum, dict(start)

    def take(self, entry: Entry) -> None:
        """Check the next entry."""
        if not self.report.valid:
            return
        try:
            fault = self._fault(entry)
        except (KeyError, TypeError, ValueError, AttributeError):
            fault = "it is not a valid entry"
        if fault:
            self.report.fail(entry.get("id"), fault)
            return
        self.report.checked += 1
        self.last_id, self.last_checksum = entry["id"], entry["checksum"]

    def close(self) -> Report:
        """Finish the chain: open checkpoints and unexplained erasures are faults."""
        for id in sorted(self.erased.values())[:1]:
            self.report.fail(id, "a value is missing, and no erasure explains it")
        for id in sorted(self.checkpoints)[:1]:
            self.report.fail(id, "a checkpoint refers to this entry, which is missing")
        if self.last_id:
            self.report.head = {"id": self.last_id, "checksum": self.last_checksum}
        return self.report

    def _fault(self, entry: Entry) -> str | None:
        id = entry["id"]
        if type(id) is not int or id <= self.last_id:
            return "its id is not greater than the previous one"
        if entry["account_id"] != self.report.account_id:
            return "it belongs to another account"
        if entry["previous_hash"] != self.last_checksum:
            return "it does not follow the previous entry"
        if entry.get("digest_version") not in (None, 1, digest.VERSION):
            return "its digests are of an unknown version"
        if entry["entry_digest"] != digest.entry_digest(entry):
            return "it was changed"
        if entry["checksum"] != digest.checksum(self.last_checksum, id, entry["entry_digest"]):
            return "its checksum is wrong"
        if self.checkpoints.pop(id, entry["checksum"]) != entry["checksum"]:
            return "a checkpoint contradicts it: the chain was rewritten"
        return self._content_fault(entry)

    def _content_fault(self, entry: Entry) -> str | None:
        if entry["operation"] == "UPDATE" and entry["table_name"] == "audit_log":
            self.erased.pop((entry["column_name"], entry["record_id"]), None)
        if entry.get("masked") is True:
            self.report.values_masked += 1
        elif self._differs(entry, "salt", VALUES, entry["values_digest"]):
            return "its values were changed"
        elif entry["salt"] is None:
            self.report.values_erased += 1
        names = digest.actor_columns(entry)
        if self._differs(entry, "actor_salt", names, entry["actor_digest"]):
            return "its actor was changed"
        kind, id, name = (entry.get(column) for column in digest.NAMING)
        is_named = digest.version_of(entry) > 1
        if not is_named and not kind is id is name is None:
            return "its actor was added"
        shown = {"kind": kind, "id": id, "name": name} if is_named else None
        if entry.get("actor", shown) != shown:  # the same again, which no digest covers
            return "its actor was changed"
        return None

    def _differs(self, entry: Entry, salt: str, names: Iterable[str], expected: str) -> bool:
        parts = [entry[name] for name in names]
        if entry[salt] is None:
            self.erased[salt, str(entry["id"])] = entry["id"]
            return any(part is not None for part in parts)
        return digest.salted(entry[salt], parts) != expected


def verify_all(
    log: Log,
    account_id: str | None = None,
    external: Iterable[signing.Checkpoint] = (),
    progress: Progress = lambda checked: None,
) -> Summary:
    """Verify the chain of an account (None: all), also against external checkpoints."""
    reports: list[Report] = []
    for result in iter_reports(log, account_id, external):
        if isinstance(result, Report):
            reports.append(result)
        else:
            progress(result)
    return summarize(reports, alone=account_id is not None)


def require_chain(account_id: str | None, summary: Summary) -> Summary:
    """The summary. Raises NotFound if neither the account nor a chain of it exists."""
    nothing = account_id is not None and summary["valid"] and not summary["checked"]
    if nothing and db.db.session.get(Account, account_id) is None:
        raise NotFound(f"No account or audit chain with the id {account_id}.")
    return summary


def iter_reports(
    log: Log, account_id: str | None = None, external: Iterable[signing.Checkpoint] = ()
) -> Iterator[int | Report]:
    """Verify chain by chain; yields the number of checked entries, and each chain's report."""
    external, checked = list(external), 0
    named = (checkpoint["account_id"].removesuffix(log.suffix) for checkpoint in external)
    for id in [account_id] if account_id else sorted({*log.accounts(), *named}):
        try:
            log.settle(id)
        except (SQLAlchemyError, Unavailable) as error:
            # What is sealed can be verified, the rest be counted.
            logger.warning("changes are not sealed", account=id, **error_location(error))
        for result in _verify(log, id, external):
            if isinstance(result, Report):
                checked += result.checked
                # A checkpoint from elsewhere may be wrong itself.
                if not external and (result.head or not result.valid):
                    verifications.store(log.name, id, result)
                yield result
            else:
                yield checked + result


def verify_export(
    exported: Iterable[Entry],
    external: Iterable[signing.Checkpoint] = (),
    progress: Progress = lambda checked: None,
) -> Summary:
    """Verify the entries of an export."""
    external = list(external)
    chains: dict[str, Chain] = {}
    for count, entry in enumerate(exported, 1):
        account_id = str(entry.get("account_id"))
        if signing.is_start(entry):  # before the entries of a JSON export
            chains[account_id] = _begin(account_id, [*external, entry])
            continue
        if account_id not in chains:
            chains[account_id] = _begin(account_id, external)
        chains[account_id].take(entry)
        if count % BATCH_SIZE == 0:
            progress(count)
    for checkpoint in external:
        chains.setdefault(checkpoint["account_id"], _begin(checkpoint["account_id"], external))
    return summarize([chain.close() for chain in chains.values()], alone=len(chains) == 1)


def summarize(reports: list[Report], *, alone: bool) -> Summary:
    """The result of all chains together, with the report of each."""
    broken = next((report for report in reports if not report.valid), None)
    summary = asdict(broken or Report(""))
    for name in ("checked", "unsealed", "values_masked", "values_erased"):
        summary[name] = sum(getattr(report, name) for report in reports)
    single = reports[0] if alone and reports else None
    summary["account_id"] = broken.account_id if broken else single and single.account_id
    summary["head"] = single and single.head
    summary["start"] = single and single.start
    return summary | {"chains": [asdict(report) for report in reports]}


def _begin(chain_id: str, external: Iterable[signing.Checkpoint]) -> Chain:
    chain, starts = Chain(Report(chain_id)), []
    for checkpoint in external:
        if checkpoint["account_id"] != chain_id:
            continue
        if signing.is_start(checkpoint):
            starts.append(checkpoint)
        else:
            chain.expect(checkpoint, signing.fault(checkpoint))
    if starts:
        chain.start_after(max(starts, key=itemgetter("entry_id")))
    return chain


def chain_of(
    log: Log,
    account_id: str,
    start: Entry | None,
    external: Iterable[signing.Checkpoint] = (),
) -> Chain:
    """The chain of an account at its stored start, with stored and external checkpoints."""
    chain = Chain(Report(log.chain_id(account_id)))
    for checkpoint in log.checkpoints(account_id):
        chain.expect(checkpoint, None if log.signs_again else signing.fault(checkpoint))
    for checkpoint in external:
        # No external start counts: the database must have all that its own does not cover.
        is_own = checkpoint["account_id"] == chain.report.account_id
        if is_own and not signing.is_start(checkpoint):
            chain.expect(checkpoint, signing.fault(checkpoint))
    if start:
        chain.start_after(start)
    return chain


def _verify(
    log: Log, account_id: str, external: list[signing.Checkpoint]
) -> Iterator[int | Report]:
    start = signing.start_of(log, account_id)
    chain = chain_of(log, account_id, start, external)
    checked, last = 0, LOWEST
    while chain.report.valid:
        rows = log.read(account_id, after=last, limit=BATCH_SIZE)
        for row in rows:
            take_row(log, chain, row)
            last = row[log.first]
            if chain.report.checked // BATCH_SIZE > checked // BATCH_SIZE:
                checked = chain.report.checked
                yield checked
        if len(rows) < BATCH_SIZE and chain.report.valid:
            newest, head = _ends(log, account_id)
            if newest <= chain.last_id:  # else entries were appended meanwhile
                _check_head(chain, head)
                break
    report = chain.close()
    unsealed = sa.select(sa.func.count()).where(log.pending.c.account_id == account_id)
    report.unsealed = db.connection().scalar(unsealed) or 0
    if not report.valid and signing.start_of(log, account_id) != start:
        yield from _verify(log, account_id, external)  # it was cut meanwhile
    else:
        yield report


def take_row(log: Log, chain: Chain, row: Row) -> None:
    """Check the entries of the next stored row."""
    if not chain.report.valid:
        return
    try:
        found = log.entries_of(row)
        if log.last != log.first and (fault := _row_fault(log, chain, row, found)):
            chain.report.fail(row[log.first], fault)
    except BrokenRow:
        chain.report.fail(row[log.first], "it is not a valid change")
        return
    for entry in found:
        chain.take(entry)


def _row_fault(log: Log, chain: Chain, row: Row, found: list[JSONObject]) -> str | None:
    """The fault of a row of several entries."""
    ends = (row[log.first], row[log.last], row["entries"])
    if (found[0]["id"], found[-1]["id"], len(found)) != ends:
        return "it is not where lists look for it"
    digests = [entry["entry_digest"] for entry in found]
    *_, checksum = digest.checksums(chain.last_checksum, (one["id"] for one in found), digests)
    if checksum != row["checksum"].hex():
        return "it was changed, or does not follow the previous one"
    return None


def _ends(log: Log, account_id: str) -> tuple[int, tuple[int, str]]:
    # One statement, so that both values are of the same snapshot.
    newest = sa.select(sa.func.max(log.rows.c[log.last])).where(log.rows.c.account_id == account_id)
    condition = log.heads.c.account_id == account_id
    last_id = sa.select(log.heads.c[log.head_id]).where(condition).scalar_subquery()
    checksum = sa.select(log.heads.c.checksum).where(condition).scalar_subquery()
    ends = sa.select(newest.scalar_subquery(), last_id, checksum)
    newest_id, *head = db.connection().execute(ends).one()
    return newest_id or 0, (head[0] or 0, head[1] or digest.FIRST_PREVIOUS)


def _check_head(chain: Chain, head: tuple[int, str]) -> None:
    last_id, checksum = head
    if last_id > chain.last_id:
        chain.report.fail(last_id, "the end of the chain is missing")
    elif (last_id, checksum) != (chain.last_id, chain.last_checksum):
        chain.report.fail(chain.last_id, "the chain continues beyond its head")


def faults(summary: Summary) -> Iterator[str]:
    """A line for each broken chain."""
    for report in summary["chains"]:
        if not report["valid"]:
            position = f"entry {report['first_broken_id']} of account {report['account_id']}"
            yield f"{position}: {report['reason']}"
