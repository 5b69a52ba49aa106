"""What `app.extend.testing` promises: instances apart, people, jobs, time, mails, pages."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from jinja2 import TemplateNotFound

from app import clock, config, jobs
from app.collections import fields
from app.db import transaction
from app.extend import (
    Caller,
    PageRequest,
    Refused,
    after_create,
    before_create,
    console_page,
    endpoint,
    field_type,
    on,
    periodic,
)
from app.extend.testing import Client, Instance
from app.extensions import registry
from app.types import JSONMapping

pytestmark = pytest.mark.usefixtures("first_instance")
DONE: list[str] = []
MANIFEST = """
version: 1
collections:
- name: posts
  schema:
  - {name: title, type: text}
"""


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind of jobs, each of which fails if it is told to."""

    def note(payload: JSONMapping) -> None:
        DONE.append(payload["text"])
        if payload["text"] == "fail":
            raise ZeroDivisionError

    monkeypatch.setitem(jobs.KINDS, "tests.noted", jobs.Kind(note, attempts=2))


def loud() -> None:
    @field_type("loud")
    class Loud:
        label = "Loud text"
        schema: ClassVar[dict[str, Any]] = {"type": "string"}

        def clean(self, value: str, options: dict[str, Any]) -> str:
            return value.upper()


def enqueue(instance: Instance, text: str) -> None:
    with instance.app.app_context(), transaction():
        jobs.enqueue("tests.noted", {"text": text}, account_id=jobs.INSTANCE)


def test_instances_have_their_extensions_and_data_for_themselves() -> None:
    with Instance(loud) as first:
        assert [*registry.EXTENSIONS] == ["loud"]
        first.collection("posts", {"title": "loud", "note": {"type": "text", "required": True}})
        ann = first.account("acme").user("ann")
        made = ann.post("records/posts", {"title": "x", "note": "y"})
        assert (made.status_code, made.json["title"]) == (201, "X")
        assert ann.post("records/posts", {"title": "x"}).status_code == 400
    assert [*registry.EXTENSIONS] == []
    assert "loud" not in fields.TYPES
    with Instance() as second:
        assert second.superadmin.get("collections").json["total"] == 0
        assert second.superadmin.get("accounts?search=acme").json["total"] == 0


def test_people_are_of_their_account_and_role() -> None:
    with Instance() as instance:
        instance.collection("posts", {"title": "text"}, create_rule="@has_role(editor)")
        acme, globex = instance.account("acme", "Acme Inc."), instance.account("globex")
        assert instance.account("acme").id == acme.id
        ann, eve = acme.user("ann"), globex.user("eve", role="editor")
        assert ann.get("auth/me").json["email"] == "ann@acme.example"
        assert acme.user("ann").user_id == ann.user_id
        assert ann.get("account").json["name"] == acme.name == "Acme Inc."
        assert ann.post("records/posts", {"title": "x"}).status_code == 403
        made = eve.post("records/posts", {"title": "x"}).json
        assert ann.get(f"records/posts/{made['id']}").status_code == 404
        assert eve.put(f"records/posts/{made['id']}", {"title": "y"}).json["title"] == "y"
        assert eve.patch(f"records/posts/{made['id']}", {"title": "z"}).json["title"] == "z"
        assert eve.delete(f"records/posts/{made['id']}").status_code == 204
        assert instance.anybody.get("records/posts").status_code == 401
        assert instance.superadmin.get("accounts").json["total"] == 3
        robot = acme.service_user("robot")
        users = ann.get("account/users").json["items"]
        assert ("service", robot) in [(one["kind"], one["id"]) for one in users]


def test_manifests_are_applied() -> None:
    with Instance() as instance:
        done = instance.apply(MANIFEST)
        assert [one["name"] for one in done["operations"]] == ["posts"]
        with pytest.raises(AssertionError, match="409 instead of 201"):
            instance.collection("posts", {"title": "text"})


def test_jobs_run_and_failed_ones_are_told_and_tried_again(noted: None) -> None:
    DONE.clear()
    with Instance() as instance:
        enqueue(instance, "fine")
        enqueue(instance, "fail")
        assert DONE == []
        instance.run_jobs()
        assert sorted(DONE) == ["fail", "fine"]
        assert instance.failed_jobs() == [("tests.noted", "ZeroDivisionError")]
        instance.move_clock(seconds=5)
        instance.run_jobs()
        assert DONE.count("fail") == 1
        instance.move_clock(seconds=6)
        instance.run_jobs()
        assert DONE.count("fail") == 2
        assert instance.failed_jobs() == [("tests.noted", "ZeroDivisionError")]


def test_time_moves_for_the_process_and_the_database_and_comes_back() -> None:
    before = clock.now()
    with Instance() as instance:
        ann = instance.account("acme").user("ann")
        instance.move_clock(days=2)
        instance.move_clock(days=1)
        assert clock.now() - before > timedelta(days=3)
        assert ann.get("auth/me").status_code == 200
        instance.collection("posts", {"title": "text"}, list_rule="created_at < now()")
        made = ann.post("records/posts", {"title": "x"}).json
        assert clock.parse(made["created_at"]) - before > timedelta(days=3)
        assert len(ann.get("records/posts").json["items"]) == 1
    assert clock.now() - before < timedelta(days=1)


def test_mails_are_those_that_jobs_sent() -> None:
    with Instance() as instance:
        body = {"email": "bea@acme.example", "role": "viewer"}
        assert instance.account("acme").user("ann").post("invitations", body).status_code == 201
        assert instance.mails() == []
        instance.run_jobs()
        (mail,) = instance.mails()
        assert mail["To"] == "bea@acme.example"


def test_pages_of_the_console_are_opened_and_forms_sent() -> None:
    with Instance() as instance:
        ann = instance.account("acme").user("ann")
        assert "Acme" in ann.open_page("/console").text
        assert 'lang="de"' in ann.open_page("/console", language="de").text
        page = "/console/profile"
        assert ann.open_page(page).status_code in (200, 302)
        assert instance.anybody.get("/console").status_code == 302
        assert instance.anybody.open_page("/console").status_code == 302
        viewer = instance.account("acme").user("bob", role="viewer")
        assert viewer.open_page("/console").status_code == 403
        assert viewer.send_form(page, name="Bob").status_code == 403


def test_migrated_database_is_kept_for_the_next_instance() -> None:
    def first_superadmin() -> Client:
        with Instance() as instance:
            return instance.superadmin

    first_superadmin()
    (kept,) = (config.PROJECT / ".pytest_cache" / "atrium").glob("*.db")
    with closing(sqlite3.connect(kept)) as database:
        assert database.execute("SELECT count(*) FROM users").fetchone() == (0,)


def test_unknown_extension_and_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match="no_such"), Instance("no_such"):
        pass
    with pytest.raises(config.ConfigError, match="SERVICE_QUOTA"), Instance(SERVICE_QUOTA="1"):
        pass
    (tmp_path / "json" / "json").mkdir(parents=True)
    (tmp_path / "json" / "json" / "__init__.py").write_text("")
    with pytest.raises(config.ConfigError, match="another package"), Instance(tmp_path / "json"):
        pass
    assert [*registry.EXTENSIONS] == []


def test_handlers_after_the_commit_and_at_night_run_with_the_jobs() -> None:
    nights: list[str] = []

    def shop() -> None:
        @after_create("orders")
        def confirm(caller: Caller, record: dict[str, Any]) -> None:
            caller.records("notes").create({"text": f"confirmed {record['title']}"})

        @on("records.delete")
        def mourn(caller: Caller, event: dict[str, Any]) -> None:
            nights.append(event["type"])

        @periodic("0 3 * * *", accounts=True)
        def count(caller: Caller) -> None:
            assert caller.account
            nights.append(caller.account.slug)

    with Instance(shop) as instance:
        for name, field in (("orders", "title"), ("notes", "text")):
            instance.collection(name, {field: "text"})
        ann = instance.account("acme").user("ann")
        order = ann.post("records/orders", {"title": "Lamp"}).json
        assert ann.get("records/notes").json["items"] == []
        instance.run_jobs()
        (note,) = ann.get("records/notes").json["items"]
        assert note["text"] == "confirmed Lamp"
        assert nights == []
        ann.delete(f"records/orders/{order['id']}")
        instance.run_jobs()
        assert nights == ["records.delete"]
        instance.move_clock(days=1)
        instance.run_jobs()
        assert nights == ["records.delete", "acme"]
        assert instance.failed_jobs() == []


def test_periodic_handlers_run_once_the_clock_has_moved() -> None:
    days: list[str] = []

    def shop() -> None:
        @periodic("0 3 * * *")
        def count(caller: Caller) -> None:
            days.append(clock.iso(clock.now()))

    with Instance(shop) as instance:
        instance.move_clock(days=31)
        instance.run_jobs()
        assert len(days) == 1
        instance.move_clock(days=1)
        instance.run_jobs()
        assert len(days) == 2
        assert "is due" in instance.run_command("extension", "run", "shop.count")
        instance.run_jobs()
        assert len(days) == 3
        with pytest.raises(AssertionError, match="has a periodic handler"):
            instance.run_command("extension", "run", "shop.x")


def erring() -> None:
    @endpoint("POST", "/fail")
    def fail(caller: Caller, body: None) -> None:
        raise ZeroDivisionError("by no means")

    @endpoint("POST", "/refuse")
    def refuse(caller: Caller, body: None) -> None:
        raise Refused(code="no", message="No.")

    @before_create("posts")
    def search(caller: Caller, record: dict[str, Any]) -> None:
        caller.records("posts").list(limit=500)

    @console_page("/page", title="Page")
    def page(caller: Caller, request: PageRequest) -> str:
        return request.render("missing.html")


def test_client_raises_what_a_handler_raised() -> None:
    with Instance(erring) as instance:
        instance.collection("posts", {"title": "text"})
        ann = instance.account("acme").user("ann")
        with pytest.raises(ZeroDivisionError, match="by no means"):
            ann.post("x/erring/fail")
        with pytest.raises(ValueError, match="limit is from 1 to 100"):
            ann.post("records/posts", {"title": "a"})
        with pytest.raises(TemplateNotFound, match=r"missing\.html"):
            ann.open_page("/console/x/erring/page")
        assert ann.post("x/erring/refuse").status_code == 400
        assert ann.post("x/erring/missing").status_code == 404
    with Instance(erring, raises=False) as instance:
        answer = instance.account("acme").user("ann").post("x/erring/fail")
        assert (answer.status_code, answer.json["error"]) == (500, "internal_error")
