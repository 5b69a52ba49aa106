"""What a handler is given: whom it acts for, and records as that caller may use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import sqlalchemy as sa
import structlog

from app import db, rules
from app.accounts.models import ADMIN, SYSTEM_ACCOUNT_ID, User, UserKind
from app.audit import append
from app.audit.security_log.models import EventKind
from app.audit.security_log.recording import Event, record
from app.auth import principal as principals
from app.auth.principal import AccountRef, Principal
from app.context import actor, tenancy
from app.context.actor import Actor, ActorKind
from app.errors import Forbidden, InvalidValues, NotFound, TooManyRequests
from app.extensions import running
from app.extensions.registry import Handler
from app.extensions.running import Misuse, Refused
from app.extensions.tables import Rows, TableT, as_stored
from app.records import service
from app.records.store import limit_size
from app.records.store.reads import ListQuery
from app.records.write import changes
from app.types import JSONMapping, JSONObject
from app.web import rate_limits, serialization
from app.web.rate_limits import Allowance, Limit

log = structlog.get_logger()

MAX_LIMIT, LONGEST_REASON = 100, 500
NOTED = Limit("extension-as-operator", 1, 3600)
ENDED = "The block of this caller has ended."
NO_RIGHTS = "The system has no rights: name some by as_service or as_operator."
OTHER_ACCOUNT = "A handler acts in the account of its caller alone."
NOT_IN_SYSTEM = "Extensions have no other rights than their caller's in the system account."
NO_SERVICE = "The account has no active service user of this name."
READ_ONLY = "This API key is read-only."


@dataclass(frozen=True)
class CallersAccount:
    """The account that a handler acts in."""

    id: str
    slug: str
    name: str


@dataclass(frozen=True)
class CallersUser:
    """The user that a handler acts for."""

    id: str
    name: str | None
    email: str | None
    """None for a service user."""


class Writing(Protocol):
    """How `Records` writes, in the name of the extension."""

    def create(self, collection: str, values: JSONMapping, by: Principal) -> JSONMapping:
        """Create a record; returns it as the caller may view it."""
        ...

    def update(self, collection: str, id: str, values: JSONMapping, by: Principal) -> JSONMapping:
        """Set these fields of a record; returns it as the caller may view it."""
        ...

    def delete(self, collection: str, id: str, by: Principal) -> None:
        """Delete a record."""
        ...


class WritingNow:
    """Writes at once, as part of the open transaction or in one of its own."""

    def create(self, collection: str, values: JSONMapping, by: Principal) -> JSONMapping:
        """Create a record."""
        with undone_if_refused():
            return service.create(collection, values, by=by)

    def update(self, collection: str, id: str, values: JSONMapping, by: Principal) -> JSONMapping:
        """Set these fields of a record."""
        with undone_if_refused():
            return service.patch(collection, id, values, by=by)

    def delete(self, collection: str, id: str, by: Principal) -> None:
        """Delete a record."""
        with undone_if_refused():
            service.delete(collection, id, by=by)


NOW = WritingNow()


@contextmanager
def undone_if_refused() -> Iterator[None]:
    """Write as part of the open transaction; what is refused leaves nothing, so it may go on."""
    if not db.in_transaction():
        yield
        return
    try:
        with db.savepoint(), append.by_current_actor():
            yield
        changes.note_handler_write()
    except changes.WriteRefused as clash:
        raise changes.explained(clash) from clash


class Records:
    """The records of a collection, under the rules, masks, quotas and audit of the caller.

    Answers are those of the API. What it refuses is raised: Forbidden, NotFound, Conflict,
    InvalidValues.
    """

    def __init__(self, caller: Caller, collection: str) -> None:
        self._caller, self._collection = caller, collection

    def list(
        self,
        *,
        filter: str | None = None,
        values: JSONMapping | None = None,
        sort: str | None = None,
        fields: str | None = None,
        expand: str | None = None,
        limit: int = 30,
        skip: int = 0,
        cursor: str | None = None,
        total: bool = False,
    ) -> JSONObject:
        """Return a page of at most 100 records: `items`, and `total` if wanted.

        `values` stand in the filter for `{name}`, quoted: `filter="state IN {states} && title =
        {title}", values={"states": ["open", "new"], "title": title}`. They are texts, numbers,
        booleans, None, dates, UUIDs, and lists of these. What a caller sent belongs nowhere else.

        With `cursor`, empty for the first page, it has `next_cursor` and `has_more` instead. The
        parameters are those of the API. If they are invalid, the handler fails.
        """
        if not 1 <= limit <= MAX_LIMIT or skip < 0:
            raise Misuse(f"limit is from 1 to {MAX_LIMIT}, and skip at least 0")
        given = {"filter": _filter(filter, values), "sort": sort, "cursor": cursor}
        given |= {"fields": fields, "expand": expand}
        parameters = {name: [value] for name, value in given.items() if value is not None}
        query = ListQuery(parameters=parameters, skip=skip, limit=limit, count=total)
        with self._caller._acting() as by, _own_parameters():
            if cursor is not None:
                answer = service.walk(self._collection, query, by=by)
                return _plain({**answer, "items": limit_size(answer["items"])})
            from app.web.paging import page_body  # which loads what only routes need

            items, number = service.page(self._collection, query, by=by)
            return _plain(page_body(limit_size(items), number, {"skip": skip, "limit": limit}))

    def get(self, id: str, *, fields: str | None = None, expand: str | None = None) -> JSONObject:
        """Return a record. Raises NotFound, also for one that the caller may not view."""
        with self._caller._acting() as by, _own_parameters():
            place = (self._collection, as_stored(id))
            return _plain(service.get(*place, fields, expanded=expand, by=by))

    def count(self, *, filter: str | None = None, values: JSONMapping | None = None) -> int:
        """Return the number of records that the caller may list; `values` are those of `list`."""
        page = self.list(filter=filter, values=values, fields="id", limit=1, total=True)
        return int(page["total"])

    def create(self, values: JSONMapping) -> JSONObject:
        """Create a record; returns it as the caller may view it."""
        with self._caller._acting(values) as by:
            return _plain(self._caller._writing.create(self._collection, values, by))

    def update(self, id: str, values: JSONMapping) -> JSONObject:
        """Set these fields of a record; returns it as the caller may view it."""
        with self._caller._acting(values) as by:
            return _plain(self._caller._writing.update(self._collection, as_stored(id), values, by))

    def delete(self, id: str) -> None:
        """Delete a record, and what `on_delete` says goes with it."""
        with self._caller._acting({}) as by:
            self._caller._writing.delete(self._collection, as_stored(id), by)


def _filter(text: str | None, values: JSONMapping | None) -> str | None:
    """A filter with its values. Raises Misuse, or Refused for a text that no field can have."""
    if values is None or text is None:
        if values:
            raise Misuse("Values belong to a filter.")
        return text
    try:
        return rules.filled(text, values)
    except rules.UnfitText as error:
        message = "Too long, or with a character that no text holds."
        raise Refused(str(error), code="invalid_value", message=message) from error
    except rules.RuleError as error:
        raise Misuse(f"filter: {error}") from error


@contextmanager
def _own_parameters() -> Iterator[None]:
    """Raise Misuse for a filter, or alike, that is invalid: its extension wrote it, not a caller.

    A cursor may be a caller's.
    """
    try:
        yield
    except InvalidValues as error:
        if any("cursor" in str(one["field"]) for one in error.details):
            raise
        wrong = ", ".join(f"{one['field']}: {one['code']}" for one in error.details)
        raise Misuse(f"Invalid parameters: {wrong}.") from error


def _plain(answer: JSONMapping) -> JSONObject:
    plain: JSONObject = serialization.plain(answer)
    return plain


class Caller:
    """Whom a handler acts for, with exactly their rights."""

    def __init__(
        self,
        principal: Principal,
        handler: Handler,
        writing: Writing | None = None,
        *,
        is_system: bool = False,
        idempotency_key: str | None = None,
    ) -> None:
        self._principal, self._handler, self._is_system = principal, handler, is_system
        self.idempotency_key = idempotency_key
        """Of a job or a workflow's step: the same whenever it runs again. None elsewhere."""
        self._writing: Writing = writing or NOW
        self._acts_as: Actor | None = None
        self._outer: Caller | None = None
        self._has_ended = False

    @property
    def account(self) -> CallersAccount | None:
        """The account acted in; None for the system, and for a superadmin in all accounts."""
        account = self._principal.account
        return CallersAccount(account.id, account.slug, account.name) if account else None

    @property
    def user(self) -> CallersUser | None:
        """The user; None for nobody: an anonymous caller, the system, the operator."""
        caller = self._principal
        if caller.user_id is None or caller.user_id == principals.NOBODY_ID:
            return None
        return CallersUser(caller.user_id, caller.name, caller.email)

    @property
    def role(self) -> str | None:
        """The name of the user's role."""
        return self._principal.role

    @property
    def groups(self) -> frozenset[str]:
        """The names of the user's groups."""
        return self._principal.groups

    @property
    def kind(self) -> str:
        """`user`, `api_key`, `service`, `operator`, `anonymous` or `system`."""
        if self._is_system:
            return "system"
        kind = self._principal.acts_as[0] or ActorKind.USER
        return kind if self.user or kind is ActorKind.OPERATOR else "anonymous"

    def records(self, collection: str) -> Records:
        """Return the records of a collection, as this caller may use them."""
        return Records(self, collection)

    def table(self, model: type[TableT]) -> Rows[TableT]:
        """Return the rows of a table of the extension, in the account of this caller."""
        return Rows(self._acting, model, self._handler.extension)

    @contextmanager
    def as_service(self, name: str, *, account: str | None = None) -> Iterator[Caller]:
        """A caller with the rights of an active service user of the account, within the block.

        The system names the account, by slug, code or id. Raises NotFound if there is none.
        """
        of = self._account_for(account)
        with tenancy.in_account(of.id):
            query = sa.select(User.id).where(User.account_id == of.id, User.name == name)
            ids = db.db.session.scalars(query.where(User.kind == UserKind.SERVICE)).all()
            found = [principals.for_user_verified(of.id, id) for id in ids]
        active = [one for one in found if one is not None]
        if len(active) != 1:
            raise NotFound(NO_SERVICE)
        (service_user,) = active
        extension = self._handler.extension
        log.info("extension acts as service", extension=extension, account=of.id, service=name)
        acting = actor.current()._replace(
            user_id=service_user.require_user_id(), user_email=None, user_name=service_user.name
        )
        with self._inner(service_user, acting) as caller:
            yield caller

    @contextmanager
    def as_operator(self, reason: str, *, account: str | None = None) -> Iterator[Caller]:
        """A caller whom the account's rules do not bind, within the block.

        The account's security log says so, for each handler and reason once an hour. The system
        names the account.
        """
        if not reason.strip() or len(reason) > LONGEST_REASON:
            raise ValueError(f"a reason has 1 to {LONGEST_REASON} characters")
        of, handler = self._account_for(account), self._handler
        with tenancy.across_accounts():
            system = principals.find_active_account(SYSTEM_ACCOUNT_ID)
        # No user, who could lose the right; and no key, which has scopes.
        operator = Principal(account=of, home=system, role=ADMIN)
        details = {"reason": reason, "extension": handler.extension, "handler": handler.name}
        # Also where a read is answered, which may not write otherwise.
        with tenancy.in_account(of.id), self._named(), db.refuse_transactions(None):
            _note_operator(Event(of.id, EventKind.EXTENSION_AS_OPERATOR, details=details))
        # A rollback takes the entry along, as it does what was written; this line stays.
        log.info("extension acts as operator", account=of.id, **details)
        with self._inner(operator, actor.current()) as caller:
            yield caller

    def _account_for(self, reference: str | None) -> AccountRef:
        """The account in which other rights are asked for. Raises Forbidden, NotFound."""
        self._check_not_ended()
        found = self._principal.account
        if reference is not None:
            with tenancy.across_accounts():
                named = principals.find_active_account(reference)
            if named is None:
                raise NotFound("There is no such account.")
            if named.id != found.id if found else not self._is_system:
                raise Forbidden(OTHER_ACCOUNT)
            found = named
        if found is None:
            raise Forbidden("Name the account.")
        if found.id == SYSTEM_ACCOUNT_ID:
            raise Forbidden(NOT_IN_SYSTEM)
        return found

    @contextmanager
    def _inner(self, principal: Principal, acting: Actor) -> Iterator[Caller]:
        key = self.idempotency_key
        inner = Caller(principal, self._handler, self._writing, idempotency_key=key)
        inner._acts_as, inner._outer = acting, self
        try:
            yield inner
        finally:
            inner._end()

    def _end(self) -> None:
        """Give up all rights: the call, or the block, that this caller was made for is over."""
        self._has_ended = True

    def _check_not_ended(self) -> None:
        running.check_time()
        if self._has_ended:
            raise RuntimeError(ENDED)
        if self._outer is not None:  # its block may never be left
            self._outer._check_not_ended()

    @contextmanager
    def _acting(self, values: JSONMapping | None = None) -> Iterator[Principal]:
        """Act in the caller's account in the extension's name; `values` are to be written."""
        self._check_not_ended()
        by = self._principal
        if self._is_system:
            raise Forbidden(NO_RIGHTS)
        account_id = by.require_account_id()
        if values is not None:
            if by.read_only:
                raise Forbidden(READ_ONLY, error="read_only_key")
            if values.get("account_id", account_id) != account_id:
                raise Forbidden(OTHER_ACCOUNT)
        with ExitStack() as stack:
            if tenancy.current() != account_id and not db.in_transaction():
                stack.enter_context(tenancy.in_account(account_id))
            if self._acts_as is not None:
                stack.enter_context(actor.acting(self._acts_as))
            stack.enter_context(self._named())
            yield by
        if self.idempotency_key and not db.in_transaction():
            db.db.session.remove()  # a job may wait for others: it holds no connection meanwhile

    def _named(self) -> AbstractContextManager[None]:
        extension = self._handler.extension
        return actor.acting_for(ActorKind.EXTENSION, extension, extension)


def _note_operator(event: Event) -> None:
    # Anybody may make a handler call it, so an event for each call would drown an account's log.
    allowance = NOTED.of(event.account_id, event.details["handler"], event.details["reason"])
    with suppress(TooManyRequests):
        rate_limits.check(allowance)  # only reads: others may write meanwhile
        with db.transaction():
            counted = db.pending(_count)
            if allowance not in counted:
                counted.append(allowance)
                record(event)


def _count(allowances: Sequence[Allowance]) -> None:
    for allowance in allowances:
        rate_limits.increment(allowance, 1)


def system(handler: Handler) -> Caller:
    """The caller of work without an account, which has no rights but those that it names."""
    return Caller(Principal(None), handler, is_system=True)
