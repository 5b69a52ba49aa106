"""What is held of a person as a file, for themself and for admins."""

from __future__ import annotations

from flask import Response

from app.console.people.users import TEAM
from app.console.shell import guard
from app.console.shell.access import ADMIN, USER
from app.console.shell.blueprint import page
from app.portability import person_routes


@page("/console/profile/export", role=USER, is_hosted=True)
def export_profile() -> Response:
    caller = guard.require_caller()
    return person_routes.exported(caller.require_user_id(), "zip", by=caller)


@page(f"{TEAM.path}/<uuid:user_id>/export", role=ADMIN)
def export_member(user_id: str) -> Response:
    """What is held of a user of the account; superadmins get it of any user."""
    return person_routes.exported(user_id, "zip", by=guard.require_caller())
