"""The team of an account: its users and invitations."""

from __future__ import annotations

import re
from functools import partial

from flask import render_template
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import groups, service_users, users
from app.auth import invitations
from app.auth.invitations import InvitationFilter
from app.auth.mfa import enrolment
from app.auth.models import InvitationState
from app.auth.portals import PortalPage
from app.console.people import user_lists
from app.console.people.users import choices
from app.console.shell import forms, lists, names
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, TemplateContext, redirect_with_notice
from app.console.shell.navigation import PEOPLE, MenuItem
from app.console.shell.scopes import AccountScope
from app.errors import AppError, InvalidValues, problem
from app.web.languages import gettext, lazy_gettext, ngettext

MAX_GROUPS = 100
INVITATION = "/console/team/invitations/<uuid:invitation_id>"


def tabs(scope: AccountScope) -> TemplateContext:
    """The template variables of the heading of these pages."""
    pending = invitations.count_pending(scope.account.id, lists.MAX_COUNTED)
    return {"scope": scope, "pending_invitations": pending}


team_page = partial(page, role=ADMIN, portal=PortalPage.TEAM, in_account=True)


@team_page("/console/team", menu=MenuItem(PEOPLE, 1, lazy_gettext("Team"), "users-group"))
def show_team(scope: AccountScope) -> str:
    """The users of the account."""
    listing = user_lists.load("console.show_team", scope.account.id, scope.url_args)
    return render_template("console/team/list.html", listing=listing, **tabs(scope))


@team_page("/console/team/invitations")
def show_invitations(scope: AccountScope) -> str:
    choices = {"status": names.states(tuple(InvitationState))}
    listing = lists.from_request("console.show_invitations", choices, **scope.url_args)
    owner_id, text = scope.account.id, listing.search
    cutoff = partial(invitations.cursor_at_offset, owner_id)
    after = listing.scan_newest(cutoff) if text else None
    matching = InvitationFilter(owner_id, listing.filters.get("status"), text, after)
    part = (listing.skip, lists.PAGE_SIZE, listing.count_limit)
    listing.with_page(invitations.page(matching, *part))
    return render_template(
        "console/team/invitations.html",
        listing=listing,
        inviters=users.emails(owner_id, {one.invited_by for one in listing.items} - {None}),
        lifetime=invitations.LIFETIME,
        **tabs(scope),
    )


class InviteForm(Form):
    """A form with any number of addresses."""

    def with_error(self, error: AppError) -> InviteForm:
        """The form with the messages of an error, each with the address that it is about."""
        for detail in error.extra.get("details") or ():
            if "address" in detail:
                detail["message"] = gettext(
                    "%(address)s: %(message)s",
                    address=detail["address"][:80],
                    message=forms.error_text(detail["message"]),
                )
        super().with_error(error)
        if "email" in self.errors:
            self.errors["email"] = ["\n".join(self.errors["email"])]  # a line each
        return self


@team_page("/console/team/invite")
def show_invite(scope: AccountScope, form: Form | None = None) -> Page:
    if form is None:
        form = Form({"role": "viewer"})
        try:
            invitations.require_enabled()
        except AppError as error:
            form.with_error(error)
    shown_groups, total = groups.page(scope.account.id, 0, MAX_GROUPS, None)
    return form.render(
        "console/team/invite.html",
        scope=scope,
        groups=shown_groups,
        other_groups=total - len(shown_groups),
        max_at_once=invitations.MAX_AT_ONCE,
        **choices(),
    )


@team_page("/console/team/invite", "POST", form_page=show_invite)
def invite(scope: AccountScope) -> BaseResponse:
    """Invite one or more addresses to the account, all or none."""
    form = forms.submitted("email", "role", selected="groups", kind=InviteForm)
    form.validated(("email",))
    emails = re.split(r"[\s,;]+", form["email"].strip(",; "))
    if len(emails) == 1:
        form.validated(email=320)
    if len(emails) > invitations.MAX_AT_ONCE:
        message = gettext("At most %(limit)s addresses at once.", limit=invitations.MAX_AT_ONCE)
        raise InvalidValues([problem("email", "too_many", message)])
    body = {"role": form["role"], "groups": form.selected}
    enrolment.check_group_assignment(scope.account.id, form.selected, by=scope.by)
    if len(emails) > 1:
        sent = invitations.create_many(scope.account.id, emails, body, by=scope.by.user_id)
    else:
        one = {**body, "email": emails[0]}
        sent = [invitations.create(scope.account.id, one, by=scope.by.user_id)[0]]
    notice = gettext("We have sent an invitation to %(email)s.", email=sent[0].email)
    if len(sent) > 1:
        notice = ngettext(
            "We have sent %(num)s invitation.", "We have sent %(num)s invitations.", len(sent)
        )
    return _redirect(notice, scope)


@team_page("/console/team/service-users/new")
def show_new_service_user(scope: AccountScope, form: Form | None = None) -> Page:
    form = form or Form({"role": "viewer"})
    return form.render("console/team/service_user.html", scope=scope, **choices())


@team_page("/console/team/service-users/new", "POST", form_page=show_new_service_user)
def create_service_user(scope: AccountScope) -> BaseResponse:
    """Create a service user, and redirect to its page."""
    form = forms.submitted("name", "role")
    body = form.validated(("name", "role"), name=200)
    user = service_users.create(scope.account.id, body)
    notice = gettext("%(name)s is created.", name=user.label)
    endpoint = "console.show_user" if scope.by.is_superadmin else "console.show_member"
    return redirect_with_notice(notice, endpoint, user_id=user.id)


def _redirect(notice: str, scope: AccountScope) -> BaseResponse:
    return redirect_with_notice(notice, "console.show_invitations", **scope.url_args)


@team_page(f"{INVITATION}/resend", "POST")
def resend_invitation(scope: AccountScope, invitation_id: str) -> BaseResponse:
    """Mail a new link."""
    invitation, _ = invitations.resend(scope.account.id, invitation_id, {}, by=scope.by)
    notice = gettext(
        "We have sent a new link to %(email)s. The old one no longer works.", email=invitation.email
    )
    return _redirect(notice, scope)


@team_page(f"{INVITATION}/cancel", "POST")
def cancel_invitation(scope: AccountScope, invitation_id: str) -> BaseResponse:
    invitations.cancel(scope.account.id, invitation_id)
    notice = gettext("The invitation is cancelled. Its link no longer works.")
    return _redirect(notice, scope)
