"""The access that `@page` declares, as data: the roles that open a page, and how it is served."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from flask import current_app, g, request

from app.auth.portals import PATH


class Role(StrEnum):
    """Whom a page is for."""

    ANYBODY = "anybody"  # without a sign-in
    USER = "user"
    ADMIN = "admin"
    SUPERADMIN = "superadmin"


ANYBODY, USER, ADMIN, SUPERADMIN = Role
ANY_FEATURE = "*"
HOME, HOSTED, PORTAL = "/console", "/welcome", PATH
SETUP = f"{HOME}/setup"
LAYOUT, HOSTED_LAYOUT, PORTAL_LAYOUT = "base.html", "welcome/base.html", "portal/base.html"


@dataclass(frozen=True, kw_only=True)
class PageAccess:
    """The role that a page needs, and how the guard treats it."""

    role: Role
    setup: str | None = None
    """The feature whose setup links open the page, too; ANY_FEATURE if all of them do."""
    portal: str | None = None
    """The page of portals that the view is a part of: it has a second address there."""
    recent_sign_in: bool = False
    """Whether callers must have signed in recently."""
    takes_file: bool = False
    """Whether the body may be a file instead of a form, and as large as files may be."""
    renders_form: bool = False
    """Whether the view takes the form of another page, and renders that form again on errors."""


# For error pages: their paths have no view.
NO_PAGE = PageAccess(role=SUPERADMIN)


def of_request() -> PageAccess:
    """The access that `@page` declared for the view of this request."""
    view = current_app.view_functions.get(request.endpoint or "")
    return getattr(view, "page", NO_PAGE)


def is_portal() -> bool:
    """Whether this request is for a page of a portal, or for an address that looks like one."""
    return request.path.startswith(f"{PORTAL}/")


def is_hosted() -> bool:
    """Whether this request shows a page in the product's brand, without the console.

    For end users, and for the holder of a setup link on all pages that it opens.
    """
    return f"{request.path}/".startswith(f"{HOSTED}/") or g.get("is_hosted", False)


def layout() -> str:
    """The template that surrounds the page of this request."""
    if is_hosted():
        return HOSTED_LAYOUT
    return PORTAL_LAYOUT if is_portal() else LAYOUT
