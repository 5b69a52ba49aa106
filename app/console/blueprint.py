"""The blueprint of every console page, and the pages that tell of an error."""

from __future__ import annotations

from flask import Blueprint, render_template, request
from flask_wtf.csrf import CSRFError

from app.console import guard
from app.errors import AppError, Malformed

blueprint = Blueprint("console", __name__)
blueprint.before_request(guard.check)
blueprint.after_request(guard.harden)

TITLES = {403: "Not for you", 404: "Not found"}


@blueprint.errorhandler(CSRFError)
def refuse_form(error: CSRFError) -> tuple[str, int]:
    """Answer a form without its token: an old page, or another site's."""
    problem = "This form is out of date. Please open the page again and repeat what you did."
    return _page("Not done", problem, 400)


@blueprint.errorhandler(AppError)
def tell(error: AppError) -> tuple[str, int]:
    """Answer an error by a page. An id of the wrong form is of nothing that exists."""
    if isinstance(error, Malformed) and (request.view_args or {}):
        return _page(TITLES[404], "There is no such thing here.", 404)
    return _page(TITLES.get(error.status, "Not done"), error.message, error.status)


@blueprint.app_context_processor
def for_every_page() -> dict[str, object]:
    """What every template may use."""
    return {"caller": guard.caller()}


def _page(title: str, problem: str, status: int) -> tuple[str, int]:
    page = render_template(
        "console/problem.html", title=title, problem=problem, back=guard.page_before()
    )
    return page, status
