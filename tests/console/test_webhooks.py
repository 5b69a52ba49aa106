"""The pages of webhooks and their deliveries, and of jobs."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock, db, jobs
from app.accounts.models import ADMIN
from app.console.admin import jobs as console_jobs
from app.db.functions import database_now
from app.ids import new_id
from app.jobs import Job
from app.webhooks.models import DELIVERIES
from tests.builders import OPEN, Caller, Cast, make_collection, make_record, make_user
from tests.console.browser import HOSTILE, Browser, alert, beside, once, token
from tests.mailbox import run_jobs
from tests.parallel import at_once
from tests.receivers import receiving
from tests.webhooks.delivering import deliver, deliveries, make_webhook

NO_JOB = f"{jobs.INSTANCE}/{jobs.INSTANCE}"
NOWHERE = "http://127.0.0.1:9/hook"
SECRET = re.compile(r'id="secret" class="[^"]*" value="(\w+)" readonly')
SIGNING = re.compile(r'id="signing_secret" class="[^"]*" value="(whsec_[\w+/=]+)" readonly')
PII = [{"name": "title", "type": "text", "pii": True}]


def home_of(caller: Caller) -> str:
    """Where the pages of an account's webhooks are."""
    return f"webhooks/{caller.account_id}"


def test_console_webhook_form_lists_collections_of_owner(app: Flask, cast: Cast) -> None:
    posts = make_collection(cast.root)["id"]
    make_collection(cast.root, "closed", **dict.fromkeys(OPEN))
    admin, home = Browser(app, cast.alice), home_of(cast.alice)
    id = make_webhook(cast.alice, NOWHERE)["id"]
    new, one = f"{home}/new", f"{home}/{id}"
    assert options(admin.get(new).text) == ["Choose a collection", "posts"]
    cast.root.delete(f"collections/{posts}")
    assert options(admin.get(new).text) == ["Choose a collection"]
    assert options(admin.get(one).text) == ["Choose a collection", "posts"]


def options(page: str) -> list[str]:
    """The choices of a collection."""
    (choice,) = re.findall(r'<select id="collection".*?</select>', page, re.DOTALL)
    return re.findall(r">([^<>]+)</option>", choice)


def test_console_webhook_creation_change_and_deletion(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    admin, home = Browser(app, cast.alice), home_of(cast.alice)
    assert admin.client.get("/console/webhooks").headers["Location"].endswith(f"/console/{home}")
    assert "No webhooks yet." in admin.get(home).text
    body = {"url": NOWHERE, "collection": "posts", "filter": "title != 'x'"}
    made = admin.done(f"{home}/new", **body, events=["delete", "create"], headers="X-A: 1: 2\nX-B:")
    (shown,) = cast.alice.get("webhooks").json["items"]
    assert {name: shown[name] for name in body} == body
    assert shown["events"] == ["create", "delete"]
    assert shown["headers"] == {"X-A": "***", "X-B": "***"}
    assert shown["include_pii"] is False
    (secret,), (signing,) = SECRET.findall(made), SIGNING.findall(made)
    assert (len(secret), "not shown again" in made) == (64, True)
    one = f"{home}/{shown['id']}"
    again = admin.client.get(f"/console/{one}/secret", follow_redirects=True).text
    assert "already been shown" in again
    for page in (again, admin.get(home).text, admin.get(one).text):
        assert secret not in page
        assert signing not in page
    changed = {**body, "url": f"{NOWHERE}2", "events": ["update"], "filter": "", "headers": ""}
    assert "The webhook is saved." in admin.done(one, **changed, include_pii="true")
    shown = cast.alice.get(f"webhooks/{shown['id']}").json
    assert (shown["url"], shown["events"], shown["filter"]) == (f"{NOWHERE}2", ["update"], None)
    assert (shown["headers"], shown["include_pii"]) == (None, True)
    assert "disabled" in admin.done(f"{one}/disable")
    assert cast.alice.get(f"webhooks/{shown['id']}").json["enabled"] is False
    assert "enabled" in admin.done(f"{one}/enable")
    rotated = SECRET.findall(admin.done(f"{one}/rotate-secret"))
    assert rotated[0] not in ("", secret)
    assert "is deleted" in admin.done(f"{one}/delete")
    assert cast.alice.get("webhooks").json["total"] == 0


def test_console_webhook_form_sent_twice_makes_one_webhook(app: Flask, cast: Cast) -> None:
    browsers, home = [Browser(app, cast.alice) for _ in range(2)], home_of(cast.alice)
    for _ in range(18):
        make_webhook(cast.alice, NOWHERE)
    new, drawn = f"{home}/new", once(browsers[0].get(f"{home}/new").text)
    sent = {"as": drawn, "url": NOWHERE, "collection": "posts", "events": ["create"]}
    answers = at_once(2, lambda n: browsers[n].send(new, **sent))
    assert [one.status_code for one in answers] == [303, 303]
    assert cast.alice.get("webhooks").json["total"] == 19
    opened = [b.client.get(a.headers["Location"]) for b, a in zip(browsers, answers, strict=True)]
    assert sum(len(SECRET.findall(page.text)) for page in opened) == 1
    # Other events, another webhook; and the last one there may be is told of again, too.
    for _ in range(2):
        assert browsers[0].send(new, **sent | {"events": ["delete"]}).status_code == 303
    assert cast.alice.get("webhooks").json["total"] == 20
    assert browsers[0].send(new, **sent | {"events": ["update"]}).status_code == 409


def test_console_webhook_form_errors_keep_input(app: Flask, cast: Cast) -> None:
    admin, home = Browser(app, cast.alice), home_of(cast.alice)
    wrong = {"url": "ftp://x", "collection": "no such", "filter": "(", "headers": "Host: x"}
    answer = admin.send(f"{home}/new", **wrong, events="create")
    assert answer.status_code == 400
    assert all(beside(answer, name) for name in wrong)
    assert all(f"{text}" in answer.text for text in wrong.values())
    nothing = admin.send(f"{home}/new", headers="X-A 1")
    assert (beside(nothing, "url"), nothing.status_code) == ("Required.", 400)
    made = make_webhook(cast.alice, NOWHERE)
    for changes in ({"headers": "X-A 1"}, {"headers": "X-A: 1\nX-A: 2"}, {"headers": HOSTILE}):
        one = {"url": NOWHERE, "collection": "posts", **changes}
        answer = admin.send(f"{home}/{made['id']}", **one, events="create")
        assert (answer.status_code, bool(beside(answer, "headers"))) == (400, True)
        assert "<script>alert" not in answer.text
    answer = admin.send(f"{home}/{made['id']}", url=NOWHERE, collection="posts")
    assert beside(answer, "events") == "Choose at least one."
    answer = admin.send(f"{home}/deliveries/resend-undelivered?from_date=yesterday")
    assert (answer.status_code, bool(beside(answer, "from_date"))) == (400, True)


def test_console_webhook_form_after_concurrent_change_is_409(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    admin, made = Browser(app, cast.alice), make_webhook(cast.alice, NOWHERE)["id"]
    one, body = f"{home_of(cast.alice)}/{made}", {"url": NOWHERE, "collection": "posts"}

    def seen(page: str) -> dict[str, Any]:
        (moment,) = re.findall(r'name="seen" value="([^"]+)"', page)
        return {**body, "events": ["create"], "headers": "X-A: mine", "seen": moment}

    sent = seen(admin.get(one).text)
    changed = cast.alice.patch(f"webhooks/{made}", {"filter": "title = 'theirs'"})
    assert changed.status_code == 200
    late = admin.send(one, **sent)
    assert (late.status_code, "Somebody else has changed this" in alert(late)) == (409, True)
    assert "X-A: mine" in late.text
    assert cast.alice.get(f"webhooks/{made}").json["filter"] == "title = 'theirs'"
    assert "The webhook is saved." in admin.done(one, **seen(late.text))
    assert cast.alice.get(f"webhooks/{made}").json["headers"] == {"X-A": "***"}


def fail_all(app: Flask) -> None:
    """Let all deliveries have failed for good."""
    with app.app_context(), db.transaction() as session:
        failed = sa.update(DELIVERIES).values(status="failed", due_at=None)
        session.execute(failed)


def test_console_delivery_list_filters_and_resend(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    admin, home = Browser(app, cast.alice), home_of(cast.alice)
    assert "No deliveries yet" in admin.get(f"{home}/deliveries").text
    with receiving(lambda request: (500, HOSTILE)) as receiver:
        first = make_webhook(cast.alice, receiver.url)
        second = make_webhook(cast.alice, receiver.url, events=["delete"])
        make_record(cast.alice, title=HOSTILE)
        deliver(app)
        (row,) = deliveries(app)
        one = f"{home}/{first['id']}/deliveries/{row.id}"
        page = admin.get(one).text
        for told in ("500", "The receiver responded with 500.", "records.create", "retrying"):
            assert told in page
        assert "<script>alert" not in page
        with app.app_context(), db.transaction() as session:
            session.execute(
                sa.update(DELIVERIES).values(due_at=clock.now() + timedelta(seconds=30))
            )
        assert "1 attempt, due now" in admin.get(f"{home}/deliveries").text
        assert "sent again under the same id" in admin.done(f"{one}/redeliver")
        deliver(app)
        fail_all(app)
        again = admin.done(f"{one}/redeliver")
        assert "sent again as this new one" in again
        assert row.id[-8:] in again
        deliver(app)
    assert receiver.requests[1].delivery == row.id
    assert receiver.requests[2].headers["x-service-replay-of"] == row.id
    for query, number in {
        "": 2,
        f"webhook={first['id']}": 2,
        f"webhook={second['id']}": 0,
        "status=retrying": 1,
        "status=failed": 1,
        "event=records.create": 2,
        "event=webhook.test": 0,
        "from_date=2020-01-01": 2,
        "from_date=0001-01-01": 2,
        "to_date=2020-01-01": 0,
        "from_date=9999-12-31T23:59:59": 0,
    }.items():
        found = admin.get(f"{home}/deliveries?{query}").text
        assert len(re.findall(r'<th scope="row">', found)) == number, query
    assert "is not a date" in admin.get(f"{home}/deliveries?from_date=soon").text
    waiting = admin.send(f"{home}/{first['id']}/disable")
    assert waiting.status_code == 303
    refused = admin.send(f"{one}/redeliver")
    assert (refused.status_code, "Enable it first" in alert(refused)) == (409, True)


def test_console_delivery_that_cannot_be_resent_says_why(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    webhook = make_webhook(cast.alice, "https://hooks.example.com/x", collection="posts")
    make_record(cast.alice, title="x")
    admin, path = Browser(app, cast.alice), f"webhooks/{cast.alice.account_id}/deliveries"
    assert "Pending deliveries cannot be resent." in admin.get(path).text
    admin.done(f"webhooks/{cast.alice.account_id}/{webhook['id']}/disable")
    shown = admin.get(path).text
    assert "Deliveries of a disabled or deleted webhook cannot be resent." in shown
    assert 'name="delivery"' not in shown


def test_console_webhook_test_and_resend_of_failed_deliveries(app: Flask, cast: Cast) -> None:
    admin, home = Browser(app, cast.alice), home_of(cast.alice)
    with receiving(lambda request: (202, "fine")) as receiver:
        made = make_webhook(cast.alice, receiver.url)
        page = admin.done(f"{home}/{made['id']}/test")
        assert "The receiver accepted the test." in page
        assert "webhook.test" in page
        fail_all(app)
        resend = f"{home}/deliveries/resend-undelivered?webhook={made['id']}"
        told = admin.done(resend)
        assert ("0 of 1 finished" in told, "data-live" in told) == (True, True)
        path = re.findall(r'<a href="(/console/[^"]*/resent[^"]*)"', told)[0]
        run_jobs(app)
        assert "0 of 1 finished" in admin.client.get(html.unescape(path)).text
        deliver(app)
        told = admin.client.get(html.unescape(path)).text
        assert ("1 of 1 finished" in told, "data-live" in told) == (True, False)
        assert re.findall(r'data-label="Response">(\d+)<', told) == ["202"]
        page = f"{home}/deliveries/resent"
        for wrong in ("until=x", "from_date=x"):
            assert admin.get(f"{page}?{wrong}").status_code == 404
        longest = "from_date=0001-01-01T00:00:00Z&until=9999-12-31T23:59:59Z"
        assert admin.get(f"{page}?{longest}").status_code == 200
        assert "No matching delivery has failed" in admin.done(resend)
    assert len(receiver.requests) == 2
    assert "The test failed" in admin.done(f"{home}/{made['id']}/test")


def test_console_delivery_personal_data_needs_pii_access(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=PII)
    with receiving() as receiver:
        made = make_webhook(cast.alice, receiver.url, include_pii=True)
        make_record(cast.alice, title="Ada Lovelace")
        deliver(app)
    one = f"{home_of(cast.alice)}/{made['id']}"
    delivery = f"{one}/deliveries/{deliveries(app)[0].id}"
    dan = Browser(app, Caller(app, make_user(app, cast.alice.account_id, "dan@x.example", ADMIN)))
    assert "Ada Lovelace" in Browser(app, cast.alice).get(delivery).text
    page = dan.get(delivery).text
    assert "Ada Lovelace" not in page
    assert "Only members of the group pii_access" in page
    log = f"{home_of(cast.alice)}/deliveries"
    assert "Ada Lovelace" in Browser(app, cast.alice).get(log).text
    assert "Ada Lovelace" not in dan.get(log).text
    assert "include_pii" not in dan.get(f"{home_of(cast.alice)}/new").text
    kept = {"url": NOWHERE, "collection": "posts", "events": "create"}
    assert dan.send(one, **kept, include_pii="true").status_code == 403
    assert dan.send(one, **kept).status_code == 303


def paths_of(app: Flask, cast: Cast) -> list[tuple[str, str]]:
    """Every page and form of one webhook of acme."""
    make_collection(cast.root)
    made = make_webhook(cast.alice, NOWHERE)
    make_record(cast.alice, title="x")
    home = home_of(cast.alice)
    one, delivery = f"{home}/{made['id']}", deliveries(app)[0].id
    pages = (
        home,
        f"{home}/new",
        f"{home}/deliveries",
        f"{home}/deliveries/resent",
        one,
        f"{one}/secret",
    )
    forms = ("", "/enable", "/disable", "/rotate-secret", "/test", "/delete")
    at = f"{one}/deliveries/{delivery}"
    resends = (f"{home}/deliveries/{form}" for form in ("resend", "resend-undelivered"))
    sent = (f"{home}/new", *resends, *(f"{one}{form}" for form in forms), f"{at}/redeliver")
    return [("GET", path) for path in (*pages, at)] + [("POST", path) for path in sent]


def test_console_webhook_pages_access_per_account(app: Flask, cast: Cast) -> None:
    paths = paths_of(app, cast)
    for caller, refusal in ((cast.bob, 403), (cast.charlie, 404)):
        browser = Browser(app, caller)
        data = {"csrf_token": token(browser.client)}
        for method, path in paths:
            answer = browser.client.open(f"/console/{path}", method=method, data=data)
            assert answer.status_code == refusal, (method, path)
    assert cast.alice.get("webhooks").json["total"] == 1
    root = Browser(app, cast.root)
    for method, path in paths:
        if method == "GET" and not path.endswith("/secret"):
            answer = root.get(path)
            assert answer.status_code == 200, path
            assert "Account: Acme. Switch" in answer.text
    assert cast.alice.account_id in root.get("webhooks").text
    foreign = make_webhook(cast.charlie, NOWHERE)["id"]
    alice = Browser(app, cast.alice)
    assert alice.get(f"{home_of(cast.alice)}/{foreign}").status_code == 404
    assert alice.get(f"{home_of(cast.alice)}/nonsense").status_code == 404


def job_in(app: Flask, **changes: Any) -> str:
    """A job as it may stand in the table; returns its id."""
    with app.app_context(), db.transaction() as session:
        soon = database_now(changes.pop("due_in", 0))
        values = {"account_id": jobs.INSTANCE, "kind": "jobs.purge", "payload": {}, **changes}
        id = new_id()
        session.execute(sa.insert(Job).values(id=id, due_at=soon, **values))
        return id


def test_console_job_list_retries_failed_jobs(app: Flask, cast: Cast) -> None:
    root = Browser(app, cast.root)
    over = {"finished_at": clock.now(), "attempts": 8}
    job_in(app)
    job_in(app, due_in=60, attempts=1, last_error="OSError")
    job_in(app, due_in=60, attempts=1)
    job_in(app, due_in=60, **over)  # a periodic one that waits for its next time
    failed = job_in(app, status="failed", last_error="SMTPException", **over)
    job_in(app, status="done", **over)
    for status, number in {"waiting": 3, "running": 1, "failed": 1, "done": 1}.items():
        page = root.get(f"jobs?status={status}").text
        assert len(re.findall(r'<th scope="row">', page)) == number, status
    page = root.get("jobs?kind=jobs.purge").text
    assert "SMTPException" in page
    assert re.search("Removal of old jobs</a><br><code[^>]*>jobs.purge</code>", page)
    retry = f"jobs/{jobs.INSTANCE}/{failed}/retry"
    assert "queued again" in root.done(retry)
    assert root.send(retry).status_code == 404
    with app.app_context():
        states = db.db.session.scalars(sa.select(Job.status)).all()
    assert sorted(states) == ["done", "pending", "pending", "pending", "pending", "pending"]


def test_console_job_names_cover_every_kind(app: Flask) -> None:
    assert console_jobs.NAMES.keys() == set(jobs.kinds())
    assert len(set(map(str, console_jobs.NAMES.values()))) == len(console_jobs.NAMES)


def test_console_job_page_hides_secrets(app: Flask, cast: Cast, superadmin: Browser) -> None:
    invited = cast.alice.post("invitations", {"email": "dora@acme.example"}).json["id"]
    with app.app_context():
        job = db.db.session.scalars(sa.select(Job).where(Job.kind == "auth.send_invitation")).one()
        token = job.payload["token"]
        path, job_id = f"jobs/{job.account_id}/{job.id}", job.id
    assert f'href="/console/{path}"' in superadmin.get("jobs").text
    page = superadmin.get(path).text
    assert invited in page
    assert token not in page
    assert "Invitation mail" in page
    assert job_id in page
    assert re.search('href="/console/[^"]*invitations">dora@acme.example</a>', page)
    assert superadmin.get(f"jobs/{cast.charlie.account_id}/{path[-36:]}").status_code == 404


@pytest.mark.parametrize(
    "path", ["jobs", f"jobs/{NO_JOB}", f"jobs/{NO_JOB}/retry"], ids=["list", "one", "retry"]
)
def test_console_jobs_require_superadmin(app: Flask, cast: Cast, path: str) -> None:
    alice = Browser(app, cast.alice)
    answer = alice.send(path) if path.endswith("retry") else alice.get(path)
    assert answer.status_code == 403
