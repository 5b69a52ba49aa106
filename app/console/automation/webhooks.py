"""The webhooks of an account."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial

from flask import redirect, render_template, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock, config
from app.accounts import tenants
from app.auth.portals import PortalPage
from app.collections import definitions
from app.console.automation import webhook_form
from app.console.records import references
from app.console.shell import (
    checks,
    completions,
    forms,
    guard,
    lists,
    navigation,
    one_time_secrets,
    owner_form,
)
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.navigation import AUTOMATION, MenuItem
from app.console.shell.scopes import AccountScope
from app.web.languages import gettext, lazy_gettext
from app.webhooks import filters as webhook_filters
from app.webhooks import log, purge, resend, service, signing
from app.webhooks.models import DeliveryState, Webhook
from app.webhooks.resend import Selection

HOME = "/console/webhooks"
ACCOUNT = f"{HOME}/<uuid:account_id>"
WEBHOOK = f"{ACCOUNT}/<uuid:webhook_id>"
MAX_LATEST = 5
"""The deliveries that a webhook's page shows."""
SWITCHED = {
    "enable": lazy_gettext("The webhook is enabled."),
    "disable": lazy_gettext("The webhook is disabled."),
}


webhook_page = partial(page, role=ADMIN, portal=PortalPage.WEBHOOKS)


@page(HOME, role=ADMIN)
def show_webhooks_home() -> str | BaseResponse:
    """The page of the current account; superadmins without one, or who ask for all, choose."""
    if account_id := navigation.home_account_id(guard.require_caller()):
        return redirect(url_for("console.show_webhooks", account_id=account_id))
    listing = lists.from_request("console.show_webhooks_home", view="all")
    listing.with_page(tenants.page({**listing.page_args, "is_active": True}))
    return render_template("console/webhooks/accounts.html", listing=listing)


@webhook_page(ACCOUNT, menu=MenuItem(AUTOMATION, 1, lazy_gettext("Webhooks"), "webhook"))
def show_webhooks(scope: AccountScope) -> str:
    listing = lists.from_request("console.show_webhooks", **scope.url_args)
    listing.with_page(service.page(listing.skip, lists.PAGE_SIZE, by=scope.by))
    most = config.current().webhooks_per_account
    everything = Selection(resend.EARLIEST, clock.now())
    numbers = resend.count_undelivered(listing.items, everything, lists.MAX_COUNTED)
    return render_template(
        "console/webhooks/list.html",
        scope=scope,
        listing=listing,
        most=most,
        undelivered={one.id: number for one, number in zip(listing.items, numbers, strict=True)},
        waiting=log.waiting(scope.account.id, lists.MAX_COUNTED),
        event_names=webhook_form.event_names,
    )


@webhook_page(f"{ACCOUNT}/new")
def show_new_webhook(scope: AccountScope, form: Form | None = None) -> Page:
    return (form or webhook_form.blank()).render(
        "console/webhooks/new.html",
        scope=scope,
        form_id=forms.form_id(),
        completions=completions.plain(),
        **webhook_form.choices(scope),
    )


@webhook_page(f"{ACCOUNT}/new", "POST", form_page=show_new_webhook)
def create_webhook(scope: AccountScope) -> BaseResponse:
    """Create a webhook, and redirect to the page with its secret."""
    form = webhook_form.submitted()
    id = forms.derive_id([form.values, form.selected])
    body = webhook_form.body(form)
    with forms.ignore_already_created(lambda: service.get(id, by=scope.by)):
        created = service.create(body, by=scope.by, id=id)
        one_time_secrets.store(id, created.secret)
    return _redirect_to_secret(scope, id)


@webhook_page(WEBHOOK)
def show_webhook(scope: AccountScope, webhook_id: str, form: Form | None = None) -> Page:
    webhook = service.get(webhook_id, by=scope.by)
    stored = webhook_form.from_webhook(webhook)
    context = webhook_form.choices(scope, webhook)
    if webhook.enabled:
        everything = Selection(resend.EARLIEST, clock.now())
        (context["undelivered"],) = resend.count_undelivered(
            [webhook], everything, lists.MAX_COUNTED
        )
    if webhook.failing_since:
        patience = timedelta(seconds=purge.DISABLE_AFTER_SECONDS)
        context["disabled_from"] = webhook.failing_since + patience
    latest, _ = log.page(
        log.DeliveryFilter(webhook_id=webhook.id), 0, MAX_LATEST, by=scope.by, max_total=MAX_LATEST
    )
    failures = (one for one in latest if one.status != DeliveryState.DELIVERED and one.last_claim)
    return (form.over(stored) if form else stored).render(
        "console/webhooks/one.html",
        scope=scope,
        webhook=webhook,
        warnings=service.warnings(webhook),
        completions=completions.of_collection(webhook.collection, scope),
        has_active_maker=service.has_active_maker(webhook),
        latest=latest,
        latest_failure=next(failures, None),
        waiting=log.waiting(scope.account.id, lists.MAX_COUNTED).get(webhook.id),
        owners=owner_form.choices(scope, webhook.created_by),
        events_text=webhook_form.event_names(webhook.events),
        names=record_names(latest, {webhook.id: webhook}, scope),
        form_id=forms.form_id(),
        **context,
    )


@webhook_page(WEBHOOK, "POST", form_page=show_webhook)
def change_webhook(scope: AccountScope, webhook_id: str) -> BaseResponse:
    form = webhook_form.submitted()
    forms.check_unchanged(form, service.get(webhook_id, by=scope.by).updated_at)
    service.change(webhook_id, webhook_form.body(form), by=scope.by)
    return _redirect(gettext("The webhook is saved."), scope, webhook_id)


@webhook_page(f"{WEBHOOK}/owner", "POST", form_page=show_webhook)
def change_webhook_owner(scope: AccountScope, webhook_id: str) -> BaseResponse:
    """Let a webhook belong to the caller or a service user."""
    form = forms.submitted("owner_id")
    service.change(webhook_id, {"owner_id": form["owner_id"]}, by=scope.by)
    return _redirect(gettext("The webhook is saved."), scope, webhook_id)


@webhook_page(f"{WEBHOOK}/take-over", "POST")
def take_webhook_over(scope: AccountScope, webhook_id: str) -> BaseResponse:
    """Make the caller the webhook's owner, whose rights decide its payloads."""
    service.take_over(webhook_id, by=scope.by)
    notice = gettext("You own the webhook now: its payloads show what you may view.")
    return _redirect(notice, scope, webhook_id)


@webhook_page(f"{WEBHOOK}/<any(enable, disable):action>", "POST", form_page=show_webhook)
def switch_webhook(scope: AccountScope, webhook_id: str, action: str) -> BaseResponse:
    """Enable or disable a webhook."""
    service.change(webhook_id, {"enabled": action == "enable"}, by=scope.by)
    return _redirect(str(SWITCHED[action]), scope, webhook_id)


@webhook_page(f"{WEBHOOK}/rotate-secret", "POST")
def rotate_webhook_secret(scope: AccountScope, webhook_id: str) -> BaseResponse:
    """Create a new secret, and redirect to the page that shows it."""
    rotated = service.rotate_secret(webhook_id, by=scope.by)
    one_time_secrets.store(rotated.webhook.id, rotated.secret)
    return _redirect_to_secret(scope, rotated.webhook.id)


@webhook_page(f"{WEBHOOK}/secret")
def show_webhook_secret(scope: AccountScope, webhook_id: str) -> str | BaseResponse:
    """A new secret, shown once."""
    webhook = service.get(webhook_id, by=scope.by)
    secret = one_time_secrets.pop(webhook.id)
    if secret is None:
        notice = gettext(
            "The secret has already been shown. If you did not copy the secret, create a new one."
        )
        return _redirect(notice, scope, webhook_id)
    return render_template(
        "console/webhooks/secret.html",
        scope=scope,
        webhook=webhook,
        secret=secret,
        signing_secret=signing.signing_secret(secret),
    )


@webhook_page(f"{WEBHOOK}/test", "POST", form_page=show_webhook)
def try_webhook(scope: AccountScope, webhook_id: str) -> BaseResponse:
    """Send a test, and redirect to its delivery."""
    result = service.test(webhook_id, by=scope.by)
    notice = (
        gettext("The receiver accepted the test.")
        if result.delivered
        else gettext("The test failed: %(error)s", error=result.error)
    )
    url_args = {**scope.url_args, "webhook_id": webhook_id, "delivery_id": result.work.id}
    return redirect_with_notice(notice, "console.show_delivery", **url_args)


@webhook_page(f"{WEBHOOK}/delete", "POST")
def delete_webhook(scope: AccountScope, webhook_id: str) -> BaseResponse:
    with forms.ignore_already_deleted(scope.account.id, "webhooks", webhook_id):
        service.delete(webhook_id, by=scope.by)
    return redirect_with_notice(
        gettext("The webhook is deleted."), "console.show_webhooks", **scope.url_args
    )


@webhook_page("/console/webhook/filter/check", "POST")
def check_webhook_filter() -> str:
    text = checks.submitted()
    return checks.verdict_of_expression(
        text, webhook_filters.problems(text), gettext("Valid filter.")
    )


def _redirect(notice: str, scope: AccountScope, webhook_id: str) -> BaseResponse:
    return redirect_with_notice(
        notice, "console.show_webhook", **scope.url_args, webhook_id=webhook_id
    )


def _redirect_to_secret(scope: AccountScope, webhook_id: str) -> BaseResponse:
    url_args = {**scope.url_args, "webhook_id": webhook_id}
    return redirect(url_for("console.show_webhook_secret", **url_args), 303)


def record_names(
    found: Sequence[log.Delivery], hooks: Mapping[str, Webhook], scope: AccountScope
) -> dict[str, str]:
    """The names, by id, of the records of deliveries whose payload the reader may see."""
    ids = defaultdict[str, list[str]](list)
    for one in found:
        if one.record_id and not one.hidden_by and one.webhook_id in hooks:
            ids[hooks[one.webhook_id].collection.lower()].append(one.record_id)
    names = dict[str, str]()
    for collection in definitions.get_all():
        names |= references.labels(collection, ids[collection.name.lower()], scope.by)
    return names
