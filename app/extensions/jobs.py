"""Jobs that run handlers after the commit: at least once, and what they write exactly once.

A job is written in the transaction of what it is about. It runs in a queue and threads of its own,
so that no other work waits for the code of an extension, and for a limited time.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from traceback import extract_tb
from typing import Any

import orjson
import structlog
from cryptography.fernet import InvalidToken
from flask import current_app

from app import config, crypto, db, jobs
from app.audit.security_log import reads
from app.auth import principal as principals
from app.auth.principal import Principal
from app.context import actor, tenancy, trigger_depth
from app.context.actor import Actor
from app.context.trigger_depth import Chain
from app.db import versioned_cache
from app.errors import AppError
from app.extensions import registry, running
from app.extensions.caller import Caller
from app.extensions.collected import ACCOUNT_GONE, Collected, current_caller
from app.extensions.registry import Handler, Kind
from app.extensions.running import HandlerFailed, HandlerTimeout
from app.ids import new_id
from app.jobs import JobError, NewJob, worker
from app.jobs.rq_queues import EXTENSIONS
from app.types import JSONMapping, JSONObject
from app.web import rate_limits
from app.web.rate_limits import Limit
from app.workflows.triggers.start import MAX_DEPTH

log = structlog.get_logger()

PREFIX = "extensions."
ATTEMPTS = 6  # the first retry after 10 s, the last within an hour
LEASE_SECONDS = 300
MAX_SECONDS = 900
GRACE_SECONDS = 5
LONGEST_REASON = 1000
AT_ONCE = 4
MAX_PER_CHAIN = 10_000
"""Calls that one change may lead to by further handlers, in a day."""
CHAIN = Limit("extension-chain", MAX_PER_CHAIN, 86_400)
RUN_LATER = (Kind.AFTER_CREATE, Kind.AFTER_UPDATE, Kind.AFTER_DELETE, Kind.ON, Kind.PERIODIC)
TOO_DEEP = f"Not run: the chain of handlers is longer than {MAX_DEPTH}."
TOO_WIDE = f"Not run, as others: the chain of handlers has called {MAX_PER_CHAIN:,}."
TOO_LONG = "{} took longer than {:g} s."
NAME = re.compile("[A-Za-z_][A-Za-z0-9_]{0,62}")
UNREADABLE = "No key in SERVICE_ENCRYPTION_KEY decrypts the data of this job."


def kind_of(handler: Handler) -> str:
    """The kind of a handler's jobs, which has the extension's name."""
    return f"{PREFIX}{handler.name}"


def new(
    handler: Handler,
    args: Sequence[object],
    *,
    account_id: str,
    by: JSONMapping,
    record_id: object = None,
) -> NewJob:
    """The job that calls a handler with these values; `by` is what `stored_caller` returned."""
    depth, root = trigger_depth.chain.get()
    key = new_id()
    payload: JSONObject = {
        "on": handler.kind,
        "name": handler.name,
        "key": key,
        "depth": depth + 1,
        "root": root or key,
        "request": actor.current().request_id,
        # Values may be personal, or encrypted where they are stored.
        "data": crypto.encrypt(orjson.dumps(list(args)).decode()),
        **by,
        **({"record_id": record_id} if record_id else {}),
    }
    refusal = TOO_DEEP if depth + 1 > MAX_DEPTH else None
    return NewJob(account_id, kind_of(handler), payload, refusal)


def enqueue(new: Sequence[NewJob]) -> None:
    """Enqueue jobs in the open transaction: of a chain no more than MAX_PER_CHAIN a day.

    The depth of a chain alone does not bound it, as each handler may write many records.
    """
    admitted, chains = list[NewJob](), dict[str, list[NewJob]]()
    for one in new:
        is_first = one.payload["depth"] == 1
        (admitted if is_first else chains.setdefault(one.payload["root"], [])).append(one)
    for root, own in chains.items():
        total = rate_limits.increment(CHAIN.of(root), len(own))
        room = max(0, MAX_PER_CHAIN - total + len(own))
        admitted += own[:room]
        if room < len(own) and total - len(own) <= MAX_PER_CHAIN:
            admitted.append(own[room]._replace(refusal=TOO_WIDE))  # which stands for the others
    jobs.enqueue_many(admitted)


def stored_caller(by: Principal) -> JSONObject:
    """Whom a job acts for: a user, and the credential, whose limits it has then."""
    if by.user_check is None or by.home is None:
        return {}
    limits = {"mfa": by.mfa, "api_key_id": by.api_key_id}
    return {"user_id": by.user_id, "home_id": by.home.id, "limits": limits}


def restored_caller(account_id: str, stored: JSONMapping) -> Principal:
    """The caller of a job: nobody if the user or the key may not act any more. Raises JobError."""
    if account_id == jobs.INSTANCE:
        return Principal(None)
    account = principals.find_active_account(account_id)
    if account is None:
        raise JobError(ACCOUNT_GONE, is_final=True)
    user_id, home_id = stored.get("user_id"), stored.get("home_id")
    user, limits = None, stored.get("limits") or {}
    if user_id and home_id:
        with tenancy.across_accounts():
            user = current_caller(home_id, user_id, limits.get("api_key_id"))
            try:
                versioned_cache.verify(user.version_checks if user else ())
            except versioned_cache.Stale:
                with versioned_cache.reloading():
                    user = current_caller(home_id, user_id, limits.get("api_key_id"))
    if user is None or (home_id != account_id and not user.is_superadmin):
        return principals.anonymous(account)
    return replace(user.acting_in(account), mfa=bool(limits.get("mfa")))


@registry.on_change
def register() -> None:
    """Make the kinds of jobs of the loaded handlers known to workers."""
    for kind in [one for one in jobs.KINDS if one.startswith(PREFIX)]:
        del jobs.KINDS[kind]
    for handler in registry.handlers():
        if handler.kind in RUN_LATER:
            known = jobs.job(
                kind_of(handler), attempts=ATTEMPTS, runs_extension=True, lease=LEASE_SECONDS
            )
            known(run)


def run(payload: JSONMapping) -> None:
    """Run the handler of a job. Raises JobError."""
    handler = registry.find(Kind(payload["on"]), payload["name"])
    if handler is None:
        raise JobError(f"{payload['name']} does not handle {payload['on']} any more.")
    within(handler, MAX_SECONDS, lambda: _attempt(handler, payload))


def _attempt(handler: Handler, payload: JSONMapping) -> None:
    try:
        args = orjson.loads(crypto.decrypt(payload["data"]))
    except InvalidToken as error:
        raise JobError(UNREADABLE) from error
    by = restored_caller(payload["account_id"], payload)
    trigger_depth.chain.set(Chain(payload["depth"], payload["root"]))
    collected = Collected()
    call(handler, by, args, collected, payload["key"], payload["request"], MAX_SECONDS)
    collected.store(jobs.finish_running)


def call(
    handler: Handler,
    by: Principal,
    args: Sequence[object],
    collected: Collected,
    key: str,
    request_id: str | None,
    seconds: float,
) -> Any:
    """Call a handler for a principal, for so long at most, and return what it returns."""
    # Of a periodic job: no rights but those that it names.
    is_system = handler.kind is Kind.PERIODIC
    nobody = actor.ANONYMOUS if by.account and not is_system else actor.SYSTEM
    id = by.user_id
    user = Actor(id, by.email, by.name or by.email) if id else nobody
    caller = Caller(by, handler, collected, is_system=is_system, idempotency_key=key)
    acting = actor.acting(user._replace(request_id=request_id))
    with acting, tenancy.scoped_to(by.tenancy), reads.by_path("extension"):
        return running.run(handler, caller, *args, seconds=seconds)


def within(handler: Handler, seconds: float, work: Callable[[], Any]) -> Any:
    """Call a function that calls a handler in a thread of its own; returns what it returns.

    A thread that goes on after the handler's time, as it is stuck outside of Python, is left alone:
    what it writes later is stored only if its claim is still the last one. Raises JobError.
    """
    app, outcome = current_app._get_current_object(), list[Any]()  # type: ignore[attr-defined]

    def target() -> None:
        with app.app_context():
            try:
                outcome.append((work(), None))
            except BaseException as error:  # noqa: BLE001 - raised in the job's own thread
                outcome.append((None, error))
            finally:
                db.db.session.remove()

    context = copy_context()
    thread = threading.Thread(target=context.run, args=[target], name=handler.name, daemon=True)
    thread.start()
    thread.join(seconds + GRACE_SECONDS)
    if not outcome:
        log.error("handler does not end", extension=handler.extension, handler=handler.name)
        raise JobError(TOO_LONG.format(handler.name, seconds))
    result, error = outcome[0]
    if isinstance(error, HandlerFailed):
        error = error.__cause__ or error
    if isinstance(error, HandlerTimeout):
        raise JobError(TOO_LONG.format(handler.name, seconds)) from error
    if isinstance(error, JobError | jobs.LeaseLost):
        raise error
    if error is not None:
        raise JobError(reason_of(error, handler)) from error
    return result


def reason_of(error: BaseException, handler: Handler) -> str:
    """What a handler raised: its name, fields and codes, and the place.

    Without values, but in development, where the message is there.
    """
    parts = [type(error).__name__]
    if isinstance(error, AppError):
        details = error.extra.get("details") or ()
        found = [_shown(one) for one in details]
        parts.append(f"({', '.join(found[:5]) or error.error})")
    extension = registry.EXTENSIONS.get(handler.extension)
    folder = extension.folder if extension else None
    own = str(folder or handler.function.__code__.co_filename)
    frames = [one for one in extract_tb(error.__traceback__) if one.filename.startswith(own)]
    if frames:
        parts.append(f"in {Path(frames[-1].filename).name}, line {frames[-1].lineno}")
    if isinstance(error, running.Misuse) or config.current().env == "development":
        parts.append(f"({error})")
    return " ".join(parts)[:LONGEST_REASON]


def _shown(problem: JSONMapping) -> str:
    """The field and the code of a problem; what cannot be a field is a value that was one's key."""
    field, code = problem.get("field"), problem.get("code")
    return f"{field}: {code}" if field is None or NAME.fullmatch(str(field)) else str(code)


@worker.loop("extensions", EXTENSIONS)
def work(stop: threading.Event, woken: threading.Event) -> None:
    """Run jobs of extensions until `stop` is set: several at once, as some may take long."""
    if not registry.EXTENSIONS:
        return
    app = current_app._get_current_object()  # type: ignore[attr-defined]

    def work_too() -> None:
        with app.app_context():
            worker.work_on(stop, woken, EXTENSIONS)

    for _ in range(AT_ONCE - 1):
        threading.Thread(target=work_too, name="extensions", daemon=True).start()
    worker.work_on(stop, woken, EXTENSIONS)
