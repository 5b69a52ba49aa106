"""Runs before every view: identifies the caller, checks access, and replays repeated requests.

Deny by default: a view without a declaration of its access requires a signed-in caller.
`app/hooks.py` calls `check` before every request and `reset_context` after it.
"""

from app.auth.guard.authenticate import account_of_host, account_of_request, stream_credential
from app.auth.guard.authorize import (
    ACCOUNT,
    check,
    limit_body,
    optimistic,
    signed_in_caller,
    user_id_if_signed_in,
)
from app.auth.guard.request_context import principal, reset_context

__all__ = [
    "ACCOUNT",
    "account_of_host",
    "account_of_request",
    "check",
    "limit_body",
    "optimistic",
    "principal",
    "reset_context",
    "signed_in_caller",
    "stream_credential",
    "user_id_if_signed_in",
]
