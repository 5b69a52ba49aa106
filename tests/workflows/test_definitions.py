"""Definitions are checked in full when they are saved, and told apart by place."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from flask import Flask

from app.outbound import address_policy, web_waits
from app.workflows.language import cron, expressions, templates
from tests.builders import OPEN, Caller, Cast, make_collection
from tests.console.browser import Browser
from tests.parallel import at_once
from tests.workflows.running import MANUAL, action, create, make_workflow

LOOP = {"name": "l", "type": "loop", "items": [1]}
WAIT = {"name": "w", "type": "wait_delay"}
ASK = {"name": "c", "type": "condition", "expression": "true"}
FAULTS: list[tuple[Any, dict[str, str]]] = [
    ([{"name": "a", "type": "fly"}], {"steps[0].type": "type_invalid"}),
    ([{"name": "a b", "type": "wait_delay", "duration": "1h"}], {"steps[0].name": "name_invalid"}),
    ([{"name": "a-b", "type": "wait_delay", "duration": "1h"}], {"steps[0].name": "name_invalid"}),
    (
        [{"name": ["x"], "type": {}}],
        {"steps[0].name": "name_invalid", "steps[0].type": "type_invalid"},
    ),
    ([create("a"), create("a")], {"steps[1].name": "name_duplicate"}),
    ([{**WAIT, "duration": "1w"}], {"steps[0].duration": "invalid_duration"}),
    ([WAIT], {"steps[0].duration": "required"}),
    ([{**WAIT, "duration": "1h", "until": 3}], {"steps[0].until": "unknown_field"}),
    ([create("a", next="z")], {"steps[0].next": "invalid_reference"}),
    ([create("a", next="c"), create("b"), create("c")], {"steps[1]": "step_unreachable"}),
    ([create("a", next=None), create("b")], {"steps[1]": "step_unreachable"}),
    ([{**ASK, "on_true": "a"}, create("b"), create("a")], {"steps[1]": "step_unreachable"}),
    ([{**ASK, "on_true": "n"}], {"steps[0].on_true": "invalid_reference"}),
    ([{**ASK, "expression": "trigger.x >"}], {"steps[0].expression": "expression_invalid"}),
    ([{**ASK, "expression": "item = 1"}], {"steps[0].expression": "expression_invalid"}),
    (
        [{**ASK, "expression": "steps.q.output.x = 1"}],
        {"steps[0].expression": "expression_invalid"},
    ),
    ([{**ASK, "expression": "@has_role(admin)"}], {"steps[0].expression": "expression_invalid"}),
    (
        [action("m", "send_email", to="=?utf-8?q?a?=@b.example", subject="s", body="b")],
        {"steps[0].config.to": "invalid_type"},
    ),
    ([create("a", "{{ stps.x }}")], {"steps[0].config.data.title": "template_invalid"}),
    ([create("a", "{{ trigger.x")], {"steps[0].config.data.title": "template_invalid"}),
    ([create("a", "{{ 1 + }}")], {"steps[0].config.data.title": "template_invalid"}),
    ([{**LOOP, "steps": []}], {"steps[0].steps": "required"}),
    ([{**LOOP, "steps": [create("a", next="l")]}], {"steps[0].steps[0].next": "invalid_reference"}),
    ([{**LOOP, "items": "x", "steps": [create("a")]}], {"steps[0].items": "invalid_type"}),
    (
        [
            {
                "name": "p",
                "type": "parallel",
                "branches": [[create("a")], [{"name": "b", "type": "x"}]],
            }
        ],
        {"steps[0].branches[1][0].type": "type_invalid"},
    ),
    ([action("a", "explode")], {"steps[0].action_type": "type_invalid"}),
    ([action("a", "create_record", collection="posts")], {"steps[0].config.data": "required"}),
    ([action("a", "send_webhook", url="ftp://x")], {"steps[0].config.url": "invalid_url"}),
    (
        [action("a", "send_webhook", url="http://x.example", headers={"Host": "y"})],
        {"steps[0].config.headers": "invalid_type"},
    ),
    (
        [action("a", "query_records", collection="posts", filter="title =", limit=1000)],
        {"steps[0].config.filter": "filter_invalid", "steps[0].config.limit": "invalid_type"},
    ),
    (
        [{"name": "e", "type": "wait_event", "event": "sunrise"}],
        {"steps[0].event": "invalid_option"},
    ),
    (
        [action("a", "query_records", collection="posts", filter="a > {{ trigger.x }} &&")],
        {"steps[0].config.filter": "filter_invalid"},
    ),
    (
        [action("a", "send_email", to=["no address"], subject="s", body="b")],
        {"steps[0].config.to": "invalid_type"},
    ),
    (
        [action("a", "send_email", to=[], subject="s", body="b")],
        {"steps[0].config.to": "invalid_type"},
    ),
    (
        [{"name": "a", "type": "action", "action_type": {}, "config": []}],
        {"steps[0].action_type": "type_invalid", "steps[0].config": "invalid_type"},
    ),
    ([create(f"s{n}") for n in range(51)], {"steps": "too_long"}),
    ([{"name": f"a{n}"} for n in range(10_000)], {"steps": "too_long"}),
    ([create("a", "{{ 1 }}" * 501)], {"steps": "too_long"}),
]


def test_template_text_with_many_braces_is_parsed_quickly(alice: Caller) -> None:
    begun = time.process_time()
    for text in ("{{" * 400, "{" * 100_000, "{{ " + "x" * 200_000, "}}" * 100_000):
        steps = [create("a", text)]
        alice.post("workflows", {"name": "x", "trigger": MANUAL, "steps": steps})
    assert time.process_time() - begun < 2


def test_workflow_token_is_not_repeated_by_idempotency_key(alice: Caller) -> None:
    once = {"Idempotency-Key": "k1"}
    body = {"name": "x", "trigger": {"type": "webhook"}, "steps": [create("a")]}
    made = alice.post("workflows", body, headers=once)
    again = alice.post("workflows", body, headers=once)
    assert made.json["trigger"]["token"]
    assert (again.status_code, again.json["error"]) == (409, "already_done")
    plain = {"name": "y", "trigger": MANUAL, "steps": [create("a")]}
    answers = [alice.post("workflows", plain, headers={"Idempotency-Key": "k2"}) for _ in range(2)]
    assert answers[0].json == answers[1].json


def test_workflow_definition_problems_have_their_place(alice: Caller) -> None:
    for steps, places in FAULTS:
        answer = alice.post("workflows", {"name": "x", "trigger": MANUAL, "steps": steps})
        assert answer.status_code == 400, (steps, answer.json)
        assert {one["field"]: one["code"] for one in answer.json["details"]} == places, steps
    assert alice.get("workflows").json["total"] == 0


TRIGGERS = [
    ({"type": "never"}, "trigger.type"),
    ({}, "trigger.type"),
    ({"type": ["x"]}, "trigger.type"),
    ({"type": "schedule"}, "trigger.cron"),
    ({"type": "schedule", "cron": "* * * *"}, "trigger.cron"),
    ({"type": "schedule", "cron": "* * * * * *"}, "trigger.cron"),
    ({"type": "schedule", "cron": "R * * * *"}, "trigger.cron"),
    ({"type": "schedule", "cron": "0 0 30 2 *"}, "trigger.cron"),
    ({"type": "schedule", "cron": 7}, "trigger.cron"),
    ({"type": "schedule", "cron": "@daily", "timezone": "Europe/Nowhere"}, "trigger.timezone"),
    ({"type": "schedule", "cron": "@daily", "timezone": "../etc/passwd"}, "trigger.timezone"),
    ({"type": "schedule", "cron": "@daily", "timezone": ["UTC"]}, "trigger.timezone"),
    ({"type": "manual", "timezone": "UTC"}, "trigger.timezone"),
    ({"type": "event"}, "trigger.event"),
    ({"type": "event", "event": "records.create", "collection": "a b"}, "trigger.collection"),
    ({"type": "event", "event": "create", "condition": "a ="}, "trigger.condition"),
    ({"type": "manual", "cron": "* * * * *"}, "trigger.cron"),
    ({"type": "webhook", "token": "mine"}, "trigger.token"),
]


CRONS = {
    "*/61 * * * *": "The step of '*/61'",
    "0-59/100 * * * *": "The step of '0-59/100'",
    "1-3/7 * * * *": "The step of '1-3/7'",
    "3-3/2 * * * *": "The step of '3-3/2'",
    "*/0 * * * *": "'*/0' is not a valid minute",
    "0 0 * * */8": "The step of '*/8'",
    "0 0 * * 7/2": "The step of '7/2'",
    "0 0 L/2 * *": "The step of 'L/2'",
    "5-1 * * * *": "'5-1' is not a valid minute",
    "0 0 * * fri-mon": "'fri-mon' is not a valid day of week",
    "60 24 0 13 8": "'8' is not a valid day of week",
    "1,,2 * * * *": "'' is not a valid minute",
    "*,61 * * * *": "'61' is not a valid minute",
    "0 0 1-L * *": "'1-L' is not a valid day of month",
    "H * * * *": "'H' is not a valid minute",
    "\u0663 * * * *": "is not a valid minute",
    "0 0 31 2 *": "never comes due",
    "0 0 31 4,6 *": "never comes due",
    "0 4 * * L5": "'L5' is not a valid day of week",
    "0 0 15W * *": "'15W' is not a valid day of month",
    "0 0 ? * 1": "'?' is not a valid day of month",
    "@yearly": "Five fields",
    f"{'1,' * 100}1 * * * *": "Five fields",
}
GOOD = (
    "*/15 0-23/2 1,L * *",
    "0 0 29 feb mon-fri",
    "5/10 * * * fri-sun",
    "0 0 LW * 5#2,0L",
    "*/60 */24 * * *",
)
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "7")


def test_cron_ranges_equal_brute_force() -> None:
    """Of one value, or all, too, and of days that end with the Sunday that is called 7."""
    minutes, hours, days = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
    checks: list[tuple[str, timedelta, Callable[[datetime], bool]]] = []
    for n in (0, 30, 59):
        checks.append((f"{n}-{n} * * * *", minutes, lambda at, n=n: at.minute == n))
        checks.append(
            (f"{n}-{n} 5-5 * * *", minutes, lambda at, n=n: (at.hour, at.minute) == (5, n))
        )
    for n in (0, 22, 23):
        checks.append((f"0 {n}-{n}/1 * * *", hours, lambda at, n=n: at.hour == n))
    for n in (1, 15, 31):
        checks.append((f"0 0 {n}-{n} * *", days, lambda at, n=n: at.day == n))
    for n, name in enumerate(MONTHS, 1):
        for text in (n, name):
            cron_text = f"0 0 1 {text}-{text} *"
            checks.append((cron_text, days, lambda at, n=n: (at.month, at.day) == (n, 1)))
    for n, name in enumerate(DAYS):
        for text in (n, name) if n < 7 else (n,):
            checks.append((f"0 0 * * {text}-{text}", days, lambda at, n=n: _day(at) == n % 7))
            wanted = {one % 7 for one in range(n, 8)}
            checks.append((f"0 0 * * {text}/1", days, lambda at, w=wanted: _day(at) in w))
    for every in ("*", "*/1", "*/01"):
        checks.append((f"0 0 1 * {every}", days, lambda at: at.day == 1))
        checks.append((f"0 0 {every} * sun", days, lambda at: _day(at) == 0))
    checks.append(("0 0 1 * sun", days, lambda at: at.day == 1 or _day(at) == 0))
    checks.append(("0 0 13 * sun#2", days, lambda at: at.day == 13 or _is_second_sunday(at)))
    checks.append(("0 0 31 2 sun#2", days, lambda at: at.month == 2 and _is_second_sunday(at)))
    checks.append(("0 0 */10 * sun#2", days, lambda at: at.day % 10 == 1 or _is_second_sunday(at)))
    checks.append(("0 0 1 * */3", days, lambda at: _day(at) % 3 == 0 or at.day == 1))
    checks.append(("0 0 5,* * sun", days, lambda at: _day(at) == 0))
    checks.append(("0 0 1 * fri-sun", days, lambda at: _day(at) in (0, 5, 6) or at.day == 1))
    checks.append(("0 0 * * 5L", days, lambda at: _day(at) == 5 and (at + days * 7).day < 8))
    checks.append(("0 0 L * *", days, lambda at: (at + days).day == 1))
    for text, step, fits in checks:
        assert cron.problem(text) is None, text
        at = begin = datetime(2026, 1, 1, tzinfo=UTC)
        for _ in range(3):
            begin = cron.following(text, begin)
            at += step
            while not fits(at):
                at += step
            assert begin == at, text


def _day(at: datetime) -> int:
    return at.isoweekday() % 7


def _is_second_sunday(at: datetime) -> bool:
    return _day(at) == 0 and 8 <= at.day <= 14


def test_cron_schedules_are_in_utc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        for day in (datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC)):
            for text, hour, minute in (("30 1 * * *", 1, 30), ("30 2 * * *", 2, 30)):
                first = (day + timedelta(days=1)).replace(hour=hour, minute=minute)
                assert cron.following(text, day) == first
                assert cron.following(text, first) == first + timedelta(days=1)
            # The moment of the same instant in a zone that changes its clocks.
            local = day.astimezone(ZoneInfo("Europe/Berlin"))
            at = moments = day
            for _ in range(48):
                at, moments = at + timedelta(minutes=30), cron.following("*/30 * * * *", moments)
                assert moments == at
            assert cron.following("30 2 * * *", local) == cron.following("30 2 * * *", day)
    finally:
        monkeypatch.undo()
        time.tzset()


# Around changes of clocks: by an hour, by half of one, and by a day.
CHANGES = (
    ("Europe/Berlin", datetime(2026, 3, 28, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 24, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 7, tzinfo=UTC)),
    ("America/St_Johns", datetime(2026, 10, 31, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 3, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 2, tzinfo=UTC)),
    ("Pacific/Apia", datetime(2011, 12, 29, tzinfo=UTC)),
    ("America/Havana", datetime(2026, 3, 7, tzinfo=UTC)),
    ("Asia/Kathmandu", datetime(2026, 3, 28, tzinfo=UTC)),
)


@pytest.mark.long
def test_cron_schedules_in_zones_equal_brute_force() -> None:
    """Each time of the clocks once: at once if left out, the first time if it comes twice.

    If it has every hour, whenever the clocks show it.
    """
    chance, minute = random.Random(7), timedelta(minutes=1)
    for zone, begin in CHANGES * 12:
        minutes = chance.choice(("*", "*/20", "0", "30", "15,45", "35", "59"))
        hours = chance.choice(("*", "0-4", "2", "1,2,3", "*/2", "23", "0", "0-23", "*/1"))
        text = f"{minutes} {hours} * * {chance.choice(('*', '*', '0', 'mon'))}"
        due, shown = list[datetime](), begin.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        for number in range(1, 3 * 24 * 60):
            clocks = (begin + number * minute).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
            passed = range(1, int((clocks - shown) / minute) + 1)
            times = [shown + one * minute for one in passed]
            if hours in ("*", "0-23", "*/1"):
                times = [clocks]
            if any(_is_due(text, time) for time in times):
                due.append(begin + number * minute)
            shown = max(shown, clocks)
        found, moment = list[datetime](), begin
        while (moment := cron.following(text, moment, zone)) < begin + timedelta(days=3):
            found.append(moment)
        assert found == due, (zone, begin, text)


def test_schedule_of_every_hour_goes_on_when_clocks_are_put_back() -> None:
    berlin, lord_howe = datetime(2026, 10, 25, tzinfo=UTC), datetime(2026, 4, 4, 14, tzinfo=UTC)
    for text, zone, begin, expected in (
        ("*/15 * * * *", "Europe/Berlin", berlin, range(15, 181, 15)),
        ("@hourly", "Europe/Berlin", berlin, (60, 120, 180)),
        ("30 2 * * *", "Europe/Berlin", berlin, (30, 30 + 25 * 60)),
        # At 2:00, which is 15:00 in UTC, clocks show 1:30 again.
        ("35 * * * *", "Australia/Lord_Howe", lord_howe, (35, 65, 125)),
        ("35 1 * * *", "Australia/Lord_Howe", lord_howe, (35, 35 + 24 * 60 + 30)),
    ):
        moment, found = begin, list[int]()
        for _ in expected:
            moment = cron.following(text, moment, zone)
            found.append(int((moment - begin) / timedelta(minutes=1)))
        assert found == list(expected), (text, zone)


def _is_due(text: str, time: datetime) -> bool:
    return cron.following(text, time.replace(tzinfo=UTC) - timedelta(seconds=1)) == time.replace(
        tzinfo=UTC
    )


def test_cron_aliases_stand_for_five_fields() -> None:
    begin = datetime(2026, 11, 14, 12, 30, tzinfo=UTC)
    for alias, text in cron.ALIASES.items():
        assert cron.problem(alias) is None
        assert cron.following(alias, begin) == cron.following(text, begin)
    assert cron.following("@weekly", begin) == datetime(2026, 11, 15, tzinfo=UTC)
    assert cron.following("@daily", begin, "Asia/Tokyo") == datetime(2026, 11, 14, 15, tzinfo=UTC)


def test_cron_expression_that_is_invalid_is_refused() -> None:
    for text, wrong in CRONS.items():
        assert wrong in (cron.problem(text) or ""), text
    assert [cron.problem(text) for text in GOOD] == [None] * len(GOOD)
    told = str(cron.problem("60 24 0 13 8"))
    assert all(name in told for name in ("'60'", "'24'", "'0'", "'13'", "'8'"))


def slow_names(app: Flask, monkeypatch: pytest.MonkeyPatch, look: Callable[[], None]) -> None:
    """Only public addresses from now on, and names whose look-up takes time."""

    def resolve(host: str, port: int) -> list[str]:
        look()
        return ["93.184.216.34"]

    settings = replace(app.extensions["atrium.config"], webhook_allow_private=False)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    monkeypatch.setattr(address_policy, "_resolve", resolve)


def sending(number: int) -> list[dict[str, Any]]:
    """Steps that send to as many hosts."""
    hosts = [f"https://host{n}.example/" for n in range(number)]
    return [action(f"s{n}", "send_webhook", url=url) for n, url in enumerate(hosts)]


def test_workflow_save_with_slow_dns_takes_constant_time(
    app: Flask, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[float]()

    def look() -> None:
        looks.append(time.monotonic())
        time.sleep(0.4)

    slow_names(app, monkeypatch, look)
    monkeypatch.setattr(web_waits, "REQUEST_SECONDS", 1)
    make_workflow(alice, sending(20))
    assert 0 < len(looks) <= 3  # as many as begin within that second


def test_workflow_save_with_slow_dns_does_not_block_others(
    app: Flask, root: Caller, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(root)
    workflow, statuses = make_workflow(alice, []), list[int]()
    hook = alice.post("hooks", {"name": "x", "trigger": MANUAL}).json
    monkeypatch.setattr(web_waits, "REQUEST_SECONDS", 2)

    def write() -> None:
        statuses.append(alice.post("records/posts", {}).status_code)

    slow_names(app, monkeypatch, write)
    actions = [{"type": "send_webhook", "config": one["config"]} for one in sending(1)]
    assert alice.put(f"workflows/{workflow['id']}", {"steps": sending(1)}).status_code == 200
    assert statuses == [201]
    assert alice.put(f"hooks/{hook['id']}", {"actions": actions}).status_code == 200
    assert statuses == [201, 201]


def test_workflow_trigger_that_is_invalid_is_400(alice: Caller) -> None:
    for trigger, place in TRIGGERS:
        answer = alice.post("workflows", {"name": "x", "trigger": trigger})
        assert answer.status_code == 400, (trigger, answer.json)
        assert [one["field"] for one in answer.json["details"]] == [place], trigger
    # A changed workflow and a hook are checked the same way.
    odd = {"trigger": {"type": "schedule", "cron": "*/61 * * * *"}}
    made = make_workflow(alice, [])
    for answer in (
        alice.put(f"workflows/{made['id']}", odd),
        alice.post("hooks", {"name": "x", **odd}),
    ):
        (detail,) = answer.json["details"]
        assert (answer.status_code, detail["field"]) == (400, "trigger.cron")
        assert "step" in detail["message"]


def test_workflow_create_read_update_delete(cast: Cast) -> None:
    made = make_workflow(cast.alice, [create("a")], {"type": "schedule", "cron": "5 4  * * *"})
    assert made["trigger"] == {"type": "schedule", "cron": "5 4 * * *"}
    assert (made["trigger_type"], made["trigger_config"]) == ("schedule", {"cron": "5 4 * * *"})
    path = f"workflows/{made['id']}"
    assert cast.alice.get(path).json == made
    changed = cast.alice.put(path, {"name": "other", "steps": [create("b")]}).json
    assert (changed["name"], changed["version"], changed["trigger"]) == (
        "other",
        2,
        made["trigger"],
    )
    assert cast.alice.put(path, {"description": "d"}).json["version"] == 2
    assert [cast.alice.patch(f"{path}/toggle").json["enabled"] for _ in range(2)] == [False, True]
    assert cast.alice.patch(f"{path}/toggle", {"enabled": False}).json["enabled"] is False
    assert cast.alice.post(f"{path}/trigger").json["error"] == "disabled"
    listed = cast.alice.get("workflows?trigger_type=schedule&enabled=false&offset=0").json
    assert [one["id"] for one in listed["items"]] == [made["id"]]
    assert cast.alice.get("workflows?trigger_type=event").json["total"] == 0
    assert cast.bob.get("workflows").status_code == 403
    assert cast.alice.delete(path).status_code == 204
    assert cast.alice.get(path).status_code == 404


def test_workflow_and_hook_name_with_unreadable_text_is_name_invalid(alice: Caller) -> None:
    parts = {"workflows": "steps", "hooks": "actions"}
    for kind, part in parts.items():
        made = alice.post(kind, {"name": "Nightly", "trigger": MANUAL, part: []})
        path = f"{kind}/{made.json['id']}"
        for name in ("   ", "\u200b", "Nightly\nPay here"):
            new = alice.post(kind, {"name": name, "trigger": MANUAL, part: []})
            for answer in (new, alice.put(path, {"name": name}), alice.patch(path, {"name": name})):
                assert answer.status_code == 400
                assert [one["code"] for one in answer.json["details"]] == ["name_invalid"]
        assert alice.get(path).json["name"] == "Nightly"


def test_workflow_step_values_true_and_one_are_distinct(alice: Caller) -> None:
    def steps(value: Any) -> list[dict[str, Any]]:
        return [action("a", "create_record", collection="posts", data={"on": value})]

    path = f"workflows/{make_workflow(alice, steps(1))['id']}"
    for version, value in enumerate((True, 1, 1.0), 2):
        assert alice.put(path, {"steps": steps(value)}).json["version"] == version
        kept = alice.get(path).json["steps"][0]["config"]["data"]["on"]
        assert (type(kept), kept) == (type(value), value)
    assert alice.put(path, {"steps": steps(1.0)}).json["version"] == 4


def test_workflow_change_concurrent_with_deletion_is_404(alice: Caller) -> None:
    for _ in range(3):
        one = f"workflows/{make_workflow(alice, [create('one')])['id']}"
        calls = [
            lambda one=one: alice.delete(one),
            lambda one=one: alice.patch(f"{one}/toggle"),
            lambda one=one: alice.put(one, {"name": "other"}),
            lambda one=one: alice.delete(one),
        ]
        answers = at_once(len(calls), lambda n, calls=calls: calls[n]())
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) <= {200, 204, 404}
        assert statuses.count(204) == 1


def test_workflow_limit_per_account_is_limit_reached(app: Flask, alice: Caller) -> None:
    for _ in range(2):
        make_workflow(alice, [create("a")])
    settings = app.extensions["atrium.config"]
    app.extensions["atrium.config"] = replace(settings, workflows_per_account=2)
    try:
        answer = alice.post("workflows", {"name": "x", "trigger": MANUAL})
        assert (answer.status_code, answer.json["error"]) == (409, "limit_reached")
    finally:
        app.extensions["atrium.config"] = settings


def test_workflow_whole_number_over_64_bits_is_a_double(alice: Caller) -> None:
    hooked = {"type": "webhook"}
    token = make_workflow(alice, [], hooked)["trigger"]["token"]
    id = make_workflow(alice, [])["id"]
    hook = {"name": "x", "trigger": {"type": "manual"}}
    hook_id = alice.post("hooks", {**hook, "actions": []}).json["id"]
    given = {"deep": [{"n": 2**63}]}
    actions = [{"type": "create_record", "config": {"collection": "posts", "data": given}}]
    steps = [{"name": "w", "type": "action", **create("a"), "config": actions[0]["config"]}]
    answers = [
        (alice.post(f"workflow-webhooks/{token}", given), 202),
        (alice.post(f"workflows/{id}/trigger", given), 202),
        (alice.post(f"hooks/{hook_id}/trigger", given), 202),
        (alice.post("workflows", {**hook, "steps": steps}), 201),
        (alice.patch(f"workflows/{id}", {"steps": steps}), 200),
        (alice.post("hooks", {**hook, "actions": actions}), 201),
        (alice.patch(f"hooks/{hook_id}", {"actions": actions}), 200),
    ]
    for answer, status in answers:
        assert answer.status_code == status, answer.text
    shown = alice.get(f"workflows/{id}").json
    assert shown["steps"][0]["config"]["data"] == {"deep": [{"n": 2.0**63}]}
    beyond = json.dumps({"deep": [{"n": 10**400}]})
    answer = alice.post(f"workflows/{id}/trigger", data=beyond, content_type="application/json")
    assert answer.status_code == 422


def test_template_minus_is_parsed_like_conditions() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    names = {"trigger": {"n": 5, "all": [{"n": 7}]}}
    rendering = templates.Rendering(names, now)
    for text in ("trigger.n-1", "trigger.n - 1", "trigger.n-trigger.n + 4"):
        assert rendering.value(f"{{{{ {text} }}}}") == 4, text
        assert expressions.holds(f"{text} = 4", names, now)
    assert rendering.value("{{ trigger.all.0.n }}") == 7


def test_api_key_on_workflow_and_hook_changes_is_403(app: Flask, alice: Caller) -> None:
    workflow = make_workflow(alice, [])
    hook = {"name": "h", "trigger": {"type": "manual"}, "actions": []}
    made = alice.post("hooks", hook).json
    key = alice.post("api-keys", {"name": "k"}).json["key"]
    machine = Caller(app, **{"X-API-Key": key})
    body = {"name": "flow", "trigger": {"type": "manual"}, "steps": []}
    for method, path, given in (
        ("post", "workflows", body),
        ("put", f"workflows/{workflow['id']}", {"steps": []}),
        ("patch", f"workflows/{workflow['id']}", {"trigger": {"type": "webhook"}}),
        ("post", "hooks", hook),
        ("patch", f"hooks/{made['id']}", {"actions": []}),
    ):
        answer = getattr(machine, method)(path, given)
        assert (answer.status_code, answer.json["error"]) == (403, "forbidden"), path
    assert machine.post(f"workflows/{workflow['id']}/trigger").status_code == 202
    assert alice.get("workflows").json["total"] == alice.get("hooks").json["total"] == 1


def test_workflow_with_unknown_collection_has_warning(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, "others")
    wait = {"name": "w", "type": "wait_event", "event": "records.create", "collection": "nowhere"}
    loop = {**LOOP, "steps": [create("deep"), action("t", "query_records", collection="{{ now }}")]}
    branches = {"name": "p", "type": "parallel", "branches": [[wait], [loop]]}
    found = action("found", "query_records", collection="Others")
    trigger = {"type": "event", "event": "records.create", "collection": "posts"}
    made = make_workflow(cast.alice, [found, branches], trigger)
    path = f"workflows/{made['id']}"
    places = {
        "trigger.collection": "posts",
        "steps[1].branches[0][0].collection": "nowhere",
        "steps[1].branches[1][0].steps[0].config.collection": "posts",
    }
    messages = {one["field"]: one["message"] for one in made["warnings"]}
    assert messages.keys() == places.keys()
    assert all(
        f"The collection “{places[place]}” does not exist." in text
        for place, text in messages.items()
    )
    assert {one["code"] for one in made["warnings"]} == {"collection_missing"}
    for answer in (cast.alice.get(path), cast.alice.put(path, {"name": "x"})):
        assert answer.json["warnings"] == made["warnings"]
    hook = {"name": "h", "trigger": MANUAL, "condition": "trigger.n = 1"}
    actions = [{"type": "query_records", "config": {"collection": "posts"}}]
    made_hook = cast.alice.post("hooks", {**hook, "actions": actions}).json
    assert [one["field"] for one in made_hook["warnings"]] == ["actions[0].config.collection"]
    browser, home = Browser(app, cast.alice), f"workflows/{cast.alice.account_id}"
    assert (
        "The collection “nowhere” does not exist."
        in browser.get(f"{home}/workflow/{made['id']}").text
    )
    assert (
        "The collection “posts” does not exist."
        in browser.get(f"{home}/hook/{made_hook['id']}").text
    )
    make_collection(cast.root)
    (left,) = cast.alice.get(path).json["warnings"]
    assert left["field"] == "steps[1].branches[0][0].collection"
    assert cast.alice.get(f"hooks/{made_hook['id']}").json["warnings"] == []
    assert cast.alice.get("workflows").json["items"][0]["warnings"] == [left]


FIELDS = [{"name": name, "type": "text"} for name in ("title", "hidden")]
ORDERS = {"type": "event", "event": "records.update", "collection": "orders"}


def on_orders(*steps: dict[str, Any], **trigger: str) -> dict[str, Any]:
    """A workflow of changed orders."""
    return {"name": "f", "trigger": {**ORDERS, **trigger}, "steps": list(steps)}


def query(**config: str) -> dict[str, Any]:
    """A query of orders."""
    return action("q", "query_records", collection="orders", **config)


def if_(expression: str) -> dict[str, Any]:
    """A condition that ends either way."""
    return {"name": "if", "type": "condition", "expression": expression}


WAITING = {"name": "w", "type": "wait_event", "event": "records.update", "collection": "orders"}
TITLE = {"title": "{{ trigger.record.titel }} {{ trigger.previous.title }} {{ steps.x.output.y }}"}


@pytest.mark.parametrize(
    ("body", "places"),
    [
        (on_orders(if_("trigger.record.title = 'x' && trigger.record.id != ''")), {}),
        (on_orders(if_("trigger.record.titel = 'x'")), {"steps[0].expression": "titel"}),
        (on_orders(if_("true"), condition="titel = 'x'"), {"trigger.condition": "titel"}),
        (
            on_orders(if_("true"), condition="previous.titel != title"),
            {"trigger.condition": "titel"},
        ),
        (on_orders(query(filter="titel = '{{ now }}'")), {"steps[0].config.filter": "titel"}),
        (on_orders(query(sort="-titel,title")), {"steps[0].config.sort": "titel"}),
        (on_orders(query(filter="title = 'x'", sort="-created_at")), {}),
        (on_orders({**WAITING, "condition": "titel = 'x'"}), {"steps[0].condition": "titel"}),
        (
            on_orders(create("x"), action("n", "create_record", collection="orders", data=TITLE)),
            {"steps[1].config.data.title": "titel"},
        ),
        (
            on_orders(
                {
                    **LOOP,
                    "steps": [
                        action(
                            "u",
                            "update_record",
                            collection="orders",
                            record_id="x",
                            data={"titel": 1, "title": 2},
                        )
                    ],
                }
            ),
            {"steps[0].steps[0].config.data.titel": "titel"},
        ),
        (on_orders(if_("trigger.record.hidden = 'x'")), {"steps[0].expression": "hidden"}),
        (on_orders(if_("trigger.record.x = 1"), collection="closed"), {}),
        (on_orders(if_("trigger.record.x = 1"), collection="ordrs"), {}),
    ],
)
def test_workflow_with_unknown_or_hidden_field_has_warning(
    cast: Cast, body: dict[str, Any], places: dict[str, str]
) -> None:
    make_collection(cast.root)
    make_collection(cast.root, "orders", FIELDS)
    make_collection(cast.root, "closed", FIELDS, view_rule=None)
    rules = {**OPEN, "view_fields": ["title"]}
    assert cast.root.put("collections/orders/rules", rules).status_code == 200
    made = cast.alice.post("workflows", body)
    assert made.status_code == 201, made.json
    found = [one for one in made.json["warnings"] if one["code"] == "field_missing"]
    assert {one["field"] for one in found} == set(places)
    for one in found:
        assert f"orders has no field {places[one['field']]}, or hides it" in one["message"]
    assert cast.alice.get(f"workflows/{made.json['id']}").json["warnings"] == made.json["warnings"]
    by_root = cast.root.acting_in("acme").get(f"workflows/{made.json['id']}").json["warnings"]
    assert not any("no field hidden" in one["message"] for one in by_root)


def test_hook_with_unknown_field_has_warning(cast: Cast) -> None:
    make_collection(cast.root, "orders", FIELDS)
    config = {"collection": "orders", "data": {"titel": "x"}}
    hook = {"name": "h", "trigger": ORDERS, "condition": "trigger.record.titel = 'x'"}
    actions = [{"type": "create_record", "config": config}]
    made = cast.alice.post("hooks", {**hook, "actions": actions}).json
    places = [one["field"] for one in made["warnings"]]
    assert places == ["condition", "actions[0].config.data.titel"]
