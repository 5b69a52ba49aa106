"""Sign-in: the address first, then the ways of its account."""

from __future__ import annotations

from dataclasses import dataclass

from flask import flash, redirect, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import config
from app.auth import lockout, magic_links
from app.auth import service as auth
from app.auth.guard import account_of_host
from app.auth.mfa.gate import Proof
from app.auth.responses import origin
from app.console.shell import brand, forms, guard, realms
from app.console.shell.access import ANYBODY
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page
from app.errors import InvalidValues, TooManyRequests, problem
from app.sso import email_domains
from app.sso import service as providers
from app.sso.email_domains import Realm
from app.web import languages
from app.web.languages import gettext

NOT_VERIFIED = "email_not_verified"


@page("/welcome", role=ANYBODY)
def start() -> BaseResponse:
    return redirect(url_for("welcome.sign_in"))


@page("/welcome/sign-in", role=ANYBODY)
def sign_in() -> BaseResponse | Page:
    """The form with the address; who is signed in to the account is led on."""
    requested = request.args.get("redirect_uri") or request.args.get("next", "")
    form = Form({"account": request.args.get("account", "")[:200], "next": requested[:2_000]})
    caller = guard.caller()
    if caller and caller.home and form["account"] in ("", caller.home.slug):
        user = auth.get_user(caller)
        return redirect(guard.target_after_sign_in(user, form["next"]))
    shows_account = form["account"] in ("", realms.suggested_account()) or _may_name_another()
    form.values["account"] = form["account"] or _only_account() or realms.suggested_account()
    return guard.address_page(form, shows_account=shows_account)


def _may_name_another() -> bool:
    """Whether this network may be told one more account: codes of accounts are easily counted up.

    Past the limit, the page asks for the organization as if there were none: nobody is kept out.
    """
    try:
        lockout.count_named_page(request.remote_addr)
    except TooManyRequests:
        return False
    return True


@dataclass
class WaysForm(Form):
    """A form of the address, or of one of the ways to sign in."""

    realm: Realm | None = None
    """How the address signs in; None while the account is unknown."""


def show_ways(form: WaysForm) -> Page:
    """The page with the ways to sign in, or that of the address if it was wrong."""
    if form.realm is None or form.realm.account is None:
        return guard.address_page(form)
    brand.show(form.realm.account.id)
    return form.render(
        "welcome/ways.html",
        account=form.realm.account,
        realm=form.realm,
        is_unverified=form.error == NOT_VERIFIED,
    )


@page("/welcome/sign-in", "POST", role=ANYBODY, form_page=show_ways)
def submit_sign_in() -> BaseResponse | Page:
    """Show the ways to sign in with an address, or sign in by password or mailed link."""
    form = forms.submitted("account", "email", "password", "next", kind=WaysForm)
    form.validated(("email",), account=realms.MAX_LENGTH, email=realms.MAX_EMAIL)
    form.realm = realm = _realm_of(form)
    if realm.account is None:
        message = gettext("Name your organization, too.")
        raise InvalidValues([problem("account", "required", message)])
    form.values["account"] = realm.account.slug
    if "magic_link" in request.form:
        return _mail_link(form)
    if "password" not in request.form:
        return _show_or_follow_only_way(form, realm)
    form.validated(("password",), password=forms.MAX_PASSWORD_LENGTH)
    user = auth.check_password(realm.account.id, form["email"], form["password"], origin())
    target = guard.target_after_sign_in(user, form["next"])
    response = guard.start_session(user, target, Proof.PASSWORD)
    realms.remember_account(response, user.account.slug)
    return response


def _only_account() -> str | None:
    settings = config.current()
    return account_of_host() or (settings.single_tenant_account if settings.single_tenant else None)


def _realm_of(form: Form) -> Realm:
    """How the form's address signs in: to the account that is named, or that of its domain."""
    discovered = realms.discovered(form)
    reference = form["account"] or _only_account()
    if not reference:
        return discovered
    named = providers.find_active_account(reference)
    if named is None:
        message = gettext("There is no such organization. Check the spelling.")
        raise InvalidValues([problem("account", "invalid_reference", message)])
    is_same = discovered.account is not None and discovered.account.id == named.id
    return discovered if is_same else email_domains.of_account(named.id)


def _show_or_follow_only_way(form: WaysForm, realm: Realm) -> Page:
    if len(realm.providers) != 1 or realm.password or realm.magic_link:
        return show_ways(form)
    (provider,) = realm.providers
    target = url_for(
        "welcome.start_sso",
        category=provider.category,
        provider=provider.provider_name,
        account=form["account"],
        next=form["next"] or None,
    )
    brand.show(realm.account.id if realm.account else None)
    # No redirect: browsers refuse those of forms to other hosts (form-action).
    return form.render("console/continue.html", provider=provider, target=target)


def _mail_link(form: Form) -> BaseResponse:
    device = origin().device
    magic_links.request_link(
        form["account"], form["email"], address=request.remote_addr, device=device
    )
    flash(gettext("If this user exists, we have sent a link to sign in. Check your inbox."))
    return redirect(url_for("welcome.sign_in", account=form["account"]), 303)


@page("/welcome/language", "POST", role=ANYBODY)
def choose_language() -> BaseResponse:
    """Choose the language of this browser, and show the page again."""
    target = guard.safe_target(request.form.get("page")) or url_for("welcome.sign_in")
    response = redirect(target, 303)
    language = request.form.get("language")
    languages.remember(response, language if language in languages.LANGUAGES else None)
    return response
