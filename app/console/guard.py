"""Who looks at a console page: a server-side session in a cookie, checked on every request."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from flask import Response, current_app, g, redirect, request, url_for
from flask_wtf.csrf import CSRFProtect
from werkzeug.wrappers import Response as BaseResponse

from app import config, stamps
from app.auth import service as auth
from app.auth.principal import Principal

View = TypeVar("View", bound=Callable[..., Any])
csrf = CSRFProtect()

CONSOLE_PATH = re.compile(r"/console(/[\w./~-]*)?(\?[\w.~&=%+/-]*)?", re.ASCII)
POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; script-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def open_to_all(view: View) -> View:
    """Mark a page that needs nobody to be signed in."""
    view.open_to_all = True  # type: ignore[attr-defined]
    return view


def cookie_name() -> str:
    """The name of the session cookie; in production one that browsers bind to this host."""
    return "__Host-atrium_console" if config.current().production else "atrium_console"


def check() -> BaseResponse | None:
    """Before every page: a valid form token, and somebody signed in."""
    csrf.protect()
    with stamps.reloading():  # a page has time to ask who this is now, and whether still active
        found = auth.console_caller(request.cookies.get(cookie_name(), "").replace("\0", ""))
    g.console_caller, g.console_session_id = found or (None, None)
    view = current_app.view_functions[request.endpoint or ""]
    if found is None and not getattr(view, "open_to_all", False):
        return redirect(url_for("console.sign_in", next=request.full_path.rstrip("?")))
    return None


def caller() -> Principal | None:
    """Who is signed in to the console."""
    found: Principal | None = g.get("console_caller")
    return found


def harden(response: Response) -> Response:
    """Headers of every page: no scripts but ours, no frames, nothing kept by caches."""
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["Referrer-Policy"] = "same-origin"
    response.headers["Cache-Control"] = "no-store"
    return response


def local_target(target: str | None) -> str | None:
    """A path of this site's console to go on to after signing in, or None for anything else."""
    # Browsers drop control characters, take "\\" for "/", and resolve "..": none is let through.
    fits = target and CONSOLE_PATH.fullmatch(target) and ".." not in target
    return target if fits else None
