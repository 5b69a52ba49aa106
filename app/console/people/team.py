"""The team of an account: its users, and whom it has invited."""

from __future__ import annotations

from functools import partial

from flask import render_template
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import groups, users
from app.auth import enrolment, invitations
from app.console.people.users import choices
from app.console.shell import forms, guard, lists, scopes
from app.console.shell.blueprint import of_account
from app.console.shell.forms import Form, Page, told
from app.console.shell.scopes import Place
from app.errors import AppError
from app.rest.access import public

MOST_SHOWN = 100
ONE_INVITATION = "/team/invitations/<uuid:invitation_id>"


@of_account("GET", "/team")
@public
@guard.for_admins
def show_team(account_id: str | None = None) -> str:
    """The users of the account."""
    place = scopes.of(account_id)
    listing, whose = lists.asked_for("console.show_team", **place.at), place.account.id
    listing.searched(partial(users.page, whose), partial(users.cursor_at_offset, whose))
    return render_template("console/team/list.html", place=place, listing=listing)


@of_account("GET", "/team/invitations")
@public
@guard.for_admins
def show_invitations(account_id: str | None = None) -> str:
    """Whom the account has invited."""
    place, choices = scopes.of(account_id), {"status": invitations.STATES}
    listing = lists.asked_for("console.show_invitations", choices, **place.at)
    part = (place.account.id, listing.skip, lists.SIZE)
    listing.holding(invitations.page(*part, listing.filters.get("status"), listing.most))
    return render_template("console/team/invitations.html", place=place, listing=listing)


@of_account("GET", "/team/invite")
@public
@guard.for_admins
def show_invite(account_id: str | None = None) -> Page:
    """The form to invite somebody with."""
    place, form = scopes.of(account_id), Form({"role": "viewer"})
    try:
        invitations.require_enabled()
    except AppError as error:
        form.refused(error)
    return _invite_page(place, form)


@of_account("POST", "/team/invite")
@public
@guard.for_admins
def invite(account_id: str | None = None) -> Page | BaseResponse:
    """Invite somebody to the account."""
    place, form = scopes.of(account_id), forms.sent("email", "role", chosen="groups")
    try:
        body = form.checked(("email",), email=320)
        wanted = {**body, "groups": form.chosen}
        enrolment.check_group_assignment(place.account.id, form.chosen, by=place.by)
        invitations.create(place.account.id, wanted, by=place.by.user_id)
    except AppError as error:
        return _invite_page(place, form.refused(error))
    return _told(f"An invitation is on its way to {form['email']}.", place)


def _invite_page(place: Place, form: Form) -> Page:
    known, total = groups.page(place.account.id, 0, MOST_SHOWN, None)
    shown = {"groups": known, "other_groups": total - len(known), **choices()}
    return form.page("console/team/invite.html", place=place, **shown)


def _told(notice: str, place: Place) -> BaseResponse:
    return told(notice, "console.show_invitations", **place.at)


@of_account("POST", f"{ONE_INVITATION}/resend")
@public
@guard.for_admins
def resend_invitation(invitation_id: str, account_id: str | None = None) -> BaseResponse:
    """Mail a new link."""
    place = scopes.of(account_id)
    invitation, _ = invitations.resend(place.account.id, invitation_id, by=place.by)
    return _told(f"A new link is on its way to {invitation.email}; the old one is void.", place)


@of_account("POST", f"{ONE_INVITATION}/cancel")
@public
@guard.for_admins
def cancel_invitation(invitation_id: str, account_id: str | None = None) -> BaseResponse:
    """Take an invitation back."""
    place = scopes.of(account_id)
    invitations.cancel(place.account.id, invitation_id)
    return _told("The invitation is cancelled; its link is void.", place)
