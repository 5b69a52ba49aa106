"""Authentication, authorization and validation of requests, before every view.

Deny by default: a view without an access marker requires a signed-in caller.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar
from urllib.parse import urlsplit

from flask import Flask, Request, Response, current_app, g, request
from sqlalchemy.exc import DBAPIError

from app import config, db, rest
from app.auth import api_keys, credentials, lockout, signatures, tokens
from app.auth import principal as principals
from app.auth.principal import Principal
from app.auth.signatures import Signature
from app.context import actor, tenancy, trigger_depth
from app.db import disk, errors, versioned_cache
from app.errors import AppError, BadRequest, Forbidden, NotFound, Unauthorized, Unavailable
from app.http import idempotency
from app.rest.access import LARGEST_PUBLIC_BODY, Access, access_of, max_body_of
from app.rest.converters import check_path
from app.rest.current_request import get_g, get_header, get_request
from app.rest.parsing import check_query

P = ParamSpec("P")
Returned = TypeVar("Returned")
RERUNS = 10
LONGEST_AGENT = 500
READ_METHODS = ("GET", "HEAD", "OPTIONS")
CONSOLE = "console"


def init_app(app: Flask) -> None:
    """Guard every view of the application."""
    app.before_request(_guard)
    app.after_request(_finish_idempotent)
    app.teardown_request(lambda error: _reset_context())


def principal() -> Principal:
    """The caller of this request."""
    caller: Principal = get_g().principal
    return caller


def signed_in_caller() -> Principal:
    """The signed-in caller of a public view. Raises Unauthorized."""
    cached = _identify_with_retry(Access.SIGNED_IN)
    with tenancy.scoped_to(cached.tenancy):
        caller = _verified(cached, Access.SIGNED_IN)
    _check_access(caller, Access.SIGNED_IN)
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
            try:
                with versioned_cache.reloading():
                    g.principal = _identify(access_of(view))
                    return view(*args, **kwargs)
            except (versioned_cache.Stale, DBAPIError) as error:
                _raise_unless_outdated(error)
        raise Unavailable

    run.checks_versions = True  # type: ignore[attr-defined]
    return run


def _raise_unless_outdated(error: versioned_cache.Stale | DBAPIError) -> None:
    if isinstance(error, DBAPIError) and not errors.is_stale_schema(error):
        raise error


def _actor() -> actor.Actor:
    # The caller is set by this guard or by the console's.
    request, context = get_request(), get_g()
    caller: Principal | None = context.get("principal") or context.get("console_caller")
    acting = actor.ANONYMOUS
    if caller and caller.user_id:
        acting = actor.Actor(caller.user_id, caller.email, caller.name or caller.email)
    signature: Signature | None = context.get("signature")
    if signature:
        acting = acting._replace(
            es_username=signature.username,
            es_reason=signature.reason,
            es_timestamp=signature.timestamp,
        )
    agent = (get_header("User-Agent") or "")[:LONGEST_AGENT] or None
    return acting._replace(
        ip_address=request.remote_addr, user_agent=agent, request_id=context.correlation_id
    )


def _tenancy() -> tenancy.Scope:
    context = get_g()
    if context.get("of_any_account"):
        return tenancy.ACROSS
    caller: Principal | None = context.get("principal") or context.get("console_caller")
    return caller.tenancy if caller else tenancy.NOBODY


def _is_essential() -> bool:
    return disk.is_essential(get_request().method, get_request().path)


def _reset_context() -> None:
    db.limit_writes(None)
    actor.reset()
    tenancy.reset()
    trigger_depth.set_current(0)


def _guard() -> Response | None:
    request = get_request()
    actor.set_source(_actor)
    tenancy.set_source(_tenancy)
    trigger_depth.set_current(
        trigger_depth.from_header(get_header(trigger_depth.HEADER)),
        trigger_depth.root_from_header(get_header(trigger_depth.ROOT_HEADER)),
    )
    db.limit_writes(_is_essential)
    view = config.running().view_functions.get(request.endpoint or "")
    access = access_of(view) if view else Access.PUBLIC
    get_g().of_any_account = getattr(view, "of_any_account", False)
    if access is not Access.PUBLIC:
        _authorize(request, view, access)
    elif not _is_exempt():
        lockout.count_request(None, request.remote_addr)
    _limit_body(request, view, access)
    if view is not None:
        check_path(request)
        check_query(request, view)
    if request.method != "POST" or get_header(idempotency.HEADER) is None:
        return None
    return _replay(access)


def _limit_body(request: Request, view: Callable[..., object] | None, access: Access) -> None:
    # Before anything reads the body. The console sets its own limit for callers with a cookie.
    if access is Access.PUBLIC and request.blueprint != CONSOLE:
        limit_body(max_body_of(view) if view else LARGEST_PUBLIC_BODY)
    elif access is Access.ANONYMOUS and not principal().signed_in:
        limit_body(config.current().max_anonymous_body_bytes)


def limit_body(max_bytes: int) -> None:
    """Limit the size of the request body; larger ones get a 413 when read."""
    request = get_request()
    request.max_content_length = min(max_bytes, request.max_content_length or max_bytes)


def _replay(access: Access) -> Response | None:
    """The stored response for the idempotency key, or None to process the request."""
    caller: Principal | None = g.get("principal")
    is_api = request.path.startswith(f"{rest.PREFIX}/")
    if not is_api or caller is None or not caller.signed_in:
        return None
    if request.path.startswith(f"{rest.PREFIX}/auth/"):
        return None
    g.principal = caller = _verified(caller, access)
    caller_key = "/".join(filter(None, (caller.user_id, caller.api_key_id)))
    digests = idempotency.request_fingerprints(
        request.path, request.query_string, _body_without_boundary()
    )
    key = request.headers[idempotency.HEADER]
    claim = idempotency.claim(caller.require_account_id(), caller_key, key, digests)
    if isinstance(claim, idempotency.Claim):
        g.claim = claim
        return None
    response = Response(claim.text, claim.status, mimetype="application/json")
    response.headers["Idempotent-Replayed"] = "true"
    if claim.etag:
        response.headers["ETag"] = claim.etag
    return response


def _body_without_boundary() -> bytes:
    body = request.get_data(cache=True)
    # Clients generate a new multipart boundary for every request.
    boundary = request.mimetype_params.get("boundary")
    return body.replace(boundary.encode(), b"") if boundary else body


def _finish_idempotent(response: Response) -> Response:
    """Store the response in the transaction of a request with an idempotency key."""
    claim: idempotency.Claim | None = get_g().pop("claim", None)
    if claim is None:
        return response
    try:
        if response.status_code >= 300:
            idempotency.release(claim, keep_changes=response.status_code < 500)
            return response
        view = current_app.view_functions[request.endpoint or ""]
        shows_secret = getattr(view, "shows_secret", None)
        body = response.get_json() if shows_secret else {}
        has_secret = bool(shows_secret and shows_secret(body))
        record_id = body["id"] if has_secret else None
        text = None if has_secret else response.get_data(as_text=True)
        idempotency.save_response(
            claim, response.status_code, text, response.headers.get("ETag"), record_id
        )
    except (AppError, DBAPIError) as error:
        with suppress(DBAPIError):  # if the commit succeeded after all, the stored response stays
            idempotency.release(claim, keep_changes=False)
        response = current_app.make_response(current_app.handle_user_exception(error))
    return response


def _authorize(request: Request, view: Callable[..., object] | None, access: Access) -> None:
    context = get_g()
    try:
        context.principal = caller = _identify_with_retry(access)
    except AppError:
        lockout.count_request(None, request.remote_addr)
        raise
    lockout.count_request(caller, request.remote_addr)
    if not getattr(view, "checks_versions", False):
        context.principal = caller = _verified(caller, access)
    _check_access(caller, access)
    if request.method in READ_METHODS:
        return
    if caller.account is None:
        raise BadRequest("Specify a single account to write to: X-Account-ID: * is read-only.")
    context.signature = signatures.verify_headers(request.headers, caller, request.remote_addr)


def _is_exempt() -> bool:
    # Health checks and static files are exempt from rate limits.
    return request.endpoint == "static" or request.blueprint == "Health"


def _check_access(caller: Principal, access: Access) -> None:
    # Scopes restrict a key to records, whose own access rules interpret them.
    if caller.scopes is not None and access is not Access.ANONYMOUS:
        raise Forbidden("This API key is restricted to records.", error="scope_denied")
    if access is Access.SUPERADMIN and not caller.is_superadmin:
        raise Forbidden("Only superadmins may do this.", error="superadmin_required")
    if access is Access.ACCOUNT_ADMIN and not caller.is_admin:
        raise Forbidden("Only admins of the account may do this.")


def _identify_with_retry(access: Access) -> Principal:
    try:
        return _identify(access)
    except (BadRequest, Forbidden):  # an account's slug may have changed since it was cached
        with versioned_cache.reloading():
            return _identify(access)


def _verified(caller: Principal, access: Access) -> Principal:
    try:
        versioned_cache.verify(caller.version_checks)
    except versioned_cache.Stale:
        with versioned_cache.reloading():
            return _identify(access)
    return caller


def _identify(access: Access) -> Principal:
    credential, reference = _credential(), account_of_request()
    if credential is not None:
        return principals.choose_account(_signed_in(credential), reference)
    if access is not Access.ANONYMOUS or reference is None:
        raise Unauthorized
    account = principals.find_active_account(reference)
    if account is None:
        raise NotFound("There is no such account.")
    return principals.anonymous(account)


def _credential() -> str | None:
    scheme, _, value = (get_header("Authorization") or "").strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme:
        raise Unauthorized("Only the Bearer scheme is supported.")
    return get_header("X-API-Key")


def _signed_in(credential: str) -> Principal:
    if credential.startswith(api_keys.PREFIX):
        return api_keys.authenticate(credential)
    claims = tokens.read(credential, tokens.ACCESS)
    caller = credentials.token_principal(claims)
    # Compares ids, as `iat` has a resolution of seconds only.
    if caller is None or claims["jti"] < caller.min_token_id:
        raise Unauthorized("The token is no longer valid.")
    return caller


def account_of_host() -> str | None:
    """The account slug in the request's host name."""
    settings = config.current()
    return _slug_of(get_request().host, settings.base_domain, settings.base_url)


@lru_cache
def _slug_of(host: str, domain: str, base_url: str) -> str | None:
    host = host.partition(":")[0].lower().rstrip(".")
    if host == urlsplit(base_url).hostname:
        return None  # the service's own host name below the domain, such as api.example.com
    slug = host.removesuffix(f".{domain}") if domain and host.endswith(f".{domain}") else ""
    return slug if slug and "." not in slug else None


def account_of_request() -> str | None:
    """The account in the X-Account-ID header or the host name. Raises BadRequest on a conflict."""
    reference = (get_header("X-Account-ID") or "").strip() or None
    host = account_of_host()
    if reference and host and reference.lower() != host:
        account = principals.find_active_account(host)
        if account is None or not account.matches(reference):
            raise BadRequest("The host name and X-Account-ID refer to different accounts.")
    return reference or host
