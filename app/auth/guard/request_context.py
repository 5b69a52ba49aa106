"""The context of a request for the layers below: the actor, the account and the deadline."""

from __future__ import annotations

from functools import partial
from typing import Any

from flask import Request

from app import config, db
from app.auth.principal import Principal
from app.auth.signatures import Signature
from app.context import actor, deadline, tenancy, trigger_depth
from app.db import disk
from app.web.app import environ_key, get_g, get_request

LONGEST_AGENT = 500
# Headers that few requests have, as in the WSGI environment.
DEPTH, ROOT = environ_key(trigger_depth.HEADER), environ_key(trigger_depth.ROOT_HEADER)


def bind(request: Request, g: Any) -> None:
    """Bind the context to this request: looking it up again would take a call per statement."""
    actor.source.set(partial(_actor, request, g))
    tenancy.source.set(partial(_tenancy, g))
    db.write_limit.set(_is_essential)
    environ, chain = request.environ, trigger_depth.NO_CHAIN
    seconds = config.current().statement_seconds
    deadline.limit.set(deadline.Limit(seconds, environ.get("gunicorn.socket")))
    if DEPTH in environ or ROOT in environ:
        chain = trigger_depth.from_headers(environ.get(DEPTH), environ.get(ROOT))
    trigger_depth.chain.set(chain)


def reset_context(error: BaseException | None = None) -> None:
    """After a request: whatever the thread does next, the caller of this one does not do it."""
    db.write_limit.set(None)
    deadline.limit.set(None)
    actor.source.set(actor.system)
    tenancy.source.set(tenancy.across)
    trigger_depth.chain.set(trigger_depth.NO_CHAIN)


def principal() -> Principal:
    """The caller of this request."""
    caller: Principal = get_g().principal
    return caller


def _caller(context: Any) -> Principal | None:
    # Set by this guard or by the console's.
    caller: Principal | None = context.get("principal") or context.get("console_caller")
    return caller


def _actor(request: Request, context: Any) -> actor.Actor:
    caller = _caller(context)
    agent = request.environ.get("HTTP_USER_AGENT", "")[:LONGEST_AGENT] or None
    origin = (request.remote_addr, agent, context.correlation_id)
    acting = actor.Actor(*actor.ANONYMOUS[:3], *origin)
    if caller and caller.user_id:
        acting = actor.Actor(caller.user_id, caller.email, caller.name or caller.email, *origin)
        kind, id, name = caller.acts_as
        if kind is not None:
            acting = acting._replace(kind=kind, id=id, name=name)
        if caller.portal is not None:
            acting = acting._replace(portal=caller.session_id)
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
    caller = _caller(context)
    return caller.tenancy if caller else tenancy.NO_ACCOUNT


def _is_essential() -> bool:
    return disk.is_essential(get_request().method, get_request().path)
