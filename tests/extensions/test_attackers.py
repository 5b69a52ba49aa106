"""Extensions that err or mean harm: what happens to them, and to everybody else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from threading import Thread
from typing import Any

import pytest
from flask import Flask

from app import db
from app.auth import principal as principals
from app.context import deadline
from app.extend import Caller as ExtensionsCaller
from app.extend import (
    Forbidden,
    NotFound,
    Refused,
    Schema,
    before_create,
    before_update,
    endpoint,
    fields,
)
from app.extend.testing import Instance
from app.extensions import loading, registry, running
from app.extensions.caller import system
from app.extensions.registry import Kind
from tests.builders import Caller, Cast, make_collection, make_record
from tests.console.browser import sign_in
from tests.extensions.folders import extended
from tests.receivers import receiving
from tests.usage.test_quotas import limit

Handler = Callable[[Any, dict[str, Any]], object]


@pytest.fixture
def posts(cast: Cast) -> Cast:
    """The cast with two collections."""
    make_collection(cast.root)
    make_collection(cast.root, "notes", view_rule='@request.auth.role = "admin"')
    return cast


def shop(handler: Handler) -> Callable[[], None]:
    """An extension with one handler before posts are created."""

    def shop() -> None:
        before_create("posts")(handler)

    return shop


@pytest.fixture
def hurried(app: Flask) -> None:
    """Requests have one second for a statement."""
    settings = app.extensions["atrium.config"]
    app.extensions["atrium.config"] = replace(settings, statement_seconds=1)


def loop(caller: Any, record: dict[str, Any]) -> None:
    while True:
        pass


def loop_and_catch(caller: Any, record: dict[str, Any]) -> None:
    for _ in range(10**9):
        try:
            while True:
                sum(range(100))
        except Exception:  # noqa: BLE001, S112 - as bad code does
            continue


def loop_and_catch_everything(caller: Any, record: dict[str, Any]) -> None:
    for _ in range(2):
        try:
            while True:
                pass
        except BaseException:  # noqa: BLE001, S112 - as the worst code does
            continue
    while True:
        pass


class Endless:
    """What its destructor raises, Python drops."""

    def __del__(self) -> None:
        while True:
            pass


def drop_without_end(caller: Any, record: dict[str, Any]) -> None:
    Endless()
    while True:
        pass


def read_without_end(caller: Any, record: dict[str, Any]) -> None:
    while True:
        caller.records("posts").count()


def write_without_end(caller: Any, record: dict[str, Any]) -> None:
    while True:
        caller.records("notes").create({"title": "more"})


@pytest.mark.long
@pytest.mark.parametrize(
    "handler",
    [
        *(loop, loop_and_catch, loop_and_catch_everything, drop_without_end),
        *(read_without_end, write_without_end),
    ],
)
def test_endless_handler_ends_with_the_time_of_a_request(
    posts: Cast, hurried: None, handler: Handler
) -> None:
    began = time.monotonic()
    with loading.loaded(shop(handler)):
        answer = posts.bob.post("records/posts", {"title": "a"})
    assert answer.status_code in (400, 500, 503), answer.json
    assert time.monotonic() - began < 8
    # The next ones write at once: nothing holds a lock, and no exception comes late.
    began = time.monotonic()
    for _ in range(20):
        make_record(posts.charlie)
    assert time.monotonic() - began < 4
    assert posts.alice.get("records/notes").json["total"] == 0


ENDLESS = """
from itertools import repeat
from app.extend import *
from app.extend import http

class Query(Schema):
    url = fields.String()

class Answer(Schema):
    lines = fields.List(fields.String())

def lines():
    while True:
        yield "x"
        if False: break

@endpoint("GET", "/requests", query=Query)
def ask(caller, body, query):
    while True:
        http.get(query["url"], trusted=True)

@endpoint("GET", "/lines", answer=Answer)
def answer(caller, body):
    return {"lines": lines()}

@endpoint("GET", "/repeated", answer=Answer(many=True))
def repeated(caller, body):
    return repeat({})

@console_page("/page", title="Endless")
def page(caller, request):
    return request.render("page.html")

@field_type("endless")
class Endless:
    label = "Endless"
    schema = {"type": "string"}
    def clean(self, value, options):
        while value == "x":
            pass
        return value
"""
TEMPLATE = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.long
def test_what_the_product_calls_for_a_handler_ends_with_the_time_of_a_request() -> None:
    """Templates, answers, field types; and requests, which are nearly all that their loop does."""
    files = {"endless/__init__.py": ENDLESS, "endless/templates/page.html": TEMPLATE}
    with (
        receiving(lambda request: (time.sleep(0.3), (200, "ok"))[1]) as service,
        extended("sqlite", files=files, changes={"statement_seconds": 1}) as one,
    ):
        alice = one.cast.alice
        make_collection(one.cast.root, "kept", [{"name": "a", "type": "endless"}])
        browser = one.app.test_client()
        sign_in(browser, alice)
        calls: dict[str, Callable[[], Any]] = {
            "requests": lambda: alice.get("x/endless/requests", query_string={"url": service.url}),
            "lines": lambda: alice.get("x/endless/lines"),
            "repeated": lambda: alice.get("x/endless/repeated"),
            "page": lambda: browser.get("/console/x/endless/page"),
            "field type": lambda: alice.post("records/kept", {"a": "x"}),
        }
        for name, call in calls.items():
            began = time.monotonic()
            answer = call()
            assert answer.status_code == 500, (name, answer.text)
            assert 0.9 < time.monotonic() - began < 4, name
        assert make_record(alice, "kept", a="y")["a"] == "y"


@pytest.mark.long
@pytest.mark.both_databases
def test_handlers_of_one_request_share_its_time(posts: Cast, hurried: None) -> None:
    def pause(caller: Any, old: dict[str, Any], record: dict[str, Any]) -> None:
        time.sleep(0.3)

    def shop() -> None:
        before_update("posts")(pause)

    ids = [make_record(posts.bob, title="a")["id"] for _ in range(20)]
    changes = [{"id": id, "data": {"title": "b"}} for id in ids]
    with loading.loaded(shop):
        began = time.monotonic()
        answer = posts.bob.patch("records/posts/batch", {"records": changes})
        assert time.monotonic() - began < 3
        assert (answer.status_code, answer.json["error"]) == (400, "too_expensive")
        # The next request has its own.
        assert posts.bob.patch("records/posts/batch", {"records": changes[:2]}).status_code == 200
    titles = [one["title"] for one in posts.bob.get("records/posts").json["items"]]
    assert sorted(titles) == ["a"] * 18 + ["b"] * 2


def test_others_write_while_a_handler_of_a_create_runs(posts: Cast) -> None:
    """On SQLite, too: the transaction begins with its first statement, which comes later."""
    answers = []

    def write_meanwhile() -> None:
        answers.append(posts.charlie.post("records/notes", {"title": "meanwhile"}).status_code)

    def wait_for_another(caller: Any, record: dict[str, Any]) -> None:
        thread = Thread(target=write_meanwhile)
        thread.start()
        thread.join()

    make_record(posts.bob)  # loads the definition and the caller, which are read once
    with loading.loaded(shop(wait_for_another)):
        make_record(posts.bob)
    assert answers == [201]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret 4711"),
        SystemExit(3),
        RecursionError(),
        MemoryError(),
        NotFound(),
        Exception("\ud800"),
        asyncio.CancelledError("4711"),
        GeneratorExit(),
        KeyboardInterrupt(),
        type("Own", (BaseException,), {})("4711"),
    ],
    ids=repr,
)
def test_handler_that_raises_is_500_named_in_log_and_metric(
    posts: Cast, error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(caller: Any, record: dict[str, Any]) -> None:
        raise error

    before = failures("shop.fail")
    with loading.loaded(shop(fail)):
        answer = posts.bob.post("records/posts", {"title": "a"})
    assert answer.status_code == 500
    assert answer.json == {"error": "internal_error", "message": running.HandlerFailed.message}
    assert failures("shop.fail") == before + 1
    printed = capsys.readouterr().out
    assert "extension failed" in printed
    assert '"extension":"shop"' in printed
    assert "4711" not in printed


def failures(handler: str) -> float:
    """The counted failures of a handler."""
    labels = {"extension": "shop", "handler": handler, "result": "failed"}
    (metric,) = running.SECONDS.collect()
    totals = [one for one in metric.samples if one.name.endswith("_count")]
    return sum(one.value for one in totals if one.labels == labels)


NONSENSE: dict[str, dict[str, Any]] = {
    "no message": {"code": "a", "message": ""},
    "no texts": {"code": 7, "message": object()},
    "field": {"field": 7, "code": "a", "message": "b"},
    "long": {"code": "a", "message": "b" * 2000},
    "surrogate": {"code": "a", "message": "\ud800"},
    "nul": {"field": "\0", "code": "a", "message": "b"},
    "nothing": {},
}


@pytest.mark.parametrize("arguments", NONSENSE.values(), ids=NONSENSE)
def test_refusal_of_nonsense_is_the_handlers_fault(posts: Cast, arguments: dict[str, Any]) -> None:
    def refuse(caller: Any, record: dict[str, Any]) -> None:
        raise Refused(**arguments)

    with loading.loaded(shop(refuse)):
        assert posts.bob.post("records/posts", {"title": "a"}).status_code == 500


@pytest.mark.parametrize(
    "values",
    [
        {"id": "019a9f00-0000-7000-8000-000000000001"},
        {"nothing": 1},
        {"account_id": "x"},
        {"title": {1, 2}},
        {"title": "a\0b"},
        {"title": "\ud800"},
        {7: "x"},
    ],
    ids=str,
)
def test_values_that_no_record_can_have_are_the_handlers_fault(
    posts: Cast, values: dict[Any, Any]
) -> None:
    def spoil(caller: Any, record: dict[Any, Any]) -> None:
        record.update(values)

    with loading.loaded(shop(spoil)):
        assert posts.bob.post("records/posts", {"title": "a"}).status_code == 500
    assert posts.bob.get("records/posts").json["total"] == 0


def test_handler_that_clears_the_record_sets_nulls(posts: Cast) -> None:
    with loading.loaded(shop(lambda_clear)):
        assert make_record(posts.bob, title="a")["title"] is None


def lambda_clear(caller: Any, record: dict[str, Any]) -> None:
    record.clear()


def test_handler_cannot_commit_half_a_transaction(posts: Cast) -> None:
    """Not even by what is inside, which is no promise: a transaction within joins the request's."""

    def commit(caller: Any, record: dict[str, Any]) -> None:
        caller.records("notes").create({"title": "half"})
        if record["title"] == "joins":
            with db.transaction():
                caller.records("notes").create({"title": "joined"})
            raise Refused(code="no", message="No.")
        db.db.session.commit()

    with loading.loaded(shop(commit)):
        assert posts.bob.post("records/posts", {"title": "joins"}).status_code == 400
        assert posts.bob.post("records/posts", {"title": "commits"}).status_code == 500
    for collection in ("posts", "notes"):
        assert posts.alice.get(f"records/{collection}").json["total"] == 0


def test_handler_reaches_no_other_account(posts: Cast) -> None:
    """Not even for a superadmin, who acts in one account."""
    foreign = make_record(posts.charlie, "notes", title="of globex")
    seen = []

    def reach(caller: Any, record: dict[str, Any]) -> None:
        notes = caller.records("notes")
        seen.append([one["title"] for one in notes.list()["items"]])
        for call in (
            lambda: notes.create({"title": "x", "account_id": posts.charlie.account_id}),
            lambda: notes.update(foreign["id"], {"title": "taken"}),
            lambda: notes.delete(foreign["id"]),
            lambda: notes.get(foreign["id"]),
            lambda: caller.as_service("robot", account="globex").__enter__(),
            lambda: caller.as_operator("why", account="globex").__enter__(),
        ):
            try:
                call()
            except (Forbidden, NotFound) as error:
                seen.append(error.error)

    with loading.loaded(shop(reach)):
        make_record(posts.alice)
        make_record(posts.root.acting_in("acme"))
    expected = [[], "forbidden", "not_found", "not_found", "not_found", "forbidden", "forbidden"]
    assert seen == [*expected, *expected]
    assert posts.charlie.get(f"records/notes/{foreign['id']}").json["title"] == "of globex"


def make_service(admin: Caller, name: str, role: str) -> str:
    """A service user; returns its id."""
    answer = admin.post("account/users", {"kind": "service", "name": name, "role": role})
    assert answer.status_code == 201, answer.json
    return str(answer.json["id"])


def test_service_user_is_one_of_the_account(posts: Cast) -> None:
    robot = make_service(posts.alice, "robot", "admin")
    make_service(posts.charlie, "foreign", "admin")
    stashed, told, blocks = [], [], list[Any]()

    def serve(caller: Any, record: dict[str, Any]) -> None:
        with caller.as_service("robot") as service:
            stashed.append(service)
            told.append((service.kind, service.user.id, service.role))
            service.records("notes").create({"title": "by robot"})
        for name in ("foreign", "alice@acme.example", "Alice", ""):
            with pytest.raises(NotFound), caller.as_service(name):
                pass
        with pytest.raises(RuntimeError, match="has ended"):
            service.records("notes").list()
        blocks.extend([caller.as_service("robot"), caller.as_operator("keep")])
        stashed.extend([caller, *(one.__enter__() for one in blocks)])  # and never left

    with loading.loaded(shop(serve)):
        make_record(posts.bob)
    assert told == [("service", robot, "admin")]
    (note,) = posts.alice.get("records/notes").json["items"]
    assert note["created_by"] == robot
    (entry, *_) = posts.alice.get("account/audit-logs?table_name=col_notes").json["items"]
    assert entry["actor"]["kind"] == "extension"
    for caller in stashed:  # what a handler keeps has no rights any more
        with posts.bob.app.app_context(), pytest.raises(RuntimeError, match="has ended"):
            caller.records("notes").list()


@pytest.mark.both_databases
def test_writes_within_writes_are_logged_as_of_their_own_extension(posts: Cast) -> None:
    robot = make_service(posts.alice, "robot", "admin")
    make_collection(posts.root, "orders")

    def outer() -> None:
        @before_create("orders")
        def post(caller: Any, record: dict[str, Any]) -> None:
            caller.records("posts").create({"title": "by outer"})

    def inner() -> None:
        @before_create("posts")
        def note(caller: Any, record: dict[str, Any]) -> None:
            with caller.as_service("robot") as service:
                service.records("notes").create({"title": "by inner"})

    with loading.loaded(outer, inner):
        make_record(posts.bob, "orders")
    found = {}
    for table in ("orders", "posts", "notes"):
        url = f"account/audit-logs?table_name=col_{table}"
        found[table] = {
            (one["actor"]["name"], one["user_id"]) for one in posts.alice.get(url).json["items"]
        }
    bob = posts.bob.id
    assert found["posts"] == {("outer", bob)}
    assert found["notes"] == {("inner", robot)}
    assert {user for _, user in found["orders"]} == {bob}


def test_operators_rights_are_named_in_the_log_and_stay_in_the_account(posts: Cast) -> None:
    make_collection(posts.root, "closed", list_rule=None, create_rule=None, view_rule=None)
    told = []

    def operate(caller: Any, record: dict[str, Any]) -> None:
        if caller.kind == "user":
            with pytest.raises(Forbidden):
                caller.records("closed").create({"title": "x"})
        with caller.as_operator("clean up") as operator:
            made = operator.records("closed").create({"title": "x"})
            told.append((operator.kind, operator.user, made["account_id"]))
            with pytest.raises(Forbidden):
                operator.records("closed").create({"account_id": posts.charlie.account_id})
            with pytest.raises(Forbidden):
                operator.as_operator("more", account="system").__enter__()
        for reason in ("", " ", "x" * 1000):
            with pytest.raises(ValueError, match="reason"), caller.as_operator(reason):
                pass

    with loading.loaded(shop(operate)):
        make_record(posts.bob)
        # In the system account there is nothing beyond the caller's rights.
        answer = posts.root.post("records/posts", {"title": "a"})
        assert (answer.status_code, answer.json["error"]) == (403, "forbidden")
    assert told == [("operator", None, posts.bob.account_id)]
    log = posts.alice.get("account/security-log?kind=extension.as_operator").json["items"]
    (event,) = log
    assert event["details"] == {
        "reason": "clean up",
        "extension": "shop",
        "handler": "shop.operate",
    }
    assert event["actor"] == {"kind": "extension", "id": "shop", "name": "shop"}
    assert event["user_id"] == posts.bob.id


@pytest.mark.both_databases
def test_operators_rights_are_noted_once_an_hour_for_each_reason(posts: Cast) -> None:
    """Else strangers who make a handler name them would fill the account's log."""

    def operate(caller: Any, record: dict[str, Any]) -> None:
        with caller.as_operator(f"because of {record['title']}"):
            pass
        if record["status"] == "refuse":
            raise Refused(code="no", message="No.")

    def reasons(admin: Caller) -> list[str]:
        log = admin.get("account/security-log?kind=extension.as_operator").json["items"]
        return sorted(one["details"]["reason"] for one in log)

    fields = [{"name": name, "type": "text"} for name in ("title", "status")]
    make_collection(posts.root, "orders", fields)

    def shop() -> None:
        before_create("orders")(operate)

    with loading.loaded(shop):
        refused = {"title": "a", "status": "refuse"}
        assert posts.bob.post("records/orders", refused).status_code == 400
        assert reasons(posts.alice) == []  # it was rolled back, and did not count
        for title in ("a", "b", "a"):
            batch = {"records": [{"title": title}] * 5}
            assert posts.bob.post("records/orders/batch", batch).status_code == 201
        make_record(posts.charlie, "orders", title="a")
    assert reasons(posts.alice) == ["because of a", "because of b"]
    assert reasons(posts.charlie) == ["because of a"]


def test_operators_reads_of_personal_data_are_logged(posts: Cast) -> None:
    fields = [{"name": "phone", "type": "text", "pii": True}]
    make_collection(posts.root, "people", fields, list_rule=None)
    make_record(posts.alice, "people", phone="0049-4711")
    seen = []

    def look(caller: Any, record: dict[str, Any]) -> None:
        with caller.as_operator("look") as operator:
            seen.extend(one["phone"] for one in operator.records("people").list()["items"])

    with loading.loaded(shop(look)):
        make_record(posts.bob)
    assert seen == ["0049-4711"]
    events = posts.alice.get("account/security-log?kind=personal_data.read").json["items"]
    assert events
    assert events[0]["details"]["fields"] == ["phone"]


def test_system_names_its_rights(posts: Cast) -> None:
    make_service(posts.alice, "robot", "admin")
    handler = registry.Handler(Kind.PERIODIC, "shop", print, "0 3 * * *", {})
    with posts.alice.app.app_context():
        caller = system(handler)
        assert (caller.kind, caller.account, caller.user, caller.role) == ("system", *[None] * 3)
        with pytest.raises(Forbidden, match="has no rights"):
            caller.records("posts").list()
        with pytest.raises(Forbidden), caller.as_service("robot"):
            pass
        with caller.as_service("robot", account="acme") as service:
            service.records("posts").create({"title": "nightly"})
        with caller.as_operator("nightly", account="globex") as operator:
            assert operator.records("posts").count() == 0
        for account in ("system", "nothing"):
            with pytest.raises((Forbidden, NotFound)):
                caller.as_operator("why", account=account).__enter__()
    (post,) = posts.alice.get("records/posts").json["items"]
    assert post["title"] == "nightly"


def test_read_only_and_scoped_keys_stay_what_they_are(posts: Cast) -> None:
    seen = []

    def note(caller: Any, record: dict[str, Any]) -> None:
        seen.append(caller.kind)
        caller.records("notes").create({"title": "x"})

    key = posts.alice.post("api-keys", {"name": "k", "scopes": {"posts": ["create"]}}).json["key"]
    scoped = Caller(posts.alice.app, **{"X-API-Key": key})
    with loading.loaded(shop(note)):
        answer = scoped.post("records/posts", {"title": "a"})
        assert (answer.status_code, answer.json["error"]) == (403, "scope_denied")
    assert seen == ["api_key"]
    handler = registry.Handler(Kind.ENDPOINT, "shop", print, "GET /notes", {})
    with posts.bob.app.app_context():
        bob = principals.for_user(posts.bob.account_id, posts.bob.id)
        assert bob is not None
        notes = ExtensionsCaller(replace(bob, read_only=True), handler).records("notes")
        for call in (lambda: notes.create({}), lambda: notes.update("x", {})):
            with pytest.raises(Forbidden, match="read-only"):
                call()


def test_inner_writes_count_in_quotas(posts: Cast) -> None:
    def note(caller: Any, record: dict[str, Any]) -> None:
        caller.records("notes").create({"title": "x"})

    limit(posts.root, posts.alice, records=1)
    with loading.loaded(shop(note)):
        answer = posts.bob.post("records/posts", {"title": "a"})
    assert (answer.status_code, answer.json["error"]) == (429, "quota_exceeded")


def test_threads_of_handlers_reach_no_records(posts: Cast) -> None:
    """Nothing in another thread says which account a statement is for."""
    errors = []

    def escape(caller: ExtensionsCaller, record: dict[str, Any]) -> None:
        def run() -> None:
            try:
                caller.records("notes").list()
            except LookupError as error:
                errors.append(type(error))

        thread = Thread(target=run)
        thread.start()
        thread.join()

    with loading.loaded(shop(escape)):
        make_record(posts.bob)
    assert errors == [LookupError]


def test_handler_leaves_nothing_in_the_context_of_the_request(posts: Cast) -> None:
    def loosen(caller: Any, record: dict[str, Any]) -> None:
        deadline.limit.set(None)

    kept = []

    def see(caller: Any, old: dict[str, Any], record: dict[str, Any]) -> None:
        kept.append(deadline.limit.get() is not None)

    def shop() -> None:
        before_create("posts")(loosen)
        before_update("posts")(see)

    with loading.loaded(shop):
        made = make_record(posts.bob)
        posts.bob.patch(f"records/posts/{made['id']}", {"title": "b"})
    assert kept == [True]


def test_slow_handler_is_named(
    posts: Cast, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "SLOW_SECONDS", 0)
    with loading.loaded(shop(lambda_clear)):
        make_record(posts.bob)
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "extension is slow" in one]
    assert '"handler":"shop.lambda_clear"' in line


@pytest.mark.both_databases
def test_statements_of_handlers_have_a_deadline_in_jobs(app: Flask) -> None:
    handler = registry.Handler(Kind.ON, "shop", deadline.limit.get, "user.joined", {})
    with app.app_context():
        assert deadline.limit.get() is None
        limit = running.run(replace(handler, function=named_limit), None)
    assert limit == app.extensions["atrium.config"].statement_seconds


def named_limit() -> float | None:
    limit = deadline.limit.get()
    return limit.seconds if limit else None


HOSTILE = ['" || true || title = "', "' || true || '", "\\", '\\" || true || "', "{other}", "@now"]


def test_values_of_a_filter_are_no_part_of_its_language(posts: Cast) -> None:
    found: list[list[str]] = []
    titles = ["plain", *HOSTILE]
    for title in titles:
        make_record(posts.bob, title=title)

    def search(caller: Any, record: dict[str, Any]) -> None:
        for title in titles:
            values = {
                "title": title,
                "ids": [caller.user.id, None],
                "n": -1.5,
                "at": datetime.now(UTC),
            }
            page = caller.records("posts").list(
                filter="title = {title} && '{title}' != 'x' && created_by IN {ids} && {n} < 0"
                " && created_at < {at}",
                values=values,
            )
            found.append([one["title"] for one in page["items"]])
            count = caller.records("posts").count(filter="title = {a}", values={"a": title})
            assert count == 1
        with pytest.raises(Refused):
            caller.records("posts").list(filter="title = {a}", values={"a": "\0"})

    with loading.loaded(shop(search)):
        assert posts.bob.post("records/posts", {"title": "b"}).status_code == 201
    assert found == [[title] for title in titles]


@pytest.mark.parametrize(
    "asked",
    [
        {"filter": "titel = 'a'"},
        {"filter": "title = "},
        {"filter": "title = {title}"},
        {"filter": "title = {title}", "values": {"title": {1}}},
        {"filter": "title = {title}", "values": {"title": float("nan")}},
        {"filter": "title = 'a'", "values": {"title": "a"}},
        {"filter": "title = 'a {title}", "values": {"title": "' || true"}},
        {"values": {"title": "a"}},
        {"sort": "titel"},
        {"fields": "titel"},
        {"limit": 500},
    ],
    ids=repr,
)
def test_invalid_parameters_are_the_handlers_fault(
    posts: Cast, asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    def search(caller: Any, record: dict[str, Any]) -> None:
        caller.records("posts").list(**asked)

    with loading.loaded(shop(search)):
        answer = posts.bob.post("records/posts", {"title": "a"})
    assert (answer.status_code, answer.json["error"]) == (500, "internal_error")
    assert '"type":"Misuse"' in capsys.readouterr().out


def test_invalid_filter_of_an_endpoint_is_not_its_callers() -> None:
    def finder() -> None:
        @endpoint("GET", "/found")
        def found(caller: ExtensionsCaller, body: None) -> None:
            caller.records("posts").list(filter="nothing = 1")

        @endpoint("GET", "/next", query=Cursor)
        def next_(caller: ExtensionsCaller, body: None, query: dict[str, Any]) -> None:
            caller.records("posts").list(cursor=query["cursor"])

    class Cursor(Schema):
        cursor = fields.Text(required=True)

    with Instance(finder, raises=False) as instance:
        instance.collection("posts", {"title": "text"})
        ann = instance.account("acme").user("ann")
        assert ann.get("x/finder/found").status_code == 500
        assert ann.get("x/finder/next?cursor=mine").status_code == 400


def test_development_alone_logs_what_was_raised(
    posts: Cast, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(caller: Any, record: dict[str, Any]) -> None:
        raise KeyError("the card 4711")

    settings = posts.bob.app.extensions["atrium.config"]
    for env in ("production", "development"):
        posts.bob.app.extensions["atrium.config"] = replace(settings, env=env)
        with loading.loaded(shop(fail)):
            assert posts.bob.post("records/posts", {"title": "a"}).status_code == 500
        printed = capsys.readouterr().out
        assert ("the card 4711" in printed) == (env == "development")
        assert "extension failed" in printed
    assert "in fail" in printed  # the traceback
