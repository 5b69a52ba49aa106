"""Refused sign-ins: the response names no reason; the log and the account's admins see it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import sqlalchemy as sa
import structlog

from app import clock, db, events
from app.auth import lockout, pii_notices
from app.errors import AppError
from app.sso.models import Flow, FlowPurpose, Refusal
from app.web import rate_limits

log = structlog.get_logger()
MAX_STORED = 100
CONFIRMATION_NEEDED = "Members cannot sign in with it until one of them confirms it."
LONGEST_DETAIL = 300
UNAVAILABLE = "The provider cannot sign you in at the moment. Try again later."
MISCONFIGURED = (
    "The provider refused the request, as its settings here are wrong. Tell an administrator of"
    " the account."
)
# What client applications get for an error of a provider: by its code, the code and the message,
# or None for that of a cancelled sign-in.
BY_ERROR: Mapping[str, tuple[str, str | None]] = {
    "access_denied": ("access_denied", None),
    "login_required": ("login_required", None),
    "interaction_required": ("interaction_required", None),
    "consent_required": ("access_denied", None),
    "account_selection_required": ("access_denied", None),
    "temporarily_unavailable": ("temporarily_unavailable", UNAVAILABLE),
    "server_error": ("server_error", UNAVAILABLE),
    **dict.fromkeys(
        (
            *("invalid_request", "invalid_scope", "unauthorized_client", "invalid_client"),
            *("unsupported_response_type", "request_not_supported", "invalid_target"),
        ),
        ("server_error", MISCONFIGURED),
    ),
}


class SignInRefused(AppError):
    """A refused sign-in; `check` and `detail` are for the account's admins."""

    status = 401
    error = "sign_in_refused"
    message = "Sign-in refused. Try again, or ask an administrator of the account."
    code = "access_denied"
    """The `error` that the client application gets (RFC 6749, section 4.1.2.1)."""

    def __init__(self, check: str, detail: str = "") -> None:
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        super().__init__(headers=headers)
        self.check, self.detail = check, detail
        self.flow: Flow | None = None  # set once the browser has proved that it started it

    @property
    def client_flow(self) -> Flow | None:
        """The flow if a client application started it, which is to get the error."""
        return (
            self.flow
            if self.flow and self.flow.purpose in (FlowPurpose.BROWSER, FlowPurpose.API)
            else None
        )


class Cancelled(SignInRefused):
    """A sign-in that ended at the provider: by its user, or by an error of the provider."""

    message = "The sign-in was cancelled at the provider. Try again."

    def __init__(self, check: str, detail: str = "", error: str = "") -> None:
        super().__init__(check, detail)
        self.code, message = BY_ERROR.get(
            error, (self.code, SignInRefused.message if error else None)
        )
        self.message = message or self.message


class StateRefused(SignInRefused):
    """A sign-in with an unknown, used or mismatched state."""

    status = 400
    error = "invalid_state"
    message = "This sign-in has expired or was already used. Start again."


class TooLarge(SignInRefused):
    """A response of a provider that is too large."""

    status = 413
    error = "payload_too_large"
    message = "The provider's response is too large: the limit is 256 KiB."


class NotInvited(SignInRefused):
    """An unknown user whom the account does not admit."""

    status = 403
    error = "not_invited"
    message = "You are not a member of this account. Ask an administrator for an invitation."


class MemberRefused(NotInvited):
    """A present or invited member of `pii_access`, under settings that no member confirmed."""

    def __init__(self, reason: str = "Someone outside pii_access set up this provider.") -> None:
        super().__init__("pii_access", f"{reason} {CONFIRMATION_NEEDED}")


class ProviderDisabled(SignInRefused):
    """A sign-in with a provider that the account does not offer (any more)."""

    status = 404
    error = "not_found"
    message = "This account does not offer this sign-in."


@contextmanager
def attach_flow(flow: Flow) -> Iterator[None]:
    """Attach the flow to refusals in the block, so that its client application is notified."""
    try:
        yield
    except SignInRefused as error:
        error.flow = flow
        raise


@contextmanager
def recording(
    account_id: str | None, category: str, provider: str, ip: str | None
) -> Iterator[None]:
    """Log and store refusals in the block, and count them by address."""
    lockout.check_sso_failures(ip)
    try:
        yield
    except SignInRefused as error:
        record(account_id, category, provider, error, ip)
        lockout.count_sso_failure(ip)
        raise


def record(
    account_id: str | None,
    category: str,
    provider: str,
    error: SignInRefused,
    ip: str | None = None,
) -> None:
    """Log a refusal, and store it for the account's admins."""
    fields = {"category": category, "provider": provider, "check": error.check}
    log.warning("sign-in refused", account=account_id, **fields)
    if account_id is None:
        return
    same_account = Refusal.account_id == account_id
    detail = "".join(
        character if character.isprintable() else "\ufffd" for character in error.detail
    )
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
        newest = sa.select(Refusal.id).where(same_account).order_by(Refusal.id.desc())
        last_removed = session.scalar(newest.offset(MAX_STORED).limit(1))
        if last_removed is not None:
            session.execute(sa.delete(Refusal).where(same_account, Refusal.id <= last_removed))
    events.publish(events.SignInFailed(account_id, None, None, error.check, provider))
    if isinstance(error, MemberRefused):
        pii_notices.notify_of_refusal(account_id, provider)


def page(account_id: str, skip: int, limit: int) -> tuple[list[Refusal], int]:
    """Return a page of an account's refusals, newest first, and their number."""
    same_account = Refusal.account_id == account_id
    count = sa.select(sa.func.count()).select_from(Refusal).where(same_account)
    rows = (
        sa.select(Refusal).where(same_account).order_by(Refusal.id.desc()).offset(skip).limit(limit)
    )
    return list(db.db.session.scalars(rows)), db.db.session.scalar(count) or 0
