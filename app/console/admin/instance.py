"""For superadmins: the accounts of this instance, and the users of all of them."""

from __future__ import annotations

from functools import partial

from flask import render_template, request
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import tenants, users
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.auth import enrolment
from app.auth import principal as principals
from app.console.people.users import choices
from app.console.shell import forms, guard, lists, resubmit
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import Form, Page, told
from app.errors import AppError, InvalidValues, problem
from app.rest.access import public

ONE_ACCOUNT = "/console/accounts/<uuid:account_id>"


@blueprint.get("/console/accounts")
@public
@guard.for_superadmins
def show_accounts() -> str:
    """The accounts of this instance."""
    listing = lists.asked_for("console.show_accounts")
    listing.holding(tenants.page(listing.asked))
    return render_template("console/accounts/list.html", listing=listing)


@blueprint.get("/console/accounts/new")
@public
@guard.for_superadmins
def show_new_account() -> Page:
    """The form for a new account."""
    return Form().page("console/accounts/new.html")


@blueprint.post("/console/accounts/new")
@public
@guard.for_superadmins
def create_account() -> Page | BaseResponse:
    """Make an account."""
    form = forms.sent("name", "slug")
    try:
        body = form.checked(("name",), name=200, slug=200)
        account = tenants.create(body["name"], body["slug"] or None)
    except AppError as error:
        return form.refused(error).page("console/accounts/new.html")
    notice = f"The account {account.name} is made. Add its first user, as admin."
    return told(notice, "console.show_account", account_id=account.id)


@blueprint.get(ONE_ACCOUNT)
@public
@guard.for_superadmins
def show_account(account_id: str) -> Page:
    """One account with its users."""
    return _account_page(account_id, Form())


@blueprint.post(f"{ONE_ACCOUNT}/<any(suspend, resume):action>")
@public
@guard.for_superadmins
def suspend_or_resume_account(account_id: str, action: str) -> Page | BaseResponse:
    """Suspend an account, or let it go on."""
    try:
        account = tenants.change(account_id, {"is_active": action == "resume"})
    except AppError as error:
        return _account_page(account_id, Form().refused(error))
    notice = f"{account.name} is active again." if account.is_active else f"{account.name} is out."
    return told(notice, "console.show_account", account_id=account_id)


@blueprint.post(f"{ONE_ACCOUNT}/close")
@public
@guard.for_superadmins
@resubmit.shows_form
def close_account(account_id: str) -> Page | BaseResponse:
    """Close an account whose slug was typed."""
    account, form = tenants.get(account_id), forms.sent("slug")
    name = account.name
    try:
        if form["slug"] != account.slug:
            message = f"Type {account.slug} to close this account."
            raise InvalidValues([problem("slug", "invalid_option", message)])
        tenants.close(account_id)
    except AppError as error:
        return _account_page(account_id, form.refused(error))
    return told(f"{name} is closed; its data is being removed.", "console.show_accounts")


def _account_page(account_id: str, form: Form) -> Page:
    account = tenants.get(account_id)
    listing = lists.asked_for("console.show_account", account_id=account.id)
    listing.searched(partial(users.page, account.id), partial(users.cursor_at_offset, account.id))
    is_system = account.id == SYSTEM_ACCOUNT_ID
    return form.page(
        "console/accounts/one.html", account=account, listing=listing, is_system=is_system
    )


@blueprint.get("/console/users")
@public
@guard.for_superadmins
def show_users() -> str:
    """The users of all accounts."""
    listing = lists.asked_for("console.show_users")
    listing.searched(partial(users.page, None), partial(users.cursor_at_offset, None))
    return render_template("console/users/list.html", listing=listing)


@blueprint.get("/console/users/new")
@public
@guard.for_superadmins
def show_new_user() -> Page:
    """The form for a new user."""
    account = request.args.get("account", "")[:100]
    return _new_user_page(Form({"role": "admin" if account else "viewer", "account": account}))


@blueprint.post("/console/users/new")
@public
@guard.for_superadmins
def create_user() -> Page | BaseResponse:
    """Make a user of an account; a link to set the password is mailed."""
    form = forms.sent("account", "email", "name", "role")
    try:
        body = form.checked(("account", "email"), account=100, email=320, name=200)
        account_id = _account_named(body["account"])
        user = enrolment.enrol(account_id, {**body, "name": body["name"] or None})
    except AppError as error:
        return _new_user_page(form.refused(error))
    notice = f"A link to set a password is on its way to {user.email}."
    return told(notice, "console.show_user", user_id=user.id)


def _account_named(reference: str) -> str:
    account = principals.reload_active_account(reference)
    if account is None:
        message = "There is no such active account."
        raise InvalidValues([problem("account", "invalid_reference", message)])
    return account.id


def _new_user_page(form: Form) -> Page:
    return form.page("console/users/new.html", **choices())
