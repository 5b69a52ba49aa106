"""Sign-in by providers: an account's settings, or the system's; tests; the last refusals."""

from __future__ import annotations

from typing import Any

from flask import flash, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import pii, sso_settings, tenants
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.accounts.schemas import OwnAccountBody
from app.auth import account_settings
from app.auth.responses import origin
from app.console.admin import sso_form
from app.console.shell import forms, guard, idempotent_forms, lists, scopes
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import Form, Page, told
from app.console.shell.scopes import Place
from app.errors import AppError
from app.rest.access import public
from app.sso import dry_run, one_time_codes, providers, refusals, roles, service, sign_in
from app.sso.models import OAUTH, TEST, ProviderSetting
from app.sso.providers import Provider
from app.sso.responses import begin_in_console, flow_cookie, redirect_to_base, redirect_to_provider

OF_ACCOUNT = "/console/sso/<uuid:account_id>"
NEW = f"{OF_ACCOUNT}/new/<category>/<provider>"
ONE = f"{OF_ACCOUNT}/<uuid:setting_id>"


@blueprint.get("/console/sso")
@public
@guard.for_admins
def show_sso() -> BaseResponse:
    """Lead to the settings of the own account; for superadmins, the system's."""
    return redirect(url_for("console.show_providers", account_id=guard.own_account()))


@blueprint.get(OF_ACCOUNT)
@public
@guard.for_admins
def show_providers(account_id: str) -> Page:
    """The providers of an account, who becomes a user, and the last refusals."""
    place = scopes.found(account_id)
    return _overview(place, sso_form.of_account(tenants.get(place.account.id)))


@blueprint.post(OF_ACCOUNT)
@public
@guard.for_admins
def change_sign_in(account_id: str) -> Page | BaseResponse:
    """Say who becomes a user and with which role, or try that."""
    place, form = scopes.found(account_id), forms.sent(*sso_form.OF_ACCOUNT, "seen")
    try:
        body = forms.fitting(OwnAccountBody(), sso_form.account_body(form))
        if request.form.get("try"):
            tried = {name: body[name] for name in ("sso_group_roles", "sso_allow_admin")}
            return _overview(place, form, roles.preview(tried, by=place.by))
        forms.check_seen(form, tenants.get(place.account.id).updated_at)
        account_settings.change(place.account.id, body, by=place.by)
    except AppError as error:
        return _overview(place, form.refused(error))
    return told("Saved.", "console.show_providers", account_id=place.account.id)


@blueprint.get(NEW)
@public
@guard.for_admins
def show_new_provider(account_id: str, category: str, provider: str) -> Page:
    """The form to set a provider up with."""
    place, kind = scopes.found(account_id), providers.get(category, provider)
    return _form_page(place, kind, sso_form.empty(kind), None)


@blueprint.post(NEW)
@public
@guard.for_admins
def create_provider(account_id: str, category: str, provider: str) -> Page | BaseResponse:
    """Set a provider up."""
    place, kind = scopes.found(account_id), providers.get(category, provider)
    form = forms.sent(*sso_form.names(kind))
    try:
        named = {"category": kind.category, "provider_name": kind.name}
        row = service.create({**named, **sso_form.body(kind, form)}, by=place.by)
    except AppError as error:
        return _form_page(place, kind, sso_form.refused(form, error), None)
    at = {"account_id": place.account.id, "setting_id": row.id}
    return told(f"{row.display_name} is set up. Test it now.", "console.show_provider", **at)


@blueprint.get(ONE)
@public
@guard.for_admins
def show_provider(account_id: str, setting_id: str) -> Page:
    """A provider's settings."""
    place = scopes.found(account_id)
    row = service.get(setting_id, by=place.by)
    return _form_page(place, service.provider_of(row), sso_form.of_row(row), row)


@blueprint.post(ONE)
@public
@guard.for_admins
def change_provider(account_id: str, setting_id: str) -> Page | BaseResponse:
    """Change a provider's settings."""
    place = scopes.found(account_id)
    row = service.get(setting_id, by=place.by)
    kind = service.provider_of(row)
    form = forms.sent(*sso_form.names(kind), "seen")
    try:
        forms.check_seen(form, row.updated_at)
        service.change(row.id, sso_form.body(kind, form), by=place.by)
    except AppError as error:
        return _form_page(place, kind, sso_form.refused(form, error), row)
    at = {"account_id": place.account.id, "setting_id": row.id}
    return told("Saved.", "console.show_provider", **at)


@blueprint.post(f"{ONE}/try")
@public
@guard.for_admins
def try_provider(account_id: str, setting_id: str) -> Page:
    """See whether the provider answers, and knows the client."""
    place = scopes.found(account_id)
    row = service.get(setting_id, by=place.by)
    kind, form = service.provider_of(row), sso_form.of_row(row)
    try:
        steps = dry_run.run_stored(setting_id, by=place.by)
    except AppError as error:
        return _form_page(place, kind, sso_form.refused(form, error), row)
    row = service.get(setting_id, by=place.by)
    return _form_page(place, kind, form, row, steps)


@blueprint.post(f"{ONE}/remove")
@public
@guard.for_admins
def remove_provider(account_id: str, setting_id: str) -> BaseResponse:
    """Remove a provider's settings."""
    place = scopes.found(account_id)
    with idempotent_forms.deleting(place.account.id, "provider_settings", setting_id):
        service.delete(setting_id, by=place.by)
    notice = "The provider is removed. Its users stay."
    return told(notice, "console.show_providers", account_id=place.account.id)


@blueprint.get(f"{ONE}/test")
@public
@guard.for_admins
def test_provider(account_id: str, setting_id: str) -> BaseResponse:
    """Go through a sign-in that signs nobody in, to see what it would come to."""
    place = scopes.found(account_id)
    row = service.get(setting_id, by=place.by)
    if away := redirect_to_base():
        return away
    account = service.find_active_account(place.account.id)
    connection = service.connection(account, row.category, row.provider_name, tried=True)
    url, begun = sign_in.start(connection, TEST, redirect_uri=None, client_state=None)
    return redirect_to_provider(url, begun, connection)


@blueprint.get("/console/sso/start/<category>/<provider>")
@public
@guard.open_to_all
def start_sso(category: str, provider: str) -> str | BaseResponse:
    """Sign in to the console by a provider; who is signed in already decides whether to leave."""
    if guard.caller():
        # Named as they name themselves: what a link says could be anything.
        account = service.find_active_account(request.args.get("account", "")[:200])
        kind = providers.get(category, provider)
        return render_template("console/sso/leave.html", account=account, kind=kind)
    return _begin_sso(category, provider)


@blueprint.post("/console/sso/start/<category>/<provider>")
@public
@guard.open_to_all
def leave_for_sso(category: str, provider: str) -> BaseResponse:
    """Sign in to the console by a provider instead of the present session."""
    return _begin_sso(category, provider)


def _begin_sso(category: str, provider: str) -> BaseResponse:
    target = guard.local_target(request.args.get("next"))
    return begin_in_console(category, provider, request.args.get("account", "")[:200], target)


@blueprint.get("/console/sso/finish")
@public
@guard.open_to_all
def finish_sso() -> str | BaseResponse:
    """What a sign-in came to: a session of the console, or the result of a test."""
    flow, user = one_time_codes.redeem_in_console(
        request.args.get("code", ""), flow_cookie, origin()
    )
    if user is None:
        place = scopes.found(flow.account_id)
        outcome = one_time_codes.test_result(flow)
        return render_template("console/sso/tested.html", place=place, outcome=outcome, flow=flow)
    if flow.is_new_user:
        flash(f"Welcome to {user.account.name}.")
    target = guard.local_target(flow.redirect_uri) or url_for("console.show_home")
    return guard.begin_session(user, target)


def _overview(place: Place, form: Form, planned: Any = None) -> Page:
    rows, _ = service.page(0, 100, by=place.by)
    there = {(row.category, row.provider_name) for row in rows}
    listing = lists.asked_for("console.show_providers", **place.at)
    listing.holding(refusals.page(place.account.id, listing.skip, lists.SIZE))
    return form.page(
        "console/sso/overview.html",
        place=place,
        rows=rows,
        kinds=[one for one in providers.PROVIDERS if (one.category, one.name) not in there],
        listing=listing,
        planned=planned,
        ignored=sso_settings.ignored_groups(tenants.get(place.account.id).settings),
        is_system=place.account.id == SYSTEM_ACCOUNT_ID,
    )


def _form_page(
    place: Place, kind: Provider, form: Form, row: ProviderSetting | None, steps: Any = None
) -> Page:
    account = service.find_active_account(place.account.id)
    return form.page(
        "console/sso/provider.html",
        place=place,
        kind=kind,
        row=row,
        steps=steps,
        parts=sso_form.parts(kind),
        ours=sso_form.ours(account, kind, row),
        closed_to_members=row is not None and row.admits_pii_members is False,
        may_confirm=pii.is_trusted(place.account.id, place.by.user_id),
        is_oauth=kind.category == OAUTH,
    )
