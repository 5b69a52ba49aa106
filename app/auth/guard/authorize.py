"""Whether a request may go on: rate limit, quota, the access its view declares, its signature."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from flask import Request, Response, g
from sqlalchemy.exc import DBAPIError

from app import config, events
from app.accounts.usage import quotas
from app.accounts.usage.quotas import QuotaExceeded
from app.auth import lockout, signatures
from app.auth.guard import replay, request_context
from app.auth.guard.authenticate import (
    API_KEY,
    AUTHORIZATION,
    identify,
    identify_with_retry,
    verified,
)
from app.auth.key_scopes import LACKING, ScopeDenied
from app.auth.principal import Principal
from app.context import tenancy
from app.db import errors, versioned_cache
from app.errors import AppError, BadRequest, Forbidden, Unauthorized, Unavailable
from app.web.access import READ_METHODS, AccessLevel, ViewAccess, access_of, public, signed_in
from app.web.app import environ_key, get_g, get_request
from app.web.parsing import check_path, check_query

P = ParamSpec("P")
Returned = TypeVar("Returned")
RERUNS = 10
CONSOLE = "console"
ACCOUNT = "atrium.account_id"
"""In the WSGI environment, for `fair_turns`: the account of a checked credential, None if it has
none, or no longer."""
SIGNATURE = tuple(map(environ_key, signatures.HEADERS))


def check(request: Request, g: Any) -> Response | None:
    """Refuse what the caller may not do; returns the stored response of a repeated request."""
    request_context.bind(request, g)
    view = config.running().view_functions.get(request.endpoint or "")
    access = access_of(view) if view else public
    g.across_accounts = access.across_accounts
    if access.level not in (AccessLevel.PUBLIC, AccessLevel.PAGE):
        authorize(request, g, access, view)
    # Health checks and static files are exempt from rate limits.
    elif request.endpoint != "static" and request.blueprint != "Health":
        count(request, None)
    # Before anything reads the body. The console sets its own limit for callers with a cookie.
    if access.level is AccessLevel.PUBLIC and request.blueprint != CONSOLE:
        limit_body(access.max_body)
    elif access.level is AccessLevel.ANONYMOUS and not g.principal.signed_in:
        limit_body(config.current().max_anonymous_body_bytes)
    if view is not None:
        check_path(request)
        check_query(request, view)
    if request.method == "POST" and replay.KEY in request.environ:
        return replay.find_or_claim(request, g, access)
    return None


def limit_body(max_bytes: int) -> None:
    """Limit the size of the request body; larger ones get a 413 when read."""
    request = get_request()
    request.max_content_length = min(max_bytes, request.max_content_length or max_bytes)


def authorize(
    request: Request, g: Any, access: ViewAccess, view: Callable[..., object] | None
) -> None:
    """Identify the caller of a view that is not public, and refuse what they may not do."""
    try:
        g.principal = caller = identify_with_retry(request, access)
    except AppError as error:
        if isinstance(error, Unauthorized):
            request.environ[ACCOUNT] = None
        count(request, None)
        raise
    count(request, caller)
    account = caller.home or caller.account
    if account is not None:
        # Fair turns go by headers with a credential: anybody may name an account.
        if caller.signed_in and any(map(request.environ.get, (AUTHORIZATION, API_KEY))):
            request.environ[ACCOUNT] = account.id
        g.metered = account.id
        try:
            check_quota(g, access, caller)
        except QuotaExceeded:  # unless it has more by now
            g.principal = caller = verified(request, caller, access)
            g.metered = account.id
            check_quota(g, access, caller)
    if not getattr(view, "checks_versions", False):
        g.principal = caller = verified(request, caller, access)
    _check_rights(caller, request, access)
    if request.method not in READ_METHODS:
        if caller.account is None:
            raise BadRequest("Specify a single account to write to: X-Account-ID: * is read-only.")
        if any(name in request.environ for name in SIGNATURE):
            g.signature = signatures.verify_headers(request.headers, caller, request.remote_addr)
    if not access.api_keys and not caller.is_operator_key:
        caller.refuse_key("API keys cannot do this.")
    if access.recent_sign_in and not caller.is_operator_key:
        caller.require_recent_sign_in()


def count(request: Request, caller: Principal | None) -> None:
    """Count a request towards its rate limit. Raises TooManyRequests."""
    if config.current().rate_limit != "off":
        lockout.count_request(caller, request.remote_addr)


def check_quota(g: Any, access: ViewAccess, caller: Principal) -> None:
    """Refuse a request beyond its account's quota (docs/usage.md). Raises QuotaExceeded."""
    account = caller.home or caller.account
    if account is None or not account.quotas or access.beyond_quota:
        return
    try:
        quotas.check_requests(account.id, account.quotas, signed_in=caller.signed_in)
    except QuotaExceeded:
        g.metered = None  # what is refused does not count
        raise


def _check_rights(caller: Principal, request: Request, access: ViewAccess) -> None:
    # Scopes restrict a key to records, whose own access rules interpret them.
    if caller.scopes is not None and access.level is not AccessLevel.ANONYMOUS:
        raise ScopeDenied
    if caller.operator_scopes is not None:
        _check_operator_key(caller, caller.operator_scopes, request, access)
    if access.level is AccessLevel.SUPERADMIN and not caller.is_superadmin:
        raise Forbidden("Only superadmins may do this.", error="superadmin_required")
    if access.level is AccessLevel.ACCOUNT_ADMIN and not caller.is_admin:
        raise Forbidden("Only admins of the account may do this.")
    if caller.read_only and request.method not in READ_METHODS and not access.reads:
        raise Forbidden("This API key is read-only.", error="read_only_key")


def _check_operator_key(
    caller: Principal, scopes: frozenset[str], request: Request, access: ViewAccess
) -> None:
    """Refuse what an operator key may not do: mostly everything (docs/operator-keys.md)."""
    scope = access.operator_scope(request.method)
    if scope is None:
        raise ScopeDenied("Operator keys may not do this.")
    if scope not in scopes:
        raise ScopeDenied(LACKING.format(scope))
    if access.level is not AccessLevel.SUPERADMIN and caller.account is caller.home:
        raise BadRequest("Name the account by X-Account-ID.")
    caller.refuse_operator_key_in(str((request.view_args or {}).get("account_id", "")).lower())


def signed_in_caller() -> Principal:
    """The signed-in caller of a public view. Raises Unauthorized."""
    request = get_request()
    cached = identify_with_retry(request, signed_in)
    with tenancy.scoped_to(cached.tenancy):
        caller = verified(request, cached, signed_in)
    _check_rights(caller, request, signed_in)
    return caller


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
                    g.principal = identify(get_request(), access_of(view))
                    check_quota(get_g(), access_of(view), g.principal)
                    return view(*args, **kwargs)
            except (versioned_cache.Stale, DBAPIError) as error:
                _raise_unless_outdated(error)
        raise Unavailable

    run.checks_versions = True  # type: ignore[attr-defined]
    return run


def _raise_unless_outdated(error: versioned_cache.Stale | DBAPIError) -> None:
    if isinstance(error, DBAPIError) and not errors.is_stale_schema(error):
        raise error
