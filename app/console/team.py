"""The team of the account: its users, and whom it has invited."""

from __future__ import annotations

from functools import partial

from flask import render_template
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import groups
from app.accounts import people as users
from app.auth import invitations
from app.console import forms, guard, lists, people
from app.console.blueprint import blueprint
from app.console.forms import Form, Page, told
from app.errors import AppError
from app.rest import public

MOST_SHOWN = 100
ONE_INVITATION = "/console/team/invitations/<uuid:invitation_id>"


@blueprint.get("/console/team")
@public
@guard.for_admins
def show_team() -> str:
    """The users of the account."""
    listing = lists.asked_for("console.show_team")
    mine = guard.own_account()
    listing.searched(partial(users.page, mine), partial(users.place, mine))
    return render_template("console/team/list.html", listing=listing)


@blueprint.get("/console/team/invitations")
@public
@guard.for_admins
def show_invitations() -> str:
    """Whom the account has invited."""
    listing = lists.asked_for("console.show_invitations", {"status": invitations.STATES})
    status = listing.filters.get("status")
    place = (guard.own_account(), listing.skip, lists.SIZE)
    listing.holding(invitations.page(*place, status, listing.most))
    return render_template("console/team/invitations.html", listing=listing)


@blueprint.get("/console/team/invite")
@public
@guard.for_admins
def show_invite() -> Page:
    """The form to invite somebody with."""
    form = Form({"role": "viewer"})
    try:
        invitations.check_open()
    except AppError as error:
        form.refused(error)
    return _invite_page(form)


@blueprint.post("/console/team/invite")
@public
@guard.for_admins
def invite() -> Page | BaseResponse:
    """Invite somebody to the account."""
    form = forms.sent("email", "role", chosen="groups")
    try:
        body = form.checked(("email",), email=320)
        invitations.create(
            guard.own_account(),
            {**body, "groups": form.chosen},
            by=guard.known_caller().user_id,
        )
    except AppError as error:
        return _invite_page(form.refused(error))
    return told(f"An invitation is on its way to {form['email']}.", "console.show_invitations")


def _invite_page(form: Form) -> Page:
    known, _ = groups.page(guard.own_account(), 0, MOST_SHOWN, None)
    return form.page("console/team/invite.html", roles=people.choices(), groups=known)


@blueprint.post(f"{ONE_INVITATION}/resend")
@public
@guard.for_admins
def resend_invitation(invitation_id: str) -> BaseResponse:
    """Mail a new link."""
    invitation, _ = invitations.resend(guard.own_account(), invitation_id, by=guard.known_caller())
    notice = f"A new link is on its way to {invitation.email}; the old one is void."
    return told(notice, "console.show_invitations")


@blueprint.post(f"{ONE_INVITATION}/cancel")
@public
@guard.for_admins
def cancel_invitation(invitation_id: str) -> BaseResponse:
    """Take an invitation back."""
    invitations.cancel(guard.own_account(), invitation_id)
    return told("The invitation is cancelled; its link is void.", "console.show_invitations")
