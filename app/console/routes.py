"""Pages of the console: sign in, sign out, home."""

from __future__ import annotations

from flask import Blueprint, g, redirect, render_template, request, url_for
from flask_wtf.csrf import CSRFError
from werkzeug.wrappers import Response as BaseResponse

from app import config
from app.auth import service as auth
from app.auth.guard import account_of_host
from app.auth.service import Origin
from app.console import guard, home
from app.errors import AppError
from app.rest import public

blueprint = Blueprint("console", __name__)
blueprint.before_request(guard.check)
blueprint.after_request(guard.harden)


@blueprint.get("/")
@public
@guard.open_to_all
def start() -> BaseResponse:
    """Lead a browser to the console."""
    return redirect(url_for("console.show_home"))


@blueprint.get("/console")
@public
def show_home() -> str:
    """What there is, and what to do next."""
    return render_template("console/home.html", **home.summary(_caller()))


@blueprint.get("/console/sign-in")
@public
@guard.open_to_all
def sign_in() -> BaseResponse | str:
    """The form to sign in with."""
    if guard.caller():
        return redirect(url_for("console.show_home"))
    form = {"account": account_of_host() or ""}
    return render_template("console/sign_in.html", form=form, next=request.args.get("next", ""))


@blueprint.post("/console/sign-in")
@public
@guard.open_to_all
def submit_sign_in() -> BaseResponse | tuple[str, int]:
    """Begin a session."""
    form = {name: _sent(name).strip() for name in ("account", "email", "next")}
    try:
        user = auth.check_password(
            form["account"] or account_of_host(), form["email"], _sent("password")
        )
    except AppError as error:
        page = render_template(
            "console/sign_in.html", form=form, next=form["next"], problem=_sentence(error)
        )
        return page, error.status
    secret = auth.start_console_session(user, _origin())
    response = redirect(guard.local_target(form["next"]) or url_for("console.show_home"), 303)
    response.set_cookie(
        guard.cookie_name(),
        secret,
        max_age=config.current().refresh_token_expire_days * 86_400,
        httponly=True,
        samesite="Lax",
        secure=config.current().production,
    )
    return response


@blueprint.post("/console/sign-out")
@public
@guard.open_to_all
def sign_out() -> BaseResponse:
    """End the session."""
    caller = guard.caller()
    if caller and caller.home:
        auth.end_session(caller.home.id, g.console_session_id)
    response = redirect(url_for("console.sign_in"), 303)
    response.delete_cookie(
        guard.cookie_name(), httponly=True, samesite="Lax", secure=config.current().production
    )
    return response


@blueprint.errorhandler(CSRFError)
def refuse_form(error: CSRFError) -> tuple[str, int]:
    """Answer a form without its token: an old page, or another site's."""
    problem = "This form is out of date. Please open the page again and repeat what you did."
    return render_template("console/problem.html", title="Not done", problem=problem), 400


@blueprint.app_context_processor
def _for_every_page() -> dict[str, object]:
    return {"caller": guard.caller()}


def _caller() -> guard.Principal:
    found = guard.caller()
    if found is None:
        raise RuntimeError("the guard lets nobody in unknown")
    return found


def _sent(name: str) -> str:
    # No text of a form contains a NUL, and PostgreSQL refuses it.
    return request.form.get(name, "").replace("\0", "")


def _sentence(error: AppError) -> str:
    details = error.extra.get("details") or [{}]
    return str(details[0].get("message") or error.message)


def _origin() -> Origin:
    return Origin(request.remote_addr, request.user_agent.string)
