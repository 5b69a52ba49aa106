"""The blueprints of the console and of the hosted pages, and their error pages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import flask_babel
from babel.lists import format_list
from flask import (
    Blueprint,
    Response,
    g,
    has_request_context,
    make_response,
    render_template,
    request,
)
from flask_wtf.csrf import CSRFError
from werkzeug.wrappers import Response as BaseResponse

from app import clock, config
from app.accounts.product import settings as product
from app.auth.mfa.gate import EnrolmentRequired, MfaRequired
from app.auth.portals import PATH, PortalPage
from app.console.shell import (
    access,
    brand,
    forms,
    guard,
    lists,
    names,
    navigation,
    scopes,
    second_factor,
)
from app.console.shell import portal as portal_frame
from app.console.shell.access import ANYBODY, HOME, HOSTED, PageAccess, Role
from app.console.shell.forms import Page
from app.console.shell.navigation import MenuItem
from app.console.shell.portal import PortalEnded
from app.db.errors import UNAVAILABLE
from app.errors import (
    AppError,
    BadRequest,
    Gone,
    InvalidValues,
    Malformed,
    NotFound,
    RecentSignInRequired,
)
from app.outbound import mail
from app.web import error_handlers, html, languages
from app.web.access import console_session, public
from app.web.languages import gettext, lazy_gettext

CLASSES = {
    "upper": lazy_gettext("an upper-case letter"),
    "lower": lazy_gettext("a lower-case letter"),
    "digit": lazy_gettext("a digit"),
    "special": lazy_gettext("a special character"),
}


class Pages(Blueprint):
    """The routes of pages, all of which say who may open them."""

    def add_url_rule(self, rule: str, *args: Any, **options: Any) -> None:
        """Register a page. Raises TypeError for a view without access."""
        view = options.get("view_func") or args[1]
        if not hasattr(view, "page"):
            raise TypeError(f"{view.__name__} does not say who may open it: declare it by @page.")
        super().add_url_rule(rule, *args, **options)


blueprint, hosted = Pages("console", __name__), Pages("welcome", __name__)
for pages in (blueprint, hosted):
    pages.before_request(guard.authorize)
    pages.after_request(html.compress_page)  # runs after those below
blueprint.after_request(html.add_security_headers)
hosted.after_request(brand.add_headers)


View = TypeVar("View", bound=Callable[..., Any])
ACCOUNT = f"{HOME}/accounts/<uuid:account_id>"

TITLES = {
    403: lazy_gettext("Forbidden"),
    404: lazy_gettext("Not found"),
    405: lazy_gettext("Not found"),
    500: lazy_gettext("Something went wrong"),
    503: lazy_gettext("Unavailable"),
}
MESSAGES = {
    404: lazy_gettext("This page does not exist."),
    405: lazy_gettext("This address only accepts its form. Open the page with the form again."),
    500: lazy_gettext(
        "Something went wrong on our side. If it persists, tell the operator of this service."
    ),
}


def page(
    path: str,
    method: str = "GET",
    *,
    role: Role,
    endpoint: str | None = None,
    setup: str | None = None,
    portal: PortalPage | None = None,
    recent_sign_in: bool = False,
    takes_file: bool = False,
    renders_form: bool = False,
    retry_stale: bool = False,
    in_account: bool = False,
    is_hosted: bool = False,
    form_page: Callable[..., Page | BaseResponse] | None = None,
    menu: MenuItem | None = None,
) -> Callable[[View], View]:
    """Register a view, and declare who may open it and how it is served (`PageAccess`).

    The parameter `scope` of a view is that of its address. With `retry_stale` it runs again if a
    cached version was stale; with `in_account` it has a second address, within the account that
    this one names; with `is_hosted`, one among the hosted pages, so that it leads to views of its
    own blueprint; with `portal`, one below that of a portal session. `menu` is its place in the
    sidebar.
    `form_page` is the view of the form which this one takes: it shows the form again with the
    errors, past its own guard. Raises TypeError if somebody who may call this view may not open
    that page. A form without an address of its own has a function instead, which renders it.
    """
    form_access: PageAccess | None = getattr(form_page, "page", None)
    if form_access and (
        form_access.role is not role
        or setup not in (None, form_access.setup)
        or portal not in (None, form_access.portal)
    ):
        raise TypeError(f"{path} shows a form again that not all of its callers may open.")
    if menu:
        navigation.add(menu, path, role, in_account=in_account)

    def add(view: View) -> View:
        view = scopes.injected(view)
        view = forms.shown_again(view, scopes.injected(form_page)) if form_page else view
        view = guard.retry_stale(view) if retry_stale else view
        view.page = PageAccess(  # type: ignore[attr-defined]
            role=role,
            setup=setup,
            portal=portal,
            recent_sign_in=recent_sign_in,
            takes_file=takes_file,
            renders_form=renders_form,
        )
        view = (public(across_accounts=True) if role is ANYBODY else console_session)(view)
        below = path.removeprefix(HOME)
        places = {ACCOUNT: in_account, HOSTED: is_hosted, portal_frame.RULE: portal is not None}
        for rule in (path, *(f"{place}{below}" for place, is_there in places.items() if is_there)):
            pages = hosted if rule.startswith(HOSTED) else blueprint
            pages.add_url_rule(rule, endpoint, view, methods=[method])
        return view

    return add


@hosted.errorhandler(CSRFError)
@blueprint.errorhandler(CSRFError)
def handle_csrf_error(error: CSRFError) -> Response:
    """Answer a form whose CSRF token is missing, expired or from another site."""
    problem = gettext("This form has expired. Reload the page and try again.")
    return render_error(BadRequest(problem))


def render_error(error: AppError) -> Response:
    """The error page. A malformed id in the address counts as NotFound."""
    if isinstance(error, Malformed) and request.view_args:
        error = NotFound()
    if error.status < 500:
        with suppress(*UNAVAILABLE):  # the page works without a caller
            guard.load_caller()
    else:
        brand.show_plain()
    if access.is_portal():
        return _portal_problem(error)
    if isinstance(error, RecentSignInRequired) and guard.caller():
        return brand.add_headers(make_response(*guard.reauthentication_page()))
    if isinstance(error, MfaRequired | EnrolmentRequired):
        return brand.add_headers(second_factor.response_to(error))
    if isinstance(error, guard.ConsoleClosed):
        return brand.add_headers(make_response(_closed_page(), error.status))
    custom_message = forms.error_text(error.message) if isinstance(error, NotFound) else None
    # A refusal has its reason as the message.
    is_general = isinstance(error, InvalidValues) and error.message == InvalidValues.message
    page = render_template(
        "console/problem.html",
        title=TITLES.get(error.status, gettext("Request failed")),
        problem=custom_message or MESSAGES.get(error.status, forms.error_text(error.message)),
        details=[
            (one["field"], forms.error_text(one["message"]))
            for one in (error.extra["details"] if is_general else ())
        ],
        back=guard.referring_page(),
        reference=g.get("correlation_id"),
    )
    response = make_response(page, error.status)
    response.headers.update(error.headers)
    return brand.add_headers(response)


def _portal_problem(error: AppError) -> Response:
    """The error page of a portal, which leads back to the product."""
    problem = MESSAGES.get(error.status, forms.error_text(error.message))
    if isinstance(error, RecentSignInRequired):
        problem = gettext(
            "This needs a sign-in within the last 15 minutes. Go back, sign in again and open this"
            " page anew."
        )
    elif isinstance(error, NotFound):
        problem = forms.error_text(error.message)
    title = TITLES.get(error.status, gettext("Request failed"))
    if isinstance(error, PortalEnded | Gone):
        title = gettext("Open this page again")
    page = render_template("portal/problem.html", title=title, problem=problem)
    response = make_response(page, error.status)
    response.headers.update(error.headers)
    return portal_frame.finish(brand.add_headers(response))


def _closed_page() -> str:
    """The page for users whose role does not open the console: it leads to the product."""
    return render_template(
        "console/closed.html", caller=None, product=product.load(), is_signed_in=guard.caller()
    )


# Also for paths without a view.
blueprint.record_once(
    lambda state: error_handlers.register_error_page(state.app, HOME, render_error)
)
hosted.record_once(
    lambda state: error_handlers.register_error_page(state.app, HOSTED, render_error)
)
blueprint.record_once(
    lambda state: error_handlers.register_error_page(state.app, PATH, render_error)
)


blueprint.add_app_template_filter(lists.format_count)
blueprint.add_app_template_filter(lists.format_size)
blueprint.add_app_template_filter(forms.error_text, "error_text")
blueprint.add_app_template_filter(names.of_state, "state_name")
blueprint.add_app_template_filter(names.of_filter, "filter_name")
blueprint.add_app_template_filter(names.of_type, "type_name")
blueprint.add_app_template_test(clock.is_due, "due")
blueprint.add_app_template_global(access.is_hosted)
blueprint.add_app_template_global(brand.face)
blueprint.add_app_template_global(brand.page_address)


@blueprint.app_template_global()
def has_outbox() -> bool:
    """Whether mails are read in the console instead of being sent."""
    return mail.is_saved_to_files() and not config.current().production


@blueprint.app_context_processor
def template_context() -> dict[str, object]:
    """The variables that the templates of pages may use."""
    if not has_request_context():  # a mail
        return {}
    caller = guard.caller()
    holder = caller if caller and caller.setup is not None else None
    caller = None if holder else caller
    layout = access.layout()
    portal = portal_frame.frame() if layout == access.PORTAL_LAYOUT else None
    return {
        "caller": caller,
        "setup_holder": holder,
        "layout": layout,
        "portal": portal,
        "shell": navigation.Shell(caller) if caller and layout == access.LAYOUT else None,
        "theme": navigation.chosen_theme(),
        "themes": navigation.THEMES,
        "language": languages.of_browser(),
        "languages": languages.LANGUAGES,
    }


@blueprint.app_template_global()
def password_hint() -> str:
    """The length and the kinds of characters that the settings require."""
    settings = config.current()
    length = settings.password_min_length
    if not settings.password_require:
        return gettext("At least %(count)s characters.", count=length)
    kinds = [str(CLASSES[name]) for name in settings.password_require]
    together = format_list(kinds, locale=flask_babel.get_locale())
    return gettext("At least %(count)s characters, with %(kinds)s.", count=length, kinds=together)
