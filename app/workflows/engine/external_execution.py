"""Runs steps with external effects: start, send and record, with no transaction while sending.

Branches that are ready at the same time send concurrently. If a worker dies in between, the log
shows that the step started; the next worker sends again under the same idempotency key.

Recipients and number of mails are limited, as they carry the service's own address: their authors,
admins of an account, are unknown to recipients outside the account.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from cryptography.fernet import InvalidToken
from flask import current_app

from app import config, db
from app.accounts import service as accounts
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.accounts.product import mails
from app.accounts.usage import models, quotas
from app.accounts.usage.quotas import QuotaExceeded
from app.auth import stranger_mails
from app.collections import masking
from app.context import tenancy, trigger_depth
from app.context.trigger_depth import Chain
from app.db import versioned_cache
from app.errors import AppError, Forbidden, TooManyRequests
from app.ids import new_id
from app.jobs import JobError
from app.types import JSONMapping, JSONObject
from app.web import rate_limits, serialization
from app.web.rate_limits import Allowance, Limit
from app.workflows import versions
from app.workflows.engine import external_steps, queue, recipients
from app.workflows.engine.control_steps import Failed, Outcome
from app.workflows.engine.position import Place
from app.workflows.engine.recipients import Recipients
from app.workflows.engine.step_log import Entry, rows
from app.workflows.language import step_headers
from app.workflows.language.definition import OWN_STEPS
from app.workflows.language.templates import TooLarge
from app.workflows.models import InstanceState

WORKER_LOST = "The worker was lost. Whether the request was sent is unknown."
UNREADABLE_HEADERS = (
    "No key in SERVICE_ENCRYPTION_KEY decrypts the headers of this step. Enter them again."
)
Result = Any  # the output, with what stores the writes of an extension; or why it failed
FIELDS, ANYONE = "fields", "anyone"
HOUR, DAY = 3600, 86_400
NOT_A_MEMBER = (
    "{} is not a verified address of an active member of this account. Mails go to members only"
    " (SERVICE_WORKFLOW_MAIL_RECIPIENTS)."
)
TOO_MANY_PER_DAY = (
    "This account's workflows have sent {} mails today (SERVICE_WORKFLOW_MAILS_PER_DAY)."
    " Resume the instance tomorrow."
)
TOO_MANY_TO_STRANGERS = (
    "This account has sent as many mails to unverified addresses as it may today"
    " (SERVICE_MAILS_PER_ACCOUNT, SERVICE_MAILS_PER_NEW_ACCOUNT). Resume the instance tomorrow."
)
TOO_MANY_PER_MAILBOX = (
    "Workflows have sent {} mails to {} within an hour (SERVICE_WORKFLOW_MAILS_PER_MAILBOX)."
    " Resume the instance later."
)


def run_steps(run: Any, places: Sequence[Place]) -> None:
    """Run the external steps at these places, and move on."""
    with run.slot():
        inputs: JSONObject = {}
        for place in places:
            try:
                inputs[place.path] = _render_input(run, place)
            except (AppError, TooLarge, Failed) as error:
                run.fail([(place, error)])
                return
        _record_start(run, places, inputs)
    with run.slots.released():
        results = _run_concurrently(
            [_prepare_send(run, place, inputs[place.path]) for place in places]
        )
    with run.slot():
        _record_results(run, dict(zip((place.path for place in places), results, strict=True)))


def _render_input(run: Any, place: Place) -> JSONObject:
    with versioned_cache.reloading():
        by = run.owner()
    if by.account is None or not by.is_admin:
        raise Forbidden(versions.NOT_ADMIN)
    try:
        config = {} if place.step.is_own else step_headers.decrypted(place.step.config)
    except InvalidToken as error:
        raise Failed(UNREADABLE_HEADERS) from error
    run.by = by
    if place.step.is_own:
        given = run.rendering(place).value(place.step.settings.get("input") or {})
        if not isinstance(given, dict):
            raise Failed("The template of the input did not return an object.")
        return given
    input: JSONObject = run.rendering(place).config(config)
    if place.step.action == "send_email":
        run.sender = mails.sender(by.account.id, by.account.name, by.account.account_code)
        try:
            found = recipients.resolve(run.account_id, input.get("to"), run.names(place))
        except recipients.Unreachable as error:
            raise Failed(str(error)) from error
        admit_mail(run.account_id, found)
        return {**input, "to": found.addresses}
    return input


def _record_start(run: Any, places: Sequence[Place], inputs: JSONMapping) -> None:
    lost_entries = [
        Entry(place, InstanceState.FAILED, error=WORKER_LOST)
        for place in places
        if "log" in place.spot
    ]
    lost_rows = rows(lost_entries, run)
    for place in places:
        if "log" in place.spot:
            place.spot["attempt"] = place.spot.get("attempt", 0) + 1
        place.spot.update(log=new_id(), since=serialization.plain(run.now))
    entries = [
        Entry(place_, InstanceState.RUNNING, external_steps.loggable(inputs[place_.path]))
        for place_ in places
    ]
    timeout = max(
        external_steps.seconds(place_.step.action or place_.step.type, inputs[place_.path])
        for place_ in places
    )
    seconds = timeout + config.current().workflow_lease_seconds
    with db.transaction():
        log_rows = rows(entries, run)
        values = {
            "position": run.position_text(),
            "due_at": run.now + timedelta(seconds=seconds),
            "current_step": run.current_step(),
        }
        queue.write(run, values, log_rows.new, lost_rows.old)
    run.remember_state()


def _prepare_send(run: Any, place: Place, input: Any) -> Callable[[], object]:
    idempotency_key, kind = (
        external_steps.idempotency_key(run.id, place.path),
        place.step.action or "",
    )
    if run_own := OWN_STEPS.get(place.step.type):
        chain = Chain(run.row.depth, run.root_id)
        return lambda: run_own(run.by, input, idempotency_key, run.id, chain)
    extra_headers = {
        "X-Service-Workflow-Instance": run.id,
        **trigger_depth.headers(run.row.depth, run.root_id),
    }
    return lambda: external_steps.carry_out(kind, input, idempotency_key, extra_headers, run.sender)


def _record_results(run: Any, results: Mapping[str, Result]) -> None:
    failures: list[tuple[Place, Exception]] = []
    for path, result in results.items():
        place = run.place_at(path)
        if isinstance(result, str):
            failures.append((place, Failed(result)))
            continue
        output, store = result if place.step.is_own else (result, _store)
        # Its owner may see more than those who read the log.
        run.holds_pii = run.holds_pii or (place.step.is_own and not masking.masks_for(run.by))

        def mark(path: str = path, output: object = output) -> None:
            place = run.place_at(path)
            run.apply(place, Outcome(output=output, target=place.step.following))

        try:
            store(mark, run.restore)
        except (Failed, AppError, JobError) as error:
            run.restore()
            failures.append((run.place_at(path), error))
    if failures:
        run.fail([(run.place_at(place.path), error) for place, error in failures])


def _store(mark: Callable[[], None], undone: Callable[[], None]) -> None:
    with db.transaction():
        mark()


def _run_concurrently(calls: Sequence[Callable[[], object]]) -> list[Any]:
    """The result of each call, or its error message."""
    results: list[object] = ["The service failed."] * len(calls)
    app = current_app._get_current_object()  # type: ignore[attr-defined]

    tenant_scope = tenancy.current()

    def carry_out(index: int) -> None:
        with app.app_context(), tenancy.scoped_to(tenant_scope):
            try:
                results[index] = calls[index]()
            except external_steps.Failed as error:
                results[index] = str(error)

    threads = [
        threading.Thread(target=carry_out, args=[index], daemon=True)
        for index in range(1, len(calls))
    ]
    for thread in threads:
        thread.start()
    carry_out(0)
    for thread in threads:
        thread.join()
    return results


def admit_mail(account_id: str, to: Recipients) -> None:
    """Check and count the recipients of a `send_email`. Raises Failed."""
    addresses = to.addresses
    strangers = recipients.strangers(account_id, addresses)
    allowed = config.current().workflow_mail_recipients
    if allowed != ANYONE:
        of_fields = to.of_fields if allowed == FIELDS else ()
        refused = [one for one in strangers if accounts.email_key(one) not in of_fields]
        if refused:
            raise Failed(NOT_A_MEMBER.format(refused[0]))
    try:
        quotas.check_stored(account_id, models.MAILS, len(addresses))
    except QuotaExceeded as error:
        raise Failed(f"{error.message} Resume the instance tomorrow.") from error
    # Separate limits: workflows must not use up the mails that users request, such as resets.
    settings = config.current()
    per_mailbox, per_day = settings.workflow_mails_per_mailbox, settings.workflow_mails_per_day
    for address in addresses:
        mailbox = Limit("workflow-mailbox", per_mailbox, HOUR).of(accounts.email_key(address))
        _consume(mailbox, TOO_MANY_PER_MAILBOX.format(per_mailbox, address))
        account = Limit("workflow-mails", per_day, DAY).of(account_id)
        _consume(account, TOO_MANY_PER_DAY.format(per_day))
    if account_id != SYSTEM_ACCOUNT_ID:
        for _ in strangers:
            _consume(stranger_mails.limit(account_id), TOO_MANY_TO_STRANGERS)


def _consume(allowance: Allowance, refusal: str) -> None:
    try:
        rate_limits.consume(allowance)
    except TooManyRequests as error:
        raise Failed(refusal) from error
