"""The groups of an account, and who is in them."""

from __future__ import annotations

from flask import render_template
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import groups
from app.accounts import users as people
from app.auth import enrolment
from app.auth import service as auth
from app.console.shell import forms, guard, idempotent_forms, lists, resubmit, scopes
from app.console.shell.blueprint import of_account
from app.console.shell.forms import Form, Page, told
from app.console.shell.scopes import Place
from app.errors import AppError, InvalidValues, problem
from app.rest.access import public

MOST_OFFERED = 100
ONE_GROUP = "/groups/<uuid:group_id>"


@of_account("GET", "/groups")
@public
@guard.for_admins
def show_groups(account_id: str | None = None) -> str:
    """The groups of the account."""
    place = scopes.of(account_id)
    listing = lists.asked_for("console.show_groups", **place.at)
    found = groups.page(place.account.id, listing.skip, lists.SIZE, listing.search)
    return render_template("console/groups/list.html", place=place, listing=listing.holding(found))


@of_account("GET", "/groups/new")
@public
@guard.for_admins
def show_new_group(account_id: str | None = None) -> Page:
    """The form for a new group."""
    return Form().page("console/groups/new.html", place=scopes.of(account_id))


@of_account("POST", "/groups/new")
@public
@guard.for_admins
def create_group(account_id: str | None = None) -> Page | BaseResponse:
    """Make a group."""
    place, form = scopes.of(account_id), forms.sent("name", "description")
    try:
        body = form.checked(("name",), name=100, description=1000)
        group = groups.create(place.account.id, body["name"], body["description"] or None)
    except AppError as error:
        return form.refused(error).page("console/groups/new.html", place=place)
    return _told(f"The group {group.name} is made.", place, group.id)


@of_account("GET", ONE_GROUP)
@public
@guard.for_admins
def show_group(group_id: str, account_id: str | None = None) -> Page:
    """One group with its members."""
    return _group_page(scopes.of(account_id), group_id, Form())


@of_account("POST", f"{ONE_GROUP}/members")
@public
@guard.for_admins
@resubmit.shows_form
def add_member(group_id: str, account_id: str | None = None) -> Page | BaseResponse:
    """Put a user into the group."""
    place, form = scopes.of(account_id), forms.sent("email")
    try:
        user_id = _user_with(place, form.checked(("email",), email=320)["email"])
        enrolment.check_group_assignment(place.account.id, [group_id], by=place.by)
        groups.add_member(place.account.id, group_id, user_id, by=place.by.user_id)
    except AppError as error:
        return _group_page(place, group_id, form.refused(error))
    return _told(f"{form['email']} is in the group.", place, group_id)


@of_account("POST", f"{ONE_GROUP}/members/<uuid:user_id>/remove")
@public
@guard.for_admins
def remove_member(group_id: str, user_id: str, account_id: str | None = None) -> BaseResponse:
    """Take a user out of the group."""
    place = scopes.of(account_id)
    groups.remove_member(place.account.id, group_id, user_id)
    return _told("The user is out of the group.", place, group_id)


@of_account("POST", f"{ONE_GROUP}/delete")
@public
@guard.for_admins
def delete_group(group_id: str, account_id: str | None = None) -> Page | BaseResponse:
    """Delete a group."""
    place = scopes.of(account_id)
    try:
        with idempotent_forms.deleting(place.account.id, "groups", group_id):
            groups.delete(place.account.id, group_id)
    except AppError as error:
        return _group_page(place, group_id, Form().refused(error))
    return told("The group is deleted.", "console.show_groups", **place.at)


def _told(notice: str, place: Place, group_id: str) -> BaseResponse:
    return told(notice, "console.show_group", **place.at, group_id=group_id)


def _user_with(place: Place, email: str) -> str:
    user = auth.find_user(place.account.id, email)
    if user is None:
        message = "No user of the account has this address. Invite them first."
        raise InvalidValues([problem("email", "invalid_reference", message)])
    return user.id


def _group_page(place: Place, group_id: str, form: Form) -> Page:
    group = groups.get(place.account.id, group_id)
    listing = lists.asked_for("console.show_group", **place.at, group_id=group.id)
    listing.holding(groups.member_page(group, listing.skip, lists.SIZE))
    asked = {"skip": 0, "limit": MOST_OFFERED, "sort_by": "email", "sort_order": "asc"}
    users, _ = people.page(group.account_id, asked, most=0)
    shown = {"place": place, "group": group, "listing": listing, "users": users}
    return form.page("console/groups/one.html", **shown)
