"""The pages of workflows, hooks and their instances."""

from __future__ import annotations

import json
import re

import pytest
from flask import Flask
from markupsafe import escape

from tests.builders import Caller, Cast, make_collection, make_user
from tests.console.browser import HOSTILE, Browser, alert, beside, once
from tests.parallel import at_once
from tests.workflows.running import action, create, instance, make_workflow, ran, start, work

MANUAL = json.dumps({"type": "manual"})


def test_console_workflow_creation_change_start_and_deletion(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    admin, home = Browser(app, cast.alice), f"workflows/{cast.alice.account_id}"
    assert admin.client.get("/console/workflows").headers["Location"].endswith(f"/console/{home}")
    assert "No workflows yet." in admin.get(home).text
    assert "wait_delay" in admin.get(f"{home}/workflow/new").text
    steps = json.dumps([create("make", "by hand")])
    body = {"name": "Flow", "trigger": MANUAL, "steps": steps}
    assert "The workflow is created." in admin.done(f"{home}/workflow/new", **body)
    leads_on = admin.send(f"{home}/workflow/new", **{**body, "name": "In a form"}, form="true")
    assert leads_on.headers["Location"].endswith("/steps")
    (extra,) = cast.alice.get("workflows?limit=1").json["items"]
    assert cast.alice.delete(f"workflows/{extra['id']}").status_code == 204
    (shown,) = cast.alice.get("workflows").json["items"]
    one = f"{home}/workflow/{shown['id']}"
    (seen,) = re.findall(r'name="seen" value="([^"]+)"', admin.get(one).text)
    assert "saved" in admin.done(one, **{**body, "name": "Other", "description": "d"}, seen=seen)
    late = admin.send(one, **body, seen=seen)
    assert (late.status_code, "Somebody else has changed this" in alert(late)) == (409, True)
    assert cast.alice.get(f"workflows/{shown['id']}").json["name"] == "Other"
    assert "The workflow is started." in admin.done(f"{one}/trigger")
    work(app)
    (begun,) = cast.alice.get("workflow-instances").json["items"]
    page = admin.get(f"{home}/instances/{begun['id']}").text
    assert all(text in page for text in ("completed", "make", "by hand", "Input", "Output"))
    assert ">Other</a>, version 1" in page
    assert 'class="span timeline"' in page
    assert begun["id"][-8:] in admin.get(f"{home}/instances?status=completed").text
    assert "No matches" in admin.get(f"{home}/instances?status=failed").text
    assert "disabled" in admin.done(f"{one}/disable")
    assert admin.send(f"{one}/trigger").status_code == 409
    assert "enabled" in admin.done(f"{one}/enable")
    assert "is deleted" in admin.done(f"{one}/delete")


def test_console_workflow_start_with_given_data(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    admin, home = Browser(app, cast.alice), f"workflows/{cast.alice.account_id}"
    steps = json.dumps([create("make", "{{ trigger.title }}")])
    admin.done(f"{home}/workflow/new", name="Flow", trigger=MANUAL, steps=steps)
    (flow,) = cast.alice.get("workflows").json["items"]
    one = f"{home}/workflow/{flow['id']}"
    for text in ("[]", "{", '"a"', '{"n": 1e999}'):
        answer = admin.send(f"{one}/trigger", given=text)
        assert answer.status_code == 400
        assert beside(answer, "given"), text
        assert f"\n{escape(text)}</textarea>" in answer.text
    assert cast.alice.get("workflow-instances").json["total"] == 0
    assert "The workflow is started." in admin.done(f"{one}/trigger", given='{"title": "given"}')
    work(app)
    assert [one["title"] for one in cast.alice.get("records/posts").json["items"]] == ["given"]


@pytest.mark.parametrize("kind", ["workflow", "hook"])
def test_console_new_workflow_or_hook_is_manual_and_empty(
    app: Flask, cast: Cast, kind: str
) -> None:
    admin, new = Browser(app, cast.alice), f"workflows/{cast.alice.account_id}/{kind}/new"
    page = admin.get(new).text.partition("<main")[2]
    (chosen,) = re.findall('<option value="([a-z]+)" selected>', page)
    (steps,) = re.findall(r'<textarea id="steps"[^>]*>\s*([^<]*)</textarea>', page)
    assert (chosen, steps) == ("manual", "[]")
    assert 'name="form"' in re.findall('<button[^>]* type="submit"[^>]*>', page)[0]
    sent = {"name": "Flow", "trigger_type": chosen, "steps": steps}
    assert admin.send(new, **sent, form="true").headers["Location"].endswith("/steps")
    (made,) = cast.alice.get("workflows").json["items"]
    assert (made["trigger"], made["steps"]) == ({"type": "manual"}, [])


def test_console_instance_shows_loop_steps_with_item(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    each = {"name": "each", "type": "loop", "items": ["a", "b"], "steps": [create("write", "x")]}
    begun = ran(app, cast.alice, make_workflow(cast.alice, [each]))
    page = Browser(app, cast.alice).get(
        f"workflows/{cast.alice.account_id}/instances/{begun['id']}"
    )
    rows = re.findall('<th scope="row">([^<]*)<', page.text)
    assert sorted(rows) == ["each", "write, item 1", "write, item 2"]
    assert page.text.count(">Create in posts</small>") == 2


@pytest.mark.parametrize("kind", ["workflow", "hook"])
def test_console_workflow_form_sent_twice_makes_one_workflow(
    app: Flask, cast: Cast, kind: str
) -> None:
    browsers = [Browser(app, cast.alice) for _ in range(2)]
    new = f"workflows/{cast.alice.account_id}/{kind}/new"
    actions = [{"type": "create_record", "config": {"collection": "posts", "data": {}}}]
    steps = json.dumps([create("make")] if kind == "workflow" else actions)
    sent = {"name": "Flow", "trigger": MANUAL, "steps": steps}
    sent["as"] = once(browsers[0].get(new).text)
    answers = at_once(2, lambda n: browsers[n].send(new, **sent))
    assert [one.status_code for one in answers] == [303, 303]
    (made,) = cast.alice.get("workflows").json["items"]
    assert {one.headers["Location"].rpartition("/")[2] for one in answers} == {made["id"]}
    browsers[0].done(new, **sent | {"name": "Other"})
    assert cast.alice.get("workflows").json["total"] == 2


def test_console_workflow_form_errors_are_shown_beside_steps(app: Flask, cast: Cast) -> None:
    admin, home = Browser(app, cast.alice), f"workflows/{cast.alice.account_id}"
    bad = [create("good"), {"name": "nap", "type": "wait_delay", "duration": "soon"}]
    body = {"name": "Flow", "trigger": '{"type": "schedule", "cron": "*/61 * * * *"}'}
    answer = admin.send(f"{home}/workflow/new", **body, steps=json.dumps(bad))
    assert answer.status_code == 400
    assert "steps[1].duration" in beside(answer, "steps")
    assert "cron: The step of &#39;*/61&#39;" in beside(answer, "trigger")
    table = answer.text.partition("Errors by step")[2]
    assert table.index("good") < table.index("none") < table.index("nap")
    assert "Enter a duration" in table[table.index("nap") :]
    nameless = admin.send(f"{home}/workflow/new", name="Flow", trigger=MANUAL, steps="[{}]").text
    table = nameless.partition("Errors by step")[2].partition("</table>")[0]
    assert ("step 1" in table, "None" in table) == (True, False)
    for text in ("[", HOSTILE, "{}", '["x"]', '[{"name": "' + "<script>alert(1)" + '"}]'):
        answer = admin.send(f"{home}/workflow/new", name=HOSTILE, trigger=MANUAL, steps=text)
        assert (answer.status_code, bool(beside(answer, "steps"))) == (400, True)
        assert "<script>alert" not in answer.text
    assert beside(admin.send(f"{home}/hook/new", steps="[]"), "name") == "Required."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[\n  {"name": "a" "type": "x"}\n]',
            "Line 2, column 16: expected &#39;,&#39; or &#39;}&#39;.",
        ),
        ("[{'name': 1}]", "Line 1, column 3: expected a string key."),
        ('[{"name": "é",}]', "Line 1, column 14: trailing comma is not allowed."),
        ("[", "Line 1, column 2: unexpected end of data."),
        ("[" * 40 + "]" * 40, "The JSON is nested deeper than 32 levels."),
        ("{}", "Enter a list of objects."),
    ],
)
def test_console_workflow_form_json_error_has_line_and_column(
    app: Flask, cast: Cast, text: str, message: str
) -> None:
    new = f"workflows/{cast.alice.account_id}/workflow/new"
    answer = Browser(app, cast.alice).send(new, name="Flow", trigger=MANUAL, steps=text)
    assert (answer.status_code, beside(answer, "steps")) == (400, message)


def test_console_workflow_form_warns_of_unknown_collection(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, "orders")
    admin, home = Browser(app, cast.alice), f"workflows/{cast.alice.account_id}"
    trigger = '{"type": "event", "event": "records.create", "collection": "ordrs"}'
    steps = json.dumps([{"name": "nap", "type": "wait_delay", "duration": "1s"}])
    page = admin.done(f"{home}/workflow/new", name="Flow", trigger=trigger, steps=steps)
    assert "trigger.collection: The collection “ordrs” does not exist." in page


@pytest.mark.parametrize("kind", ["workflow", "hook"])
def test_console_workflow_form_check_saves_nothing(app: Flask, cast: Cast, kind: str) -> None:
    make_collection(cast.root)
    admin, home = Browser(app, cast.alice), f"workflows/{cast.alice.account_id}"
    config = {"collection": "ordrs", "data": {"titel": "x"}}
    wrong = {"name": "n", "type": "action", "action_type": "create_record", "config": config}
    right = {**wrong, "config": {"collection": "posts", "data": {"title": "x"}}}
    step = wrong
    wrong, right = (
        one if kind == "workflow" else {"type": "create_record", "config": one["config"]}
        for one in (wrong, right)
    )
    body = {"name": "Flow", "trigger": MANUAL, "check": "true"}
    path = f"{home}/{kind}/new"
    for number in range(2):
        for steps, said in (([wrong], "“ordrs” does not exist"), ([right], "No problems")):
            page = admin.send(path, **body, steps=json.dumps(steps))
            assert (page.status_code, said in page.text) == (200, True)
            assert "Nothing is saved yet." in page.text
            assert '<svg class="flow"' in page.text
        bad = admin.send(path, **body, steps="[{}]")
        assert (bad.status_code, bool(beside(bad, "steps"))) == (400, True)
        assert cast.alice.get("workflows").json["total"] == number
        saved = {**body, "check": "", "steps": json.dumps([right])}
        assert admin.send(path, **saved).status_code == 303
        (made,) = cast.alice.get("workflows").json["items"]
        path = f"{home}/workflow/{made['id']}"
        wrong, right = step, {**step, "config": right["config"]}


def test_console_short_form_makes_workflow(app: Flask, cast: Cast) -> None:
    admin, home = Browser(app, cast.alice), f"workflows/{cast.alice.account_id}"
    data = {"collection": "posts", "record_id": "x"}
    actions = json.dumps([{"type": "delete_record", "config": data}])
    body = {"name": "Short", "trigger": MANUAL, "steps": actions, "condition": "trigger.n = 1"}
    assert "The workflow is created." in admin.done(f"{home}/hook/new", **body)
    on_create = '{"type": "event", "event": "create", "condition": "n > 1"}'
    admin.done(f"{home}/hook/new", **{**body, "trigger": on_create, "condition": "n < 3"})
    by_hand, by_event = cast.alice.get("workflows").json["items"]
    assert [one["type"] for one in by_hand["steps"]] == ["condition", "action"]
    assert by_event["trigger"]["condition"] == "(n > 1) && (n < 3)"
    assert [one["config"] for one in by_event["steps"]] == [data]
    assert cast.alice.get("hooks").json["total"] == 0


def test_console_lists_and_changes_hooks_as_workflows(app: Flask, cast: Cast) -> None:
    admin, home = Browser(app, cast.alice), f"workflows/{cast.alice.account_id}"
    data = {"collection": "posts", "record_id": "x"}
    actions = json.dumps([{"type": "delete_record", "config": data}])
    body = {"name": "Early", "trigger": MANUAL, "steps": actions, "condition": "trigger.n = 1"}
    made = {"name": "Early", "trigger": json.loads(MANUAL), "condition": "trigger.n = 1"}
    shown = cast.alice.post("hooks", {**made, "actions": json.loads(actions)}).json
    page = admin.get(home).text
    assert f"/hook/{shown['id']}" in page
    assert "Hook" not in page
    assert "saved" in admin.done(f"{home}/hook/{shown['id']}", **{**body, "condition": ""})
    assert cast.alice.get(f"hooks/{shown['id']}").json["condition"] is None
    answer = admin.send(f"{home}/hook/{shown['id']}", **{**body, "steps": '[{"type": "fly"}]'})
    assert "actions[0].type" in beside(answer, "steps")
    assert admin.get(f"{home}/workflow/{shown['id']}").status_code == 404


def test_console_instance_resume_and_cancel(app: Flask, cast: Cast) -> None:
    admin, home = Browser(app, cast.alice), f"workflows/{cast.alice.account_id}/instances"
    workflow = make_workflow(cast.alice, [create("make")])
    failed = ran(app, cast.alice, workflow)
    page = admin.get(f"{home}/{failed['id']}").text
    assert "“make” (Create in " in page
    assert f"/workflow/{workflow['id']}/steps#i-0" in page
    assert re.search(r'class="btn"[^>]*>Resume<', page)  # the step would fail again
    make_collection(cast.root)
    assert "resumes at the failed step" in admin.done(f"{home}/{failed['id']}/resume")
    assert "Only failed instances" in admin.done(f"{home}/{failed['id']}/resume")
    work(app)
    assert instance(cast.alice, failed["id"])["status"] == "completed"
    id = start(cast.alice, workflow)
    assert "cancelled" in admin.done(f"{home}/{id}/cancel")
    # Of another account, and without the right.
    other = Browser(app, cast.charlie)
    assert other.get(f"{home}/{id}").status_code == 404
    assert Browser(app, cast.bob).get(f"{home}/{id}").status_code == 403
    assert Browser(app, cast.root).get(f"{home}/{id}").status_code == 200


def test_console_instance_rerun_uses_trigger_data_and_current_steps(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    admin, home = Browser(app, cast.alice), f"workflows/{cast.alice.account_id}/instances"
    wrong = {"collection": "missing", "data": {"title": "{{ trigger.title }}"}}
    workflow = make_workflow(cast.alice, [action("make", "create_record", **wrong)])
    failed = start(cast.alice, workflow, {"title": "given"})
    assert "cannot run again" in admin.done(f"{home}/{failed}/again")  # it has not ended
    work(app)
    mended = [create("make", "{{ trigger.title }}!")]
    path = f"workflows/{workflow['id']}"
    assert cast.alice.patch(path, {"steps": mended}).status_code == 200
    page = admin.get(f"{home}/{failed}").text
    assert "started with (version 1)" in page
    assert "the current steps (version 2)" in page
    answer = admin.send(f"{home}/{failed}/again")
    again = answer.headers["Location"].rpartition("/")[2]
    assert (answer.status_code, again == failed) == (303, False)
    work(app)
    (record,) = cast.alice.get("records/posts").json["items"]
    assert record["title"] == "given!"
    assert instance(cast.alice, again)["version"] == 2
    assert instance(cast.alice, failed)["status"] == "failed"
    for other, status in ((cast.charlie, 404), (cast.bob, 403)):
        assert Browser(app, other).send(f"{home}/{failed}/again").status_code == status
    assert cast.alice.patch(f"{path}/toggle", {"enabled": False}).status_code == 200
    assert "Run again" not in admin.get(f"{home}/{failed}").text
    assert "is disabled" in admin.done(f"{home}/{failed}/again")


def test_console_instance_rerun_withholds_personal_data(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=[{"name": "title", "type": "text", "pii": True}])
    trigger = {"type": "event", "event": "records.create", "collection": "posts"}
    step = {"name": "step", "type": "condition", "expression": "true"}
    make_workflow(cast.alice, [step], trigger=trigger)
    assert cast.alice.post("records/posts", {"title": "her secret"}).status_code == 201
    work(app)
    (begun,) = cast.alice.get("workflow-instances").json["items"]
    home = f"workflows/{cast.alice.account_id}/instances"
    other = make_user(app, cast.alice.account_id, "dora@acme.example", "admin")
    dora = Browser(app, Caller(app, other))
    assert "Run again" not in dora.get(f"{home}/{begun['id']}").text
    assert "cannot run again" in dora.done(f"{home}/{begun['id']}/again")
    answer = Browser(app, cast.alice).send(f"{home}/{begun['id']}/again")
    path = answer.headers["Location"].partition("/console/")[2]
    assert "her secret" in Browser(app, cast.alice).get(path).text
    assert "her secret" not in dora.get(path).text


def test_console_instance_page_refreshes_only_while_running(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    admin, home = Browser(app, cast.alice), f"workflows/{cast.alice.account_id}/instances"
    id = start(cast.alice, make_workflow(cast.alice, [create("make")]))
    assert 'id="live"' in admin.get(f"{home}/{id}").text
    work(app)
    assert 'id="live"' not in admin.get(f"{home}/{id}").text


def test_console_failed_instances_are_resumed_together(app: Flask, cast: Cast) -> None:
    admin, home = Browser(app, cast.alice), f"workflows/{cast.alice.account_id}/instances"
    one, other = (make_workflow(cast.alice, [create("make")], name=n) for n in ("one", "other"))
    failed = [ran(app, cast.alice, flow)["id"] for flow in (one, one, other)]
    assert "3 instances resume" in admin.get(home).text
    assert "1 instance resumes" in admin.get(f"{home}?workflow={other['id']}").text
    assert Browser(app, cast.charlie).send(f"{home}/resume").status_code == 404
    again = admin.send(f"{home}/resume", workflow=one["id"]).headers["Location"]
    work(app)
    page = admin.client.get(again).text
    assert "2 failed again" in page
    assert page.count("There is no such collection") == 2
    make_collection(cast.root)
    progress = admin.send(f"{home}/resume", workflow=one["id"]).headers["Location"]
    page = admin.client.get(progress).text
    assert ("0 of 2 finished" in page, "data-live" in page) == (True, True)
    work(app)
    states = [instance(cast.alice, id)["status"] for id in failed]
    assert states == ["completed", "completed", "failed"]
    page = admin.client.get(progress).text
    assert ("2 of 2 finished" in page, "data-live" in page) == (True, False)
    for rest in ("x", "2020-01-01T00:00:00.000000Z", "9" * 400):
        assert admin.get(f"{home}/resumed/{rest}").status_code == 404
    assert Browser(app, cast.charlie).client.get(progress).status_code == 404
    assert "1 of 1 finished" not in admin.done(f"{home}/resume", workflow="")
    assert "No instance has failed" in admin.done(f"{home}/resume", workflow="")


def test_console_instance_withholds_personal_data(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=[{"name": "title", "type": "text", "pii": True}])
    found = ran(app, cast.alice, make_workflow(cast.alice, [create("make", "her secret")]))
    other = make_user(app, cast.alice.account_id, "dora@acme.example", "admin")
    path = f"workflows/{cast.alice.account_id}/instances/{found['id']}"
    page = Browser(app, Caller(app, other)).get(path).text
    assert "her secret" not in page
    assert "pii_access" in page
    assert "her secret" in Browser(app, cast.alice).get(path).text
