"""The pages of extensions within the console: `/console/x/{extension}/...`.

They are routes of the console's blueprint, so that its guard, frame and headers hold for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from flask import Flask, current_app, flash, redirect, render_template, request, url_for
from jinja2 import ChoiceLoader, FileSystemLoader, PrefixLoader
from markupsafe import Markup, escape
from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import tenants
from app.console.shell import guard, lists, navigation, scopes
from app.console.shell.access import ADMIN, HOME, SUPERADMIN, USER, PageAccess, Role
from app.console.shell.blueprint import ACCOUNT, blueprint
from app.console.shell.navigation import IN_ACCOUNT, MenuItem, Section
from app.errors import NotFound
from app.extensions import answering, endpoints, registry, running
from app.extensions.pages import PageRequest, Redirect, Values
from app.extensions.registry import Handler, Kind
from app.web.access import READ_METHODS, AccessLevel, console_session
from app.web.languages import gettext, lazy_gettext

ROLES: Mapping[AccessLevel, tuple[Role, Section]] = {
    AccessLevel.SIGNED_IN: (USER, Section.DATA),
    AccessLevel.ACCOUNT_ADMIN: (ADMIN, Section.ACCOUNT),
    AccessLevel.SUPERADMIN: (SUPERADMIN, Section.INSTANCE),
}
FIRST_POSITION = 1000
OF_ADDRESSES = "/?&=#%:;,+@!$'()*"
"""What a path that a page redirects to may have; other characters are quoted."""


def init_app(app: Flask) -> None:
    """Add the pages, templates, static files and translations of the loaded extensions."""
    folders = {one.name: one.folder for one in registry.EXTENSIONS.values() if one.folder}
    templates = {name: FileSystemLoader(folder / "templates") for name, folder in folders.items()}
    if templates:
        own = [app.jinja_loader] if app.jinja_loader else []
        app.jinja_loader = ChoiceLoader([*own, PrefixLoader({"x": PrefixLoader(templates)})])
        # Whatever they are named: Flask escapes in `.html` and few others.
        app.jinja_env.autoescape = lambda name: (
            (name or "").startswith("x/") or app.select_jinja_autoescape(name)
        )
    app.extensions["atrium.static"] = {
        name: folder / "static" for name, folder in folders.items() if (folder / "static").is_dir()
    }
    app.extensions["atrium.translations"] = [folder / "translations" for folder in folders.values()]
    found = [one for handlers in registry.of(Kind.CONSOLE_PAGE).values() for one in handlers]
    for position, handler in enumerate(found, FIRST_POSITION):
        _add(app, handler, position, _parents(handler, found))


def _parents(handler: Handler, pages: Sequence[Handler]) -> list[Handler]:
    """The pages that a page is below, by their paths, for its breadcrumb."""
    above = (
        one
        for one in pages
        if one.extension == handler.extension
        and handler.subject.startswith(f"{one.subject}/")
        and "<" not in one.subject
    )
    return sorted(above, key=lambda one: len(one.subject))


def _add(app: Flask, handler: Handler, position: int, parents: Sequence[Handler]) -> None:
    options, extension = handler.options, handler.extension
    below = f"/x/{extension}"
    endpoint = f"{blueprint.name}.x_{extension}_{handler.function.__name__}"
    role, section = ROLES[options["access"].level]

    @guard.retry_stale
    def view(account_id: str | None = None, **parts: str) -> BaseResponse | str:
        if account_id is None and role is not SUPERADMIN and guard.require_caller().is_superadmin:
            return _choice(handler, endpoint, parts)
        scope = scopes.account_or_own_scope(account_id)
        base = request.root_path + (f"{IN_ACCOUNT}/{account_id}" if account_id else HOME) + below
        context = {"page_url": lambda path: base + path, "asset": partial(_asset, extension)}

        def render(template: str, values: Mapping[str, object]) -> Markup:
            running.check_time()
            name = f"x/{extension}/{template}"
            return Markup(render_template(name, **context, **values))  # noqa: S704 - of a template

        page_request = PageRequest(
            request.method, _values(request.args), _values(request.form), render
        )
        part = answering.answer(
            handler,
            scope.by,
            page_request,
            reads=request.method in READ_METHODS,
            named=endpoints.arguments(handler.subject, parts),
            then=_checked,
        )
        if isinstance(part, Redirect):
            if part.message:
                flash(part.message, "error" if part.is_error else "message")
            return redirect(base + quote(part.path, safe=OF_ADDRESSES), 303)
        above = tuple((gettext(one.options["title"]), base + one.subject) for one in parents)
        title = gettext(options["title"])
        return render_template(
            "console/extension.html", title=title, part=escape(part), above=above
        )

    view.__name__, view.__doc__ = handler.function.__name__, handler.function.__doc__
    described: Any = console_session(view)
    described.page = PageAccess(role=role, recent_sign_in=options["access"].recent_sign_in)
    path = below + handler.subject
    for rule in (f"{HOME}{path}", f"{ACCOUNT}{path}"):
        app.add_url_rule(rule, endpoint, described, methods=options["methods"])
    if options["menu"] and "GET" in options["methods"] and "<" not in path:
        item = MenuItem(section, position, lazy_gettext(options["title"]), "puzzle")
        navigation.add_to(app, item, f"{HOME}{path}", role)


def _choice(handler: Handler, endpoint: str, parts: Mapping[str, Any]) -> BaseResponse | str:
    """For superadmins, whose own account has no data: the page of the current one, or a choice."""
    current = navigation.home_account_id(guard.require_caller())
    if request.method in READ_METHODS and current:
        return redirect(url_for(endpoint, account_id=current, **parts))
    if request.method not in READ_METHODS or parts:
        raise NotFound(gettext("Choose an account."))
    listing = lists.from_request(endpoint, view="all")
    listing.with_page(tenants.page({**listing.page_args, "is_active": True}))
    title = gettext(handler.options["title"])
    return render_template(
        "console/extension_accounts.html", title=title, listing=listing, endpoint=endpoint
    )


def _checked(part: object) -> str | Redirect:
    if not isinstance(part, str | Redirect):
        raise TypeError("A page returns neither HTML nor a redirect.")
    return part


def _values(given: MultiDict[str, str]) -> Values:
    return Values(dict(given.lists()))


def _asset(extension: str, file: str) -> str:
    static: Any = current_app.jinja_env.globals["static"]
    return str(static(f"x/{extension}/{file}"))
