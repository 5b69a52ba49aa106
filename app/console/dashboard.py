"""The dashboard of an account: what happened in it, what fails, and what was changed last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flask import render_template, request

from app.collections import definition
from app.collections.definition import Definition
from app.console import recent
from app.console.shell import charts, guard, scopes
from app.console.shell.blueprint import blueprint
from app.console.shell.scopes import Place
from app.rest.access import public
from app.webhooks import service as webhooks
from app.workflows import instances

MOST_FAILING = 5
MOST_NAMED = 5


@dataclass(frozen=True)
class Collections:
    """What the rules open of the collections: all records of some, none or a part of others."""

    opened: Sequence[Definition]
    closed: Sequence[str]

    @property
    def named(self) -> str:
        """Some of those that are closed, for a sentence."""
        rest = len(self.closed) - MOST_NAMED
        return ", ".join([*self.closed[:MOST_NAMED], *([f"{rest} others"] if rest > 0 else [])])


@blueprint.get("/console/accounts/<uuid:account_id>/dashboard")
@public
@guard.for_superadmins
def show_dashboard(account_id: str) -> str:
    """The dashboard of any account."""
    place = scopes.found(account_id)
    return render_template("console/dashboard.html", **of(place))


def of(place: Place) -> dict[str, Any]:
    """What the dashboard of an account tells."""
    whole, known = request.args.get("count") == "all", collections(place)
    account_id = place.account.id
    return {
        "place": place,
        "collections": known,
        "charts": [
            charts.of_records(account_id, known.opened, whole=whole),
            charts.of_deliveries([account_id], whole=whole),
            charts.of_sign_ins([account_id], whole=whole),
        ],
        "webhooks": webhooks.failing(MOST_FAILING, by=place.by),
        "instances": instances.failed(MOST_FAILING, by=place.by),
        "changes": recent.changes(place, known.opened),
        "ask": scopes.WHOM_TO_ASK,
    }


def collections(place: Place) -> Collections:
    """The collections, by whether the rules show the caller all of their records."""
    opened, closed = [], []
    for one in definition.get_all():
        access = place.access(one, "list")
        if access is not None and access.condition is None:
            opened.append(one)
        else:
            closed.append(one.name)
    return Collections(opened, closed)
