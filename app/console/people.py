"""What the pages of a team, and those of all users, do to one user."""

from __future__ import annotations

from app.accounts import people, roles
from app.accounts.models import Role, User
from app.auth import resets
from app.console import guard
from app.console.forms import Form
from app.errors import NotFound

MOST_ROLES = 100


def choices() -> list[Role]:
    """The roles that a user can have."""
    return roles.page(0, MOST_ROLES)[0]


def form_of(user: User) -> Form:
    """The form to change a user's role."""
    return Form({"role": user.role.name})


def act(action: str, scope: str | None, user_id: str) -> str:
    """Carry out an action on a user of the scope; returns the notice that tells of it."""
    user, by = people.get(scope, user_id), guard.known_caller().user_id
    email = user.email
    if action in ("activate", "deactivate"):
        people.change(scope, user_id, {"is_active": action == "activate"}, by=by)
        return f"{email} is active." if action == "activate" else f"{email} is deactivated."
    if action == "reset-link":
        resets.send_link(user)
        return f"A link to set a new password is on its way to {email}."
    if action == "verify":
        people.verify(scope, user_id)
        return f"The address {email} counts as verified."
    if action == "remove":
        people.delete(scope, user_id, by=by)
        return f"{email} is removed."
    raise NotFound
