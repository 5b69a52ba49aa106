"""Events of all accounts, and the operator's webhooks with their deliveries, for superadmins."""

from __future__ import annotations

import sqlalchemy as sa
from flask import redirect, render_template, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock, config, db
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account
from app.console.automation import deliveries
from app.console.shell import forms, guard, lists, names, one_time_secrets
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.navigation import INSTANCE, MenuItem
from app.operator import service as events
from app.operator import types, webhooks
from app.types import JSONObject
from app.web.languages import gettext, lazy_gettext
from app.webhooks import log, resend, service, signing
from app.webhooks.log import DeliveryFilter
from app.webhooks.models import STATES, Webhook

EVENTS = "/console/events"
WEBHOOKS = f"{EVENTS}/webhooks"
ONE = f"{WEBHOOKS}/<uuid:webhook_id>"
DELIVERY = f"{ONE}/deliveries/<uuid:delivery_id>"
SHOWN = 50
NOTICES = {
    "enable": lazy_gettext("The webhook is enabled."),
    "disable": lazy_gettext("The webhook is disabled."),
}


@page(EVENTS, role=SUPERADMIN, menu=MenuItem(INSTANCE, 9, lazy_gettext("Events"), "webhook"))
def show_operator_events() -> str:
    """The newest events of all accounts, by type and account."""
    texts = {"account": gettext("Account (slug)")}
    listing = lists.from_request("console.show_operator_events", {"type": types.WRITTEN}, texts)
    before, slug = request.args.get("before", ""), listing.filters.get("account")
    of_slug = sa.select(Account.id).where(Account.slug == (slug or ""))
    account_id = db.db.session.scalar(of_slug)
    found = list[JSONObject]()
    if account_id or not slug:
        written = [listing.filters["type"]] if "type" in listing.filters else []
        place = int(before) if before.isdecimal() and len(before) < 19 else None
        found = events.newest(written, account_id, place, SHOWN + 1)
    ids = {event["account_id"] for event in found}
    shown = sa.select(Account.id, Account.slug).where(
        Account.id.in_(ids), Account.closed_at.is_(None)
    )
    slugs = {row.id: row.slug for row in db.db.session.execute(shown)}
    older = found[SHOWN - 1]["number"] if len(found) > SHOWN else None
    listing.items = found[:SHOWN]
    return render_template(
        "console/events/list.html",
        listing=listing,
        slugs=slugs,
        older=older,
        pretty=_pretty,
        kept_days=config.current().event_retention_days,
    )


def _pretty(data: JSONObject) -> str:
    shown = (
        (name, ", ".join(value) if isinstance(value, list) else value)
        for name, value in data.items()
        if value is not None
    )
    return " · ".join(f"{name} {value}" for name, value in shown)


@page(WEBHOOKS, role=SUPERADMIN)
def show_operator_webhooks() -> str:
    """The webhooks that events are sent to."""
    listing = lists.from_request("console.show_operator_webhooks")
    listing.with_page(webhooks.page(listing.skip, lists.PAGE_SIZE))
    return render_template("console/events/webhooks.html", listing=listing)


@page(f"{WEBHOOKS}/new", role=SUPERADMIN)
def show_new_operator_webhook(form: Form | None = None) -> Page:
    """The form of a new webhook."""
    blank = Form({"types": "user.*\naccount.*"})
    form_id = forms.form_id()
    return (form or blank).render("console/events/new.html", form_id=form_id, types=types.WRITTEN)


def _body(form: Form) -> JSONObject:
    values = form.validated(("url", "types"), url=2048, types=4000, collections=20_000)
    return {
        "url": values["url"],
        **{name: values[name].replace(",", " ").split() for name in ("types", "collections")},
    }


def _submitted() -> Form:
    return forms.submitted("url", "types", "collections", "seen")


@page(f"{WEBHOOKS}/new", "POST", role=SUPERADMIN, form_page=show_new_operator_webhook)
def create_operator_webhook() -> BaseResponse:
    """Create a webhook, and redirect to the page with its secret."""
    form, by = _submitted(), guard.require_caller()
    id, body = forms.derive_id([form.values]), _body(form)
    with forms.ignore_already_created(lambda: webhooks.get(id, by=by)):
        created = webhooks.create(body, by=by, id=id)
        one_time_secrets.store(id, created.secret)
    return redirect(url_for("console.show_operator_secret", webhook_id=id), 303)


@page(ONE, role=SUPERADMIN)
def show_operator_webhook(webhook_id: str, form: Form | None = None) -> Page:
    """A webhook, its form, and its deliveries."""
    webhook = _get(webhook_id)
    values = {"url": webhook.url, "seen": clock.iso(webhook.updated_at)}
    for name in ("types", "collections"):
        values[name] = "\n".join(getattr(webhook, name) or ())
    states = {"status": names.states(STATES)}
    listing = lists.from_request("console.show_operator_webhook", states, webhook_id=webhook.id)
    status = listing.filters.get("status")
    where = DeliveryFilter(webhook.account_id, webhook.id, status=status)
    by, most = guard.require_caller(), listing.count_limit
    listing.with_page(log.page(where, listing.skip, lists.PAGE_SIZE, by=by, max_total=most))
    stored = Form(values)
    return (form.over(stored) if form else stored).render(
        "console/events/one.html", webhook=webhook, listing=listing, types=types.WRITTEN
    )


def _get(webhook_id: str) -> Webhook:
    return webhooks.get(webhook_id, by=guard.require_caller())


@page(ONE, "POST", role=SUPERADMIN, form_page=show_operator_webhook)
def change_operator_webhook(webhook_id: str) -> BaseResponse:
    """Save the form of a webhook."""
    form = _submitted()
    forms.check_unchanged(form, _get(webhook_id).updated_at)
    webhooks.change(webhook_id, _body(form), by=guard.require_caller())
    return _to_webhook(webhook_id, gettext("The webhook is saved."))


@page(f"{ONE}/<any(enable, disable):action>", "POST", role=SUPERADMIN)
def switch_operator_webhook(webhook_id: str, action: str) -> BaseResponse:
    """Enable or disable a webhook."""
    body = {"is_active": action == "enable"}
    webhooks.change(webhook_id, body, by=guard.require_caller())
    return _to_webhook(webhook_id, str(NOTICES[action]))


@page(f"{ONE}/take-over", "POST", role=SUPERADMIN)
def take_operator_webhook_over(webhook_id: str) -> BaseResponse:
    """Become the owner of a webhook."""
    service.take_over(webhook_id, by=guard.require_caller(), operators=True)
    return _to_webhook(webhook_id, gettext("You own the webhook now."))


@page(f"{ONE}/rotate-secret", "POST", role=SUPERADMIN)
def rotate_operator_secret(webhook_id: str) -> BaseResponse:
    """Create a new secret, and redirect to the page that shows it."""
    rotated = service.rotate_secret(webhook_id, by=guard.require_caller(), operators=True)
    one_time_secrets.store(rotated.webhook.id, rotated.secret)
    return redirect(url_for("console.show_operator_secret", webhook_id=webhook_id), 303)


@page(f"{ONE}/secret", role=SUPERADMIN)
def show_operator_secret(webhook_id: str) -> str | BaseResponse:
    """A new secret, shown once."""
    webhook = _get(webhook_id)
    secret = one_time_secrets.pop(webhook.id)
    if secret is None:
        notice = gettext(
            "The secret has already been shown. If you did not copy the secret, create a new one."
        )
        return _to_webhook(webhook_id, notice)
    return render_template(
        "console/webhooks/secret.html",
        webhook=webhook,
        secret=secret,
        signing_secret=signing.signing_secret(secret),
        done=url_for("console.show_operator_webhook", webhook_id=webhook.id),
    )


@page(f"{ONE}/test", "POST", role=SUPERADMIN)
def try_operator_webhook(webhook_id: str) -> BaseResponse:
    """Send a test, and tell what came of it."""
    result = webhooks.send_test(webhook_id, by=guard.require_caller())
    notice = (
        gettext("The receiver accepted the test.")
        if result.delivered
        else gettext("The test failed: %(error)s", error=result.error)
    )
    return _to_webhook(webhook_id, notice)


@page(f"{ONE}/delete", "POST", role=SUPERADMIN)
def delete_operator_webhook(webhook_id: str) -> BaseResponse:
    """Delete a webhook."""
    with forms.ignore_already_deleted(SYSTEM_ACCOUNT_ID, "webhooks", webhook_id):
        webhooks.delete(webhook_id, by=guard.require_caller())
    notice = gettext("The webhook is deleted.")
    return redirect_with_notice(notice, "console.show_operator_webhooks")


@page(DELIVERY, role=SUPERADMIN)
def show_operator_delivery(webhook_id: str, delivery_id: str) -> str:
    """A delivery with its event and all attempts."""
    webhook = _get(webhook_id)
    delivery = log.get(webhook, delivery_id, by=guard.require_caller())
    return render_template(
        "console/events/delivery.html",
        webhook=webhook,
        delivery=delivery,
        payload=deliveries.highlighted(delivery.payload),
        form_id=forms.form_id(),
    )


@page(f"{DELIVERY}/redeliver", "POST", role=SUPERADMIN)
def redeliver_event(webhook_id: str, delivery_id: str) -> BaseResponse:
    """Send an event again, and redirect to the delivery that is sent."""
    rendered, by = forms.derive_id([]), guard.require_caller()
    sent = resend.redeliver(_get(webhook_id), delivery_id, by=by, rendered=rendered)
    notice = gettext("The delivery is sent again.")
    where = {"webhook_id": webhook_id, "delivery_id": sent.id}
    return redirect_with_notice(notice, "console.show_operator_delivery", **where)


def _to_webhook(webhook_id: str, notice: str) -> BaseResponse:
    return redirect_with_notice(notice, "console.show_operator_webhook", webhook_id=webhook_id)
