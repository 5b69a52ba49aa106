"""The webhooks of an account: listed, made, changed, tried out, deleted."""

from __future__ import annotations

from flask import redirect, render_template, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import config
from app.accounts import tenants
from app.console.automation import webhook_form
from app.console.shell import forms, guard, idempotent_forms, lists, one_time_secrets, scopes
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import Form, Page, told
from app.console.shell.scopes import Place
from app.errors import AppError
from app.rest.access import public
from app.webhooks import service, signing
from app.webhooks.models import Webhook

HOME = "/console/webhooks"
ACCOUNT = f"{HOME}/<uuid:account_id>"
ONE = f"{ACCOUNT}/<uuid:webhook_id>"
NEW_PAGE, ONE_PAGE = "console/webhooks/new.html", "console/webhooks/one.html"
LOST = "If you did not copy the secret, make a new one."


@blueprint.get(HOME)
@public
@guard.for_admins
def show_webhooks_home() -> str | BaseResponse:
    """For superadmins a choice of the account; admins have one only."""
    if not guard.known_caller().is_superadmin:
        return redirect(url_for("console.show_webhooks", account_id=guard.own_account()))
    listing = lists.asked_for("console.show_webhooks_home")
    listing.holding(tenants.page({**listing.asked, "is_active": True}))
    return render_template("console/webhooks/accounts.html", listing=listing)


@blueprint.get(ACCOUNT)
@public
@guard.for_admins
def show_webhooks(account_id: str) -> str:
    """The webhooks of an account."""
    place = scopes.found(account_id)
    listing = lists.asked_for("console.show_webhooks", **place.at)
    listing.holding(service.page(listing.skip, lists.SIZE, by=place.by))
    most = config.current().webhooks_per_account
    return render_template("console/webhooks/list.html", place=place, listing=listing, most=most)


@blueprint.get(f"{ACCOUNT}/new")
@public
@guard.for_admins
def show_new_webhook(account_id: str) -> Page:
    """The form for a new webhook."""
    return _new_page(scopes.found(account_id), webhook_form.empty())


@blueprint.post(f"{ACCOUNT}/new")
@public
@guard.for_admins
def create_webhook(account_id: str) -> Page | BaseResponse:
    """Make a webhook, and go on to the page that shows its secret."""
    place, form = scopes.found(account_id), webhook_form.sent()
    id = idempotent_forms.id_of([form.values, form.chosen])
    try:
        made = service.create(webhook_form.body(form), by=place.by, id=id)
        one_time_secrets.leave(id, made.secret)
    except AppError as error:
        if not idempotent_forms.is_made(error, lambda: service.get(id, by=place.by)):
            return _new_page(place, form.refused(error))
    return _to_secret(place, id)


@blueprint.get(ONE)
@public
@guard.for_admins
def show_webhook(account_id: str, webhook_id: str) -> Page:
    """One webhook."""
    place = scopes.found(account_id)
    webhook = service.get(webhook_id, by=place.by)
    return _page(place, webhook, webhook_form.of_webhook(webhook))


@blueprint.post(ONE)
@public
@guard.for_admins
def change_webhook(account_id: str, webhook_id: str) -> Page | BaseResponse:
    """Change what is sent, and where to."""
    place, form = scopes.found(account_id), webhook_form.sent()
    webhook = service.get(webhook_id, by=place.by)
    try:
        forms.check_seen(form, webhook.updated_at)
        service.change(webhook_id, webhook_form.body(form), by=place.by)
    except AppError as error:
        return _page(place, webhook, form.refused(error))
    return _told("The webhook is saved.", place, webhook_id)


@blueprint.post(f"{ONE}/take-over")
@public
@guard.for_admins
def take_webhook_over(account_id: str, webhook_id: str) -> BaseResponse:
    """Become the webhook's maker, whose rights decide what is sent."""
    place = scopes.found(account_id)
    service.take_over(webhook_id, by=place.by)
    return _told("The webhook is yours: it is sent what you may view.", place, webhook_id)


@blueprint.post(f"{ONE}/<any(enable, disable):action>")
@public
@guard.for_admins
def switch_webhook(account_id: str, webhook_id: str, action: str) -> Page | BaseResponse:
    """Enable or disable a webhook."""
    place, enabled = scopes.found(account_id), action == "enable"
    try:
        service.change(webhook_id, {"enabled": enabled}, by=place.by)
    except AppError as error:
        return refused(place, webhook_id, error)
    return _told(f"The webhook is {action}d.", place, webhook_id)


@blueprint.post(f"{ONE}/rotate-secret")
@public
@guard.for_admins
def rotate_webhook_secret(account_id: str, webhook_id: str) -> BaseResponse:
    """Make a new secret, and go on to the page that shows it."""
    place = scopes.found(account_id)
    made = service.rotate_secret(webhook_id, by=place.by)
    one_time_secrets.leave(made.webhook.id, made.secret)
    return _to_secret(place, made.webhook.id)


@blueprint.get(f"{ONE}/secret")
@public
@guard.for_admins
def show_webhook_secret(account_id: str, webhook_id: str) -> str | BaseResponse:
    """A new secret, this once."""
    place = scopes.found(account_id)
    webhook = service.get(webhook_id, by=place.by)
    secret = one_time_secrets.take(webhook.id)
    if secret is None:
        return _told(f"The secret was shown once already. {LOST}", place, webhook_id)
    return render_template(
        "console/webhooks/secret.html",
        place=place,
        webhook=webhook,
        secret=secret,
        signing_secret=signing.signing_secret(secret),
    )


@blueprint.post(f"{ONE}/test")
@public
@guard.for_admins
def try_webhook(account_id: str, webhook_id: str) -> Page | BaseResponse:
    """Send a test, and go on to what came of it."""
    place = scopes.found(account_id)
    try:
        result = service.test(webhook_id, by=place.by)
    except AppError as error:
        return refused(place, webhook_id, error)
    notice = "The receiver took the test." if result.delivered else f"It failed: {result.error}"
    at = {**place.at, "webhook_id": webhook_id, "delivery_id": result.work.id}
    return told(notice, "console.show_delivery", **at)


@blueprint.post(f"{ONE}/delete")
@public
@guard.for_admins
def delete_webhook(account_id: str, webhook_id: str) -> BaseResponse:
    """Delete a webhook with its deliveries."""
    place = scopes.found(account_id)
    with idempotent_forms.deleting(place.account.id, "webhooks", webhook_id):
        service.delete(webhook_id, by=place.by)
    return told("The webhook is deleted.", "console.show_webhooks", **place.at)


def refused(place: Place, webhook_id: str, error: AppError, form: Form | None = None) -> Page:
    """The webhook's page, telling why something was not done."""
    webhook = service.get(webhook_id, by=place.by)
    shown, problem = webhook_form.of_webhook(webhook), (form or Form()).refused(error)
    shown.problem, shown.status = problem.problem, problem.status
    shown.errors |= problem.errors
    shown.values |= problem.values
    return _page(place, webhook, shown)


def _told(notice: str, place: Place, webhook_id: str) -> BaseResponse:
    return told(notice, "console.show_webhook", **place.at, webhook_id=webhook_id)


def _to_secret(place: Place, webhook_id: str) -> BaseResponse:
    at = {**place.at, "webhook_id": webhook_id}
    return redirect(url_for("console.show_webhook_secret", **at), 303)


def _new_page(place: Place, form: Form) -> Page:
    return form.page(
        NEW_PAGE, place=place, drawn=idempotent_forms.drawn(), **webhook_form.choices(place)
    )


def _page(place: Place, webhook: Webhook, form: Form) -> Page:
    offered = webhook_form.choices(place, webhook)
    offered["warnings"] = service.warnings(webhook)
    offered["has_active_maker"] = service.has_active_maker(webhook)
    return form.page(ONE_PAGE, place=place, webhook=webhook, **offered)
