"""Single sign-on: providers of an account or of the system, SAML keys, tests, recent refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from flask import flash, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import pii, sso_settings, tenants, users
from app.accounts import roles as account_roles
from app.accounts.domains import service as domains
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account
from app.accounts.schemas import OwnAccountBody
from app.auth import account_settings
from app.auth.models import SetupLink
from app.auth.portals import PortalPage
from app.auth.principal import Principal
from app.auth.responses import origin
from app.console.admin import group_roles, settings_home, sso_form
from app.console.admin.sso_form import ProviderForm
from app.console.people.users import choices
from app.console.shell import access, brand, forms, guard, lists, scopes
from app.console.shell.access import ADMIN, ANY_FEATURE, ANYBODY
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.navigation import PEOPLE, MenuItem
from app.console.shell.scopes import AccountScope
from app.errors import Conflict
from app.sso import (
    account_linking,
    dry_run,
    one_time_codes,
    overview,
    providers,
    refusals,
    roles,
    service,
    setup_links,
    sign_in,
)
from app.sso.connections import Connection
from app.sso.models import OAUTH, FlowPurpose, ProviderSetting
from app.sso.providers import Provider
from app.sso.refusals import SignInRefused
from app.sso.responses import begin_in_console, may_finish, redirect_to_base, redirect_to_provider
from app.sso.saml import keys, metadata_refresh
from app.types import JSONObject
from app.web import urls
from app.web.languages import gettext, lazy_gettext

ACCOUNT = "/console/sso/<uuid:account_id>"
NEW = f"{ACCOUNT}/new/<category>/<provider>"
SETTING = f"{ACCOUNT}/<uuid:setting_id>"
MAX_ROLES, MAX_OPTIONS = 100, 500
"""Beyond these, roles are typed: a select in each row would make the page too large."""
MAX_SUGGESTIONS, LONGEST_SUGGESTION = 50, 100
KEYS = f"{SETTING}/keys"


sso_page = partial(page, role=ADMIN, portal=PortalPage.SSO, setup=setup_links.SSO)


@page("/console/sso", role=ADMIN)
def show_sso() -> BaseResponse:
    """Redirect to the providers of the own account."""
    return redirect(url_for("console.show_providers", account_id=guard.own_account_id()))


@page(
    ACCOUNT,
    role=ADMIN,
    portal=PortalPage.SSO,
    setup=ANY_FEATURE,
    menu=MenuItem(PEOPLE, 3, lazy_gettext("Single sign-on"), "lock"),
)
def show_providers(scope: AccountScope) -> Page | BaseResponse:
    """The providers of an account, its provisioning settings and recent refusals."""
    if scope.by.setup is not None:
        return redirect(url_for("console.show_setup"))
    return _overview(scope, sso_form.from_account(tenants.get(scope.account.id)))


def _overview(scope: AccountScope, form: Form, preview: object = None) -> Page:
    rows, _ = service.page(0, 100, by=scope.by)
    configured = {(row.category, row.provider_name) for row in rows}
    found, total = account_roles.page(0, MAX_ROLES)
    names = [role.name for role in found]
    seen: Sequence[str] = ()
    if scope.account.id != SYSTEM_ACCOUNT_ID:  # groups give superadmins no roles
        mapped = group_roles.names(form)
        seen = roles.seen_group_names(scope.account.id, mapped, len(mapped) + MAX_SUGGESTIONS)
    listing = lists.from_request("console.show_providers", **scope.url_args)
    listing.with_page(refusals.page(scope.account.id, listing.skip, lists.PAGE_SIZE))
    return form.render(
        "console/sso/overview.html",
        scope=scope,
        rows=rows,
        without_domains=without_domains(service.find_active_account(scope.account.id), rows),
        kinds=[
            provider
            for provider in providers.PROVIDERS
            if provider.discovers or (provider.category, provider.name) not in configured
        ],
        listing=listing,
        planned=preview,
        row_count=group_roles.count(form),
        suggested_groups=[name for name in seen if len(name) <= LONGEST_SUGGESTION][
            :MAX_SUGGESTIONS
        ],
        unseen_rows=group_roles.rows_without(form, seen),
        role_names=names,
        as_select=total == len(names) and len(names) * group_roles.count(form) <= MAX_OPTIONS,
        ignored=sso_settings.ignored_groups(tenants.get(scope.account.id).settings),
        is_system=scope.account.id == SYSTEM_ACCOUNT_ID,
        last_sign_ins=overview.last_sign_ins(scope.account.id),
        cards=settings_home.directory_cards(scope),
    )


@page(ACCOUNT, "POST", role=ADMIN, portal=PortalPage.SSO, form_page=_overview)
def change_sign_in(scope: AccountScope) -> Page | BaseResponse:
    """Save the provisioning settings, preview their effect, or add or move a row."""
    form = group_roles.add_submitted(forms.submitted(*sso_form.ACCOUNT_FIELDS, "seen"))
    if group_roles.rearranged(form, forms.text("do")):
        return _overview(scope, form)
    body = forms.validated(OwnAccountBody(), sso_form.account_body(form))
    if request.form.get("try"):
        tried = {name: body[name] for name in ("sso_group_roles", "sso_allow_admin")}
        return _overview(scope, form, roles.preview(tried, by=scope.by))
    forms.check_unchanged(form, tenants.get(scope.account.id).updated_at)
    account_settings.change(scope.account.id, body, by=scope.by)
    return redirect_with_notice(
        gettext("Saved."), "console.show_providers", account_id=scope.account.id
    )


@sso_page(NEW)
def show_new_provider(
    scope: AccountScope, category: str, provider: str, form: ProviderForm | None = None
) -> Page:
    kind = providers.get(category, provider)
    return _form_page(scope, kind, form or sso_form.blank(kind), None)


@sso_page(NEW, "POST", form_page=show_new_provider)
def create_provider(scope: AccountScope, category: str, provider: str) -> BaseResponse:
    kind = providers.get(category, provider)
    form = forms.submitted(*sso_form.field_names(kind), "slug", kind=ProviderForm)
    key = {"category": kind.category, "provider_name": kind.kind}
    slug = {"slug": form["slug"].strip()} if kind.discovers else {}
    body = sso_form.body(kind, form, by_admin=scope.by.setup is None)
    row = service.create({**key, **slug, **body}, by=scope.by)
    url_args = {"account_id": scope.account.id, "setting_id": row.id}
    notice = gettext("%(provider)s is set up. Test it now.", provider=row.display_name)
    return redirect_with_notice(notice, "console.show_provider", **url_args)


@sso_page(SETTING)
def show_provider(
    scope: AccountScope,
    setting_id: str,
    form: ProviderForm | None = None,
    steps: Sequence[dry_run.Step] | None = None,
) -> Page:
    row = service.get(setting_id, by=scope.by)
    kind = service.get_provider(row)
    return _form_page(scope, kind, form or sso_form.from_setting(row), row, steps)


@sso_page(SETTING, "POST", form_page=show_provider)
def change_provider(scope: AccountScope, setting_id: str) -> BaseResponse:
    row = service.get(setting_id, by=scope.by)
    kind = service.get_provider(row)
    form = forms.submitted(*sso_form.field_names(kind), "seen", kind=ProviderForm)
    forms.check_unchanged(form, row.updated_at)
    body = sso_form.body(kind, form, by_admin=scope.by.setup is None)
    service.change(row.id, body, by=scope.by)
    url_args = {"account_id": scope.account.id, "setting_id": row.id}
    return redirect_with_notice(gettext("Saved."), "console.show_provider", **url_args)


@sso_page(f"{SETTING}/try", "POST", form_page=show_provider)
def try_provider(scope: AccountScope, setting_id: str) -> Page:
    """Check that the provider answers and accepts the client."""
    row = service.get(setting_id, by=scope.by)
    form = forms.show_errors_in(sso_form.from_setting(row))
    return show_provider(scope, setting_id, form, dry_run.run_stored(setting_id, by=scope.by))


@sso_page(f"{SETTING}/remove", "POST")
def remove_provider(scope: AccountScope, setting_id: str) -> BaseResponse:
    with forms.ignore_already_deleted(scope.account.id, "provider_settings", setting_id):
        service.delete(setting_id, by=scope.by)
    notice = gettext("The provider is removed. Its users are kept.")
    return redirect_with_notice(notice, "console.show_providers", account_id=scope.account.id)


@page(f"{SETTING}/test", role=ADMIN, setup=setup_links.SSO)
def test_provider(scope: AccountScope, setting_id: str) -> Page | BaseResponse:
    """Start a test sign-in, which shows its result and signs nobody in."""
    row = service.get(setting_id, by=scope.by)
    if redirection := redirect_to_base():
        return redirection
    account = service.find_active_account(scope.account.id)
    connection = service.connection(account, row.category, row.provider_name, include_disabled=True)
    try:
        url, flow = sign_in.start(
            connection, FlowPurpose.TEST, redirect_uri=None, client_state=None
        )
    except SignInRefused as error:
        step = dry_run.Step("discovery", False, error.detail)
        return show_provider(scope, setting_id, steps=[step])
    return redirect_to_provider(url, flow, connection)


@page("/console/sso/start/<category>/<provider>", role=ANYBODY, is_hosted=True)
def start_sso(category: str, provider: str) -> str | BaseResponse:
    """Sign in through a provider; who is signed in already confirms first."""
    if guard.caller():
        # Use the stored names: the link could claim anything.
        account = service.find_active_account(request.args.get("account", "")[:200])
        brand.show(account.id if account else None)
        title = service.title(account, category, provider)
        return render_template("console/sso/leave.html", account=account, provider=title)
    return _begin_sso(category, provider)


@page("/console/sso/start/<category>/<provider>", "POST", role=ANYBODY, is_hosted=True)
def leave_for_sso(category: str, provider: str) -> BaseResponse:
    """Sign in through a provider, and end the current session."""
    return _begin_sso(category, provider)


def _begin_sso(category: str, provider: str) -> BaseResponse:
    requested = request.args.get("next", "")[:2_000]
    target = guard.safe_target(requested)
    if access.is_hosted() and target is None:
        # Whoever is signed in is led on from there.
        target = urls.with_query(url_for("welcome.sign_in"), {"next": requested})
    return begin_in_console(category, provider, request.args.get("account", "")[:200], target)


@page("/console/sso/finish", role=ANYBODY, setup=setup_links.SSO, is_hosted=True)
def finish_sso() -> str | BaseResponse:
    """Finish a sign-in: start a session, or show the result of a test."""
    flow, user = one_time_codes.redeem_in_console(
        request.args.get("code", ""), may_finish, origin()
    )
    if user is None:
        scope = scopes.account_scope(flow.account_id)
        outcome = one_time_codes.test_result(flow)
        # A refusal by the account's policy is for its admins: the provider works.
        if scope.by.setup is not None and outcome.get("subject"):
            setup_links.record_test(scope.by)
        return render_template("console/sso/tested.html", scope=scope, outcome=outcome, flow=flow)
    if flow.is_new_user:
        flash(gettext("Welcome to %(account)s.", account=user.account.name))
    target = guard.target_after_sign_in(user, flow.redirect_uri or "")
    return guard.start_session(user, target, one_time_codes.proof_of(flow), flow=flow)


def without_domains(account: Account | None, rows: Sequence[ProviderSetting]) -> set[str]:
    """The ids of the settings that should create users, but create none for lack of domains."""
    if account is None or account.settings.get("sso_provisioning") is False:
        return set()
    if domains.any_joins(account.id):
        return set()
    return {
        row.id
        for row in rows
        if row.enabled
        and account_linking.lacks_domains(
            Connection(account, service.get_provider(row), row.config, is_own=True)
        )
    }


def sender_of(link: SetupLink) -> str:
    """The admin who created a link, as its holder reads it."""
    unknown = gettext("an admin of the account")
    return users.emails(link.account_id, {link.created_by}).get(link.created_by, unknown)


def _sender(scope: AccountScope) -> str:
    account, link_id = scope.by.home_and_user()
    return sender_of(setup_links.get(account.id, link_id))


def _saml_keys(scope: AccountScope, kind: Provider) -> list[JSONObject]:
    # The system has none: each account signs with its own.
    if kind.category == OAUTH or scope.account.id == SYSTEM_ACCOUNT_ID:
        return []
    return [keys.describe(key) for key in keys.get_all(scope.account.id)]


def _form_page(
    scope: AccountScope,
    kind: Provider,
    form: Form,
    row: ProviderSetting | None,
    steps: object = None,
) -> Page:
    account = service.find_active_account(scope.account.id)
    # The holder of a setup link chooses no role: that is for admins.
    is_admin = scope.by.setup is None
    known_roles = choices(with_admin=False) if is_admin else {}
    lacks_domains = row is not None and bool(without_domains(account, [row]))
    return form.render(
        "console/sso/provider.html",
        **known_roles,
        scope=scope,
        kind=kind,
        row=row,
        steps=steps,
        sections=sso_form.sections(kind, for_admin=is_admin),
        section_names=sso_form.section_names(kind, for_admin=is_admin),
        optional=sso_form.OPTIONAL,
        stored_secrets=service.stored_secrets(row) if row else (),
        in_use=sso_form.sections_in_use(kind, form),
        addresses=sso_form.service_addresses(account, kind, row),
        closed_to_members=row is not None and row.admits_pii_members is False,
        creates_no_users=lacks_domains,
        sender=None if is_admin or not lacks_domains else _sender(scope),
        names_at_provider=sso_form.names_at_provider(kind),
        last_sign_in=overview.last_sign_ins(scope.account.id).get(row.provider_name)
        if row
        else None,
        guide=sso_form.GUIDES.get(kind.name),
        may_confirm=pii.is_trusted(scope.account.id, scope.by.user_id),
        is_oauth=kind.category == OAUTH,
        is_system=scope.account.id == SYSTEM_ACCOUNT_ID,
        read=metadata_refresh.find(row) if row and row.config.get("metadata_url") else None,
        saml_keys=_saml_keys(scope, kind),
    )


@sso_page(f"{SETTING}/metadata", "POST")
def read_provider_metadata(scope: AccountScope, setting_id: str) -> BaseResponse:
    """Read the provider's metadata now."""
    read = metadata_refresh.refresh(setting_id, by=scope.by)
    notice = gettext("The metadata was not read.")
    if read is not None and read.error is None:
        notice = gettext("The metadata was read.")
    return redirect_with_notice(
        notice, "console.show_provider", account_id=scope.account.id, setting_id=setting_id
    )


@sso_page(KEYS, "POST")
def create_saml_key(scope: AccountScope, setting_id: str) -> BaseResponse:
    """Create the next key pair."""
    notice = gettext("The key pair is created. Give the providers the new metadata.")
    return _changed(scope, setting_id, keys.create, notice)


@sso_page(f"{KEYS}/<uuid:saml_key_id>/activate", "POST")
def activate_saml_key(scope: AccountScope, setting_id: str, saml_key_id: str) -> BaseResponse:
    """Sign requests with a key pair."""
    notice = gettext("Requests are signed with this key pair now.")
    return _changed(scope, setting_id, lambda by: keys.activate(saml_key_id, by), notice)


@sso_page(f"{KEYS}/<uuid:saml_key_id>/remove", "POST")
def remove_saml_key(scope: AccountScope, setting_id: str, saml_key_id: str) -> BaseResponse:
    """Delete a key pair."""
    notice = gettext("The key pair is deleted.")
    return _changed(scope, setting_id, lambda by: keys.delete(saml_key_id, by), notice)


def _changed(
    scope: AccountScope, setting_id: str, change: Callable[[Principal], object], notice: str
) -> BaseResponse:
    url_args = {"account_id": scope.account.id, "setting_id": setting_id}
    try:
        change(scope.by)
    except Conflict as error:
        notice = error.message
    return redirect_with_notice(notice, "console.show_provider", **url_args)
