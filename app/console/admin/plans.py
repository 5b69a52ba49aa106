"""The plans of the instance, and what an account has by its plan and beside it, for superadmins."""

from __future__ import annotations

import orjson
import sqlalchemy as sa
from werkzeug.wrappers import Response as BaseResponse

from app import db
from app.accounts import tenants
from app.accounts.models import Account
from app.accounts.plans import schemas, service, stored
from app.console.admin.instance import ONE_ACCOUNT, show_account
from app.console.shell import forms
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.navigation import INSTANCE, MenuItem
from app.errors import InvalidValues, problem
from app.types import JSONObject
from app.web.languages import gettext, lazy_gettext

PLANS = "/console/plans"
STATES = {"": None, "given": True, "taken": False}


@page(PLANS, role=SUPERADMIN, menu=MenuItem(INSTANCE, 7, lazy_gettext("Plans"), "files"))
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
