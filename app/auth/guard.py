"""Authentication, authorization and validation of requests, before every view.

Deny by default: a view without an access marker requires a signed-in caller. `app/hooks.py` calls
`check` before every request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial, wraps
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit

from flask import Request, Response, g
from sqlalchemy.exc import DBAPIError

from app import config, db, events
from app.accounts.usage import quotas
from app.accounts.usage.quotas import QuotaExceeded
from app.auth import (
    api_keys,
    credentials,
    lockout,
    replay,
    signatures,
    stream_credentials,
    stream_tickets,
    tokens,
)
from app.auth import principal as principals
from app.auth.principal import Principal
from app.auth.signatures import Signature
from app.auth.stream_credentials import StreamCredential
from app.context import actor, deadline, tenancy, trigger_depth
from app.db import disk, errors, versioned_cache
from app.errors import AppError, BadRequest, Forbidden, NotFound, Unauthorized, Unavailable
from app.sso.scim import tokens as scim_tokens
from app.web.access import AccessLevel, ViewAccess, access_of, public, signed_in
from app.web.current_request import environ_key, get_g, get_request
from app.web.idempotency import HEADER as IDEMPOTENCY_KEY
from app.web.parsing import check_path, check_query

P = ParamSpec("P")
Returned = TypeVar("Returned")
RERUNS = 10
LONGEST_AGENT = 500
READ_METHODS = ("GET", "HEAD", "OPTIONS")
CONSOLE = "console"
ACCOUNT = "atrium.account_id"
"""In the WSGI environment: the account of a checked credential, for deploy/fair_pool.py."""
AUTHORIZATION, API_KEY = "HTTP_AUTHORIZATION", "HTTP_X_API_KEY"
# Headers that few requests have, as in the WSGI environment.
DEPTH, ROOT = environ_key(trigger_depth.HEADER), environ_key(trigger_depth.ROOT_HEADER)
KEY = environ_key(IDEMPOTENCY_KEY)
SIGNATURE = tuple(map(environ_key, signatures.HEADERS))


def principal() -> Principal:
    """The caller of this request."""
    caller: Principal = get_g().principal
    return caller


def signed_in_caller() -> Principal:
    """The signed-in caller of a public view. Raises Unauthorized."""
    cached = _identify_with_retry(get_request(), signed_in)
    with tenancy.scoped_to(cached.tenancy):
        caller = _verified(get_request(), cached, signed_in)
    _check_access(caller, signed_in)
    _check_method(caller, get_request(), signed_in)
    return caller


def stream_credential() -> StreamCredential:
    """The credential of this request, for a stream that outlives it.

    Raises Unauthorized for anonymous callers, and BadRequest for all accounts.
    """
    of_ticket: StreamCredential | None = get_g().get("stream_credential")
    if of_ticket is not None:
        return of_ticket
    caller = principal()
    caller.home_and_user()
    if caller.api_key_id is not None:
        return stream_credentials.of_key(caller)
    claims = tokens.read(
        _credential(get_request(), access_of(_view_of(get_request()))) or "", tokens.ACCESS
    )
    return stream_credentials.of_token(claims, caller)


def user_id_if_signed_in() -> str | None:
    """The user id of the signed-in caller of a public view; None without a valid credential."""
    try:
        return signed_in_caller().user_id
    except AppError:
        return None


def optimistic(view: Callable[P, Returned]) -> Callable[P, Returned]:
    """Run a view with cached principals and definitions, whose versions its own statements check.

    If it fails and any version was outdated, the view runs again with everything reloaded. It must
    therefore do all its writing in one transaction.
    """

    @wraps(view)
    def run(*args: P.args, **kwargs: P.kwargs) -> Returned:
        try:
            with versioned_cache.recording() as used:
                return view(*args, **kwargs)
        except AppError as error:
            if error.is_final or versioned_cache.are_current([g.principal, *used]):
                raise
        except (versioned_cache.Stale, DBAPIError) as error:
            _raise_unless_outdated(error)
        for _ in range(RERUNS):  # concurrent schema changes may outdate even reloaded definitions
            events.publish(events.ViewRunsAgain())
            try:
                with versioned_cache.reloading():
                    g.principal = _identify(get_request(), access_of(view))
                    _check_requests(get_g(), access_of(view), g.principal)
                    return view(*args, **kwargs)
            except (versioned_cache.Stale, DBAPIError) as error:
                _raise_unless_outdated(error)
        raise Unavailable

    run.checks_versions = True  # type: ignore[attr-defined]
    return run


def _raise_unless_outdated(error: versioned_cache.Stale | DBAPIError) -> None:
    if isinstance(error, DBAPIError) and not errors.is_stale_schema(error):
        raise error


def _actor(request: Request, context: Any) -> actor.Actor:
    # The caller is set by this guard or by the console's.
    caller: Principal | None = context.get("principal") or context.get("console_caller")
    agent = request.environ.get("HTTP_USER_AGENT", "")[:LONGEST_AGENT] or None
    origin = (request.remote_addr, agent, context.correlation_id)
    acting = actor.Actor(*actor.ANONYMOUS[:3], *origin)
    if caller and caller.user_id:
        acting = actor.Actor(caller.user_id, caller.email, caller.name or caller.email, *origin)
    signature: Signature | None = context.get("signature")
    if signature:
        acting = acting._replace(
            es_username=signature.username,
            es_reason=signature.reason,
            es_timestamp=signature.timestamp,
            es_method=signature.method,
        )
    return acting


def _tenancy(context: Any) -> tenancy.Scope:
    if context.get("across_accounts"):
        return tenancy.ALL_ACCOUNTS
    caller: Principal | None = context.get("principal") or context.get("console_caller")
    return caller.tenancy if caller else tenancy.NO_ACCOUNT


def _is_essential() -> bool:
    return disk.is_essential(get_request().method, get_request().path)


def reset_context(error: BaseException | None = None) -> None:
    """After a request: whatever the thread does next, the caller of this one does not do it."""
    db.write_limit.set(None)
    deadline.limit.set(None)
    actor.source.set(actor.system)
    tenancy.source.set(tenancy.across)
    trigger_depth.chain.set(trigger_depth.NO_CHAIN)


def check(request: Request, g: Any) -> Response | None:
    """Refuse what the caller may not do; returns the stored response of a repeated request."""
    # Bound to this request: looking it up again would take a call for each statement.
    actor.source.set(partial(_actor, request, g))
    tenancy.source.set(partial(_tenancy, g))
    db.write_limit.set(_is_essential)
    environ, chain = request.environ, trigger_depth.NO_CHAIN
    seconds = config.current().statement_seconds
    deadline.limit.set(deadline.Limit(seconds, environ.get("gunicorn.socket")))
    if DEPTH in environ or ROOT in environ:
        chain = trigger_depth.from_headers(environ.get(DEPTH), environ.get(ROOT))
    trigger_depth.chain.set(chain)
    view = _view_of(request)
    access = access_of(view) if view else public
    g.across_accounts = access.across_accounts
    if access.level not in (AccessLevel.PUBLIC, AccessLevel.PAGE):
        _authorize(request, g, access, view)
    elif not _is_exempt(request):
        _count(request, None)
    _limit_body(request, g, access)
    if view is not None:
        check_path(request)
        check_query(request, view)
    if request.method == "POST" and KEY in environ:
        return _replay(request, g, access)
    return None


def _view_of(request: Request) -> Callable[..., object] | None:
    return config.running().view_functions.get(request.endpoint or "")


def _limit_body(request: Request, g: Any, access: ViewAccess) -> None:
    # Before anything reads the body. The console sets its own limit for callers with a cookie.
    if access.level is AccessLevel.PUBLIC and request.blueprint != CONSOLE:
        limit_body(access.max_body)
    elif access.level is AccessLevel.ANONYMOUS and not g.principal.signed_in:
        limit_body(config.current().max_anonymous_body_bytes)


def limit_body(max_bytes: int) -> None:
    """Limit the size of the request body; larger ones get a 413 when read."""
    request = get_request()
    request.max_content_length = min(max_bytes, request.max_content_length or max_bytes)


def _replay(request: Request, g: Any, access: ViewAccess) -> Response | None:
    """The stored response for the idempotency key, or None to process the request."""
    caller: Principal | None = g.get("principal")
    if caller is None or not replay.applies_to(request, caller):
        return None
    g.principal = caller = _verified(request, caller, access)
    found = replay.replay_or_claim(request, caller)
    if isinstance(found, Response):
        return found
    g.claim = found
    return None


def _authorize(
    request: Request, g: Any, access: ViewAccess, view: Callable[..., object] | None
) -> None:
    try:
        g.principal = caller = _identify_with_retry(request, access)
    except AppError:
        _count(request, None)
        raise
    _count(request, caller)
    g.principal = caller = _admit(request, g, caller, access)
    if not getattr(view, "checks_versions", False):
        g.principal = caller = _verified(request, caller, access)
    _check_access(caller, access)
    _check_method(caller, request, access)
    if request.method not in READ_METHODS:
        if caller.account is None:
            raise BadRequest("Specify a single account to write to: X-Account-ID: * is read-only.")
        if any(name in request.environ for name in SIGNATURE):
            g.signature = signatures.verify_headers(request.headers, caller, request.remote_addr)
    if not access.api_keys:
        caller.refuse_key("API keys cannot do this.")
    if access.recent_sign_in:
        caller.require_recent_sign_in()


def _count(request: Request, caller: Principal | None) -> None:
    if config.current().rate_limit != "off":
        lockout.count_request(caller, request.remote_addr)


def _admit(request: Request, g: Any, caller: Principal, access: ViewAccess) -> Principal:
    """Refuse a request beyond its account's quota (docs/usage.md)."""
    account = caller.home or caller.account
    if account is None:
        return caller
    # Fair turns go by headers with a credential: anybody may name an account.
    if caller.signed_in and any(map(request.environ.get, (AUTHORIZATION, API_KEY))):
        request.environ[ACCOUNT] = account.id
    g.metered = account.id
    try:
        _check_requests(g, access, caller)
    except QuotaExceeded:  # unless it has more by now
        g.metered, caller = account.id, _verified(request, caller, access)
        _check_requests(g, access, caller)
    return caller


def _check_requests(g: Any, access: ViewAccess, caller: Principal) -> None:
    account = caller.home or caller.account
    if account is None or not account.quotas or access.beyond_quota:
        return
    try:
        quotas.check_requests(account.id, account.quotas, signed_in=caller.signed_in)
    except QuotaExceeded:
        g.metered = None  # what is refused does not count
        raise


def _is_exempt(request: Request) -> bool:
    # Health checks and static files are exempt from rate limits.
    return request.endpoint == "static" or request.blueprint == "Health"


def _check_access(caller: Principal, access: ViewAccess) -> None:
    # Scopes restrict a key to records, whose own access rules interpret them.
    if caller.scopes is not None and access.level is not AccessLevel.ANONYMOUS:
        raise Forbidden("This API key is restricted to records.", error="scope_denied")
    if access.level is AccessLevel.SUPERADMIN and not caller.is_superadmin:
        raise Forbidden("Only superadmins may do this.", error="superadmin_required")
    if access.level is AccessLevel.ACCOUNT_ADMIN and not caller.is_admin:
        raise Forbidden("Only admins of the account may do this.")


def _check_method(caller: Principal, request: Request, access: ViewAccess) -> None:
    if not caller.read_only or request.method in READ_METHODS or access.reads:
        return
    raise Forbidden("This API key is read-only.", error="read_only_key")


def _identify_with_retry(request: Request, access: ViewAccess) -> Principal:
    try:
        return _identify(request, access)
    except (BadRequest, Forbidden):  # an account's slug may have changed since it was cached
        with versioned_cache.reloading():
            return _identify(request, access)


def _verified(request: Request, caller: Principal, access: ViewAccess) -> Principal:
    try:
        versioned_cache.verify(caller.version_checks)
    except versioned_cache.Stale:
        with versioned_cache.reloading():
            return _identify(request, access)
    return caller


def _identify(request: Request, access: ViewAccess) -> Principal:
    credential, reference = _credential(request, access), _account_of(request)
    if credential is None and access.query_credentials and "ticket" in request.args:
        return _ticket_caller(request.args["ticket"], reference)
    if credential is not None:
        of_directory = access.level is AccessLevel.DIRECTORY
        caller = (scim_tokens.authenticate if of_directory else _signed_in)(credential)
        return caller if reference is None else principals.choose_account(caller, reference)
    if access.level is not AccessLevel.ANONYMOUS or reference is None:
        raise Unauthorized
    account = principals.find_active_account(reference)
    if account is None:
        raise NotFound("There is no such account.")
    return principals.anonymous(account)


def _credential(request: Request, access: ViewAccess) -> str | None:
    environ = request.environ
    scheme, _, value = environ.get(AUTHORIZATION, "").strip().partition(" ")
    if scheme.lower() == "bearer":
        return str(value.strip())
    if scheme:
        raise Unauthorized("Only the Bearer scheme is supported.")
    key: str | None = environ.get(API_KEY)
    if key is None and access.query_credentials and "ticket" not in request.args:
        return request.args.get("token")
    return key


def _ticket_caller(ticket: str, reference: str | None) -> Principal:
    context = get_g()
    if "stream_credential" not in context:  # a ticket is consumed once, a request identified again
        context.stream_credential = stream_tickets.consume(ticket)
    caller: Principal = context.stream_credential.principal()
    if reference and not (caller.account and caller.account.matches(reference)):
        raise Forbidden("The ticket was created for another account.")
    return caller


def _signed_in(credential: str) -> Principal:
    if credential.startswith(api_keys.PREFIX):
        return api_keys.authenticate(credential, get_request().remote_addr)
    claims = tokens.read(credential, tokens.ACCESS)
    caller = credentials.token_principal(claims)
    # Compares ids, as `iat` has a resolution of seconds only.
    if caller is None or claims["jti"] < caller.min_token_id:
        raise Unauthorized("The token is no longer valid.")
    return caller


def account_of_host() -> str | None:
    """The account slug in the request's host name."""
    return _account_of_host(get_request())


def _account_of_host(request: Request) -> str | None:
    settings = config.current()
    return _slug_of(request.host, settings.base_domain, settings.base_url)


@lru_cache
def _slug_of(host: str, domain: str, base_url: str) -> str | None:
    host = host.partition(":")[0].lower().rstrip(".")
    if host == urlsplit(base_url).hostname:
        return None  # the service's own host name below the domain, such as api.example.com
    slug = host.removesuffix(f".{domain}") if domain and host.endswith(f".{domain}") else ""
    return slug if slug and "." not in slug else None


def account_of_request() -> str | None:
    """The account in the X-Account-ID header or the host name. Raises BadRequest on a conflict."""
    return _account_of(get_request())


def _account_of(request: Request) -> str | None:
    reference = request.environ.get("HTTP_X_ACCOUNT_ID", "").strip() or None
    host = _account_of_host(request)
    if reference and host and reference.lower() != host:
        account = principals.find_active_account(host)
        if account is None or not account.matches(reference):
            raise BadRequest("The host name and X-Account-ID refer to different accounts.")
    return reference or host
