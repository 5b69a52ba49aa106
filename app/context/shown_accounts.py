"""The accounts whose rows a request reads: a superadmin's looks are in their security logs.

Models note their account as they are loaded (`app/db/policy.py`). What reads rows without a model
calls `note`.
"""

from __future__ import annotations

from contextvars import ContextVar

current: ContextVar[set[str] | None] = ContextVar("shown_accounts", default=None)
"""The accounts so far; None outside of requests."""


def note(account_id: str | None) -> None:
    """Note that a row of an account is read in order to show it."""
    accounts = current.get()
    if accounts is not None and account_id is not None:
        accounts.add(account_id)
