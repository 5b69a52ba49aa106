"""The theme of the pages: the browser's, or the one that a cookie holds."""

from __future__ import annotations

from collections.abc import Mapping

from flask import redirect, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import config
from app.console.shell import guard
from app.web.languages import lazy_gettext

COOKIE, DAYS = "atrium_theme", 365
AUTO = "auto"
THEMES: Mapping[str, tuple[str, str]] = {
    AUTO: (lazy_gettext("System"), "device-desktop"),
    "light": (lazy_gettext("Light"), "sun"),
    "dark": (lazy_gettext("Dark"), "moon"),
}
"""Each theme's name and icon."""


def chosen() -> str:
    theme = request.cookies.get(COOKIE, AUTO)
    return theme if theme in THEMES else AUTO


def choose() -> BaseResponse:
    """Remember the theme of the form in this browser, and show the page again."""
    response = redirect(guard.referring_page() or url_for("console.show_home"), 303)
    theme = request.form.get("theme", AUTO)
    response.set_cookie(
        COOKIE,
        theme if theme in THEMES else AUTO,
        max_age=DAYS * 24 * 3600,
        samesite="Lax",
        secure=config.current().production,
    )
    return response
