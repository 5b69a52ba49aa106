"""The pages of events and of the operator's webhooks."""

from __future__ import annotations

import re

from flask import Flask

from tests.builders import Cast
from tests.console.browser import Browser, beside, once
from tests.operator.test_webhooks import seal
from tests.receivers import receiving
from tests.webhooks.delivering import deliver

URL = "http://127.0.0.1:9/billing"


def test_console_lists_events_for_superadmins(
    cast: Cast, superadmin: Browser, admin: Browser
) -> None:
    assert admin.get("events").status_code == 403
    cast.root.post("accounts", {"name": "Initech"})
    page = superadmin.get("events?type=account.created").text
    assert "initech" in page
    assert "user.created" not in re.sub(r"<option.*?</option>", "", page)
    assert "initech" in superadmin.get("events?account=initech").text
    assert ">initech<" not in superadmin.get("events?account=acme").text
    assert ">initech<" not in superadmin.get("events?account=nobody").text


def test_console_pages_of_events_go_back(cast: Cast, superadmin: Browser) -> None:
    for number in range(30):
        cast.root.post("accounts", {"name": f"Tenant {number}"})
    page = superadmin.get("events?type=account.*").text
    older = re.search(r'rel="next" href="([^"]+)"', page)
    first = re.findall(r">tenant-(\d+)<", page)
    assert first[0] == "29"
    if older:
        rest = superadmin.get(older[1].replace("&amp;", "&")).text
        assert not set(first) & set(re.findall(r">tenant-(\d+)<", rest))


def test_console_manages_webhooks_of_events(app: Flask, cast: Cast, superadmin: Browser) -> None:
    blank = superadmin.get("events/webhooks/new").text
    form = {"as": once(blank), "url": URL, "types": "user.nothing", "collections": ""}
    refused = superadmin.send("events/webhooks/new", **form)
    assert refused.status_code == 400
    assert "no type" in beside(refused, "types")
    with receiving() as receiver:
        form |= {"url": receiver.url, "types": "account.created", "collections": "posts"}
        page = superadmin.done("events/webhooks/new", **form)
        assert "It is not shown again." in page
        (made,) = cast.root.get("operator/webhooks").json["items"]
        assert (made["types"], made["collections"]) == (["account.created"], ["posts"])
        path = f"events/webhooks/{made['id']}"
        assert "accepted the test" in superadmin.done(f"{path}/test")
        cast.root.post("accounts", {"name": "Initech"})
        seal(app)
        deliver(app)
        page = superadmin.get(path).text
        assert "account.created" in page
        (sent,) = cast.root.get(
            f"operator/webhooks/{made['id']}/deliveries", query_string={"event": "account.created"}
        ).json["items"]
        shown = superadmin.get(f"{path}/deliveries/{sent['id']}").text
        assert '<span class="json-key">&#34;account_id&#34;</span>' in shown
        again = superadmin.done(f"{path}/deliveries/{sent['id']}/redeliver", **{"as": once(shown)})
        assert "is sent again" in again
    assert "The webhook is saved." in superadmin.done(path, **{**form, "types": "user.*"})
    assert "is disabled" in superadmin.done(f"{path}/disable")
    assert "It is not shown again." in superadmin.done(f"{path}/rotate-secret")
    assert (
        "already been shown"
        in superadmin.client.get(f"/console/{path}/secret", follow_redirects=True).text
    )
    assert "You own the webhook now." in superadmin.done(f"{path}/take-over")
    assert "The webhook is deleted." in superadmin.done(f"{path}/delete")
    assert cast.root.get("operator/webhooks").json["items"] == []
