"""Readers of changes whose memberships change: exactly what comes into view, and what leaves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask

from app import db
from app.context import tenancy
from app.realtime.feed import changes, members, service, states
from app.realtime.feed.dependencies import Dependency
from app.records import store
from tests.builders import Cast, make_collection, make_record
from tests.feed.test_changes import feed, now
from tests.sql import statements

MEMBER = "@any(members, project = @record.project && user = @request.auth.id)"
EDITOR = '@any(members, project = @record.project && user = @request.auth.id && level = "editor")'
BLOCKED = "!@any(members, project = @record.project && user = @request.auth.id)"
BOTH = f"{MEMBER} && @any(staff, user = @request.auth.id)"
MANY = "@count(members, project = @record.project && user = @request.auth.id) >= 2"
SOME = "@any(members, user = @request.auth.id)"
NESTED = (
    "@any(members, user = @request.auth.id && project = @record.project"
    " && @any(staff, user = @outer.user))"
)
Do = Callable[["Scene"], Any]


class Scene:
    """Projects with tasks, which a rule opens to members, and a reader."""

    def __init__(self, cast: Cast, rule: str) -> None:
        self.operator, self.reader = cast.root.acting_in("acme"), cast.bob
        self.other = cast.alice.id
        user = {"name": "user", "type": "user"}
        make_collection(cast.root, "projects")
        project = {"name": "project", "type": "reference", "collection": "projects"}
        project["on_delete"] = "set_null"
        level = {"name": "level", "type": "text"}
        make_collection(cast.root, "members", [project, user, level], view_rule=None)
        make_collection(cast.root, "staff", [user], view_rule=None)
        task = [{"name": "title", "type": "text"}, project]
        make_collection(cast.root, "tasks", task, view_rule=rule, list_rule=rule)
        self.projects = [self.make("projects", title=name) for name in ("red", "blue")]
        self.tasks = [
            [self.make("tasks", title=f"{n}", project=project) for n in range(2)]
            for project in self.projects
        ]
        self.copy: dict[str, Any] = {}
        self.list()
        self.since = now(self.reader)
        self.list()

    def make(self, collection: str, **values: Any) -> str:
        """A new record; its id."""
        id: str = make_record(self.operator, collection, **values)["id"]
        return id

    def join(self, project: int = 0, *, level: str = "editor", user: str = "") -> str:
        """Make the reader, or somebody else, a member of a project."""
        values = {"project": self.projects[project], "level": level}
        return self.make("members", user=user or self.reader.id, **values)

    def change(self, collection: str, id: str, **values: Any) -> None:
        """Change a record."""
        assert self.operator.patch(f"records/{collection}/{id}", values).status_code == 200

    def drop(self, collection: str, id: str) -> None:
        """Delete a record."""
        assert self.operator.delete(f"records/{collection}/{id}").status_code < 300

    def list(self) -> None:
        """Read the reader's copy anew."""
        self.copy = self.listed

    @property
    def listed(self) -> dict[str, Any]:
        """What the reader is shown now."""
        found = self.reader.get("records/tasks?limit=100").json["items"]
        return {one["id"]: one["title"] for one in found}

    def follow(self, limit: int = 100) -> list[str]:
        """Read what changed, and apply it to the copy; the events with their tasks."""
        told = list[str]()
        while True:
            page = feed(self.reader, since=self.since, collections="tasks", limit=limit)
            for one in page["items"]:
                if one["event"] == "records.reset":
                    told.append("reset")
                    self.list()
                    continue
                sign = {"create": "+", "update": "~", "delete": "-"}[one["event"][8:]]
                told.append(sign + self.name(one["record_id"]))
                if one["record"] is None:
                    self.copy.pop(one["record_id"], None)
                else:
                    self.copy[one["record_id"]] = one["record"]["title"]
            self.since = page["next"]
            if not page["has_more"]:
                assert self.copy == self.listed
                return told

    def name(self, id: str) -> str:
        """The name of a task: that of its project at first, and its number."""
        for project, own in zip("rb", self.tasks, strict=True):
            if id in own:
                return f"{project}{own.index(id)}"
        return "new"


def joined(scene: Scene) -> str:
    """The reader's membership in the first project."""
    found = scene.operator.get("records/members?limit=100&sort=created_at").json["items"]
    first: str = found[0]["id"]
    return first


TABLE: list[tuple[str, str, Do | None, Do, set[str]]] = [
    ("joins", MEMBER, None, lambda s: s.join(), {"+r0", "+r1"}),
    ("leaves", MEMBER, Scene.join, lambda s: s.drop("members", joined(s)), {"-r0", "-r1"}),
    (
        "moves",
        MEMBER,
        Scene.join,
        lambda s: s.change("members", joined(s), project=s.projects[1]),
        {"-r0", "-r1", "+b0", "+b1"},
    ),
    ("joins twice", MEMBER, Scene.join, lambda s: s.join(), set()),
    ("another joins", MEMBER, None, lambda s: s.join(user=s.other), set()),
    (
        "level falls",
        EDITOR,
        Scene.join,
        lambda s: s.change("members", joined(s), level="guest"),
        {"-r0", "-r1"},
    ),
    (
        "level rises",
        EDITOR,
        lambda s: s.join(level="guest"),
        lambda s: s.change("members", joined(s), level="editor"),
        {"+r0", "+r1"},
    ),
    (
        "level unnamed",
        MEMBER,
        Scene.join,
        lambda s: s.change("members", joined(s), level="guest"),
        set(),
    ),
    ("is blocked", BLOCKED, None, lambda s: s.join(), {"-r0", "-r1"}),
    ("is let in", BLOCKED, Scene.join, lambda s: s.drop("members", joined(s)), {"+r0", "+r1"}),
    ("counts up", MANY, Scene.join, lambda s: s.join(), {"+r0", "+r1"}),
    (
        "counts down",
        MANY,
        lambda s: [s.join(), s.join()],
        lambda s: s.drop("members", joined(s)),
        {"-r0", "-r1"},
    ),
    ("anywhere", SOME, None, lambda s: s.join(), {"+r0", "+r1", "+b0", "+b1"}),
    (
        "leaves, after the task",
        MEMBER,
        Scene.join,
        lambda s: [
            s.change("tasks", s.tasks[0][0], project=s.projects[1]),
            s.drop("members", joined(s)),
        ],
        {"-r0", "-r1"},
    ),
    (
        "leaves, before the task",
        MEMBER,
        Scene.join,
        lambda s: [
            s.drop("members", joined(s)),
            s.change("tasks", s.tasks[0][0], project=s.projects[1]),
        ],
        {"-r0", "-r1"},
    ),
    (
        "leaves, before the task is gone",
        MEMBER,
        Scene.join,
        lambda s: [s.drop("members", joined(s)), s.drop("tasks", s.tasks[0][0])],
        {"-r0", "-r1"},
    ),
    (
        "loses two",
        BOTH,
        lambda s: [s.join(), s.make("staff", user=s.reader.id)],
        lambda s: [
            s.drop("members", joined(s)),
            s.drop("staff", s.operator.get("records/staff").json["items"][0]["id"]),
        ],
        {"-r0", "-r1"},
    ),
    ("is blocked twice", BLOCKED, None, lambda s: [s.join(), s.join()], {"-r0", "-r1"}),
    (
        "leaves and is back",
        MEMBER,
        Scene.join,
        lambda s: [s.drop("members", joined(s)), s.join()],
        {"+r0", "+r1"},  # a page in between had them hidden
    ),
    ("nested", NESTED, Scene.join, lambda s: s.make("staff", user=s.reader.id), {"reset"}),
    (
        "by reference",
        "project.title = 'red'",
        None,
        lambda s: s.change("projects", s.projects[0], title="green"),
        {"reset"},
    ),
    ("joins elsewhere", BOTH, None, lambda s: s.join(), set()),
]


@pytest.mark.parametrize("limit", [100, 1])
@pytest.mark.parametrize(
    ("rule", "before", "do", "told"), [one[1:] for one in TABLE], ids=[one[0] for one in TABLE]
)
def test_change_of_membership_is_told_exactly(
    cast: Cast, rule: str, before: Do | None, do: Do, told: set[str], limit: int
) -> None:
    scene = Scene(cast, rule)
    if before is not None:
        before(scene)
        scene.follow()
    do(scene)
    found = scene.follow(limit)
    assert {one for one in found if one[0] != "~"} == told
    if limit == 100:
        assert len(found) == len(set(found))


@pytest.mark.parametrize(("most", "told"), [(2, {"+r0", "+r1"}), (1, {"reset"})])
def test_change_of_membership_that_concerns_too_many_records_is_a_reset(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, most: int, told: set[str]
) -> None:
    monkeypatch.setattr(members, "MOST", most)
    scene = Scene(cast, MEMBER)
    scene.join()
    assert set(scene.follow()) == told


@pytest.mark.parametrize(("largest", "told"), [(200, {"+r0", "+r1"}), (199, {"reset"})])
def test_change_of_membership_that_shows_more_than_an_answer_may_have_is_a_reset(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, largest: int, told: set[str]
) -> None:
    scene = Scene(cast, MEMBER)
    for task in scene.tasks[0]:
        scene.change("tasks", task, title="x" * 100)
    scene.follow()
    monkeypatch.setattr(store, "LARGEST_ANSWER", largest)
    scene.join()
    found = feed(scene.reader, since=scene.since, collections="tasks")["items"]
    names = {
        "reset" if "record" not in one else f"+{scene.name(one['record_id'])}" for one in found
    }
    assert names == told


def test_change_of_membership_with_many_later_ones_is_a_reset(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(cast, MEMBER)
    scene.join()
    scene.follow()
    scene.change("tasks", scene.tasks[0][0], title="changed")
    scene.drop("members", joined(scene))
    monkeypatch.setattr(members, "MOST", 0)
    assert "reset" in scene.follow(1)


def test_membership_that_moves_often_costs_what_it_concerns(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task is judged by the moves into its project and out of it."""
    scene = Scene(cast, MEMBER)
    scene.join()
    scene.follow()
    own = joined(scene)
    for project in [scene.make("projects", title="other") for _ in range(20)]:
        scene.change("members", own, project=project)
    matches, judged = Dependency.matches, list[object]()

    def note(dependency: Dependency, *about: Any) -> bool:
        judged.append(about)
        return matches(dependency, *about)

    monkeypatch.setattr(Dependency, "matches", note)
    assert set(scene.follow()) == {"-r0", "-r1"}
    assert len(judged) == 2 * len(scene.tasks[0])


def test_page_judges_records_by_memberships_once(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What costs the most ends a page, which else goes on until it is full."""
    scene = Scene(cast, MEMBER)
    own = scene.join()
    scene.follow()
    for n in range(6):
        scene.change("members", own, project=scene.projects[n % 2])
    monkeypatch.setattr(service, "SMALLEST_SCAN", 1)
    judge, judged = members.Outlook._verdicts, list[object]()

    def note(*about: Any) -> Any:
        judged.append(about)
        return judge(*about)

    monkeypatch.setattr(members.Outlook, "_verdicts", note)
    page = feed(scene.reader, since=scene.since, collections="tasks", limit=1)
    assert page["has_more"]
    assert len(judged) == 1
    scene.follow(1)


@pytest.mark.parametrize(("most", "told"), [(80, {"+r0", "+r1", "+b0", "+b1"}), (79, {"reset"})])
def test_memberships_that_moved_too_often_are_a_reset(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch, most: int, told: set[str]
) -> None:
    """Twenty moves that may concern each of four tasks."""
    scene = Scene(cast, f'{SOME[:-1]} && (level = "a" || level = @record.title))')
    own = scene.join()
    scene.follow()
    for n in range(20):
        scene.change("members", own, level="a" if n % 2 else "b")
    now(scene.reader)
    monkeypatch.setattr(members, "MOST_VERDICTS", most)
    with statements(app) as sent:
        found = feed(scene.reader, since=scene.since, collections="tasks")["items"]
    names = {
        "reset" if "record" not in one else f"+{scene.name(one['record_id'])}" for one in found
    }
    assert names == told
    assert len(sent) <= 16, sent


def test_change_of_membership_reads_no_more_of_what_followed_than_fits(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(cast, MEMBER)
    own = scene.join()
    scene.follow()
    scene.drop("members", own)
    for task in scene.tasks[0]:
        scene.change("tasks", task, title="x" * 500)
    monkeypatch.setattr(changes, "ROOM", 900)
    read = list[int]()

    def note(account_id: str, rows: Any, definitions: Any) -> Any:
        texts = (getattr(row, name) for row in rows for name in changes.VALUES)
        read.append(sum(len(text) for text in texts if text))
        return transitions(account_id, rows, definitions)

    transitions = states.transitions
    monkeypatch.setattr(states, "transitions", note)
    assert "reset" in scene.follow(1)
    assert max(read) <= 900


def test_later_changes_are_found_by_their_table(app: Flask, cast: Cast) -> None:
    scene = Scene(cast, MEMBER)
    scene.join()
    with app.app_context(), tenancy.in_account(cast.bob.account_id):
        with statements(app) as sent:
            found = changes.later(cast.bob.account_id, 0, {"col_members", "col_tasks"}, 100)
        assert found is not None
        assert len(found) == 5
        sizes, is_sqlite = sent[-2], db.has_one_writer()
        with db.transaction():
            for setting in () if is_sqlite else ("enable_seqscan", "enable_sort"):  # few rows
                db.connection().exec_driver_sql(f"SET LOCAL {setting} = off")
            explain = "EXPLAIN QUERY PLAN" if is_sqlite else "EXPLAIN"
            asked = f"{explain} {sizes}"
            plan = str(db.connection().exec_driver_sql(asked, sizes.parameters).all())
    assert plan.count("ix_audit_changes_account_table_number") == 2, plan
    assert plan.count("ix_feed_changes_account_table_number") == 2, plan


def test_change_of_membership_in_another_account_is_not_told(cast: Cast) -> None:
    scene = Scene(cast, SOME)
    there = cast.root.acting_in("globex")
    make_record(there, "members", level="editor", user=cast.charlie.id)
    assert scene.follow() == []
    assert feed(cast.charlie, collections="tasks")["items"] == []


def test_feed_of_collection_with_memberships_takes_few_statements(app: Flask, cast: Cast) -> None:
    scene = Scene(cast, MEMBER)
    scene.join()
    scene.follow()
    for task in scene.tasks[0] + scene.tasks[1]:
        scene.change("tasks", task, title="changed")
    now(scene.reader)  # gives them their place
    with statements(app) as sent:
        found = feed(scene.reader, since=scene.since, collections="tasks")["items"]
    assert len(found) == 2
    assert len(sent) <= 10, sent
