"""The groups of the account, and who is in them."""

from __future__ import annotations

from flask import render_template
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import groups, people
from app.auth import service as auth
from app.console import forms, guard, lists, unsent
from app.console.blueprint import blueprint
from app.console.forms import Form, Page, told
from app.db import db
from app.errors import AppError, InvalidValues, problem
from app.rest import public

MOST_OFFERED = 100
ONE_GROUP = "/console/groups/<uuid:group_id>"


@blueprint.get("/console/groups")
@public
@guard.for_admins
def show_groups() -> str:
    """The groups of the account."""
    listing = lists.asked_for("console.show_groups")
    found = groups.page(guard.own_account(), listing.skip, lists.SIZE, listing.search)
    return render_template("console/groups/list.html", listing=listing.holding(found))


@blueprint.get("/console/groups/new")
@public
@guard.for_admins
def show_new_group() -> Page:
    """The form for a new group."""
    return Form().page("console/groups/new.html")


@blueprint.post("/console/groups/new")
@public
@guard.for_admins
def create_group() -> Page | BaseResponse:
    """Make a group."""
    form = forms.sent("name", "description")
    try:
        body = form.checked(("name",), name=100, description=1000)
        group = groups.create(guard.own_account(), body["name"], body["description"] or None)
    except AppError as error:
        return form.refused(error).page("console/groups/new.html")
    return told(f"The group {group.name} is made.", "console.show_group", group_id=group.id)


@blueprint.get(ONE_GROUP)
@public
@guard.for_admins
def show_group(group_id: str) -> Page:
    """One group with its members."""
    return _group_page(group_id, Form())


@blueprint.post(f"{ONE_GROUP}/members")
@public
@guard.for_admins
@unsent.shows_form
def add_member(group_id: str) -> Page | BaseResponse:
    """Put a user into the group."""
    form = forms.sent("email")
    try:
        user_id = _user_with(form.checked(("email",), email=320)["email"])
        by = guard.known_caller().user_id
        groups.add(guard.own_account(), group_id, user_id, by=by)
    except AppError as error:
        return _group_page(group_id, form.refused(error))
    return told(f"{form['email']} is in the group.", "console.show_group", group_id=group_id)


@blueprint.post(f"{ONE_GROUP}/members/<uuid:user_id>/remove")
@public
@guard.for_admins
def remove_member(group_id: str, user_id: str) -> BaseResponse:
    """Take a user out of the group."""
    groups.remove(guard.own_account(), group_id, user_id)
    return told("The user is out of the group.", "console.show_group", group_id=group_id)


@blueprint.post(f"{ONE_GROUP}/delete")
@public
@guard.for_admins
def delete_group(group_id: str) -> Page | BaseResponse:
    """Delete a group."""
    try:
        groups.delete(guard.own_account(), group_id)
    except AppError as error:
        return _group_page(group_id, Form().refused(error))
    return told("The group is deleted.", "console.show_groups")


def _user_with(email: str) -> str:
    user = db.session.scalar(auth.user_named(guard.own_account(), email))
    if user is None:
        message = "No user of the account has this address. Invite them first."
        raise InvalidValues([problem("email", "invalid_reference", message)])
    return user.id


def _group_page(group_id: str, form: Form) -> Page:
    group = groups.get(guard.own_account(), group_id)
    listing = lists.asked_for("console.show_group", group_id=group.id)
    listing.holding(groups.member_page(group, listing.skip, lists.SIZE))
    asked = {"skip": 0, "limit": MOST_OFFERED, "sort_by": "email", "sort_order": "asc"}
    users, _ = people.page(group.account_id, asked, most=0)
    return form.page("console/groups/one.html", group=group, listing=listing, users=users)
