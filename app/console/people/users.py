"""The pages of one user, in two places: in the team of an account, and among all users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

from flask import url_for
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import roles
from app.accounts import users as users
from app.auth import password_resets
from app.console.shell import forms, guard, idempotent_forms
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import LONGEST_PASSWORD, Form, Page, told
from app.errors import AppError
from app.rest.access import public

MOST_ROLES = 100


@dataclass(frozen=True)
class Place:
    """Where pages of users stand, for whom, and whose users they show."""

    noun: str
    path: str
    above: tuple[str, str]
    mark: Callable[..., Any]
    acts: str = "activate, deactivate, 'reset-link', remove"
    of_all: bool = False

    @property
    def scope(self) -> str | None:
        """The account whose users may be touched; None for all."""
        return None if self.of_all else guard.own_account()

    @property
    def one(self) -> str:
        """The endpoint that shows one user."""
        return f"console.show_{self.noun}"


TEAM = Place("member", "/console/team/users", ("Team", "console.show_team"), guard.for_admins)
EVERYBODY = Place(
    "user",
    "/console/users",
    ("Users", "console.show_users"),
    guard.for_superadmins,
    f"{TEAM.acts}, verify",
    of_all=True,
)


def choices() -> dict[str, Any]:
    """The roles that a user can have; where they are too many for a list, some of them."""
    some, total = roles.page(0, MOST_ROLES)
    return {"roles": [role.name for role in some], "more_roles": total > MOST_ROLES}


def show(place: Place, user_id: str) -> Page:
    """One user."""
    return _page(place, user_id, Form())


def change_role(place: Place, user_id: str) -> Page | BaseResponse:
    """Give a user another role."""
    form, by = forms.sent("role"), guard.known_caller().user_id
    try:
        user = users.change(place.scope, user_id, form.checked(("role",)), by=by)
    except AppError as error:
        return _page(place, user_id, form.refused(error))
    return told(f"{user.email} is {user.role.name} now.", place.one, user_id=user_id)


def set_password(place: Place, user_id: str) -> Page | BaseResponse:
    """Set a user's password, which ends all of the user's sessions."""
    user, form = users.get(place.scope, user_id), forms.sent("new_password")
    try:
        body = form.checked(("new_password",), new_password=LONGEST_PASSWORD)
        password_resets.set_password(user, body["new_password"], by=guard.known_caller())
    except AppError as error:
        return _page(place, user_id, form.refused(error))
    notice = f"The new password of {user.email} is set; their sessions are ended."
    return told(notice, place.one, user_id=user_id)


def act(place: Place, user_id: str, action: str) -> Page | BaseResponse:
    """Activate, deactivate, verify or remove a user, or mail a link to set a password."""
    try:
        if action == "remove":
            return _remove(place, user_id)
        notice = _carry_out(action, place.scope, user_id)
    except AppError as error:
        return _page(place, user_id, Form().refused(error))
    return told(notice, place.one, user_id=user_id)


def _remove(place: Place, user_id: str) -> BaseResponse:
    with idempotent_forms.deleting(place.scope, "users", user_id):
        users.delete(place.scope, user_id, by=guard.known_caller().user_id)
    return told("The user is removed.", place.above[1])


def _carry_out(action: str, scope: str | None, user_id: str) -> str:
    user, by = users.get(scope, user_id), guard.known_caller().user_id
    email = user.email
    if action == "reset-link":
        password_resets.send_link(user)
        return f"A link to set a new password is on its way to {email}."
    if action == "verify":
        users.verify(scope, user_id)
        return f"The address {email} counts as verified."
    users.change(scope, user_id, {"is_active": action == "activate"}, by=by)
    return f"{email} is active." if action == "activate" else f"{email} is deactivated."


def _page(place: Place, user_id: str, form: Form) -> Page:
    user, (title, above) = users.get(place.scope, user_id), place.above
    form.values = {"role": user.role.name, **form.values}
    return form.page(
        "console/users/one.html",
        user=user,
        **choices(),
        here=url_for(place.one, user_id=user.id),
        above=(title, url_for(above)),
        of_any_account=place.of_all,
    )


def _add(place: Place, method: str, path: str, view: Callable[..., Any]) -> None:
    marked = place.mark(public(wraps(view)(partial(view, place))))
    rule, endpoint = f"{place.path}/<uuid:user_id>{path}", f"{view.__name__}_{place.noun}"
    blueprint.add_url_rule(rule, endpoint, marked, methods=[method])


for _place in (TEAM, EVERYBODY):
    _add(_place, "GET", "", show)
    _add(_place, "POST", "/role", change_role)
    _add(_place, "POST", f"/<any({_place.acts}):action>", act)
_add(EVERYBODY, "POST", "/password", set_password)
