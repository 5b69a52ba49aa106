"""The groups of an account and their members."""

from __future__ import annotations

from functools import partial

from flask import render_template, request
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import groups, service_users
from app.accounts import users as people
from app.accounts.models import Group, User
from app.auth import service as auth
from app.auth.mfa import enrolment
from app.console.people import user_lists
from app.console.shell import forms, lists
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.navigation import PEOPLE, MenuItem
from app.console.shell.scopes import AccountScope
from app.errors import InvalidValues, problem
from app.web.languages import gettext, lazy_gettext

MAX_SUGGESTED = 100
ONE_GROUP = "/console/groups/<uuid:group_id>"


group_page = partial(page, role=ADMIN, in_account=True)


@group_page("/console/groups", menu=MenuItem(PEOPLE, 2, lazy_gettext("Groups"), "folder"))
def show_groups(scope: AccountScope) -> str:
    """The groups of the account."""
    listing = lists.from_request("console.show_groups", **scope.url_args)
    result = groups.page(scope.account.id, listing.skip, lists.PAGE_SIZE, listing.search)
    listing.with_page(result)
    counts = groups.member_counts(listing.items, lists.MAX_COUNTED)
    members = {group.id: number for group, number in zip(listing.items, counts, strict=True)}
    return render_template(
        "console/groups/list.html", scope=scope, listing=listing, members=members
    )


@group_page("/console/groups/new")
def show_new_group(scope: AccountScope, form: Form | None = None) -> Page:
    """The form for a new group."""
    return (form or Form()).render("console/groups/new.html", scope=scope)


@group_page("/console/groups/new", "POST", form_page=show_new_group)
def create_group(scope: AccountScope) -> BaseResponse:
    """Create a group."""
    form = forms.submitted("name", "description")
    body = form.validated(("name",), name=100, description=1000)
    group = groups.create(scope.account.id, body["name"], body["description"] or None)
    return _redirect(gettext("The group %(name)s is created.", name=group.name), scope, group.id)


@group_page(ONE_GROUP)
def show_group(scope: AccountScope, group_id: str, form: Form | None = None) -> Page:
    form = form or Form()
    group = groups.get(scope.account.id, group_id)
    listing = lists.from_request("console.show_group", **scope.url_args, group_id=group.id)
    listing.with_page(groups.member_page(group, listing.skip, lists.PAGE_SIZE))
    users = _candidates(group)
    form.values = {"name": group.name, "description": group.description or "", **form.values}
    context = {"scope": scope, "group": group, "listing": listing, "users": users}
    return form.render("console/groups/one.html", **context)


@group_page(ONE_GROUP, "POST", form_page=show_group)
def change_group(scope: AccountScope, group_id: str) -> BaseResponse:
    """Save a group's name and description."""
    form = forms.submitted("name", "description")
    body = form.validated(("name",), name=100, description=1000)
    changes = {"name": body["name"], "description": body["description"] or None}
    shows_rules = scope.by.is_superadmin
    group = groups.change(scope.account.id, group_id, changes, shows_rules=shows_rules)
    return _redirect(gettext("The group %(name)s is saved.", name=group.name), scope, group_id)


@group_page(f"{ONE_GROUP}/candidates", retry_stale=True)
def show_candidates(scope: AccountScope, group_id: str) -> dict[str, object]:
    """Users of the account whom a text finds, for scripts that search while one types."""
    group = groups.get(scope.account.id, group_id)
    return {"options": user_lists.search_options(group.account_id, request.args.get("text", ""))}


@group_page(f"{ONE_GROUP}/members", "POST", renders_form=True, form_page=show_group)
def add_member(scope: AccountScope, group_id: str) -> BaseResponse:
    """Add a user to the group."""
    form = forms.submitted("email")
    user_id = _find_user_id(scope, form.validated(("email",), email=320)["email"])
    enrolment.check_group_assignment(scope.account.id, [group_id], by=scope.by)
    groups.add_member(scope.account.id, group_id, user_id, by=scope.by.user_id)
    return _redirect(
        gettext("%(email)s is now in the group.", email=form["email"]), scope, group_id
    )


@group_page(f"{ONE_GROUP}/members/<uuid:user_id>/remove", "POST")
def remove_member(scope: AccountScope, group_id: str, user_id: str) -> BaseResponse:
    groups.remove_member(scope.account.id, group_id, user_id)
    return _redirect(gettext("The user is removed from the group."), scope, group_id)


@group_page(f"{ONE_GROUP}/delete", "POST", form_page=show_group)
def delete_group(scope: AccountScope, group_id: str) -> BaseResponse:
    """Delete a group."""
    with forms.ignore_already_deleted(scope.account.id, "groups", group_id):
        groups.delete(scope.account.id, group_id, shows_rules=scope.by.is_superadmin)
    notice = gettext("The group is deleted.")
    return redirect_with_notice(notice, "console.show_groups", **scope.url_args)


def _redirect(notice: str, scope: AccountScope, group_id: str) -> BaseResponse:
    return redirect_with_notice(notice, "console.show_group", **scope.url_args, group_id=group_id)


def _find_user_id(scope: AccountScope, email: str) -> str:
    user = auth.find_user(scope.account.id, email)
    if user is None and "@" not in email:
        user = service_users.find(scope.account.id, email)
    if user is None:
        message = gettext("No user of this account has this address. Invite them first.")
        raise InvalidValues([problem("email", "invalid_reference", message)])
    return user.id


def _candidates(group: Group) -> list[User]:
    params = {"skip": 0, "limit": MAX_SUGGESTED, "sort_by": "email", "sort_order": "asc"}
    return people.page(group.account_id, params, max_total=0)[0]
