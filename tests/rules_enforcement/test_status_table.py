"""Every form of rule x every kind of caller x every operation, against docs/rules.md.

What is expected is worked out here, from what each rule says in words, by the tables of that page;
nothing of it asks the product. Under every rule each caller does each operation to a third
of the records, and all callers together to all of them; `make slow` takes all of them for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from tests.builders import Caller, Cast, make_collection, make_record, make_user
from tests.conftest import WHOLE
from tests.rules_enforcement.stored import put_back, rows

OPERATIONS = ("list", "view", "create", "update", "delete")
DONE = {"list": 200, "view": 200, "create": 201, "update": 200, "delete": 204}
CLOSED = dict.fromkeys(f"{operation}_rule" for operation in OPERATIONS)
SCHEMA = [
    {"name": "title", "type": "text"},
    {"name": "status", "type": "text"},
    {"name": "team", "type": "reference", "collection": "teams"},
    {
        "name": "loud",
        "type": "computed",
        "expression": "upper(status)",
        "return_type": "text",
    },
]


@dataclass(frozen=True)
class Who:
    """A caller, and what rules know of it."""

    call: Caller
    id: str | None = None
    role: str | None = None
    account: str = "acme"
    superadmin: bool = False


@dataclass(frozen=True)
class Form:
    """A rule, and in words of Python when it holds."""

    rule: str
    holds: Callable[[Who, dict[str, Any], dict[str, Any]], bool]
    mentions: bool = False
    """Whether it mentions the caller."""
    never_anonymous: bool = False
    """Whether it holds for no record when nobody has signed in."""


LEADS = {"red": "owner"}
FORMS = [
    Form("false", lambda who, record, sent: False),
    Form("1 = 1", lambda who, record, sent: True),
    Form("@has_role(editor)", lambda w, r, s: w.role == "editor", True, True),
    Form('@request.auth.id != ""', lambda w, r, s: w.id is not None, True, True),
    Form('@request.auth.id = ""', lambda w, r, s: w.id is None, True),
    Form('@request.auth.id NOT IN ["", "x"]', lambda w, r, s: w.id is not None, True, True),
    Form('@request.auth.id IN ["", "x"]', lambda w, r, s: w.id is None, True),
    Form("@request.auth.role != 'viewer'", lambda w, r, s: w.role != "viewer", True),
    Form("status = 'open'", lambda w, r, s: r["status"] == "open"),
    Form("status != 'open'", lambda w, r, s: r["status"] != "open"),
    Form("loud ~ 'o%'", lambda w, r, s: r["status"] == "open"),
    Form("@owns_record()", lambda w, r, s: w.id is not None and r["by"] == w.id, True, True),
    Form("created_by != @request.auth.id", lambda w, r, s: w.id is None or r["by"] != w.id, True),
    Form(
        "status = 'open' || @owns_record()",
        lambda w, r, s: r["status"] == "open" or (w.id is not None and r["by"] == w.id),
        True,
    ),
    Form(
        "status = 'open' && @has_any_role([viewer, admin])",
        lambda w, r, s: r["status"] == "open" and w.role in ("viewer", "admin"),
        True,
        True,
    ),
    Form(
        "team.lead = @request.auth.id",
        lambda w, r, s: w.id is not None and r["lead"] == w.id,
        True,
        True,
    ),
    Form("team.name = 'red'", lambda w, r, s: r["team"] == "red"),
    Form("@request.data.status = 'open'", lambda w, r, s: s.get("status") == "open"),
    Form("@request.data.status != 'closed'", lambda w, r, s: s.get("status") != "closed"),
]
pytestmark = pytest.mark.one_database
NAMES = ("anonymous", "viewer", "editor", "admin", "owner", "other", "root", "key")


class Stage:
    """The callers, the records, and what docs/rules.md says of them."""

    def __init__(self, app: Flask, cast: Cast, anyone: Caller) -> None:
        self.app, self.root, acme = app, cast.root, cast.alice.account_id
        editor, owner = (
            Caller(app, make_user(app, acme, f"{n}@acme.example", r))
            for n, r in (("edd", "editor"), ("olga", "viewer"))
        )
        key = owner.post("api-keys", {"name": "k"}).json["key"]
        self.callers = {
            "anonymous": Who(anyone.acting_in("acme")),
            "viewer": Who(cast.bob, cast.bob.id, "viewer"),
            "editor": Who(editor, editor.id, "editor"),
            "admin": Who(cast.alice, cast.alice.id, "admin"),
            "owner": Who(owner, owner.id, "viewer"),
            "other": Who(cast.charlie, cast.charlie.id, "admin", "globex"),
            "root": Who(cast.root.acting_in("acme"), cast.root.id, "admin", superadmin=True),
            "key": Who(Caller(app, Authorization=f"Bearer {key}"), owner.id, "viewer"),
        }
        self._fill(cast, owner)
        self.refused: list[object] = []

    def _fill(self, cast: Cast, owner: Caller) -> None:
        leads = {"owner": owner.id, "alice": cast.alice.id}
        make_collection(cast.root, "teams", [{"name": n, "type": "text"} for n in ("name", "lead")])
        make_collection(cast.root, schema=SCHEMA)
        self.teams = {
            name: make_record(cast.alice, "teams", name=name, lead=leads[lead])["id"]
            for name, lead in LEADS.items()
        }
        self.records: list[dict[str, Any]] = []
        for caller, account in ((owner, "acme"), (cast.alice, "acme"), (cast.charlie, "globex")):
            for status, team in (("open", "red"), (None, None)):
                of_team = {"team": self.teams[team]} if team and account == "acme" else {}
                made = make_record(caller, title="t", status=status, **of_team)
                lead = leads[LEADS[team]] if team and of_team else None
                told = {"by": caller.id, "status": status, "lead": lead, "account": account}
                self.records.append(told | {"id": made["id"], "team": team if of_team else None})
        self.kept = rows(self.app)

    def rules(self, **changes: str | None) -> None:
        answer = self.root.put("collections/posts/rules", {**CLOSED, **changes})
        assert answer.status_code == 200, answer.json

    def check(self, answer: TestResponse, wanted: int, case: object) -> None:
        """The status, its shape, and that a refusal left everything as it was."""
        assert answer.status_code == wanted, (case, answer.json)
        if wanted == 401:
            assert answer.headers["WWW-Authenticate"] == "Bearer", case
        if wanted == 403:
            told = {name: value for name, value in answer.json.items() if name != "explain_id"}
            assert told == {
                "error": "rule_denied",
                "message": "The collection's rules do not allow this.",
            }, case
        if answer.request.method != "GET":
            if wanted >= 400:
                self.refused.append(case)
            else:
                put_back(self.app, self.kept)

    def check_untouched(self) -> None:
        """That all that was refused since the last time left everything as it was."""
        if self.refused:
            assert rows(self.app) == self.kept, self.refused
        self.refused.clear()


@pytest.fixture
def stage(app: Flask, cast: Cast, anyone: Caller) -> Stage:
    return Stage(app, cast, anyone)


def passes(rule: Any, who: Who, record: dict[str, Any], sent: dict[str, Any]) -> bool:
    """Whether a rule lets a caller at a record of the caller's account."""
    if who.superadmin or rule == "":
        return True
    if isinstance(rule, Form):
        return rule.holds(who, record, sent)
    return rule == "true" and who.id is not None


def refused(rule: Any, who: Who, *, seen: bool) -> int:
    """The status of a refusal at one record."""
    if who.id is None and (not isinstance(rule, Form) or rule.mentions):
        return 401
    return 403 if seen or not isinstance(rule, Form) else 404


def shut(rule: Any, who: Who) -> bool:
    """Whether an operation is closed before any record is looked at."""
    return not isinstance(rule, Form) and not passes(rule, who, {}, {})


def text(rule: Any) -> str | None:
    return rule.rule if isinstance(rule, Form) else rule


RULES: list[Any] = [None, "", "true", *FORMS]


def chosen(stage: Stage, whole: bool, *turns: int) -> list[dict[str, Any]]:
    """The records to ask for: all, or the third that comes with this turn."""
    third = [r for n, r in enumerate(stage.records) if (n + sum(turns)) % 3 == 0]
    return stage.records if whole else third


@pytest.mark.long
@WHOLE
def test_rule_status_table_of_reads(stage: Stage, whole: bool) -> None:
    for turn, rule in enumerate(RULES):
        stage.rules(list_rule=text(rule))
        for name, who in stage.callers.items():
            check_list(stage, rule, name, who)
        stage.rules(view_rule=text(rule))
        for number, (name, who) in enumerate(stage.callers.items()):
            for record in chosen(stage, whole, turn, number):
                check_view(stage, rule, name, who, record)
    check_the_table(stage)


def check_list(stage: Stage, rule: Any, name: str, who: Who) -> None:
    answer = who.call.get("records/posts?limit=100&sort=id")
    case = (text(rule), name)
    hopeless = isinstance(rule, Form) and rule.never_anonymous and who.id is None
    if shut(rule, who) or hopeless:
        stage.check(answer, 401 if who.id is None else 403, case)
        return
    stage.check(answer, 200, case)
    inside = [r for r in stage.records if r["account"] == who.account]
    wanted = sorted(r["id"] for r in inside if passes(rule, who, r, {}))
    assert [item["id"] for item in answer.json["items"]] == wanted, case
    assert answer.json["total"] == len(wanted), case


def check_view(stage: Stage, rule: Any, name: str, who: Who, record: dict[str, Any]) -> None:
    answer = who.call.get(f"records/posts/{record['id']}")
    inside = record["account"] == who.account
    if inside and passes(rule, who, record, {}):
        wanted = 200
    elif shut(rule, who):
        wanted = 401 if who.id is None else 403
    else:
        mentions = isinstance(rule, Form) and rule.mentions
        wanted = 401 if who.id is None and mentions else 404
    stage.check(answer, wanted, (text(rule), name, record))
    if wanted == 200:
        assert answer.json["id"] == record["id"]


BODIES: list[dict[str, Any]] = [{"title": "x"}, {"status": "open"}, {"status": "closed"}]


@pytest.mark.long
@WHOLE
def test_rule_status_table_of_creates(stage: Stage, whole: bool) -> None:
    for turn, rule in enumerate(RULES):
        stage.rules(create_rule=text(rule))
        for number, (name, who) in enumerate(stage.callers.items()):
            left_out = None if whole else (turn + number) % 3
            for sent in (body for n, body in enumerate(BODIES) if n != left_out):
                body = dict(sent)
                if who.account == "acme" and (who.id or who.superadmin):
                    body["team"] = stage.teams["red"]
                lead = stage.callers["owner"].id if "team" in body else None
                team = "red" if "team" in body else None
                row = {"by": who.id, "status": sent.get("status"), "lead": lead, "team": team}
                wanted = 201 if passes(rule, who, row, body) else refused(rule, who, seen=True)
                if wanted == 201:
                    stage.check_untouched()
                answer = who.call.post("records/posts", body)
                stage.check(answer, wanted, (text(rule), name, body))
    stage.check_untouched()


@pytest.mark.long
@WHOLE
@pytest.mark.parametrize("operation", ["update", "delete"])
def test_rule_status_table_of_updates_and_deletes(
    stage: Stage, operation: str, whole: bool
) -> None:
    bodies = [{"title": "x"}, {"status": "closed"}] if operation == "update" else [{}]
    for turn, (rule, seen) in enumerate(product(RULES, (True, False))):
        # Whoever may not list may still be told of a record by its id.
        stage.rules(**{f"{operation}_rule": text(rule), "view_rule": "" if seen else None})
        for number, (name, who) in enumerate(stage.callers.items()):
            there = chosen(stage, whole, turn // 2, turn % 2, number)
            first = 0 if whole or not seen else (turn // 2 + number) % len(bodies)
            sent = bodies if whole and seen else [bodies[first]]
            for record in (r for r in there if r["account"] == "acme"):
                for body in sent:
                    check_change(stage, rule, name, who, record, body, operation, seen)
    stage.check_untouched()


def check_change(
    stage: Stage,
    rule: Any,
    name: str,
    who: Who,
    record: dict[str, Any],
    sent: dict[str, Any],
    operation: str,
    seen: bool,
) -> None:
    seen = seen and who.account == "acme"
    before = who.account == "acme" and passes(rule, who, record, sent)
    if before and passes(rule, who, record | sent, sent):
        wanted = DONE[operation]
    elif before:
        wanted = refused(rule, who, seen=True)
    else:
        wanted = 401 if shut(rule, who) and who.id is None else refused(rule, who, seen=seen)
        if not isinstance(rule, Form) and not shut(rule, who):
            wanted = 404  # open to the caller, who is of another account
    if wanted < 400:
        stage.check_untouched()
    url = f"records/posts/{record['id']}"
    answer = who.call.patch(url, sent) if operation == "update" else who.call.delete(url)
    stage.check(answer, wanted, (text(rule), name, record, sent))


def check_the_table(stage: Stage) -> None:
    """That it is about every kind of caller, and says of itself what is so."""
    assert set(stage.callers) == set(NAMES)
    for form in FORMS:
        caught = [form.holds(Who(anonymous), r, {}) for r in stage.records for anonymous in [None]]
        assert not form.never_anonymous or (form.mentions and not any(caught))
