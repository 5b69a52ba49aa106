"""A random walk: whatever changes, each reader ends up with what a fresh list shows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from flask import Flask

from app.realtime.feed import members
from tests.builders import Caller, Cast, make_collection, make_user
from tests.feed.test_changes import feed

USER = {"name": "user", "type": "user"}
TEXTS = ["a", "b", "c"]
MEMBER = "@any(members, project = @record.project && user = @request.auth.id"
EXACT = [
    f"{MEMBER})",
    f'{MEMBER} && level = "b")',
    f'{MEMBER} && level >= @record.title) || title = "c"',
    f'!{MEMBER} && level = "a") && title != "c"',
    f"{MEMBER}) && @any(staff, user = @request.auth.id)",
    f'{MEMBER} && level = "a") && title != "c"',
    '@count(members, project = @record.project && level != "c") >= 2',
    "@any(staff, user = @request.auth.id)",
]
"""Rules of which readers are told exactly what a change of memberships gives or takes."""
OTHERS = [
    '@has_group("staff") || @rule(editors)',
    'project.title = "b" || created_by = @request.auth.id',
    f"{MEMBER} && @any(staff, user = @outer.user))",
    'title = "a"',
]
RULES = [*EXACT * 4, *OTHERS]
NESTED = [
    f"{MEMBER} && @any(staff, user = @outer.user))",
    f"!{MEMBER} && @any(staff, user = @outer.user))",
    f"{MEMBER} && @count(staff, user = @outer.user) >= 2)",
    "@count(members, project = @record.project && @any(staff, user = @outer.user)) >= 2",
    f"!{MEMBER} && !@any(staff, user = @outer.user && user != @record.created_by))",
    f"{MEMBER}) && !@any(staff, user = @request.auth.id)",
]
"""Rules that ask for what other records ask for, among others."""


class Reader:
    """A reader of the feed with a copy of what it was shown."""

    def __init__(self, caller: Caller, chance: random.Random) -> None:
        self.caller, self._chance = caller, chance
        self._since, self.resets = 0, 0
        self._copy: dict[str, Any] = {}
        self._list()

    @property
    def listed(self) -> dict[str, Any]:
        """What the reader is shown now."""
        found, cursor = dict[str, Any](), {}
        while True:
            query = {"limit": 100, "sort": "id", **cursor}
            answer = self.caller.get("records/tasks", query_string=query)
            if answer.status_code == 403:
                return {}
            page: Any = answer.json
            found |= {one["id"]: one for one in page["items"]}
            if not page.get("next_cursor"):
                return found
            cursor = {"cursor": page["next_cursor"]}

    def _list(self) -> None:
        self._copy = self.listed

    def read(self, *, all_: bool) -> None:
        """Read a page, or all there is; sometimes one is cut off before it is kept."""
        while True:
            limit = self._chance.choice([1, 2, 5, 100])
            page = feed(self.caller, since=self._since, limit=limit)
            is_cut = self._chance.random() < 0.2
            for one in page["items"]:
                if one["collection"] == "tasks":
                    self._apply(one)
                if is_cut and self._chance.random() < 0.5:
                    break
            else:
                self._since = page["next"]
                if not page["has_more"] or not all_:
                    return

    def _apply(self, one: dict[str, Any]) -> None:
        if one["event"] == "records.reset":
            self.resets += 1
            self._list()
        elif one["record"] is None:
            self._copy.pop(one["record_id"], None)
        else:
            self._copy[one["record_id"]] = one["record"]

    def check(self) -> None:
        """Compare the copy with a fresh list."""
        self.read(all_=True)
        assert self._copy == self.listed


class Walk:
    """Random changes of records, memberships and rights."""

    def __init__(self, app: Flask, cast: Cast, seed: int, rules: Sequence[str]) -> None:
        self.chance, self._rules = random.Random(seed), rules
        self.root, self.operator, self.alice = cast.root, cast.root.acting_in("acme"), cast.alice
        make_collection(self.root, "projects")
        project: dict[str, Any] = {"name": "project", "type": "reference", "collection": "projects"}
        project["on_delete"] = "set_null"
        level = {"name": "level", "type": "text"}
        make_collection(self.root, "members", [project, USER, level], view_rule=None)
        make_collection(self.root, "staff", [USER], view_rule=None)
        schema = [{"name": "title", "type": "text"}, project]
        fragments = {"editors": '@has_role("editor")'}
        assert self.root.put("rules/fragments", fragments).status_code == 200
        self.tasks = make_collection(self.root, "tasks", schema, **self._rule())["id"]
        self.group = self._done(self.alice.post("groups", {"name": "staff"}))["id"]
        roles: Any = self.root.get("roles").json
        self.roles = [one["id"] for one in roles["items"] if one["name"] in ("viewer", "editor")]
        people = [make_user(app, cast.bob.account_id, f"u{n}@acme.example") for n in range(2)]
        self.callers = [cast.bob, *(Caller(app, user) for user in people)]
        self.ids: dict[str, list[str]] = {
            name: [] for name in ("projects", "members", "staff", "tasks")
        }
        for _ in range(3):
            self.write("projects")
        for _ in range(12):
            self.write()
        self.readers = [Reader(one, self.chance) for one in self.callers]

    def _done(self, answer: Any) -> Any:
        assert answer.status_code < 300, answer.text
        return answer.json

    def _rule(self) -> dict[str, str]:
        return dict.fromkeys(("view_rule", "list_rule"), self.chance.choice(self._rules))

    def write(self, collection: str = "") -> None:
        """Create, change or delete a record."""
        collection = collection or self.chance.choices([*self.ids], [0.3, 4, 1, 6])[0]
        values: dict[str, Any] = {
            "project": self.chance.choice(self.ids["projects"] or [None]),
            "title": self.chance.choice(TEXTS),
            "level": self.chance.choice(TEXTS),
            "user": self.chance.choice(self.callers).id,
        }
        names = {
            "projects": ["title"],
            "members": ["project", "user", "level"],
            "staff": ["user"],
            "tasks": ["title", "project"],
        }[collection]
        values = {name: values[name] for name in names}
        own, kind = self.ids[collection], self.chance.random()
        if len(own) < 3 or (kind < 0.3 and collection != "projects"):
            by = self.chance.choice([self.operator, *self.callers])
            by = by if collection == "tasks" else self.operator
            made = self._done(by.post(f"records/{collection}", values))
            own.append(made["id"])
        elif kind < 0.7:
            some = {name: values[name] for name in self.chance.sample(names, 1)}
            self._done(self.operator.patch(f"records/{collection}/{self.chance.choice(own)}", some))
        else:
            id = own.pop(self.chance.randrange(len(own)))
            self._done(self.operator.delete(f"records/{collection}/{id}"))

    def change_rights(self) -> None:
        """Change a rule, a fragment, a role, a group or a field right."""
        user = self.chance.choice(self.callers).id

        def join() -> Any:
            return self.alice.post(f"groups/{self.group}/members", {"user_id": user})

        def leave() -> Any:
            return self.alice.delete(f"groups/{self.group}/members/{user}")

        def fragment() -> Any:
            role = self.chance.choice(["viewer", "editor"])
            return self.root.put("rules/fragments", {"editors": f'@has_role("{role}")'})

        def role() -> Any:
            body = {"role_id": self.chance.choice(self.roles)}
            return self.alice.patch(f"account/users/{user}", body)

        def rule() -> Any:
            return self.root.put("collections/tasks/rules", self._rule())

        def fields() -> Any:
            shown = self.chance.choice(["*", ["title"], ["title", "project"]])
            body = {"view_fields": shown, "list_fields": shown}
            return self.root.put("collections/tasks/rules", body)

        kinds: list[Callable[[], Any]] = [join, leave, fragment, role, rule, fields]
        answer = self.chance.choice(kinds)()
        assert answer.status_code < 300 or answer.status_code in (404, 409), answer.text


def walk(
    app: Flask, cast: Cast, seed: int, writes: int, rights: int, rules: Sequence[str] = RULES
) -> Walk:
    """Change so much, while readers read now and then, and compare their copies."""
    made = Walk(app, cast, seed, rules)
    chance = made.chance
    for _ in range(writes):
        made.write()
        if chance.random() < rights / writes:
            made.change_rights()
        if chance.random() < 0.1:
            chance.choice(made.readers).read(all_=False)
        if chance.random() < 0.1:
            chance.choice(made.readers).check()
    for reader in made.readers:
        reader.check()
    return made


@pytest.mark.parametrize("seed", range(3))
def test_readers_of_random_changes_have_what_lists_show(app: Flask, cast: Cast, seed: int) -> None:
    walk(app, cast, seed, writes=30, rights=4)


@pytest.mark.parametrize("seed", range(len(NESTED)))
def test_readers_under_nested_rules_have_what_lists_show(app: Flask, cast: Cast, seed: int) -> None:
    made = walk(app, cast, seed, writes=30, rights=0, rules=NESTED[seed : seed + 1])
    assert sum(reader.resets for reader in made.readers) or "@outer" not in NESTED[seed]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(len(NESTED)))
def test_readers_of_many_changes_under_nested_rules_have_what_lists_show(
    app: Flask, cast: Cast, seed: int
) -> None:
    walk(app, cast, seed, writes=1_000, rights=0, rules=NESTED[seed : seed + 1])


@pytest.mark.slow
@pytest.mark.parametrize("most", [1000, 3])
def test_readers_of_ten_thousand_changes_have_what_lists_show(
    app: Flask, cast: Cast, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "MOST", most)
    made = walk(app, cast, 23, writes=10_000, rights=300)
    assert all(reader.resets for reader in made.readers)
