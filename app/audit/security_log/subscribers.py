"""Records events: sign-ins, failures, ended sessions, and changes of what gives access."""

from __future__ import annotations

from app import clock, config, db, events, jobs
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.audit.append import CREATE, DELETE
from app.audit.security_log import reads
from app.audit.security_log.models import EventKind
from app.audit.security_log.recording import Event, record
from app.context import actor
from app.db import policy_of
from app.errors import TooManyRequests
from app.types import JSONMapping
from app.web import rate_limits
from app.web.rate_limits import Limit

# Guesses must not fill an account's log: beyond these, failures are only counted.
FAILURES = Limit("security-log", 1000, 3600)
FAILURES_OF_ADDRESS = Limit("security-log-address", 60, 3600)
LONGEST_ADDRESS = 320
LOCKED = "rate_limited"

# The vocabulary of the API. A model has its own in `Noun.event`.
NOUNS = (
    *("api_key", "scim_token", "setup_link", "second_factor", "provider", "saml_key", "identity"),
    *("domain", "group_member", "group", "invitation", "user", "account", "webhook"),
    "security_stream",
)
VERBS = {CREATE: "created", DELETE: "deleted"}
KINDS = (
    *EventKind,
    *(f"{noun}.{verb}" for noun in NOUNS for verb in (*VERBS.values(), "changed")),
)


@events.subscribe(events.SignedIn)
def _on_sign_in(event: events.SignedIn) -> None:
    by = actor.current()._replace(
        user_id=event.user_id, user_email=event.email, user_name=event.name
    )
    details = {
        "session_id": event.session_id,
        "application": event.application,
        "mfa": event.mfa,
    }
    target = ("users", event.user_id)
    record(Event(event.account_id, EventKind.SIGNED_IN, *target, details, by=by))


@events.subscribe(events.SignInFailed)
def _on_failure(event: events.SignInFailed) -> None:
    email = (event.email or "")[:LONGEST_ADDRESS].lower()
    if not _has_room(event, email):
        count_suppressed(event.account_id)
        return
    details = {"reason": event.reason}
    details |= {"email": email} if email else {}
    details |= {"provider": event.provider} if event.provider else {}
    kind = EventKind.SIGN_IN_LOCKED if event.reason == LOCKED else EventKind.SIGN_IN_FAILED
    record(Event(event.account_id, kind, "users", event.user_id or "", details))


def _has_room(event: events.SignInFailed, email: str) -> bool:
    if config.current().login_rate_limit == "off":
        return True
    by_address = FAILURES_OF_ADDRESS.of(event.account_id, event.user_id or email)
    try:
        rate_limits.consume(by_address, FAILURES.of(event.account_id))
    except TooManyRequests:
        return False
    return True


@events.subscribe(events.PortalCreated)
def _on_portal(event: events.PortalCreated) -> None:
    details = {"session_id": event.session_id, "pages": event.pages}
    record(Event(event.account_id, EventKind.PORTAL_CREATED, "users", event.user_id, details))


@events.subscribe(events.SessionsEnded)
def _on_end(event: events.SessionsEnded) -> None:
    details = {"count": event.count}
    record(Event(event.account_id, EventKind.SESSIONS_ENDED, "users", event.user_id, details))


@events.subscribe(events.RefreshTokenReused)
def _on_reuse(event: events.RefreshTokenReused) -> None:
    record(Event(event.account_id, EventKind.REFRESH_TOKEN_REUSED, "sessions", event.session_id))


@events.subscribe(events.ViewRunsAgain)
def _on_rerun(event: events.ViewRunsAgain) -> None:
    current = reads.collector.get()
    if current is not None:
        current.clear()


@events.subscribe(events.PersonalDataShown)
def _on_audit(event: events.PersonalDataShown) -> None:
    with reads.by_path("audit"):
        reads.note(event.definition, event.by, event.account_id, event.record_ids, event.fields)


@events.subscribe(events.RowChanged)
def _on_change(event: events.RowChanged) -> None:
    policy = policy_of(event.table_name)
    noun = policy.noun.event if policy and policy.noun else None
    if noun is None or (noun == "account" and event.account_id == SYSTEM_ACCOUNT_ID):
        return
    verb = VERBS.get(event.operation, "changed")
    kind = f"{noun}.{verb}"
    if event.table_name == "users" and verb == "changed" and "password_hash" in event.columns:
        kind = EventKind.PASSWORD_CHANGED
    details = {"fields": sorted(event.columns)} if verb == "changed" else {}
    record(Event(event.account_id, kind, event.table_name, event.row_id, details))


WINDOW_SECONDS = 3600  # of failed sign-ins that are not recorded one by one
# Counts longer than the window, so that a late job still finds the number.
COUNT = Limit("security-log-suppressed", 1, 7 * 86_400)


def count_suppressed(account_id: str) -> None:
    """Count a failed sign-in that is not recorded, so that guesses cannot fill a log.

    The first one enqueues a job; after an hour it records how many there were.
    """
    if rate_limits.increment(COUNT.of(account_id), 1) == 1:
        payload = {"since": clock.iso(clock.now())}
        with db.transaction():
            after = WINDOW_SECONDS
            jobs.enqueue("security.record_suppressed", payload, account_id=account_id, after=after)


@jobs.job("security.record_suppressed")
def record_suppressed(payload: JSONMapping) -> None:
    """Record how many failures were not recorded, and count anew."""
    account_id = payload["account_id"]
    number = rate_limits.take(COUNT.of(account_id))
    if number:
        details = {"count": number, "since": payload["since"]}
        record(
            Event(
                account_id, EventKind.SIGN_INS_SUPPRESSED, "users", details=details, by=actor.SYSTEM
            )
        )
