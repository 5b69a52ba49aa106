"""The team of the account: its users, and whom it has invited."""

from __future__ import annotations

from flask import render_template, url_for
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
ONE_USER = "/console/team/users/<uuid:user_id>"
ONE_INVITATION = "/console/team/invitations/<uuid:invitation_id>"


@blueprint.get("/console/team")
@public
@guard.for_admins
def show_team() -> str:
    """The users of the account, and the invitations that are open."""
    account_id, listing = guard.own_account(), lists.asked_for()
    listing.holding(users.page(account_id, listing.asked))
    pending, _ = invitations.page(account_id, 0, MOST_SHOWN, invitations.PENDING)
    expired, _ = invitations.page(account_id, 0, MOST_SHOWN, invitations.EXPIRED)
    return render_template("console/team/list.html", listing=listing, invited=pending + expired)


@blueprint.get("/console/team/invite")
@public
@guard.for_admins
def show_invite() -> Page:
    """The form to invite somebody with."""
    return _invite_page(Form({"role": "viewer"}))


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
    return told(f"An invitation is on its way to {form['email']}.", "console.show_team")


def _invite_page(form: Form) -> Page:
    known, _ = groups.page(guard.own_account(), 0, MOST_SHOWN, None)
    return form.page("console/team/invite.html", roles=people.choices(), groups=known)


@blueprint.post(f"{ONE_INVITATION}/resend")
@public
@guard.for_admins
def resend_invitation(invitation_id: str) -> BaseResponse:
    """Mail a new link."""
    invitation, _ = invitations.resend(guard.own_account(), invitation_id)
    notice = f"A new link is on its way to {invitation.email}; the old one is void."
    return told(notice, "console.show_team")


@blueprint.post(f"{ONE_INVITATION}/cancel")
@public
@guard.for_admins
def cancel_invitation(invitation_id: str) -> BaseResponse:
    """Take an invitation back."""
    invitations.cancel(guard.own_account(), invitation_id)
    return told("The invitation is cancelled; its link is void.", "console.show_team")


@blueprint.get(ONE_USER)
@public
@guard.for_admins
def show_member(user_id: str) -> Page:
    """One user of the account."""
    user = users.get(guard.own_account(), user_id)
    return _member_page(user_id, people.form_of(user))


@blueprint.post(f"{ONE_USER}/role")
@public
@guard.for_admins
def change_role(user_id: str) -> Page | BaseResponse:
    """Give a user another role."""
    account_id, form = guard.own_account(), forms.sent("role")
    try:
        by = guard.known_caller().user_id
        user = users.change(account_id, user_id, form.checked(("role",)), by=by)
    except AppError as error:
        return _member_page(user_id, form.refused(error))
    return told(f"{user.email} is {user.role.name} now.", "console.show_member", user_id=user_id)


@blueprint.post(f"{ONE_USER}/<any(activate, deactivate, 'reset-link', remove):action>")
@public
@guard.for_admins
def act_on_member(user_id: str, action: str) -> Page | BaseResponse:
    """Activate, deactivate or remove a user, or mail a link to set a password."""
    account_id = guard.own_account()
    try:
        notice = people.act(action, account_id, user_id)
    except AppError as error:
        form = people.form_of(users.get(account_id, user_id))
        return _member_page(user_id, form.refused(error))
    if action == "remove":
        return told(notice, "console.show_team")
    return told(notice, "console.show_member", user_id=user_id)


def _member_page(user_id: str, form: Form) -> Page:
    user = users.get(guard.own_account(), user_id)
    return form.page(
        "console/users/one.html",
        user=user,
        roles=people.choices(),
        here=url_for("console.show_member", user_id=user.id),
        above=("Team", url_for("console.show_team")),
    )
