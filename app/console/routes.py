"""Sign-in, by password or by the link that `bin/atrium setup` printed, sign-out and home."""

from __future__ import annotations

from collections.abc import Sequence

from flask import flash, g, make_response, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import config
from app.auth import magic_links, mail_tokens, stream_credentials
from app.auth import service as auth
from app.auth.guard import account_of_host
from app.auth.mfa.gate import Proof
from app.auth.models import LinkPurpose
from app.auth.responses import origin
from app.console import home
from app.console.shell import (
    access,
    forms,
    guard,
    navigation,
    realms,
    resubmit,
    second_factor,
)
from app.console.shell.access import ANYBODY, USER
from app.console.shell.blueprint import ACCOUNT, page
from app.console.shell.forms import Form, Page
from app.console.shell.navigation import TOP, MenuItem
from app.console.shell.scopes import AccountScope
from app.errors import Unauthorized
from app.sso import service as providers
from app.web import languages
from app.web.languages import gettext, lazy_gettext

NO_PROVIDER = lazy_gettext("No single sign-on for this account. Check the account above.")
NOT_SIGNED_IN = lazy_gettext("You are not signed in yet. Sign in in the other tab first.")


@page("/", role=ANYBODY)
def start() -> BaseResponse:
    return redirect(url_for("console.show_home"))


@page("/console", role=USER, menu=MenuItem(TOP, 1, lazy_gettext("Home"), "home"))
def show_home() -> str:
    return render_template("console/home.html", **home.context(guard.require_caller()))


@page("/console/sign-in", role=ANYBODY)
def sign_in() -> BaseResponse | Page:
    if (caller := guard.caller()) and caller.opens_console:
        return redirect(url_for("console.show_home"))
    account = (
        request.args.get("account", "")[:200] or account_of_host() or realms.suggested_account()
    )
    return _sign_in_page(Form({"account": account, "next": request.args.get("next", "")}))


def _sign_in_page(form: Form) -> Page:
    return guard.sign_in_page(form, _offered(form))


def _offered(form: Form) -> Sequence[object]:
    settings = config.current()
    only = settings.single_tenant_account if settings.single_tenant else None
    return providers.list_for_sign_in(form["account"] or only)


@page("/console/sign-in", "POST", role=ANYBODY, form_page=_sign_in_page)
def submit_sign_in() -> BaseResponse | Page:
    form = forms.submitted("account", "email", "password", "next", resubmit.FIELD)
    going = resubmit.target_path(form[resubmit.FIELD])
    if "signed_in" in request.form:  # by a provider, in another tab
        if going and guard.caller():
            return redirect(going, 307)
        raise Unauthorized(str(NOT_SIGNED_IN))
    if "sso" in request.form:
        return _choose_provider(form)
    if "magic_link" in request.form:
        return _mail_magic_link(form)
    account = realms.account_of(form)
    user = auth.check_password(account, form["email"], form["password"], origin())
    target = guard.safe_target(form["next"]) or url_for("console.show_home")
    status = 307 if going else 303
    response = guard.start_session(user, going or target, Proof.PASSWORD, status)
    realms.remember_account(response, user.account.slug)
    return response


def _mail_magic_link(form: Form) -> BaseResponse:
    body = form.validated(("email",), account=200, email=realms.MAX_EMAIL)
    magic_links.request_link(
        realms.account_of(form),
        body["email"],
        address=request.remote_addr,
        device=origin().device,
    )
    flash(gettext("If this user exists, we have sent a link to sign in. Check your inbox."))
    return redirect(url_for("console.sign_in", account=form["account"] or None), 303)


def _choose_provider(form: Form) -> BaseResponse | Page:
    realm, target = realms.discovered(form), form["next"] or None
    if realm.account and form["account"] in ("", realm.account.slug, realm.account.account_code):
        form.values["account"] = realm.account.slug
        if len(realm.providers) == 1:
            # No redirect: browsers refuse those of forms to other hosts (form-action).
            url = url_for(
                "console.start_sso",
                category=realm.providers[0].category,
                provider=realm.providers[0].provider_name,
                account=form["account"],
                next=target,
            )
            return form.render("console/continue.html", provider=realm.providers[0], target=url)
    if _offered(form):
        account = form["account"] or None
        return redirect(url_for("console.sign_in", account=account, next=target), 303)
    form.problem, form.status = str(NO_PROVIDER), 400
    return _sign_in_page(form)


@page(
    "/console/reauthenticate",
    "POST",
    role=USER,
    is_hosted=True,
    form_page=guard.render_reauthentication,
)
def reauthenticate() -> BaseResponse:
    """Confirm the password, and return to the page that needed it."""
    form = forms.submitted("password", "code", "assertion", "next", resubmit.FIELD)
    caller, password = guard.require_caller(), form["password"] or None
    auth.reauthenticate_in_console(caller, password, second_factor.answer(form))
    if going := resubmit.target_path(form[resubmit.FIELD]):
        return redirect(going, 307)
    flash(gettext("Confirmed. Now repeat your last action."))
    target = guard.safe_target(form["next"]) or url_for(
        ".show_profile" if access.is_hosted() else ".show_home"
    )
    return redirect(target, 303)


@page("/console/theme", "POST", role=ANYBODY)
def choose_theme() -> BaseResponse:
    """Choose a light or dark theme for this browser, and show the page again."""
    response = redirect(guard.referring_page() or url_for("console.show_home"), 303)
    chosen = request.form.get("theme", navigation.AUTO_THEME)
    response.set_cookie(
        navigation.THEME_COOKIE,
        chosen if chosen in navigation.THEMES else navigation.AUTO_THEME,
        max_age=navigation.THEME_DAYS * 24 * 3600,
        samesite="Lax",
        secure=config.current().production,
    )
    return response


@page("/console/language", "POST", role=ANYBODY)
def choose_language() -> BaseResponse:
    """Choose the language of this browser, and show the page again."""
    response = redirect(guard.referring_page() or url_for("console.show_home"), 303)
    language = request.form.get("language")
    languages.remember(response, language if language in languages.LANGUAGES else None)
    return response


@page("/console/sign-out", "POST", role=ANYBODY, is_hosted=True)
def sign_out() -> BaseResponse:
    """Sign out, also at the identity provider if the session began there by SAML.

    By a page: a form must not lead to another site.
    """
    logout_url = guard.provider_logout_url()
    if logout_url is None:
        return guard.end_session(url_for(".sign_in"))
    guard.end_current_session()
    g.console_caller = None
    page = render_template(
        "console/signed_out.html", logout_url=logout_url, address=url_for(".sign_in")
    )
    return guard.forget_session(make_response(page))


@page(f"{ACCOUNT}/stream-tickets", "POST", role=USER)
def create_stream_ticket(scope: AccountScope) -> tuple[dict[str, str], int]:
    """Create a ticket for a stream of an account; the stream ends with the session."""
    credential = stream_credentials.of_session(scope.by)
    return {"ticket": stream_credentials.issue_ticket(credential)}, 201


@page("/console/sign-in-link", role=ANYBODY)
def show_sign_in_link() -> Page:
    """The button that signs in with a link that `bin/atrium setup` printed."""
    token = request.args.get("token", "")
    is_valid = mail_tokens.find(token, LinkPurpose.SIGN_IN) is not None
    form = Form({"token": token}, status=200 if is_valid else 400)
    return form.render("console/sign_in_link.html", valid=is_valid)


@page("/console/sign-in-link", "POST", role=ANYBODY)
def use_sign_in_link() -> Page | BaseResponse:
    """Sign in with the token, once."""
    form = forms.submitted("token")
    found = mail_tokens.consume(form["token"], LinkPurpose.SIGN_IN)
    if found is None:
        form.status = 400
        return form.render("console/sign_in_link.html", valid=False)
    return guard.start_session(found.user, url_for("console.show_home"), Proof.SETUP_LINK)
