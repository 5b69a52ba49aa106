"""The webhooks of an account."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from app import clock, config, crypto, db, events, jobs
from app.accounts.models import PII_GROUP, SYSTEM_ACCOUNT_ID, User
from app.accounts.usage import models, quotas
from app.auth import owners
from app.auth.principal import Principal
from app.collections import definitions, expression_names
from app.collections.schema import COLLECTION_NAME
from app.context import tenancy
from app.db import errors
from app.errors import Conflict, Forbidden, InvalidValues, NotFound, problem
from app.ids import new_id
from app.outbound import client, web_waits
from app.types import JSONMapping, JSONObject
from app.webhooks import (
    delivery,
    filters,
    headers,
    log,
    payload,
    queue,
    redaction,
    signing,
    versions,
)
from app.webhooks.delivery import Result, Work
from app.webhooks.models import IS_OPERATORS, Webhook, WebhookVersion

MAX_HEADERS = 50
PAYLOAD_SETTINGS = ("url", "collection", "events", "filter", "include_pii")
BESIDE = ("secret", "owner_id")  # of a body, what is no setting by itself
PREVIOUS_SECRET = timedelta(hours=24)

Body = JSONMapping


@dataclass(frozen=True)
class Secret:
    """A webhook with its secret, for the response that shows it."""

    webhook: Webhook
    secret: str

    @property
    def signing_secret(self) -> str:
        """The secret in the format of Standard Webhooks libraries."""
        return signing.signing_secret(self.secret)

    def __getattr__(self, name: str) -> object:
        """Any other attribute of the webhook."""
        return getattr(self.webhook, name)


def page(skip: int, limit: int, *, by: Principal) -> tuple[list[Webhook], int]:
    """The webhooks of the account, oldest first, and the total."""
    conditions = _visible(by)
    total = db.db.session.scalar(sa.select(sa.func.count()).select_from(Webhook).where(*conditions))
    query = sa.select(Webhook).where(*conditions).order_by(Webhook.id).offset(skip).limit(limit)
    return list(db.db.session.scalars(query)), total or 0


def failing(limit: int, *, by: Principal) -> list[Webhook]:
    """Failing and disabled webhooks, longest failing first."""
    columns = Webhook.failing_since, Webhook.disabled_at
    query = sa.select(Webhook).where(
        *_visible(by), sa.or_(*(column.is_not(None) for column in columns))
    )
    ordered = query.order_by(Webhook.failing_since, Webhook.id)
    return list(db.db.session.scalars(ordered.limit(limit)))


def get(webhook_id: str, *, by: Principal, operators: bool = False) -> Webhook:
    """One webhook, of the account or of the operator. Raises NotFound."""
    return _require(db.db.session.scalar(_query(webhook_id, by, operators)))


def create(body: Body, *, by: Principal, id: str | None = None) -> Secret:
    """Create a webhook. Raises InvalidValues, Forbidden, Conflict."""
    account_id = by.require_account_id()
    _check_personal(body.get("include_pii", False), by)
    check(body)
    _check_names(body["collection"], body.get("filter"))
    invalid = headers.problems(body.get("headers") or {}, None, same_host=False)
    if invalid:
        raise InvalidValues(invalid)
    _, owner_id = owners.choose(account_id, body.get("owner_id"), by=by)
    secret = body.get("secret") or signing.new_secret()
    conflict = errors.conflict_on_unique(
        "webhooks", "id", "id", "A webhook with this id already exists."
    )
    with conflict, db.transaction() as session:
        versions.outdate(account_id)
        check_room(account_id)
        values = {name: value for name, value in body.items() if name not in BESIDE}
        webhook = Webhook(
            account_id=account_id,
            id=id or new_id(),
            created_by=owner_id,
            secret=crypto.encrypt(secret),
            **values | {"headers": headers.encrypted(body.get("headers"), None)},
        )
        session.add(webhook)
        session.flush()
    return Secret(webhook, secret)


def check_room(account_id: str, *, operators: bool = False) -> None:
    """Raise Conflict if an account, or the operator, has as many webhooks as it may have."""
    limit = config.current().webhooks_per_account
    query = sa.select(sa.func.count()).select_from(Webhook)
    own = (Webhook.account_id == account_id, Webhook.types.is_(None))
    counted = query.where(*(IS_OPERATORS if operators else own))
    if (db.db.session.scalar(counted) or 0) >= limit:
        message = f"An account may have at most {limit} webhooks."
        raise Conflict(message, error="limit_reached")


def change(webhook_id: str, body: Body, *, by: Principal) -> Webhook:
    """Change a webhook; a new secret starts a rotation. Raises NotFound, InvalidValues,
    Forbidden.
    """
    check(body)
    with changing(webhook_id, by) as webhook:
        include_pii = body.get("include_pii", webhook.include_pii)
        _check_personal(include_pii, by)
        origin = headers.origin
        same_host = origin(body.get("url", webhook.url)) == origin(webhook.url)
        default = {} if same_host else headers.masked(webhook.headers)
        invalid = headers.problems(body.get("headers", default) or {}, webhook.headers, same_host)
        if invalid:
            raise InvalidValues(invalid)
        if body.get("filter", webhook.filter) != webhook.filter:
            _check_names(body.get("collection", webhook.collection), body["filter"])
        secret, url = body.get("secret"), webhook.url
        # Whoever changes what is sent becomes the owner, so payloads show their own view.
        changed = (name for name in PAYLOAD_SETTINGS if name in body)
        if "owner_id" in body or any(body[name] != getattr(webhook, name) for name in changed):
            present = webhook.created_by
            _, owner_id = owners.choose(
                webhook.account_id, body.get("owner_id"), by=by, present=present
            )
            set_owner(webhook, owner_id)
        for name, value in body.items():
            if name == "headers":
                webhook.headers = headers.encrypted(value, webhook.headers)
            elif name not in BESIDE:
                setattr(webhook, name, value)
        if secret:
            _replace_secret(webhook, secret)
        settle_change(webhook, body, url)
    return webhook


def settle_change(webhook: Webhook, body: Body, former_url: str) -> None:
    """Do what follows from a change of whether, or where to, a webhook sends."""
    if body.get("enabled"):
        webhook.disabled_at = webhook.disabled_reason = None
    if body.get("enabled") or webhook.url != former_url:
        webhook.failing_since = None
    webhook.updated_at = clock.now()
    if "enabled" in body:
        db.db.session.flush()  # lock the webhook first, in the workers' order
        move = queue.resume if webhook.is_sending else queue.lay_by
        move(webhook.account_id, webhook.id)


def take_over(webhook_id: str, *, by: Principal, operators: bool = False) -> Webhook:
    """Make the caller the owner, whose rights decide the payloads. Raises NotFound, Forbidden.

    A paused webhook goes on. Personal data stays included only if the caller may have it sent.
    """
    with changing(webhook_id, by, operators=operators) as webhook:
        set_owner(webhook, by.require_user_id())
        webhook.include_pii = webhook.include_pii and PII_GROUP in by.groups
        webhook.updated_at = clock.now()
    return webhook


def has_active_maker(webhook: Webhook) -> bool:
    """Whether the owner may still act; otherwise payloads show what any admin may view, masked."""
    homes = (webhook.account_id, SYSTEM_ACCOUNT_ID) if webhook.created_by else ()
    with tenancy.across_accounts():
        users = [db.db.session.get(User, (home, webhook.created_by)) for home in homes]
    return any(user and user.may_act for user in users)


def warnings(webhook: Webhook) -> list[JSONObject]:
    """Likely mistakes in a webhook."""
    problems = payload_warnings(webhook.account_id)
    try:
        definitions.get_current(webhook.collection)
    except NotFound:
        message = f"The collection {webhook.collection!r} does not exist yet. Nothing is sent."
        problems.append(problem("collection", "collection_missing", message))
    return problems


def payload_warnings(account_id: str) -> list[JSONObject]:
    """Warnings about all payloads of an account."""
    version = db.db.session.get(WebhookVersion, account_id)
    if version is None or not version.payloads_cut:
        return []
    max_bytes = config.current().webhook_log_bytes
    message = f"Payloads have ids only: pending deliveries take more than {max_bytes:,} bytes."
    return [problem(None, "payloads_cut", message)]


def set_owner(webhook: Webhook, owner_id: str) -> None:
    """Make a user the owner of a locked webhook; a paused one goes on."""
    if webhook.created_by != owner_id:
        webhook.created_by = owner_id
        redaction.transfer_pending(webhook)
    if webhook.paused_at:
        webhook.paused_at = None
        db.db.session.flush()
        if webhook.enabled:
            queue.resume(webhook.account_id, webhook.id)


def rotate_secret(webhook_id: str, *, by: Principal, operators: bool = False) -> Secret:
    """Rotate the secret; the previous one also signs for 24 hours."""
    secret = signing.new_secret()
    with changing(webhook_id, by, operators=operators) as webhook:
        _replace_secret(webhook, secret)
        webhook.updated_at = clock.now()
    return Secret(webhook, secret)


def delete(webhook_id: str, *, by: Principal, operators: bool = False) -> None:
    """Delete a webhook; a job removes its deliveries."""
    with changing(webhook_id, by, operators=operators) as webhook:
        db.db.session.delete(webhook)
        job_payload = {"webhook_id": webhook.id}
        jobs.enqueue("webhooks.remove", job_payload, account_id=webhook.account_id)


def test(webhook_id: str, *, by: Principal) -> Result:
    """Send a test now, and log it. Raises TooManyRequests while too many others run."""
    by.require_account_id()
    webhook = get(webhook_id, by=by)
    metadata = {"webhook_id": webhook.id, "account_id": webhook.account_id}
    content = payload.test_facts(webhook.collection)
    return send_test(webhook, payload.text(content, timestamp=clock.now(), **metadata))


def send_test(webhook: Webhook, text: str) -> Result:
    """Send the text of a test now, and log it. Raises TooManyRequests."""
    quotas.check_stored(webhook.account_id, models.DELIVERIES)
    work = Work(
        account_id=webhook.account_id,
        id=new_id(),
        claim=1,
        webhook_id=webhook.id,
        event=payload.TEST_EVENT,
        payload=text,
        attempt_number=0,
        replay_of=None,
        target=replace(queue.target(webhook), enabled=True),
    )
    # Hold no database connection while waiting for the receiver.
    db.db.session.remove()
    with web_waits.place_or_429(work.account_id):
        result = delivery.attempt(work, delivery.rules(config.current()))
    log.record_test(result)
    return result


@contextmanager
def changing(webhook_id: str, by: Principal, *, operators: bool = False) -> Iterator[Webhook]:
    """A webhook that nobody else changes until the block ends. Raises NotFound."""
    account_id = SYSTEM_ACCOUNT_ID if operators else by.require_account_id()
    with db.transaction() as session:
        query = _query(webhook_id, by, operators)
        _require(session.scalar(query))
        versions.outdate(account_id)
        # Reload: another transaction may have changed or deleted it before we got the lock.
        yield _require(session.scalar(query.execution_options(populate_existing=True)))
        session.flush()


def _replace_secret(webhook: Webhook, secret: str) -> None:
    webhook.previous_secret = webhook.secret
    webhook.previous_valid_until = clock.now() + PREVIOUS_SECRET
    webhook.secret = crypto.encrypt(secret)


def check(body: Body) -> None:
    """Check the values of a webhook. Raises InvalidValues.

    Within a transaction it waits for no name server: every request checks the address again.
    """
    problems = filters.problems(body.get("filter"))
    if "collection" in body and not COLLECTION_NAME.fullmatch(body["collection"]):
        message = "This is not a valid collection name."
        problems.append(problem("collection", "name_invalid", message))
    elif "collection" in body and definitions.is_view(body["collection"]):
        problems.append(problem("collection", *definitions.NO_CHANGES))
    if "url" in body:
        deadline = 0 if db.in_transaction() else None
        url_problem = client.url_problem(body["url"], delivery.rules(config.current()), deadline)
        if url_problem:
            problems.append(problem("url", "invalid_url", url_problem))
    problems += _header_problems(body.get("headers") or {})
    if problems:
        raise InvalidValues(problems)


def _check_names(collection: str, filter: str | None) -> None:
    """Refuse a filter with roles that do not exist, or choices that a field cannot have."""
    of = None
    with suppress(NotFound):  # it may be created later
        of = definitions.get_current(collection)
    if found := expression_names.problem_in(filter, of):
        raise InvalidValues([found | {"field": "filter"}])


def _header_problems(headers: Mapping[str, str]) -> list[JSONObject]:
    problems = []
    if len(headers) > MAX_HEADERS:
        problems.append(problem("headers", "too_long", f"At most {MAX_HEADERS} headers."))
    if len({name.lower() for name in headers}) < len(headers):
        problems.append(problem("headers", "name_duplicate", "A header is given twice."))
    for name, value in headers.items():
        short_name = name[:80]
        if not client.HEADER_NAME.fullmatch(name):
            problems.append(
                problem("headers", "name_invalid", f"{short_name!r} is not a valid header name.")
            )
        elif delivery.is_reserved(name):
            problems.append(
                problem("headers", "name_reserved", f"{short_name} is set by the service.")
            )
        elif not client.HEADER_VALUE.fullmatch(value):
            message = f"The value of {short_name} has invalid characters."
            problems.append(problem("headers", "pattern_mismatch", message))
    return problems


def _check_personal(include: bool, by: Principal) -> None:
    # Also applies to changes of the URL, which would reveal the data.
    if include and PII_GROUP not in by.groups:
        raise Forbidden(f"Only members of {PII_GROUP} may send personal data.")


def _visible(by: Principal) -> list[Any]:
    own = [] if by.account_id is None else [Webhook.account_id == by.account_id]
    return [*own, Webhook.types.is_(None)]


def _query(webhook_id: str, by: Principal, operators: bool = False) -> sa.Select[Webhook]:
    own = IS_OPERATORS if operators else _visible(by)
    return sa.select(Webhook).where(Webhook.id == webhook_id.lower(), *own)


def _require(webhook: Webhook | None) -> Webhook:
    if webhook is None:
        raise NotFound("No webhook with this id.")
    return webhook


@events.subscribe(events.AccountClosed)
def _remove_later(event: events.AccountClosed) -> None:
    versions.outdate(event.account_id)
    statement = sa.delete(Webhook).where(Webhook.account_id == event.account_id)
    db.connection().execute(statement)
    jobs.enqueue("webhooks.remove", {"webhook_id": None}, account_id=event.account_id)
