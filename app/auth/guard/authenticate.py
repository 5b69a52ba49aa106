"""Identifies the caller by token, API key, SCIM token or stream ticket, and their account."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import urlsplit

from flask import Request

from app import config
from app.auth import api_keys, stream_credentials, tokens
from app.auth import principal as principals
from app.auth.principal import Principal
from app.auth.stream_credentials import StreamCredential
from app.db import versioned_cache
from app.errors import BadRequest, Forbidden, NotFound, Unauthorized
from app.sso.scim import tokens as scim_tokens
from app.web.access import AccessLevel, ViewAccess, access_of
from app.web.app import get_g, get_request

AUTHORIZATION, API_KEY = "HTTP_AUTHORIZATION", "HTTP_X_API_KEY"


def identify_with_retry(request: Request, access: ViewAccess) -> Principal:
    """Like `identify`, but anew if an account's slug may have changed since it was cached."""
    try:
        return identify(request, access)
    except (BadRequest, Forbidden):
        with versioned_cache.reloading():
            return identify(request, access)


def identify(request: Request, access: ViewAccess) -> Principal:
    """The caller, from caches. Raises Unauthorized, BadRequest, Forbidden or NotFound."""
    value, reference = credential(request, access), _account_of(request)
    if value is None and access.query_credentials and "ticket" in request.args:
        context = get_g()
        if "stream_credential" not in context:  # consumed once, but a request is identified again
            context.stream_credential = stream_credentials.consume_ticket(request.args["ticket"])
        caller: Principal = context.stream_credential.principal()
        if reference and not (caller.account and caller.account.matches(reference)):
            raise Forbidden("The ticket was created for another account.")
        return caller
    if value is not None:
        of_directory = access.level is AccessLevel.DIRECTORY
        caller = (scim_tokens.authenticate if of_directory else _signed_in)(value)
        return caller if reference is None else principals.choose_account(caller, reference)
    if access.level is not AccessLevel.ANONYMOUS or reference is None:
        raise Unauthorized
    account = principals.find_active_account(reference)
    if account is None:
        raise NotFound("There is no such account.")
    return principals.anonymous(account)


def verified(request: Request, caller: Principal, access: ViewAccess) -> Principal:
    """The caller, identified again if anything cached of them is outdated."""
    try:
        versioned_cache.verify(caller.version_checks)
    except versioned_cache.Stale:
        with versioned_cache.reloading():
            return identify(request, access)
    return caller


def credential(request: Request, access: ViewAccess) -> str | None:
    """The token or key of a request. Raises Unauthorized for other schemes than Bearer."""
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


def stream_credential() -> StreamCredential:
    """The credential of this request, for a stream that outlives it.

    Raises Unauthorized for anonymous callers, and BadRequest for all accounts.
    """
    of_ticket: StreamCredential | None = get_g().get("stream_credential")
    if of_ticket is not None:
        return of_ticket
    caller: Principal = get_g().principal
    caller.home_and_user()
    if caller.api_key_id is not None:
        return stream_credentials.of_key(caller)
    request = get_request()
    access = access_of(config.running().view_functions.get(request.endpoint or ""))
    claims = tokens.read(credential(request, access) or "", tokens.ACCESS)
    return stream_credentials.of_token(claims, caller)


def _signed_in(credential: str) -> Principal:
    if credential.startswith(api_keys.PREFIX):
        return api_keys.authenticate(credential, get_request().remote_addr)
    claims = tokens.read(credential, tokens.ACCESS)
    caller = tokens.principal_of(claims)
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
