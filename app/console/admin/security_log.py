"""The security log of an account: its events, who read personal data, and its receiver.

Requests of the operator in a row are a visit, which the page shows as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import sqlalchemy as sa
from flask import Response, render_template, request
from werkzeug.wrappers import Response as BaseResponse

from app import db
from app.accounts.models import USER_LABEL, User
from app.audit import verifications
from app.audit.chain import signing
from app.audit.security_log import routes, sealing, service, subscribers
from app.audit.security_log.log import SECURITY
from app.audit.security_log.models import EventKind, SecurityStream
from app.auth.portals import PortalPage
from app.console.admin import audit_names, security_names
from app.console.records import writers
from app.console.shell import forms, lists, names, one_time_secrets, owner_form
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.lists import Listing
from app.console.shell.navigation import ACCOUNT, MenuItem
from app.console.shell.scopes import AccountScope
from app.errors import NotFound
from app.jobs import queue
from app.outbound.address_policy import LONGEST_URL
from app.portability.retention import policy as policies
from app.types import JSONMapping, JSONObject
from app.web import user_agents
from app.web.languages import gettext, lazy_gettext
from app.webhooks import security_streams
from app.webhooks.security_streams import Attempt

LOG = "/console/security-log/<uuid:account_id>"
RECEIVER = f"{LOG}/receiver"
FORMATS = {"csv": "CSV", "json": "JSON", "jsonl": "JSON lines", "ocsf": "OCSF"}
MAX_PEOPLE = 200
TEXTS = {"record_id": lazy_gettext("Record or user id")}
REQUESTS = (EventKind.OPERATOR_REQUEST, EventKind.OPERATOR_READ)
LONGEST_PAUSE = timedelta(minutes=30)
MAX_NAMED = 3
MAX_EVENTS = 250  # of a page
OF_ACCOUNT = "/<uuid:account_id>"
PAGES: Mapping[str, object] = {
    "/console": lazy_gettext("Console"),
    "/console/accounts": lazy_gettext("Accounts"),
    f"/console/accounts{OF_ACCOUNT}": lazy_gettext("Users"),
    f"/console/accounts{OF_ACCOUNT}/dashboard": lazy_gettext("Overview"),
    f"/console/accounts{OF_ACCOUNT}/groups": lazy_gettext("Groups"),
    f"/console/accounts{OF_ACCOUNT}/keys": lazy_gettext("API keys"),
    f"/console/accounts{OF_ACCOUNT}/team": lazy_gettext("Team"),
    "/console/jobs": lazy_gettext("Jobs"),
    "/console/records": lazy_gettext("Records"),
    "/console/security-log": lazy_gettext("Security log"),
    f"/console/security-log{OF_ACCOUNT}/readers": lazy_gettext("Who read personal data"),
    f"/console/security-log{OF_ACCOUNT}/receiver": lazy_gettext("Receiver of the security log"),
    "/console/settings": lazy_gettext("Settings"),
    f"/console/settings{OF_ACCOUNT}/retention": lazy_gettext("Retention"),
    "/console/sso": lazy_gettext("Single sign-on"),
    f"/console/sso{OF_ACCOUNT}/domains": lazy_gettext("Domains"),
    f"/console/sso{OF_ACCOUNT}/scim": lazy_gettext("Provisioning (SCIM)"),
    f"/console/sso{OF_ACCOUNT}/setup-links": lazy_gettext("Setup links"),
    "/console/usage": lazy_gettext("Usage"),
    "/console/webhooks": lazy_gettext("Webhooks"),
    f"/console/webhooks{OF_ACCOUNT}/deliveries": lazy_gettext("Deliveries"),
    "/console/workflows": lazy_gettext("Workflows"),
    f"/console/workflows{OF_ACCOUNT}/instances": lazy_gettext("Instances"),
}
"""The areas of the console by the beginning of their routes."""


log_page = partial(page, role=ADMIN, portal=PortalPage.SECURITY_LOG)


@log_page(
    LOG, menu=MenuItem(ACCOUNT, 4, lazy_gettext("Security log"), "shield", needs_account=True)
)
def show_security_log(scope: AccountScope) -> str:
    """The matching events, the newest first."""
    listing = _listing(scope, "console.show_security_log")
    visits = VisitPage(())
    if not listing.errors:
        visits = _visits(scope, listing)
        query = dict(listing.filter_values)
        total = service.count(scope.account.id, query, listing.count_limit)
        listing.with_page((visits.events, total))
    rule = (scope.account.id, policies.Log.SECURITY)
    return render_template(
        "console/security/log.html",
        scope=scope,
        listing=listing,
        formats=FORMATS,
        verified=verifications.last(verifications.SECURITY, scope.account.id),
        start=security_names.log_start(signing.start_of(SECURITY, scope.account.id), *rule),
        subjects=security_names.of_events(listing.items, scope),
        page=visits,
        area=area,
        name_of_day=lists.name_of_day,
        fields_of=security_names.of_fields,
        route_name=security_names.of_route,
        actors=writers.ACTORS,
        means=writers.means,
        applications=names.STATES,
        program=user_agents.describe,
        operator=sealing.OPERATOR,
        operators=_operators(scope, [event["user_id"] for event in listing.items]),
        **_names(scope),
    )


@log_page(f"{LOG}/readers")
def show_readers(scope: AccountScope) -> str:
    """The users who were shown personal data."""
    listing = _listing(scope, "console.show_readers", without=("kind",))
    report: JSONObject = {"items": [], "is_complete": True}
    if not listing.errors:
        report = service.access_report(scope.account.id, dict(listing.filter_values))
    return render_template(
        "console/security/readers.html",
        scope=scope,
        listing=listing,
        report=report,
        **_names(scope),
    )


@log_page(f"{LOG}/readers/csv")
def export_readers(scope: AccountScope) -> Response:
    """The users who were shown personal data, as a CSV file."""
    listing = _listing(scope, "console.show_readers", without=("kind",))
    if listing.errors:
        raise NotFound
    return routes.reported(scope.account.id, dict(listing.filter_values))


@log_page(f"{LOG}/export/<any(csv, json, jsonl, ocsf):format>")
def export_security_events(scope: AccountScope, format: str) -> Response:
    """The matching events as a file."""
    listing = _listing(scope, "console.show_security_log")
    if listing.errors:
        raise NotFound
    return routes.exported(scope.account.id, format, dict(listing.filter_values))


@log_page(f"{LOG}/verify", "POST")
def verify_security_events(scope: AccountScope) -> BaseResponse:
    """Verify the chain, and say what was found."""
    found = service.verify_chain(scope.account.id)
    if found["valid"]:
        notice = gettext("The log is complete and unchanged: %(n)s events.", n=found["checked"])
    else:
        values = {"number": found["first_broken_id"], "reason": found["reason"]}
        notice = gettext("The log is broken at event %(number)s: %(reason)s.", **values)
    return redirect_with_notice(notice, "console.show_security_log", **scope.url_args)


@log_page(RECEIVER)
def show_receiver(
    scope: AccountScope, form: Form | None = None, tested: Attempt | None = None
) -> Page:
    """The receiver of the log, with the form that changes it."""
    stream = _stream(scope)
    pending = service.count_after(scope.account.id, stream.sent_number) if stream else 0
    return (form or _stored(stream)).render(
        "console/security/receiver.html",
        scope=scope,
        stream=stream,
        pending=pending,
        tested=tested,
        owners=owner_form.choices(scope, admins=True),
        workers=queue.find_workers() if pending else None,
    )


@log_page(RECEIVER, "POST", form_page=show_receiver)
def save_receiver(scope: AccountScope) -> BaseResponse:
    """Send the log to a receiver; a new one gets a secret."""
    form = forms.submitted("url", "is_enabled", "owner_id")
    url = form.validated(("url",), url=LONGEST_URL)["url"]
    body = {"url": url, "is_enabled": bool(form["is_enabled"])}
    body |= {"owner_id": form["owner_id"] or None}
    return _saved(scope, security_streams.put(scope.account.id, body, by=scope.by))


@log_page(f"{RECEIVER}/test", "POST", form_page=show_receiver)
def try_receiver(scope: AccountScope) -> Page:
    """Send a test to the receiver, and show the answer."""
    form = forms.show_errors_in(_stored(_stream(scope)))
    return show_receiver(scope, form, security_streams.send_test(scope.account.id))


@log_page(f"{RECEIVER}/take-over", "POST")
def take_receiver_over(scope: AccountScope) -> BaseResponse:
    """Make the caller the one whose receiver it is; a paused one goes on."""
    security_streams.take_over(scope.account.id, by=scope.by)
    notice = gettext("The receiver is yours now: the log is sent on.")
    return redirect_with_notice(notice, "console.show_receiver", **scope.url_args)


@log_page(f"{RECEIVER}/rotate", "POST")
def rotate_receiver_secret(scope: AccountScope) -> BaseResponse:
    return _saved(scope, security_streams.rotate_secret(scope.account.id, by=scope.by))


@log_page(f"{RECEIVER}/secret")
def show_receiver_secret(scope: AccountScope) -> str | BaseResponse:
    """The new secret, shown once."""
    secret = one_time_secrets.pop(security_streams.get(scope.account.id).id)
    if secret is None:
        notice = gettext("The secret has already been shown. Replace it if you did not copy it.")
        return redirect_with_notice(notice, "console.show_receiver", **scope.url_args)
    return render_template("console/security/secret.html", scope=scope, secret=secret)


@log_page(f"{RECEIVER}/remove", "POST")
def remove_receiver(scope: AccountScope) -> BaseResponse:
    """Stop sending; doing it twice succeeds."""
    if _stream(scope) is not None:
        security_streams.delete(scope.account.id, by=scope.by)
    notice = gettext("The log is no longer sent.")
    return redirect_with_notice(notice, "console.show_receiver", **scope.url_args)


def _saved(scope: AccountScope, revealed: security_streams.Revealed) -> BaseResponse:
    if revealed.secret is None:
        return redirect_with_notice(gettext("Saved."), "console.show_receiver", **scope.url_args)
    one_time_secrets.store(revealed.stream.id, revealed.secret)
    notice = gettext("The log is sent from now on.")
    return redirect_with_notice(notice, "console.show_receiver_secret", **scope.url_args)


def _visits(scope: AccountScope, listing: Listing) -> VisitPage:
    """The rows that the query string asks for: each visit of the operator is one."""
    load = partial(service.around, scope.account.id, dict(listing.filter_values))
    before, after = lists.place("before"), lists.place("after")
    return load_page(load, lists.PAGE_SIZE, before, after)


def _listing(scope: AccountScope, endpoint: str, without: tuple[str, ...] = ()) -> Listing:
    kinds = {kind: security_names.of_kind(kind) for kind in subscribers.KINDS}
    choices = {
        "kind": kinds,
        "user_id": _people(scope),
        "target_type": audit_names.choices(scope.by),
        "path": {path: str(name) for path, name in security_names.PATHS.items()},
    }
    filtered_by = {name: values for name, values in choices.items() if name not in without}
    texts = TEXTS if "kind" in filtered_by else {"record_id": lazy_gettext("Record id")}
    return lists.from_request(endpoint, filtered_by, texts, lists.TIME_FILTERS, **scope.url_args)


def _people(scope: AccountScope) -> dict[str, str]:
    """The users of the account by id, who acts without being one, and the chosen person."""
    account_id = scope.account.id
    shown = sa.select(User.id, USER_LABEL.label("label")).where(User.account_id == account_id)
    rows = db.db.session.execute(shown.order_by(User.email_key).limit(MAX_PEOPLE))
    actors = {id: str(name) for id, name in writers.ACTORS.items()}
    people = {row.id: row.label for row in rows} | actors
    chosen = request.args.get("user_id", "").replace("\0", "")
    if chosen and chosen not in people:
        # Superadmins and deleted users act in the log, too.
        name = service.name_of(account_id, chosen)
        people |= {chosen: _operators(scope, [chosen]).get(chosen, name)} if name else {}
    return people


def _operators(scope: AccountScope, user_ids: Iterable[str]) -> dict[str, str]:
    """The names of superadmins by id, which only superadmins see."""
    return writers.superadmins(user_ids) if scope.by.is_superadmin else {}


def _names(scope: AccountScope) -> JSONObject:
    return {
        "name_of": security_names.of_kind,
        "path_name": security_names.of_path,
        "objects": audit_names.choices(scope.by),
    }


def _stream(scope: AccountScope) -> SecurityStream | None:
    try:
        return security_streams.get(scope.account.id)
    except NotFound:
        return None


def _stored(stream: SecurityStream | None) -> Form:
    if stream is None:
        return Form({"url": "", "is_enabled": "true"})
    is_enabled = "true" if stream.is_enabled else ""
    return Form({"url": stream.url, "is_enabled": is_enabled, "owner_id": stream.owner_id or ""})


@dataclass(frozen=True)
class Visit:
    """One event, or requests of a visit of the operator; the newest first."""

    events: Sequence[JSONMapping]

    @property
    def last(self) -> JSONMapping:
        """The newest event."""
        return self.events[0]

    @property
    def first(self) -> JSONMapping:
        """The oldest event."""
        return self.events[-1]

    @property
    def pages(self) -> str:
        """Some names of visited areas in order of the visits, for a sentence."""
        found = (area(one) or gettext("API") for one in reversed(self.events))
        names = list(dict.fromkeys(found))
        rest = len(names) - MAX_NAMED
        more = [gettext("%(count)s others", count=rest)] if rest > 0 else []
        return ", ".join([*names[:MAX_NAMED], *more])


@dataclass(frozen=True)
class VisitPage:
    """Visits in a row, the newest first, and where the neighbouring ones are."""

    visits: Sequence[Visit]
    newer: int | None = None
    """The number of the event after which the newer ones are; None if there are none."""
    older: int | None = None
    """The number of the event before which the older ones are; None if there are none."""

    @property
    def events(self) -> list[JSONMapping]:
        return [event for visit in self.visits for event in visit.events]


def load_page(
    load: Callable[..., list[JSONObject]], size: int, before: int | None, after: int | None
) -> VisitPage:
    """The visits next to the event of a number, else the newest ones.

    Also the newest ones if none are left there, as retention removes events, or if the newer ones
    do not fill a page.

    `load(limit, before=, after=)` returns the events. A page has at most MAX_EVENTS of them: a
    longer visit goes on in the next one.
    """
    found = None
    if after is not None:
        found = _upwards(load(MAX_EVENTS + 1, after=after), size)
    elif before is not None:
        found = _downwards(load(MAX_EVENTS + 1, before=before), size, is_newest=False)
    return found or _downwards(load(MAX_EVENTS + 1), size, is_newest=True) or VisitPage(())


def _downwards(loaded: Sequence[JSONMapping], size: int, *, is_newest: bool) -> VisitPage | None:
    visits = grouped(loaded[:MAX_EVENTS])
    if not visits:
        return None
    shown = visits[:size]
    has_older = sum(len(one.events) for one in shown) < len(loaded)
    newer = None if is_newest else shown[0].last["number"]
    return VisitPage(shown, newer, shown[-1].first["number"] if has_older else None)


def _upwards(loaded: Sequence[JSONMapping], size: int) -> VisitPage | None:
    visits = grouped(loaded[-MAX_EVENTS:])
    if len(loaded) <= MAX_EVENTS and len(visits) <= size:
        return None
    shown = visits[-size:]
    return VisitPage(shown, shown[0].last["number"], shown[-1].first["number"])


def grouped(events: Iterable[JSONMapping]) -> list[Visit]:
    """The events of a page, the newest first; a visit is within one day."""
    found = list[list[JSONMapping]]()
    for event in events:
        if found and _goes_on(found[-1][-1], event):
            found[-1].append(event)
        else:
            found.append([event])
    return [Visit(each) for each in found]


def _goes_on(later: JSONMapping, earlier: JSONMapping) -> bool:
    is_short = later["moment"] - earlier["moment"] <= LONGEST_PAUSE
    is_one_day = later["moment"].date() == earlier["moment"].date()
    is_one_person = later["user_id"] == earlier["user_id"]
    return is_short and is_one_day and is_one_person and _is_request(later, earlier)


def _is_request(*events: JSONMapping) -> bool:
    # An erased event has no details, and stands alone.
    return all(one["kind"] in REQUESTS and one["details"] is not None for one in events)


def area(event: JSONMapping) -> str | None:
    """The area of the console that a request was for."""
    if event["kind"] == EventKind.OPERATOR_READ:
        return gettext("Records")
    route: str = (event["details"] or {}).get("route", "")
    parts = route.split("/")
    beginnings = ("/".join(parts[:number]) for number in range(len(parts), 0, -1))
    name = next((PAGES[one] for one in beginnings if one in PAGES), None)
    return None if name is None else str(name)
