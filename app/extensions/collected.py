"""Writes of a handler that runs after the commit: collected, then done at once with its mark.

A handler may take long, and its worker may die: so nothing is written while it runs. At its end one
short transaction does all it asked for, and marks its job or step as done. Whatever dies before the
commit has written nothing, and nothing runs again after it: each write happens exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace

from sqlalchemy.exc import DBAPIError

from app import config, db
from app.audit import append
from app.audit.security_log import reads
from app.auth import api_keys
from app.auth import principal as principals
from app.auth.principal import Principal
from app.context import actor, deadline, tenancy
from app.context.actor import Actor
from app.db import errors, versioned_cache
from app.errors import Forbidden, Unauthorized
from app.ids import new_id
from app.jobs import JobError
from app.records import service as records
from app.records.write import changes
from app.types import JSONMapping, JSONObject

MAX_WRITES = 1000
MAX_RERUNS = 5
TOO_MANY = f"A handler may write {MAX_WRITES:,} records: write the others by a job of their own."
ACCOUNT_GONE = "The account is not active."


@dataclass(frozen=True)
class _Write:
    operation: str
    collection: str
    id: str
    values: JSONMapping
    by: Principal
    actor: Actor = field(default_factory=actor.current)

    def do(self) -> None:
        by = renewed(self.by)
        acting = actor.acting(self.actor)
        in_account = tenancy.in_account(by.require_account_id())
        with in_account, acting, append.by_current_actor(), reads.shown_to_nobody():
            if self.operation == "create":
                records.create(self.collection, self.values, by=by, record_id=self.id)
            elif self.operation == "update":
                records.patch(self.collection, self.id, self.values, by=by)
            else:
                records.delete(self.collection, self.id, by=by)


class Collected:
    """Collects what `Records` writes. What is read meanwhile does not show it."""

    def __init__(self) -> None:
        self._writes: list[_Write] = []

    def create(self, collection: str, values: JSONMapping, by: Principal) -> JSONObject:
        """Create a record later; returns the values with the id that it will have."""
        id = new_id()
        self._add(_Write("create", collection, id, deepcopy(dict(values)), by))
        return {**values, "id": id}

    def update(self, collection: str, id: str, values: JSONMapping, by: Principal) -> JSONObject:
        """Set fields later; returns the values with the id."""
        self._add(_Write("update", collection, id, deepcopy(dict(values)), by))
        return {**values, "id": id}

    def delete(self, collection: str, id: str, by: Principal) -> None:
        """Delete a record later."""
        self._add(_Write("delete", collection, id, {}, by))

    def _add(self, write: _Write) -> None:
        if len(self._writes) >= MAX_WRITES:
            raise JobError(TOO_MANY, is_final=True)
        self._writes.append(write)

    def store(self, mark: Callable[[], None], undone: Callable[[], None] = lambda: None) -> None:
        """Do what was collected, and `mark`, in one transaction.

        If it has to begin anew, `undone` is called first. Each write has the rights that its caller
        has by then. Raises what a write is refused with.
        """
        limit = deadline.Limit(config.current().statement_seconds)
        for rerun in range(MAX_RERUNS):
            cache = versioned_cache.reloading() if rerun else nullcontext()
            try:
                with cache, deadline.within(limit), changes.explain_refusals(), db.transaction():
                    for write in self._writes:
                        write.do()
                    mark()
            except versioned_cache.Stale:
                undone()
            except DBAPIError as error:
                undone()
                if not errors.was_lock_conflict(error) and not errors.is_stale_schema(error):
                    raise
            else:
                return
        raise JobError("Too many concurrent changes.")


def current_caller(home_id: str, user_id: str, api_key_id: str | None) -> Principal | None:
    """A user, or one of their keys, as they may act now; None if they may not any more."""
    if api_key_id is None:
        return principals.for_user(home_id, user_id)
    with suppress(Unauthorized):
        return api_keys.authenticate_by_id(home_id, api_key_id)
    return None


def renewed(by: Principal) -> Principal:
    """The caller with the rights of now, and no more than it was given.

    Raises Forbidden if it may not act any more.
    """
    account = by.account and principals.find_active_account(by.account.id)
    if by.account is not None and account is None:
        raise Forbidden(ACCOUNT_GONE)
    if by.user_check is None or by.home is None or by.user_id is None:
        home = account if by.home is by.account else by.home
        return replace(by, account=account, home=home)
    with tenancy.across_accounts():
        user = current_caller(by.home.id, by.user_id, by.api_key_id)
    if user is None:
        raise Forbidden("The user lost access.")
    return replace(user.acting_in(account), mfa=by.mfa)
