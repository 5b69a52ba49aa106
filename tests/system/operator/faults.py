"""A service whose accounts live and end while its parts are killed, and who follows them."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from app import db
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, User
from app.audit import sealing
from app.audit.entries import CHANGES
from app.operator.models import EVENTS, IS_PENDING
from tests.builders import Caller, Cast
from tests.operator.test_webhooks import make_hook
from tests.system.webhooks import faults

TYPES = ["account.*", "user.*"]
LIFE = ("account.created", "user.created", "account.updated", "user.deactivated", "account.deleted")
"""What a writer does to an account, one after the other."""


class Service(faults.Service):
    """The same, with a reader that goes on from its position, and a webhook of the operator."""

    def __init__(self, database: str, folder: Path, seed: int) -> None:
        super().__init__(database, folder, seed)
        self.read: list[dict[str, Any]] = []
        self._after = 0
        threading.Thread(target=self._follow, daemon=True).start()

    def _prepare(self, cast: Cast) -> Caller:
        make_hook(cast.root, self.receiver.server.url, types=TYPES)
        return cast.root

    def _write(self, writer: int) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            made = self._send("POST", "accounts", {"name": f"Tenant {writer}-{number}"})
            if made is None:
                time.sleep(0.1)  # the service is down; whether this was written will be seen
                continue
            self.written += 1
            account = f"accounts/{made['id']}"
            body = {"account_id": made["id"], "email": f"u{number}@{made['slug']}.example"}
            user = self._send("POST", "users", body)
            # Taken: everything is rolled back.
            self._send("POST", "users", body)
            self._send("PATCH", account, {"name": f"Former {writer}-{number}"})
            if user is not None:
                self._send("PATCH", f"users/{user['id']}", {"is_active": False})
            if number % 2:
                self._send("DELETE", account, None)

    def _follow(self) -> None:
        while not self._stop.wait(0.2):
            self._read_page()

    def _read_page(self) -> bool:
        """Read on from the position; whether there is more, or it is not known."""
        types = ",".join(TYPES)
        path = f"operator/events?after={self._after}&limit=50&types={types}"
        page = self._send("GET", path, None)
        if page is None:
            return True
        self.read += page["items"]
        self._after = page["next"]
        return bool(page["has_more"])

    def waiting(self) -> int:
        """How many deliveries and events have not come to an end."""
        with self.app.app_context():
            try:
                pending = sa.select(sa.func.count()).select_from(EVENTS).where(IS_PENDING)
                return super().waiting() + (db.connection().scalar(pending) or 0)
            finally:
                db.db.session.remove()

    def check(self) -> int:
        """Nothing lost, invented or out of order; returns how many events there were."""
        while self._read_page():
            time.sleep(0.05)
        with self.app.app_context():
            rows = db.connection().execute(sa.select(EVENTS).order_by(EVENTS.c.number)).all()
            stored = [row for row in rows if row.type.partition(".")[0] in ("account", "user")]
            happened = self._happened()
            db.db.session.remove()
        assert not self.refusals, self.refusals
        assert None not in [row.number for row in rows]
        # Committed changes and events are the same, by account and type.
        told = Counter((row.account_id, row.type) for row in stored)
        assert {key: n for key, n in told.items() if key[1] in LIFE} == happened
        # The reader got each once, in the order of numbers.
        assert [one["id"] for one in self.read] == [row.id for row in stored]
        self._check_order([(row.account_id, row.type) for row in stored])
        self._check_received({row.id: row.number for row in stored if row.id})
        return len(stored)

    def _happened(self) -> dict[tuple[str, str], int]:
        """What the database says of the accounts and users, and the audit log of changes."""
        sealing.settle(None)
        counts = Counter[tuple[str, str]]()
        for row in db.connection().execute(sa.select(Account.id, Account.closed_at)):
            if row.id != SYSTEM_ACCOUNT_ID:
                counts[row.id, "account.created"] += 1
                counts[row.id, "account.deleted"] += row.closed_at is not None
        changes = sa.select(CHANGES.c.account_id, CHANGES.c.operation, CHANGES.c.table_name)
        query = changes.add_columns(CHANGES.c.columns)
        for account_id, operation, table, columns in db.connection().execute(query):
            if table == User.__tablename__ and operation == "CREATE":
                counts[account_id, "user.created"] += 1
            if table == User.__tablename__ and operation == "UPDATE" and '"is_active"' in columns:
                counts[account_id, "user.deactivated"] += 1
            is_renamed = '"name"' in columns and '"closed_at"' not in columns
            if table == Account.__tablename__ and operation == "UPDATE" and is_renamed:
                counts[account_id, "account.updated"] += 1
        return {key: number for key, number in counts.items() if number}

    def _check_order(self, told: list[tuple[str, str]]) -> None:
        lives = defaultdict[str, list[int]](list)
        for account_id, type in told:
            if type in LIFE:
                lives[account_id].append(LIFE.index(type))
        of_writers = [life for life in lives.values() if 2 in life]
        assert of_writers
        assert all(life == sorted(life) for life in of_writers)

    def _check_received(self, numbers: dict[str, int]) -> None:
        """All since the webhook was made: per account in order, doubles by their id."""
        first, deliveries = dict[str, str](), defaultdict[str, set[str]](set)
        order = defaultdict[str, list[int]](list)
        for request in self.receiver.taken:
            event = request.json
            deliveries[event["id"]].add(request.delivery)
            if event["id"] not in first:
                first[event["id"]] = event["account_id"]
                order[event["account_id"]].append(numbers[event["id"]])
        assert {len(ids) for ids in deliveries.values()} == {1}
        assert all(got == sorted(got) for got in order.values())
        made_at = min(numbers[id] for id in first)
        assert first.keys() == {id for id, number in numbers.items() if number >= made_at}
