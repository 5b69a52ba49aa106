"""API keys: one's own; an admin sees those of the account."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

from flask import redirect, render_template, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.accounts import users
from app.auth import api_keys
from app.console.shell import forms, guard, idempotent_forms, lists, one_time_secrets, scopes
from app.console.shell.blueprint import blueprint, of_account
from app.console.shell.forms import Form, Page, told
from app.errors import AppError, Conflict, InvalidValues, problem
from app.rest.access import public

FORM = "console/keys/new.html"
LOST = "If you did not copy it, revoke it and make another."


@of_account("GET", "/keys")
@public
def show_keys(account_id: str | None = None) -> str:
    """The keys that the caller may see."""
    place = scopes.of(account_id)
    listing = lists.asked_for("console.show_keys", **place.at)
    listing.holding(api_keys.page(listing.skip, lists.SIZE, by=place.by, most=listing.most))
    emails = users.emails(place.account.id, {key.created_by for key in listing.items})
    at_home = place.account == place.by.home
    shown = {"place": place, "listing": listing, "emails": emails, "at_home": at_home}
    return render_template("console/keys/list.html", **shown)


@blueprint.get("/console/keys/new")
@public
def show_new_key() -> Page:
    """The form for a new key."""
    return _new(Form())


@blueprint.post("/console/keys/new")
@public
def create_key() -> Page | BaseResponse:
    """Make a key, and go on to the page that shows it."""
    form, by = forms.sent("name", "description", "expires_at"), guard.known_caller()
    id = idempotent_forms.id_of(form.values)
    try:
        body = form.checked(("name",), name=200, description=1000)
        wanted = {
            "name": body["name"],
            "description": body["description"] or None,
            "expires_at": _end_of(body["expires_at"]),
        }
        _, text = api_keys.create(wanted, by=by, id=id)
        one_time_secrets.leave(id, text)
    except AppError as error:
        if not idempotent_forms.is_made(error, lambda: api_keys.get(id, by=by)):
            return _new(form.refused(error))
    return redirect(url_for("console.show_made_key", key_id=id), 303)


@blueprint.get("/console/keys/<uuid:key_id>/made")
@public
def show_made_key(key_id: str) -> str | BaseResponse:
    """A new key, this once."""
    key = api_keys.get(key_id, by=guard.known_caller())
    text = one_time_secrets.take(key.id)
    if text is None:
        return told(f"The key {key.name} was shown once already. {LOST}", "console.show_keys")
    return render_template("console/keys/made.html", key=key, text=text)


@of_account("POST", "/keys/<uuid:key_id>/revoke")
@public
def revoke_key(key_id: str, account_id: str | None = None) -> BaseResponse:
    """Revoke a key; asked for again, say that it is."""
    place = scopes.of(account_id)
    with suppress(Conflict):
        api_keys.revoke(key_id, by=place.by)
    key = api_keys.get(key_id, by=place.by)
    return told(f"The key {key.name} is revoked.", "console.show_keys", **place.at)


def _new(form: Form) -> Page:
    return form.page(FORM, drawn=idempotent_forms.drawn())


def _end_of(day: str) -> datetime | None:
    try:
        return clock.parse(day[:10]) + timedelta(days=1) if day else None
    except (ValueError, OverflowError):
        wrong = problem("expires_at", "invalid_datetime", "Give a day, such as 2030-12-31.")
        raise InvalidValues([wrong]) from None
