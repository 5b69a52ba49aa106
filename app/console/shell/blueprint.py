"""The blueprint of every console page, and the pages that tell of an error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from flask import Blueprint, Response, g, make_response, render_template, request
from flask_wtf.csrf import CSRFError

from app import config
from app.console.shell import guard
from app.db.errors import UNAVAILABLE
from app.errors import AppError, BadRequest, Malformed, NotFound, RecentSignInRequired
from app.http import error_handlers, html
from app.outbound import mail

blueprint = Blueprint("console", __name__)
blueprint.before_request(guard.check)
blueprint.after_request(html.add_security_headers)

View = TypeVar("View", bound=Callable[..., Any])
ACCOUNT = "/console/accounts/<uuid:account_id>"

TITLES = {
    403: "Not for you",
    404: "Not found",
    405: "Not found",
    500: "Something went wrong",
    503: "Not just now",
}
MESSAGES = {
    404: "There is no such thing here.",
    405: "This address only takes what its form sends. Open the page with the form again.",
    500: "Something went wrong on our side. Should it go on, tell the operator of this service.",
}


def of_account(method: str, path: str) -> Callable[[View], View]:
    """A page of the caller's own account; and the same of the one that the address names."""

    def add(view: View) -> View:
        for home in ("/console", ACCOUNT):
            blueprint.add_url_rule(f"{home}{path}", view_func=view, methods=[method])
        return view

    return add


@blueprint.errorhandler(CSRFError)
def refuse_form(error: CSRFError) -> Response:
    """Answer a form without its token: an old page, or another site's."""
    problem = "This form is out of date. Please open the page again and repeat what you did."
    return tell(BadRequest(problem))


def tell(error: AppError) -> Response:
    """Answer an error by a page. An id of the wrong form is of nothing that exists."""
    if isinstance(error, Malformed) and request.view_args:
        error = NotFound()
    if error.status < 500:
        with suppress(*UNAVAILABLE):  # the page can do without
            guard.recognise()
    if isinstance(error, RecentSignInRequired) and guard.caller():
        return html.add_security_headers(make_response(*guard.ask_for_password()))
    said = error.message if isinstance(error, NotFound) else None
    page = render_template(
        "console/problem.html",
        title=TITLES.get(error.status, "Not done"),
        problem=said or MESSAGES.get(error.status, error.message),
        back=guard.page_before(),
        reference=g.get("correlation_id"),
    )
    response = make_response(page, error.status)
    response.headers.update(error.headers)
    return html.add_security_headers(response)


# Of paths that no blueprint knows, too.
blueprint.record_once(lambda state: error_handlers.register_error_page(state.app, "/console", tell))


@blueprint.app_context_processor
def for_every_page() -> dict[str, object]:
    """What every template may use."""
    has_outbox = mail.is_saved_to_files() and not config.current().production
    return {"caller": guard.caller(), "has_outbox": has_outbox}
