"""For superadmins: all accounts and their users, deleted accounts, templates and plans."""

from __future__ import annotations

from functools import partial

import orjson
import sqlalchemy as sa
from flask import Response, render_template, request
from werkzeug.wrappers import Response as BaseResponse

from app import db
from app.accounts import groups, tenants, users
from app.accounts.attributes import Kind, Level
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, User
from app.accounts.plans import schemas, service, stored
from app.accounts.plans import stored as plans
from app.accounts.product import settings
from app.audit.chain import signing
from app.auth import principal as principals
from app.auth.mfa import enrolment
from app.console.people import attribute_form, user_lists
from app.console.people.attribute_form import AttributeForm
from app.console.people.users import MAX_GROUPS, choices
from app.console.records import writers
from app.console.shell import forms, guard, lists, navigation
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.navigation import INSTANCE, MenuItem
from app.db import counts
from app.errors import InvalidValues, problem
from app.manifest import templates
from app.portability import certificates
from app.types import JSONObject
from app.web.languages import gettext, lazy_gettext

DELETIONS = "/console/accounts/deletions"

MAX_SUGGESTED = 100
SORTS = ("-created_at", "name", "slug")
BRANDS = {None: "", True: "yes", False: "no"}
ONE_ACCOUNT = "/console/accounts/<uuid:account_id>"
TEMPLATES = "/console/account-templates"
MAX_JOBS = 20
PLANS = "/console/plans"
STATES = {"": None, "given": True, "taken": False}


@page(
    "/console/accounts",
    role=SUPERADMIN,
    menu=MenuItem(INSTANCE, 1, lazy_gettext("Accounts"), "building"),
)
def show_accounts() -> str:
    states = {"active": gettext("active"), "suspended": gettext("suspended")}
    listing = lists.from_request("console.show_accounts", {"status": states}, sorts=SORTS)
    status = listing.filters.get("status")
    only = {"is_active": status == "active"} if status else {}
    order = "desc" if listing.sort.startswith("-") else "asc"
    only |= {"sort_by": listing.sort.removeprefix("-"), "sort_order": order}
    listing.with_page(tenants.page({**listing.page_args, **only}))
    of_each = [[User.account_id == account.id] for account in listing.items]
    return render_template(
        "console/accounts/list.html",
        listing=listing,
        users=counts.count_each_up_to(User, of_each, lists.MAX_COUNTED),
        system_id=SYSTEM_ACCOUNT_ID,
    )


@page("/console/accounts/new", role=SUPERADMIN)
def show_new_account(form: Form | None = None) -> Page:
    return (form or Form()).over(_attributes(Kind.ACCOUNTS)).render("console/accounts/new.html")


def _attributes(kind: Kind) -> AttributeForm:
    return attribute_form.stored(kind, Level.SUPERADMIN, {})


@page("/console/accounts/new", "POST", role=SUPERADMIN, form_page=show_new_account)
def create_account() -> BaseResponse:
    form = attribute_form.submitted(_attributes(Kind.ACCOUNTS), "name", "slug")
    body = form.validated(("name",), name=200, slug=200)
    account = tenants.create(body["name"], body["slug"] or None, form.attributes(new=True))
    notice = gettext(
        "The account %(name)s is created. Add its first user as admin.", name=account.name
    )
    return redirect_with_notice(notice, "console.show_account", account_id=account.id)


@page(ONE_ACCOUNT, role=SUPERADMIN)
def show_account(account_id: str, form: Form | None = None) -> Page:
    account = tenants.get(account_id)
    if account.is_active:
        navigation.enter_account(account.id, account.name)
    listing = lists.from_request("console.show_account", account_id=account.id)
    listing.load_search(
        partial(users.page, account.id), partial(users.cursor_at_offset, account.id)
    )
    is_system = account.id == SYSTEM_ACCOUNT_ID
    known = plans.load()
    flags = sorted({*plans.all_flags(known), *account.flags})
    form = form or Form()
    form.values.setdefault("may_brand", BRANDS[account.may_brand])
    form.values.setdefault("plan", account.plan or "")
    for name, has in account.flags.items():
        form.values.setdefault(f"flag_{name}", "given" if has else "taken")
    return form.render(
        "console/accounts/one.html",
        account=account,
        listing=listing,
        is_system=is_system,
        brands={
            "": gettext("As the product says: yes")
            if settings.load().accounts_may_brand
            else gettext("As the product says: no"),
            "yes": gettext("Yes"),
            "no": gettext("No"),
        },
        plans=known,
        plan_names={name: name for name in known},
        flags=flags,
        flag_states={"given": gettext("given"), "taken": gettext("taken away")},
    )


@page(
    f"{ONE_ACCOUNT}/<any(suspend, resume):action>",
    "POST",
    role=SUPERADMIN,
    form_page=show_account,
)
def suspend_or_resume_account(account_id: str, action: str) -> BaseResponse:
    account = tenants.change(account_id, {"is_active": action == "resume"})
    if account.is_active:
        notice = gettext("%(account)s is active again.", account=account.name)
    else:
        notice = gettext("%(account)s is suspended.", account=account.name)
    return redirect_with_notice(notice, "console.show_account", account_id=account_id)


@page(f"{ONE_ACCOUNT}/brand", "POST", role=SUPERADMIN, form_page=show_account)
def change_who_brands(account_id: str) -> BaseResponse:
    """Save whether an account may have a brand of its own."""
    may = {"yes": True, "no": False}.get(forms.submitted("may_brand")["may_brand"])
    tenants.change(account_id, {"may_brand": may})
    notice = gettext("The settings are saved.")
    return redirect_with_notice(notice, "console.show_account", account_id=account_id)


@page(f"{ONE_ACCOUNT}/close", "POST", role=SUPERADMIN, renders_form=True, form_page=show_account)
def close_account(account_id: str) -> BaseResponse:
    """Close an account after its slug was typed."""
    account, form = tenants.get(account_id), forms.submitted("slug")
    name = account.name
    if form["slug"] != account.slug:
        message = gettext("Type %(slug)s to close this account.", slug=account.slug)
        raise InvalidValues([problem("slug", "invalid_option", message)])
    tenants.close(account_id)
    notice = gettext("%(account)s is closed; its data is being removed.", account=name)
    return redirect_with_notice(notice, "console.show_deletions")


@page("/console/users", role=SUPERADMIN, menu=MenuItem(INSTANCE, 2, lazy_gettext("Users"), "users"))
def show_users() -> str:
    listing = user_lists.load("console.show_users", None, {})
    return render_template("console/users/list.html", listing=listing)


@page("/console/users/new", role=SUPERADMIN)
def show_new_user(form: Form | None = None) -> Page:
    if form is None:
        account = request.args.get("account", "")[:100]  # no other: this page is about all
        form = Form({"role": "admin" if account else "viewer", "account": account})
    chosen = principals.find_active_account(form["account"])
    shown, total = groups.page(chosen.id, 0, MAX_GROUPS, None) if chosen else ([], 0)
    return form.over(_attributes(Kind.USERS)).render(
        "console/users/new.html",
        accounts=tenants.names_by_slug(MAX_SUGGESTED),
        chosen=chosen,
        groups=shown,
        other_groups=total - len(shown),
        **choices(),
    )


@page("/console/users/new", "POST", role=SUPERADMIN, form_page=show_new_user)
def create_user() -> BaseResponse:
    """Create a user, and mail a link to set the password."""
    form = attribute_form.submitted(
        _attributes(Kind.USERS), "account", "email", "name", "role", selected="groups"
    )
    by = guard.require_caller()
    body = form.validated(("account", "email"), account=100, email=320, name=200)
    account = principals.reload_active_account(body["account"])
    if account is None:
        message = gettext("No active account with this id.")
        raise InvalidValues([problem("account", "invalid_reference", message)])
    enrolment.check_group_assignment(account.id, form.selected, by=by)
    values: JSONObject = {**body, "name": body["name"] or None, "groups": form.selected}
    values["attributes"] = form.attributes(new=True)
    user = enrolment.enrol(account.id, values, by=by.user_id)
    notice = gettext("We have sent a link to set a password to %(email)s.", email=user.email)
    return redirect_with_notice(notice, "console.show_user", user_id=user.id)


@page(DELETIONS, role=SUPERADMIN)
def show_deletions() -> str:
    """The accounts that were deleted, each with its certificate."""
    listing = lists.from_request("console.show_deletions")
    listing.with_page(certificates.page(listing.page_args))
    return render_template(
        "console/accounts/deletions.html",
        listing=listing,
        people=writers.superadmins({one.closed_by for one in listing.items}),
        public_keys=signing.public_keys(),
    )


@page(f"{DELETIONS}/<uuid:account_id>/certificate", role=SUPERADMIN)
def download_certificate(account_id: str) -> Response:
    certificate = orjson.dumps(certificates.get(account_id), option=orjson.OPT_INDENT_2)
    name = f"deletion-{account_id.lower()}.json"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(certificate, mimetype="application/json", headers=headers)


@page(
    TEMPLATES,
    role=SUPERADMIN,
    menu=MenuItem(INSTANCE, 8, lazy_gettext("Account templates"), "copy"),
)
def show_account_templates() -> str:
    return render_template(
        "console/account_templates.html",
        templates=templates.versions(),
        behind=templates.behind(100),
        jobs=(jobs := templates.newest_jobs(MAX_JOBS)),
        is_live=any(job.finished_at is None for job in jobs),
    )


@page(PLANS, role=SUPERADMIN, menu=MenuItem(INSTANCE, 7, lazy_gettext("Plans"), "bookmark"))
def show_plans(form: Form | None = None) -> Page:
    known = stored.load()
    counted = sa.select(Account.plan, sa.func.count()).where(Account.plan.is_not(None))
    counts = dict(db.db.session.execute(counted.group_by(Account.plan)).all())
    if form is None:
        bodies = {name: plan.body for name, plan in known.items()}
        form = Form({"plans": orjson.dumps(bodies, option=orjson.OPT_INDENT_2).decode()})
    return form.render("console/plans.html", plans=known, counts=counts)


@page(PLANS, "POST", role=SUPERADMIN, form_page=show_plans)
def change_plans() -> BaseResponse:
    """Replace the plans by those of the text."""
    form = forms.submitted("plans")
    try:
        body = orjson.loads(form["plans"] or "{}")
        if not isinstance(body, dict):
            raise InvalidValues([problem("plans", "invalid_json", gettext("Expected an object."))])
        service.change(schemas.load(body), whole=True)
    except orjson.JSONDecodeError:
        message = gettext("This is not valid JSON.")
        raise InvalidValues([problem("plans", "invalid_json", message)]) from None
    except InvalidValues as error:
        lines = (
            f"{one['field']}: {one['message']}" if one["field"] != "plans" else str(one["message"])
            for one in error.details
        )
        raise InvalidValues([problem("plans", "invalid_json", "; ".join(lines))]) from error
    return redirect_with_notice(gettext("The plans are saved."), "console.show_plans")


@page(f"{ONE_ACCOUNT}/plan", "POST", role=SUPERADMIN, form_page=show_account)
def change_plan(account_id: str) -> BaseResponse:
    """Give an account a plan, and flags beside it."""
    names = sorted({*stored.all_flags(stored.load()), *tenants.get(account_id).flags})
    form = forms.submitted("plan", *(f"flag_{name}" for name in names))
    flags = {name: STATES.get(form[f"flag_{name}"]) for name in names}
    body: JSONObject = {"plan": form["plan"] or None, "overrides": {"flags": flags}}
    tenants.change(account_id, body)
    notice = gettext("The plan is saved.")
    return redirect_with_notice(notice, "console.show_account", account_id=account_id)
