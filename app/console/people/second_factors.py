"""Second factors: the step of a sign-in, and the page of the caller's own."""

from __future__ import annotations

from functools import partial

from flask import jsonify, make_response, redirect, render_template, url_for
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import sign_in_settings
from app.accounts.models import User
from app.auth import lockout, signatures
from app.auth import service as auth
from app.auth.mfa import challenges, gate, passkeys, recovery_codes, report
from app.auth.mfa import service as mfa
from app.auth.mfa.challenges import Challenge, Step
from app.auth.mfa.gate import Proof
from app.auth.mfa.models import Method
from app.auth.mfa.service import Enrolling
from app.auth.portals import PortalPage
from app.auth.responses import origin
from app.console.people.team import tabs
from app.console.shell import (
    forms,
    guard,
    lists,
    one_time_secrets,
    realms,
    resubmit,
    second_factor,
)
from app.console.shell.access import ADMIN, ANYBODY, USER
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import AccountScope
from app.errors import AppError, BadRequest
from app.web.languages import gettext

PROFILE = "/console/profile/second-factors"
MAX_NAME = 100


def _verify_page(form: Form) -> Page:
    has_expired = form.error == "invalid_mfa_token"
    return _sign_in_page(form) if has_expired else second_factor.step_page(form)


def _set_up_page(form: Form) -> Page:
    try:
        by = mfa.enrolling(form["mfa_token"])
    except AppError as error:  # too late, or a factor was set up meanwhile
        return _sign_in_page(form.with_error(error))
    return second_factor.set_up_page(form, by.user)


def _sign_in_page(form: Form) -> Page:
    values = {"account": form["account"] or realms.suggested_account(), "next": form["next"]}
    return guard.sign_in_page(Form(values, problem=form.problem, status=form.status))


@page("/console/second-factor", "POST", role=ANYBODY, form_page=_verify_page, is_hosted=True)
def verify_second_factor() -> BaseResponse:
    """Complete a sign-in with a second factor."""
    form = second_factor.submitted()
    answer = second_factor.answer(form, form["mfa_token"])
    if answer is None:
        raise BadRequest(gettext("Type a code, or use your passkey."))
    user, challenge = mfa.verify_sign_in(form["mfa_token"], answer)
    return _signed_in(user, form, challenge)


@page("/console/second-factor/set-up", "POST", role=ANYBODY, form_page=_set_up_page, is_hosted=True)
def set_up_second_factor() -> BaseResponse:
    """Set up the first factor of a user whose account requires one, and sign in."""
    form = second_factor.submitted()
    by = _enrolling(form)
    enrolled = mfa.confirm_totp(by, form["code"][:100])
    return _signed_in_with_codes(by, form, enrolled)


@page(
    "/console/second-factor/set-up/passkey",
    "POST",
    role=ANYBODY,
    form_page=_set_up_page,
    is_hosted=True,
)
def set_up_passkey() -> BaseResponse:
    """Register the first factor of a user whose account requires one, a passkey, and sign in."""
    form = second_factor.submitted()
    by = _enrolling(form)
    sent = second_factor.credential(form["assertion"])
    enrolled = mfa.add_passkey(by, sent["token"], gettext("Passkey"), sent["credential"])
    return _signed_in_with_codes(by, form, enrolled)


@page("/console/second-factor/set-up/options", "POST", role=ANYBODY, is_hosted=True)
def enrolment_passkey_options() -> BaseResponse:
    """Options for registering a passkey as the first factor."""
    by = mfa.enrolling(second_factor.submitted()["mfa_token"])
    token, options = mfa.start_passkey(by.user)
    return jsonify(token=token, options=options)


def _enrolling(form: Form) -> Enrolling:
    """Whoever sets a first factor up, who then goes on: else they would not see its codes."""
    by = mfa.enrolling(form["mfa_token"])
    guard.check_opens(by.user, guard.target_after_sign_in(by.user, form["next"]))
    return by


def _signed_in_with_codes(by: Enrolling, form: Form, enrolled: mfa.Enrolled) -> BaseResponse:
    signed_in = _signed_in(by.user, form, by.challenge)
    going = resubmit.target_path(form[resubmit.FIELD])
    target = going or guard.target_after_sign_in(by.user, form["next"])
    response = make_response(_codes_page(enrolled.recovery_codes or [], target))
    for cookie in signed_in.headers.getlist("Set-Cookie"):
        response.headers.add("Set-Cookie", cookie)
    return response


@page("/console/passkeys/options", "POST", role=ANYBODY, is_hosted=True)
def passkey_sign_in_options() -> BaseResponse:
    token = challenges.issue(Step.PASSKEY_SIGN_IN)
    return jsonify(token=token, options=passkeys.request_options(token))


@page("/console/passkeys/sign-in", "POST", role=ANYBODY, form_page=_sign_in_page, is_hosted=True)
def sign_in_with_passkey() -> BaseResponse:
    form = forms.submitted("assertion", "next", "account", resubmit.FIELD)
    sent = second_factor.credential(form["assertion"])
    with lockout.limit_passkeys(origin().ip_address):
        user = mfa.verify_passkey(sent["token"], sent["credential"])
    return _signed_in(user, form)


def _signed_in(user: User, form: Form, passed: Challenge | None = None) -> BaseResponse:
    going = resubmit.target_path(form[resubmit.FIELD])
    target = guard.target_after_sign_in(user, form["next"])
    status = 307 if going else 303
    proof = gate.proof_of(passed) if passed else Proof.PASSKEY
    response = guard.start_session(user, going or target, proof, status, passed=passed)
    realms.remember_account(response, user.account.slug)
    return response


@page(PROFILE, role=USER, is_hosted=True)
def show_second_factors(form: Form | None = None) -> Page:
    """The caller's second factors."""
    user, form = auth.get_user(guard.require_caller()), form or Form()
    if form["confirm"]:  # of a new app, by a wrong code
        return _app_page(form, user, *mfa.pending_totp(user, form["factor"]))
    settings = user.account.settings
    return form.render(
        "console/profile/factors.html",
        factors=gate.factors_of(user),
        codes_left=recovery_codes.count(user),
        policy=sign_in_settings.mode(settings),
        required_from=sign_in_settings.required_from(settings, user.role.name, user.created_at),
    )


change_page = partial(
    page,
    method="POST",
    role=USER,
    recent_sign_in=True,
    is_hosted=True,
    form_page=show_second_factors,
)


@change_page(f"{PROFILE}/app")
def add_app() -> Page | BaseResponse:
    """Show the secret of a new authenticator app, or confirm it by a code."""
    caller, form = guard.require_caller(), forms.submitted("name", "code", "confirm", "factor")
    user = auth.get_user(caller)
    if not form["confirm"]:
        name = form.validated(name=MAX_NAME)["name"] or gettext("Authenticator app")
        return _app_page(Form({"name": name}), user, *mfa.start_totp(user, name))
    by = Enrolling(user, session_id=caller.session_id)
    enrolled = mfa.confirm_totp(by, form["code"][:100])
    return _added(enrolled)


@page(f"{PROFILE}/passkeys/options", "POST", role=USER, recent_sign_in=True, is_hosted=True)
def passkey_registration_options() -> BaseResponse:
    caller = guard.require_caller()
    token, options = mfa.start_passkey(auth.get_user(caller))
    return jsonify(token=token, options=options)


@change_page(f"{PROFILE}/passkeys")
def add_passkey() -> BaseResponse:
    caller, form = guard.require_caller(), forms.submitted("passkey_name", "assertion")
    sent = second_factor.credential(form["assertion"])
    name = form.validated(passkey_name=MAX_NAME)["passkey_name"] or gettext("Passkey")
    by = Enrolling(auth.get_user(caller), session_id=caller.session_id)
    return _added(mfa.add_passkey(by, sent["token"], name, sent["credential"]))


@change_page(f"{PROFILE}/<uuid:factor_id>/remove")
def remove_factor(factor_id: str) -> BaseResponse:
    mfa.remove(auth.get_user(guard.require_caller()), factor_id)
    notice = gettext("The second factor is removed.")
    return redirect_with_notice(notice, ".show_second_factors")


@change_page(f"{PROFILE}/codes")
def renew_codes() -> BaseResponse:
    """Make new recovery codes."""
    return _show_once(mfa.renew_recovery_codes(auth.get_user(guard.require_caller())))


@page(f"{PROFILE}/codes", role=USER, is_hosted=True)
def show_codes() -> str | BaseResponse:
    """The new recovery codes, once."""
    codes = one_time_secrets.pop(guard.require_caller().user_id or "")
    if codes is None:
        return redirect(url_for(".show_second_factors"))
    return _codes_page(codes.split(), url_for(".show_second_factors"))


@page("/console/reauthenticate/options", "POST", role=USER, is_hosted=True)
def reauthentication_options() -> BaseResponse:
    """Options for confirming the second factor with a passkey."""
    user = auth.get_user(guard.require_caller())
    token = challenges.issue(Step.REAUTHENTICATION, user)
    keys = [factor for factor in gate.factors_of(user) if factor.kind == Method.PASSKEY]
    return jsonify(token=token, options=passkeys.request_options(token, keys))


@page("/console/passkeys/signature-options", "POST", role=USER)
def signature_options() -> BaseResponse:
    """Options for signing the submitted reason with a passkey."""
    guard.require_caller()
    form = forms.submitted("es_reason")
    reason = form.validated(("es_reason",), es_reason=signatures.LONGEST)["es_reason"]
    return jsonify(signatures.options(reason))


@page("/console/team/second-factors", role=ADMIN, portal=PortalPage.TEAM, in_account=True)
def show_team_factors(scope: AccountScope) -> str:
    choices = {"state": {"without": gettext("without one"), "with": gettext("with one")}}
    listing = lists.from_request("console.show_team_factors", choices, **scope.url_args)
    part = partial(report.page, scope.account.id, listing.skip, lists.PAGE_SIZE)
    listing.with_page(part(listing.filters.get("state")))
    return render_template("console/team/factors.html", listing=listing, **tabs(scope))


def _added(enrolled: mfa.Enrolled) -> BaseResponse:
    if enrolled.recovery_codes:
        return _show_once(enrolled.recovery_codes)
    notice = gettext("%(name)s is set up.", name=enrolled.factor.name)
    return redirect_with_notice(notice, ".show_second_factors")


def _show_once(codes: list[str]) -> BaseResponse:
    one_time_secrets.store(guard.require_caller().user_id or "", " ".join(codes))
    return redirect(url_for(".show_codes"), 303)


def _codes_page(codes: list[str], target: str) -> str:
    return render_template("console/profile/codes.html", codes=codes, target=target)


def _app_page(form: Form, user: User, factor: object, secret: str) -> Page:
    context = second_factor.totp_context(user, secret)
    return form.render("console/profile/app.html", factor=factor, **context)
