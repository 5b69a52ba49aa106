"""Before every view: who calls, may they, and is the request of the documented shape.

Deny by default: a view that is not marked takes only signed-in callers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, wraps
from typing import Any, TypeVar
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
from app.rest.access import Access, access_of, max_body_of
from app.rest.converters import check_path
from app.rest.current_request import get_g, get_header, get_request
from app.rest.parsing import check_query

View = TypeVar("View", bound=Callable[..., Any])
RERUNS = 10
LONGEST_AGENT = 500
READING = ("GET", "HEAD", "OPTIONS")
CONSOLE = "console"


def init_app(app: Flask) -> None:
    """Guard every view of the application."""
    app.before_request(_guard)
    app.after_request(_settle)
    app.teardown_request(lambda error: _leave())


def principal() -> Principal:
    """The caller of this request."""
    found: Principal = get_g().principal
    return found


def signed_in_caller() -> Principal:
    """The caller of a public view that serves the signed-in, too. Raises Unauthorized."""
    found = _identify_surely(Access.SIGNED_IN)
    with tenancy.scoped_to(found.tenancy):
        caller = _verified(found, Access.SIGNED_IN)
    _check_rank(caller, Access.SIGNED_IN)
    return caller


def caller_if_any() -> str | None:
    """The user who calls a public view; None also where the credential is not good any more."""
    try:
        return signed_in_caller().user_id
    except AppError:
        return None


def optimistic(view: View) -> View:
    """Let a view work with cached rights and definitions, which its own statements check.

    Whatever fails, a refusal included, may be due to something out of date: unless all that the
    refusal relied on is still true, the view is then run again with everything loaded anew. It
    must therefore do all its writing in one transaction.
    """

    @wraps(view)
    def run(*args: Any, **options: Any) -> Any:
        try:
            with versioned_cache.recording() as relied:
                return view(*args, **options)
        except AppError as error:
            if error.is_final or versioned_cache.are_current([g.principal, *relied]):
                raise
        except (versioned_cache.Stale, DBAPIError) as error:
            _check_out_of_date(error)
        for _ in range(RERUNS):  # under a row of schema changes even what is new gets old
            try:
                with versioned_cache.reloading():
                    g.principal = _identify(access_of(view))
                    return view(*args, **options)
            except (versioned_cache.Stale, DBAPIError) as error:
                _check_out_of_date(error)
        raise Unavailable

    run.checks_versions = True  # type: ignore[attr-defined]
    return run  # type: ignore[return-value]


def _check_out_of_date(error: versioned_cache.Stale | DBAPIError) -> None:
    if isinstance(error, DBAPIError) and not errors.is_stale_schema(error):
        raise error


def _actor() -> actor.Actor:
    # The API's guard names the caller, or the console's.
    request, known = get_request(), get_g()
    caller: Principal | None = known.get("principal") or known.get("console_caller")
    who = actor.ANONYMOUS
    if caller and caller.user_id:
        who = actor.Actor(caller.user_id, caller.email, caller.name or caller.email)
    signature: Signature | None = known.get("signature")
    if signature:
        who = who._replace(
            es_username=signature.username,
            es_reason=signature.reason,
            es_timestamp=signature.timestamp,
        )
    agent = (get_header("User-Agent") or "")[:LONGEST_AGENT] or None
    return who._replace(
        ip_address=request.remote_addr, user_agent=agent, request_id=known.correlation_id
    )


def _tenancy() -> tenancy.Scope:
    known = get_g()
    if known.get("of_any_account"):
        return tenancy.ACROSS
    caller: Principal | None = known.get("principal") or known.get("console_caller")
    return caller.tenancy if caller else tenancy.NOBODY


def _is_essential() -> bool:
    return disk.is_essential(get_request().method, get_request().path)


def _leave() -> None:
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
        _admit(request, view, access)
    elif not _is_free():
        lockout.requests(None, request.remote_addr)
    _bound_body(request, view, access)
    if view is not None:
        check_path(request)
        check_query(request, view)
    if request.method != "POST" or get_header(idempotency.HEADER) is None:
        return None
    return _answer_again(access)


def _bound_body(request: Request, view: Any, access: Access) -> None:
    # Before anything reads it. The console knows its callers by a cookie, and bounds theirs.
    if access is Access.PUBLIC and request.blueprint != CONSOLE:
        limit_body(max_body_of(view))
    elif access is Access.ANONYMOUS and not principal().signed_in:
        limit_body(config.current().max_anonymous_body_bytes)


def limit_body(most: int) -> None:
    """Refuse a larger body of this request with a 413, whoever reads it."""
    request = get_request()
    request.max_content_length = min(most, request.max_content_length or most)


def _answer_again(access: Access) -> Response | None:
    """What was answered under the request's key, or None where it is to be carried out."""
    caller: Principal | None = g.get("principal")
    of_api = request.path.startswith(f"{rest.PREFIX}/")
    if not of_api or caller is None or not caller.signed_in:
        return None
    if request.path.startswith(f"{rest.PREFIX}/auth/"):
        return None
    g.principal = caller = _verified(caller, access)
    name = "/".join(filter(None, (caller.user_id, caller.api_key_id)))
    asked = idempotency.request_fingerprints(request.path, request.query_string, _lasting_body())
    key = request.headers[idempotency.HEADER]
    found = idempotency.claim(caller.one_account(), name, key, asked)
    if isinstance(found, idempotency.Claim):
        g.claim = found
        return None
    answer = Response(found.text, found.status, mimetype="application/json")
    answer.headers["Idempotent-Replayed"] = "true"
    if found.etag:
        answer.headers["ETag"] = found.etag
    return answer


def _lasting_body() -> bytes:
    body = request.get_data(cache=True)
    # Clients draw the boundary between parts anew for every request.
    boundary = request.mimetype_params.get("boundary")
    return body.replace(boundary.encode(), b"") if boundary else body


def _settle(answer: Response) -> Response:
    """Keep the answer along with what was done, where the request came under a key."""
    claim: idempotency.Claim | None = get_g().pop("claim", None)
    if claim is None:
        return answer
    try:
        if answer.status_code >= 300:
            idempotency.release(claim, keep_changes=answer.status_code < 500)
            return answer
        view = current_app.view_functions[request.endpoint or ""]
        shows_secret = getattr(view, "shows_secret", None)
        told = answer.get_json() if shows_secret else {}
        secret = bool(shows_secret and shows_secret(told))
        made = told["id"] if secret else None
        text = None if secret else answer.get_data(as_text=True)
        idempotency.save_response(claim, answer.status_code, text, answer.headers.get("ETag"), made)
    except (AppError, DBAPIError) as error:
        with suppress(DBAPIError):  # where the commit got through after all, the answer stays
            idempotency.release(claim, keep_changes=False)
        answer = current_app.make_response(current_app.handle_user_exception(error))
    return answer


def _admit(request: Request, view: Any, access: Access) -> None:
    known = get_g()
    try:
        known.principal = caller = _identify_surely(access)
    except AppError:
        lockout.requests(None, request.remote_addr)
        raise
    lockout.requests(caller, request.remote_addr)
    if not getattr(view, "checks_versions", False):
        known.principal = caller = _verified(caller, access)
    _check_rank(caller, access)
    if request.method in READING:
        return
    if caller.account is None:
        raise BadRequest("Name one account to write in; X-Account-ID: * only reads.")
    known.signature = signatures.check(request.headers, caller, request.remote_addr)


def _is_free() -> bool:
    # What watches over the service, and what its pages are made of, is not counted.
    return request.endpoint == "static" or request.blueprint == "Health"


def _check_rank(caller: Principal, access: Access) -> None:
    # Only the records' own access knows what a key's scopes mean.
    if caller.scopes is not None and access is not Access.ANONYMOUS:
        raise Forbidden("This API key is for records only.", error="scope_denied")
    if access is Access.SUPERADMIN and not caller.is_superadmin:
        raise Forbidden("Only superadmins may do this.", error="superadmin_required")
    if access is Access.ACCOUNT_ADMIN and not caller.is_admin:
        raise Forbidden("Only admins of the account may do this.")


def _identify_surely(access: Access) -> Principal:
    try:
        return _identify(access)
    except (BadRequest, Forbidden):  # perhaps an account's slug has changed since it was cached
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
    account = principals.account_named(reference)
    if account is None:
        raise NotFound("There is no such account.")
    return principals.anonymous(account)


def _credential() -> str | None:
    scheme, _, value = (get_header("Authorization") or "").strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme:
        raise Unauthorized("Only the Bearer scheme is accepted.")
    return get_header("X-API-Key")


def _signed_in(credential: str) -> Principal:
    if credential.startswith(api_keys.PREFIX):
        return api_keys.caller(credential)
    claims = tokens.read(credential, tokens.ACCESS)
    caller = credentials.token_caller(claims)
    # The id tells the moment more finely than `iat`, which counts seconds.
    if caller is None or claims["jti"] < caller.first_token:
        raise Unauthorized("The token is not valid any more.")
    return caller


def account_of_host() -> str | None:
    """The account slug that the request's host name carries."""
    settings = config.current()
    return _slug_of(get_request().host, settings.base_domain, settings.base_url)


@lru_cache
def _slug_of(host: str, domain: str, base_url: str) -> str | None:
    host = host.partition(":")[0].lower().rstrip(".")
    if host == urlsplit(base_url).hostname:
        return None  # where the service itself lives below its domain, as api.example.com
    slug = host.removesuffix(f".{domain}") if domain and host.endswith(f".{domain}") else ""
    return slug if slug and "." not in slug else None


def account_of_request() -> str | None:
    """The account that the header or the host name names. Raises BadRequest if they disagree."""
    named = (get_header("X-Account-ID") or "").strip() or None
    host = account_of_host()
    if named and host and named.lower() != host:
        account = principals.account_named(host)
        if account is None or not account.is_named(named):
            raise BadRequest("The host name and X-Account-ID name different accounts.")
    return named or host
