"""Pages of the console: sign in, sign out, home."""

from __future__ import annotations

from flask import redirect, render_template, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app.auth import service as auth
from app.auth.guard import account_of_host
from app.console import forms, groups, guard, home, instance, keys, links, profile, roles, team
from app.console.blueprint import blueprint
from app.errors import AppError
from app.rest import public

AREAS = (team, groups, keys, profile, instance, roles, links)


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
    return render_template("console/home.html", **home.summary(guard.known_caller()))


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
    form = {name: forms.text(name) for name in ("account", "email", "next")}
    try:
        user = auth.check_password(
            form["account"] or account_of_host(),
            form["email"],
            forms.text("password"),
            guard.origin(),
        )
    except AppError as error:
        page = render_template(
            "console/sign_in.html", form=form, next=form["next"], problem=_sentence(error)
        )
        return page, error.status
    return guard.begin_session(
        user, guard.local_target(form["next"]) or url_for("console.show_home")
    )


@blueprint.post("/console/sign-out")
@public
@guard.open_to_all
def sign_out() -> BaseResponse:
    """End the session."""
    return guard.end_session(url_for("console.sign_in"))


def _sentence(error: AppError) -> str:
    details = error.extra.get("details") or [{}]
    return str(details[0].get("message") or error.message)
