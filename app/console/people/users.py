"""The page of a user, in the team of an account and among all users, and what a user leaves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

from flask import render_template, url_for
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import groups, roles
from app.accounts import users as users
from app.accounts.attributes import Kind
from app.accounts.models import ADMIN as ADMIN_ROLE
from app.accounts.models import Role, User
from app.auth import api_keys, password_resets, sessions
from app.auth.mfa import enrolment, gate
from app.auth.mfa import service as mfa
from app.auth.portals import PortalPage
from app.collections import attribute_values
from app.console.people import attribute_form
from app.console.people.attribute_form import AttributeForm
from app.console.people.roles import description
from app.console.shell import forms, guard
from app.console.shell.access import ADMIN, SUPERADMIN
from app.console.shell.access import Role as PageRole
from app.console.shell.blueprint import page
from app.console.shell.forms import (
    MAX_PASSWORD_LENGTH,
    Form,
    Page,
    TemplateContext,
    redirect_with_notice,
)
from app.console.shell.lists import UrlArgs
from app.console.shell.scopes import AccountScope
from app.errors import NotFound
from app.sso import overview
from app.web import user_agents
from app.web.languages import gettext, lazy_gettext
from app.webhooks import handover
from app.webhooks.handover import LeftKind

KIND_NAMES = {
    LeftKind.WEBHOOK: lazy_gettext("Webhook"),
    LeftKind.STREAM: lazy_gettext("Receiver of the security log"),
    LeftKind.SCIM: lazy_gettext("SCIM token"),
    LeftKind.SETUP_LINK: lazy_gettext("Setup link"),
    LeftKind.PROVIDER: lazy_gettext("Identity provider"),
    LeftKind.REDIRECT: lazy_gettext("Redirect address"),
    LeftKind.API_KEY: lazy_gettext("API key"),
    LeftKind.WORKFLOW: lazy_gettext("Workflow"),
    LeftKind.HOOK: lazy_gettext("Workflow"),
}

MAX_NAME, MAX_EMAIL = 200, 320
MAX_ROLES, MAX_GROUPS, MAX_SESSIONS, MAX_KEYS, MAX_DESCRIPTION = 100, 100, 20, 100, 80


@dataclass(frozen=True)
class UserPages:
    """One of both places: its routes, its guard and the users it may change."""

    noun: str
    path: str
    parent: tuple[str, str]
    role: PageRole
    actions: str = "activate, deactivate, 'reset-link', 'end-sessions', 'reset-factors', remove"
    all_accounts: bool = False
    portal: PortalPage | None = None

    @property
    def scope(self) -> str | None:
        """The account whose users may be changed; None for all."""
        return None if self.all_accounts else guard.own_account_id()

    @property
    def endpoint(self) -> str:
        return f"console.show_{self.noun}"


TEAM = UserPages(
    "member",
    "/console/team/users",
    (lazy_gettext("Team"), "console.show_team"),
    ADMIN,
    portal=PortalPage.TEAM,
)
ALL_USERS = UserPages(
    "user",
    "/console/users",
    (lazy_gettext("Users"), "console.show_users"),
    SUPERADMIN,
    f"{TEAM.actions}, verify",
    all_accounts=True,
)


def choices(*, with_admin: bool = True) -> TemplateContext:
    """The template variables for the choice of a role."""
    shown_roles, total = roles.page(0, MAX_ROLES)
    offered = (role for role in shown_roles if with_admin or role.name != ADMIN_ROLE)
    descriptions = {role.name: _description(role) for role in offered}
    return {"roles": descriptions, "more_roles": total > MAX_ROLES}


def _description(role: Role) -> str:
    text = description(role)
    return text if len(text) <= MAX_DESCRIPTION else f"{text[:MAX_DESCRIPTION]}…"


def show(pages: UserPages, user_id: str, form: Form | None = None) -> Page:
    user, (title, parent) = users.get(pages.scope, user_id), pages.parent
    stored = _attributes(user)
    stored.values |= {"role": user.role.name, "name": user.name or "", "email": user.email}
    others, total = groups.page(user.account_id, 0, MAX_GROUPS, None)
    own = {group.id for group in user.groups}
    caller_home, _ = guard.require_caller().home_and_user()
    account_id = None if user.account_id == caller_home.id else user.account_id
    return (
        (form or Form())
        .over(stored)
        .render(
            "console/users/one.html",
            user=user,
            factors=gate.factors_of(user),
            providers=overview.provider_names(user),
            other_groups={group.id: group.name for group in others if group.id not in own},
            more_groups=total > MAX_GROUPS,
            **choices(),
            user_url=url_for(pages.endpoint, user_id=user.id),
            left_page=_left_page(user.account_id, user.id),
            active_keys=api_keys.count_active(user.account_id, user.id, MAX_KEYS),
            max_keys=MAX_KEYS,
            keys_url=url_for("console.show_keys", account_id=account_id, owner=user.id),
            sessions=sessions.page(
                user.account_id, user.id, 0, MAX_SESSIONS, max_total=MAX_SESSIONS
            ),
            program=user_agents.describe,
            parent=(title, url_for(parent)),
            of_any_account=pages.all_accounts,
        )
    )


def change_role(pages: UserPages, user_id: str) -> BaseResponse:
    form, by = forms.submitted("role"), guard.require_caller().user_id
    user = users.change(pages.scope, user_id, form.validated(("role",)), by=by)
    notice = gettext("%(email)s is %(role)s now.", email=user.label, role=user.role.name)
    if user.role.name != ADMIN_ROLE and (left := _left_page(user.account_id, user_id)):
        return redirect_with_notice(notice, "console.show_left", **left)
    return redirect_with_notice(notice, pages.endpoint, user_id=user_id)


def change_attributes(pages: UserPages, user_id: str) -> BaseResponse:
    form = attribute_form.submitted(_attributes(users.get(pages.scope, user_id)))
    body = {"attributes": form.attributes()}
    user = users.change(pages.scope, user_id, body, by=guard.require_caller().user_id)
    notice = gettext("%(email)s is saved.", email=user.label)
    return redirect_with_notice(notice, pages.endpoint, user_id=user_id)


def _attributes(user: User) -> AttributeForm:
    level = attribute_values.level_for_account(guard.require_caller())
    return attribute_form.stored(Kind.USERS, level, user.attributes)


def change_name_and_address(pages: UserPages, user_id: str) -> BaseResponse:
    form, by = forms.submitted("name", "email"), guard.require_caller()
    is_service = users.get(pages.scope, user_id).is_service
    required = ("name",) if is_service else ("email",)
    body: dict[str, object] = {**form.validated(required, name=MAX_NAME, email=MAX_EMAIL)}
    if is_service:
        del body["email"]
    body["name"] = body["name"] or None
    enrolment.check_address(pages.scope, user_id, body, by=by)
    user = users.change(pages.scope, user_id, body, by=by.user_id)
    notice = gettext("%(email)s is saved.", email=user.label)
    return redirect_with_notice(notice, pages.endpoint, user_id=user_id)


def set_password(pages: UserPages, user_id: str) -> BaseResponse:
    """Set a user's password, which ends all their sessions."""
    user, form = users.get(pages.scope, user_id), forms.submitted("new_password")
    body = form.validated(("new_password",), new_password=MAX_PASSWORD_LENGTH)
    password_resets.set_password(user, body["new_password"], by=guard.require_caller())
    notice = gettext(
        "The password of %(email)s is changed. All their sessions have ended.", email=user.label
    )
    return redirect_with_notice(notice, pages.endpoint, user_id=user_id)


def add_group(pages: UserPages, user_id: str) -> BaseResponse:
    form, by = forms.submitted("group"), guard.require_caller()
    user = users.get(pages.scope, user_id)
    group_id = form.validated(("group",))["group"]
    enrolment.check_group_assignment(user.account_id, [group_id], by=by)
    group = groups.add_member(user.account_id, group_id, user.id, by=by.user_id)
    notice = gettext("%(email)s is in %(group)s now.", email=user.label, group=group.name)
    return redirect_with_notice(notice, pages.endpoint, user_id=user_id)


def leave_group(pages: UserPages, user_id: str, group_id: str) -> BaseResponse:
    user = users.get(pages.scope, user_id)
    with suppress(NotFound):  # pressed twice
        groups.remove_member(user.account_id, group_id, user.id)
    notice = gettext("The user is removed from the group.")
    return redirect_with_notice(notice, pages.endpoint, user_id=user_id)


def act(pages: UserPages, user_id: str, action: str) -> BaseResponse:
    """Activate, deactivate, verify or remove a user, or mail a reset link."""
    if action == "remove":
        return _remove(pages, user_id)
    notice = _perform(action, pages.scope, user_id)
    account_id = users.get(pages.scope, user_id).account_id
    if action == "deactivate" and (left := _left_page(account_id, user_id)):
        return redirect_with_notice(notice, "console.show_left", **left)
    return redirect_with_notice(notice, pages.endpoint, user_id=user_id)


def _left_page(account_id: str, user_id: str) -> UrlArgs | None:
    """The arguments of the address of `show_left`; None if the user has made nothing."""
    if not handover.of_user(account_id, user_id.lower()):
        return None
    home, _ = guard.require_caller().home_and_user()
    args = {"user_id": user_id.lower()}
    return args if account_id == home.id else {**args, "account_id": account_id}


def end_session(pages: UserPages, user_id: str, session_id: str) -> BaseResponse:
    user = users.get(pages.scope, user_id)
    sessions.end_active(user.account_id, user.id, session_id)
    return redirect_with_notice(gettext("The session has ended."), pages.endpoint, user_id=user_id)


def _remove(pages: UserPages, user_id: str) -> BaseResponse:
    left = None
    with forms.ignore_already_deleted(pages.scope, "users", user_id):
        account_id = users.get(pages.scope, user_id).account_id
        users.delete(pages.scope, user_id, by=guard.require_caller().user_id)
        left = _left_page(account_id, user_id)
    notice = gettext("The user is removed.")
    if left:
        return redirect_with_notice(notice, "console.show_left", **left)
    return redirect_with_notice(notice, pages.parent[1])


def _perform(action: str, scope: str | None, user_id: str) -> str:
    user, by = users.get(scope, user_id), guard.require_caller().user_id
    email = user.label
    if action == "reset-link":
        password_resets.send_link(user)
        return gettext("We have sent a link to set a new password to %(email)s.", email=email)
    if action == "reset-factors":
        guard.require_caller().require_recent_sign_in()
        mfa.reset(user)
        return gettext("The second factors of %(email)s are removed.", email=email)
    if action == "verify":
        users.verify(scope, user_id)
        return gettext("The address %(email)s is now verified.", email=email)
    if action == "end-sessions":
        sessions.end_all(user.account_id, user.id)
        return gettext("All sessions of %(email)s have ended.", email=email)
    users.change(scope, user_id, {"is_active": action == "activate"}, by=by)
    if action == "activate":
        return gettext("%(email)s is active.", email=email)
    return gettext("%(email)s is deactivated.", email=email)


def _add_page(
    pages: UserPages,
    method: str,
    path: str,
    view: Callable[..., object],
    form_page: Callable[..., Page] | None = None,
) -> Callable[..., Any]:
    rule, endpoint = f"{pages.path}/<uuid:user_id>{path}", f"{view.__name__}_{pages.noun}"
    options: Any = {"role": pages.role, "portal": pages.portal, "form_page": form_page}
    register = page(rule, method, endpoint=endpoint, **options)
    return register(wraps(view)(partial(view, pages)))


for _pages in (TEAM, ALL_USERS):
    _show = _add_page(_pages, "GET", "", show)
    _add_page(_pages, "POST", "/role", change_role, _show)
    _add_page(_pages, "POST", "/attributes", change_attributes, _show)
    _add_page(_pages, "POST", "/groups", add_group, _show)
    _add_page(_pages, "POST", "/groups/<uuid:group_id>/remove", leave_group)
    _add_page(_pages, "POST", "/sessions/<uuid:session_id>/end", end_session)
    _add_page(_pages, "POST", f"/<any({_pages.actions}):action>", act, _show)
    if _pages.all_accounts:
        _add_page(_pages, "POST", "/password", set_password, _show)
        _add_page(_pages, "POST", "/identity", change_name_and_address, _show)


@page("/console/team/left/<uuid:user_id>", role=ADMIN, portal=PortalPage.TEAM, in_account=True)
def show_left(scope: AccountScope, user_id: str) -> str:
    """The keys, webhooks and other things that a user made and could still use."""
    found = handover.of_user(scope.account.id, user_id.lower())
    email = users.emails(scope.account.id, [user_id.lower()]).get(user_id.lower())
    return render_template(
        "console/team/left.html",
        scope=scope,
        user_id=user_id.lower(),
        email=email,
        items=found,
        kind_names=KIND_NAMES,
    )
