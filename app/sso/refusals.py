"""Sign-ins that are refused: the caller learns that, the account's admins learn why.

The answer tells nothing of the check that failed; the log line and the account's list do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
import structlog

from app import clock, db
from app.auth import lockout, pii_notices
from app.errors import AppError
from app.http import rate_limits
from app.sso.models import Flow, Refusal

log = structlog.get_logger()
MAX_STORED = 100
LONGEST_DETAIL = 300


class SignInRefused(AppError):
    """A sign-in that is not what it says; `check` and `detail` are for the account's admins."""

    status = 401
    error = "sign_in_refused"
    message = "This sign-in was refused. Begin again, or ask an admin of the account."

    def __init__(self, check: str, detail: str = "") -> None:
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        super().__init__(headers=headers)
        self.check, self.detail = check, detail
        self.flow: Flow | None = None  # of the browser, once it has proved that it began it


class Cancelled(SignInRefused):
    """A sign-in that ended at the provider, by the person's choice or the provider's."""

    message = "The sign-in was cancelled at the provider. Begin again."


class StateRefused(SignInRefused):
    """A sign-in that nobody began here, or not like this."""

    status = 400
    error = "invalid_state"
    message = "This sign-in cannot be completed. Begin again."


class TooLarge(SignInRefused):
    """A sign-in that is larger than any provider sends one."""

    status = 413
    error = "payload_too_large"
    message = "This is larger than any provider's answer: at most 256 KiB are read."


class NotInvited(SignInRefused):
    """Somebody whom the account does not know, and does not let in."""

    status = 403
    error = "not_invited"
    message = "This account does not know you. Ask one of its admins for an invitation."


UNTIL_CONFIRMED = "Members cannot sign in this way until one of them confirms it."


class MemberRefused(NotInvited):
    """A member of `pii_access`, or somebody invited into it, by settings of somebody outside it."""

    def __init__(self, why: str = "Somebody outside pii_access set this provider up.") -> None:
        super().__init__("pii_access", f"{why} {UNTIL_CONFIRMED}")


class ProviderDisabled(SignInRefused):
    """A sign-in by a provider that the account has not, or has no more."""

    status = 404
    error = "not_found"
    message = "This account has no such sign-in."


@contextmanager
def attach_flow(flow: Flow) -> Iterator[None]:
    """Inside, a refusal bears the flow that it ends, so that its client application is told."""
    try:
        yield
    except SignInRefused as error:
        error.flow = flow
        raise


@contextmanager
def recording(
    account_id: str | None, category: str, provider: str, ip: str | None
) -> Iterator[None]:
    """Inside, every refusal is logged, kept for the admins, and counted by address."""
    lockout.check_sso_failures(ip)
    try:
        yield
    except SignInRefused as error:
        about = {"category": category, "provider": provider, "check": error.check}
        log.warning("sign-in refused", account=account_id, **about)
        if account_id is not None:
            _keep(account_id, category, provider, error, ip)
            if isinstance(error, MemberRefused):
                pii_notices.notify_of_refusal(account_id, provider)
        lockout.count_sso_failure(ip)
        raise


def page(account_id: str, skip: int, limit: int) -> tuple[list[Refusal], int]:
    """The last refusals of an account, newest first, and how many are kept."""
    mine = Refusal.account_id == account_id
    counted = sa.select(sa.func.count()).select_from(Refusal).where(mine)
    chosen = sa.select(Refusal).where(mine).order_by(Refusal.id.desc()).offset(skip).limit(limit)
    return list(db.db.session.scalars(chosen)), db.db.session.scalar(counted) or 0


def _keep(
    account_id: str, category: str, provider: str, error: SignInRefused, ip: str | None
) -> None:
    mine = Refusal.account_id == account_id
    detail = "".join(one if one.isprintable() else "\ufffd" for one in error.detail)
    with db.transaction() as session:
        session.add(
            Refusal(
                account_id=account_id,
                category=category,
                provider_name=provider,
                check=error.check,
                detail=detail[:LONGEST_DETAIL],
                ip_address=rate_limits.client_network(ip) or None,
                created_at=clock.now(),
            )
        )
        session.flush()
        newest = (
            sa.select(Refusal.id)
            .where(mine)
            .order_by(Refusal.id.desc())
            .offset(MAX_STORED)
            .limit(1)
        )
        oldest_kept = session.scalar(newest)
        if oldest_kept is not None:
            session.execute(sa.delete(Refusal).where(mine, Refusal.id <= oldest_kept))
