"""The mail domains of an account: adding, proving, and their settings."""

from __future__ import annotations

from functools import partial

from werkzeug.wrappers import Response as BaseResponse

from app.accounts.domains import service as domains
from app.accounts.domains.models import LOST_AFTER, DomainState
from app.auth.portals import PortalPage
from app.console.admin.sso import ACCOUNT
from app.console.people.users import choices
from app.console.shell import forms, lists
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import AccountScope
from app.sso import email_domains, setup_links
from app.web.languages import gettext, lazy_gettext

DOMAINS = f"{ACCOUNT}/domains"
DOMAIN = f"{DOMAINS}/<uuid:domain_id>"
STATE_NAMES = dict(
    zip(
        DomainState,
        (lazy_gettext("not verified"), lazy_gettext("verified"), lazy_gettext("record missing")),
        strict=True,
    )
)


domain_page = partial(page, role=ADMIN, portal=PortalPage.DOMAINS, setup=setup_links.DOMAINS)


@domain_page(DOMAINS)
def show_domains(scope: AccountScope, form: Form | None = None) -> Page:
    form = form or Form()
    listing = lists.from_request("console.show_domains", **scope.url_args)
    rows, total = domains.page(scope.account.id, listing.skip, lists.PAGE_SIZE)
    listing.with_page((list(rows), total))
    return form.render(
        "console/sso/domains.html", scope=scope, listing=listing, state_names=STATE_NAMES
    )


@domain_page(DOMAINS, "POST", form_page=show_domains)
def create_domain(scope: AccountScope) -> BaseResponse:
    form = forms.submitted("domain")
    name = form.validated(("domain",), domain=domains.LONGEST)["domain"]
    row = email_domains.create(name, by=scope.by)
    notice = gettext("%(domain)s is added. Prove it now.", domain=row.domain)
    return _redirect(notice, scope, row.id)


@domain_page(DOMAIN)
def show_domain(scope: AccountScope, domain_id: str, form: Form | None = None) -> Page:
    """A domain with its DNS record and its settings."""
    form = form or Form()
    row = domains.get(scope.account.id, domain_id)
    stored = {
        "auto_join": "true" if row.auto_join else "",
        "auto_join_role": row.auto_join_role or "",
        "sso_only": "true" if row.sso_only else "",
    }
    form.values = form.values or stored
    context = {"scope": scope, "row": row, "state_names": STATE_NAMES, "days": LOST_AFTER}
    if scope.by.setup is None:
        context |= choices(with_admin=False)
    return form.render("console/sso/domain.html", **context)


@page(DOMAIN, "POST", role=ADMIN, portal=PortalPage.DOMAINS, form_page=show_domain)
def change_domain(scope: AccountScope, domain_id: str) -> BaseResponse:
    """Save the settings of a domain."""
    form = forms.submitted("auto_join", "auto_join_role", "sso_only")
    body = form.validated(auto_join_role=100)
    changes = {name: bool(body[name]) for name in ("auto_join", "sso_only")}
    role = {"auto_join_role": body["auto_join_role"] or None}
    row = email_domains.change(domain_id, {**changes, **role}, by=scope.by)
    return _redirect(gettext("Saved."), scope, row.id)


@domain_page(f"{DOMAIN}/verify", "POST", form_page=show_domain)
def verify_domain(scope: AccountScope, domain_id: str) -> BaseResponse:
    """Look the DNS record up, and verify the domain."""
    row = email_domains.verify(domain_id, by=scope.by)
    notice = gettext("%(domain)s is verified.", domain=row.domain)
    return _redirect(notice, scope, row.id)


@domain_page(f"{DOMAIN}/remove", "POST")
def remove_domain(scope: AccountScope, domain_id: str) -> BaseResponse:
    with forms.ignore_already_deleted(scope.account.id, "account_domains", domain_id):
        email_domains.delete(domain_id, by=scope.by)
    notice = gettext("The domain is removed. Its users are kept.")
    return redirect_with_notice(notice, "console.show_domains", **scope.url_args)


def _redirect(notice: str, scope: AccountScope, domain_id: str) -> BaseResponse:
    url_args = {**scope.url_args, "domain_id": domain_id}
    return redirect_with_notice(notice, "console.show_domain", **url_args)
