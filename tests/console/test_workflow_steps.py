"""The form of a workflow's steps, which keeps what it does not change."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import pytest
from flask import Flask

from app.console.automation import flow_diagram, step_form
from app.workflows.language.checks import MAX_DEPTH, MAX_STEPS
from app.workflows.language.definition import ACTION, ACTIONS, OWN_PROPERTIES, PROPERTIES
from tests.builders import Caller, Cast, make_collection
from tests.console.browser import HOSTILE, Browser, alert
from tests.workflows.running import MANUAL, action, create, make_workflow

NAP = {"name": "nap", "type": "wait_delay", "duration": "1h"}
NAP_TOO = {"name": "nap_too", "type": "wait_delay", "duration": "1h"}
URL = "https://hooks.example.com/x"


class Fields(HTMLParser):
    """The fields of the form of steps, as a browser would send them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self._name, self._select, self._chosen, self._first = "", "", False, False
        inputs = page.partition('name="seen"')[2].partition("</form>")[0]
        self.feed(f'<input name="seen"{inputs}')

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an input, a selected option, or the beginning of a text."""
        given = {name: value or "" for name, value in attrs}
        if tag == "input":
            self.values[given["name"]] = given["value"]
        elif tag == "textarea":
            self._name = given["name"]
            self.values[self._name] = ""
        elif tag == "select":
            self._select, self._first = given["name"], True
        elif tag == "option" and (self._first or "selected" in given):
            self.values[self._select] = given.get("value", "")
            self._chosen, self._first = "value" not in given, False

    def handle_data(self, data: str) -> None:
        """Note the text of a textarea or option."""
        if self._name:
            self.values[self._name] += data.removeprefix("\n").replace("\n", "\r\n")
        if self._chosen:
            self.values[self._select], self._chosen = data, False

    def handle_endtag(self, tag: str) -> None:
        """End a textarea."""
        if tag == "textarea":
            self._name = ""


def opened(app: Flask, cast: Cast, steps: list[dict[str, Any]]) -> tuple[Browser, str, str]:
    """An admin at the form of a new workflow, its address, and the workflow in the API."""
    make_collection(cast.root)
    flow = make_workflow(cast.alice, steps)
    path = f"workflows/{cast.alice.account_id}/workflow/{flow['id']}/steps"
    return Browser(app, cast.alice), path, f"workflows/{flow['id']}"


EVERY_TYPE: list[list[dict[str, Any]]] = [
    [create("a", 'x\n"y" é', next="c"), create("b"), create("c", next=None)][::2],
    [action("a", "update_record", collection="posts", record_id="x", data="{{ trigger.x }}")],
    [
        action(
            "a",
            "update_record",
            collection="posts",
            record_id="x",
            data={"title": {"$add": ["{{ trigger.x }}"], "$remove": []}},
        )
    ],
    [action("a", "delete_record", collection="posts", record_id="{{ trigger.id }}")],
    [action("a", "query_records", collection="posts", filter="title = 'x'", sort="-id", limit=5)],
    [action("a", "query_records", collection="posts", limit="{{ trigger.n }}")],
    [action("a", "send_webhook", url=URL, method="PUT", headers={"X-A": "b"}, body={"a": [1]})],
    [action("a", "aggregate_records", collection="posts", functions="count()", group_by=["n"])],
    [action("a", "send_webhook", url=URL, body="[not JSON]")],
    [action("a", "send_webhook", url=URL, body="5")],
    [action("a", "send_webhook", url=URL, body=5)],
    [action("a", "send_webhook", url=URL, body="{{ trigger }}")],
    [action("a", "send_email", to="1@x.example", subject="5", body="5\n\ntrue")],
    [
        action(
            "a",
            "send_email",
            to=[{"user": "{{ trigger.x }}"}, {"group": "x"}],
            subject="s",
            body="b",
        )
    ],
    [action("a", "send_email", to={"field": "email"}, subject="s", body="b")],
    [action("a", "send_email", to=["1@x.example", "{{ trigger.to }}"], subject="s", body="5")],
    [{"name": "a", "type": "condition", "expression": "trigger.n > 1", "on_true": "nap"}, NAP],
    [{**NAP, "label": "shown", "position_x": 3.5}],
    [{"name": "a", "type": "wait_condition", "expression": "true", "poll_interval": "1m"}],
    [
        {
            "name": "a",
            "type": "wait_event",
            "event": "records.update",
            "collection": "posts",
            "condition": "title = 'x'",
            "timeout": "2d",
        }
    ],
    [{"name": "a", "type": "loop", "items": [1, "a"], "steps": [NAP]}],
    [{"name": "a", "type": "loop", "items": "{{ trigger.all }}", "steps": [create("x")]}],
    [{"name": "a", "type": "parallel", "branches": [[NAP], [create("x")]]}],
    [{"name": "a", "type": "for_each", "collection": "posts", "steps": [NAP]}],
    [
        {
            "name": "a",
            "type": "for_each",
            "collection": "posts",
            "filter": "title = '{{ trigger.x }}'",
            "sort": "-created_at",
            "on_error": "continue",
            "steps": [create("x", "{{ item.title }}")],
        }
    ],
    [
        {
            "name": "a",
            "type": "loop",
            "items": "{{ trigger.all }}",
            "steps": [
                {
                    "name": "b",
                    "type": "parallel",
                    "branches": [[{**NAP, "label": "x"}], [create("x")]],
                }
            ],
        }
    ],
]


def test_workflow_steps_form_has_next_beside_name_and_save_above_diagram(
    app: Flask, cast: Cast
) -> None:
    loop = {"name": "b", "type": "loop", "items": ["x"], "steps": [create("c")]}
    admin, path, _ = opened(app, cast, [create("a"), loop])
    page = admin.get(path).text
    names = [
        name for name in Fields(page).values if name.split(".")[-1] in ("name", "next", "items")
    ]
    assert names == [
        "0.name",
        "0.next",
        "1.name",
        "1.next",
        "1.items",
        "1.steps.0.name",
        "1.steps.0.next",
    ]
    assert page.index('value="save">') < page.index("Diagram, as saved")


@pytest.mark.parametrize("steps", EVERY_TYPE)
def test_workflow_steps_form_unchanged_keeps_steps_and_version(
    app: Flask, cast: Cast, steps: list[dict[str, Any]]
) -> None:
    admin, path, flow = opened(app, cast, steps)
    before = cast.alice.get(flow).json
    fields = Fields(admin.get(path).text).values
    assert "The steps are saved." in admin.done(path, **{**fields, "do": "save"})
    after = cast.alice.get(flow).json
    assert (after["steps"], after["version"]) == (before["steps"], before["version"])


def test_workflow_step_types_have_labels_and_diagram_words() -> None:
    kinds = (PROPERTIES.keys() - {ACTION}) | ACTIONS.keys()
    assert step_form.LABELS.keys() == flow_diagram.WORDS.keys() == kinds


def test_workflow_step_properties_have_names() -> None:
    properties = [
        *ACTIONS.values(),
        OWN_PROPERTIES,
        *(PROPERTIES[kind] for kind in PROPERTIES.keys() - {ACTION}),
    ]
    names = {name.lstrip("*") for some in properties for name in some}
    assert step_form.PROPERTY_NAMES.keys() == names | {"name", "next"}


def test_workflow_steps_are_added_moved_and_removed_before_saving(app: Flask, cast: Cast) -> None:
    admin, path, flow = opened(app, cast, [NAP, create("make", next=None)])

    def press(fields: dict[str, str], do: str, **changes: str) -> dict[str, str]:
        page = admin.send(path, **{**fields, **changes, "do": do})
        assert page.status_code == 200, do
        return Fields(page.text).values

    fields = Fields(admin.get(path).text).values
    fields = press(fields, "add", kind="condition")
    assert fields["2.name"] == "step_1"
    fields = press(fields | {"2.name": "if", "2.on_true": "nap"}, "up.2")
    fields = press(fields, "up.1")
    assert [fields[f"{n}.name"] for n in range(3)] == ["if", "nap", "make"]
    fields = press(press(fields, "up.0"), "down.2")
    fields = press(fields, "remove.2")
    assert len(cast.alice.get(flow).json["steps"]) == 2
    assert "The steps are saved." in admin.done(path, **{**fields, "do": "save"})
    saved = cast.alice.get(flow).json["steps"]
    condition = {"name": "if", "type": "condition", "expression": "true", "on_true": "nap"}
    assert saved == [condition, NAP]


@pytest.mark.parametrize("kind", ["create_record", "send_email", "wait_event", "loop", "parallel"])
def test_workflow_new_step_form_reports_missing_inputs(app: Flask, cast: Cast, kind: str) -> None:
    admin, path, _ = opened(app, cast, [NAP])
    fields = Fields(admin.get(path).text).values
    fields = Fields(admin.send(path, **{**fields, "do": "add", "kind": kind}).text).values
    assert fields["1.type"] == kind
    answer = admin.send(path, **{**fields, "do": "save"})
    assert answer.status_code == (303 if kind == "wait_event" else 400)
    if kind != "wait_event":
        assert 'class="error" id="e-1.' in answer.text


def test_workflow_steps_form_errors_keep_input(app: Flask, cast: Cast) -> None:
    admin, path, flow = opened(app, cast, [NAP, create("make")])
    fields = Fields(admin.get(path).text).values
    wrong = {**fields, "0.duration": "soon", "0.name": HOSTILE, "1.data": '{\n"a" 1}'}
    answer = admin.send(path, **{**wrong, "do": "save"})
    assert (answer.status_code, "Line 2, column 5" in answer.text) == (400, True)
    assert "<script>alert" not in answer.text
    assert Fields(answer.text).values["0.name"] == HOSTILE
    answer = admin.send(path, **{**wrong, "1.data": "{}", "do": "save"})
    assert '<a href="#i-0.duration">Step 1 “' in answer.text
    assert "Duration</a>: Enter a duration" in answer.text
    assert 'aria-invalid="true" aria-describedby="e-0.duration"' in answer.text
    late = {**fields, "seen": "2020-01-01T00:00:00.000000Z", "do": "save"}
    answer = admin.send(path, **late)
    assert (answer.status_code, "Somebody else has changed this" in alert(answer)) == (409, True)
    assert cast.alice.get(flow).json["version"] == 1


@pytest.mark.parametrize(
    "forged",
    [
        {"count": "999999"},
        {"count": "x"},
        {"count": str(MAX_STEPS + 1)},
        {"0.type": "fly"},
        {"0.rest": "[]"},
        {"do": "remove.99"},
        {"do": "up.-1"},
        {"do": "explode"},
        {"do": "add", "kind": "fly"},
        {"do": "add.0.branches"},
        {"do": "remove.0.steps.0"},
        {"do": "up...9"},
        {"0.type": "loop", "0.steps.count": "999", "0.steps.0.type": "loop"},
        {"0.type": "parallel", "0.branches.count": "999"},
        {"0.duration": "x" * 200_000},
    ],
)
def test_workflow_steps_form_with_forged_fields_is_handled(
    app: Flask, cast: Cast, forged: dict[str, str]
) -> None:
    admin, path, flow = opened(app, cast, [NAP])
    fields = Fields(admin.get(path).text).values
    answer = admin.send(path, **{**fields, "do": "save", **forged})
    assert answer.status_code in (200, 303, 400), answer.text
    assert cast.alice.get(flow).json["steps"] in ([NAP], [])


def test_workflow_step_headers_stay_secret_in_form(app: Flask, cast: Cast) -> None:
    sent = action("a", "send_webhook", url=URL, headers={"X-A": "very secret"})
    admin, path, flow = opened(app, cast, [sent])
    page = admin.get(path).text
    assert "very secret" not in page
    assert json.loads(Fields(page).values["0.headers"]) == {"X-A": "***"}
    moved = {**Fields(page).values, "0.url": "https://other.example/", "do": "save"}
    assert admin.send(path, **moved).status_code == 400
    for caller, refusal in ((cast.bob, 403), (cast.charlie, 404)):
        browser = Browser(app, caller)
        assert browser.get(path).status_code == refusal
        assert browser.send(path, **moved).status_code == refusal
    assert cast.alice.get(flow).json["version"] == 1


def press(admin: Browser, path: str, fields: dict[str, str], do: str, **kinds: str) -> Any:
    """The fields of the form after one of its buttons."""
    answer = admin.send(path, **{**fields, **kinds, "do": do})
    assert answer.status_code == 200, do
    return Fields(answer.text).values


def test_workflow_steps_in_loops_and_branches_are_edited(app: Flask, cast: Cast) -> None:
    admin, path, flow = opened(app, cast, [NAP])
    fields = Fields(admin.get(path).text).values
    fields = press(admin, path, fields, "add", kind="loop")
    fields = press(admin, path, fields, "add.1.steps", **{"1.steps.kind": "parallel"})
    fields = press(admin, path, fields, "add.1.steps.0.branches")
    for branch, kind in (("0", "wait_delay"), ("0", "wait_event"), ("1", "wait_delay")):
        inner = f"1.steps.0.branches.{branch}"
        fields = press(admin, path, fields, f"add.{inner}", **{f"{inner}.kind": kind})
    fields = press(admin, path, fields, "up.1.steps.0.branches.0.1")
    fields = press(admin, path, fields, "down.1.steps.0.branches.0")
    wrong = {**fields, "1.steps.0.branches.0.0.duration": "soon", "do": "save"}
    answer = admin.send(path, **wrong)
    assert answer.status_code == 400
    assert ", Branch 1, Step 1 “step_5”, Duration</a>" in answer.text
    assert 'aria-describedby="e-1.steps.0.branches.0.0.duration"' in answer.text
    fields = press(admin, path, fields, "up.1")
    assert "The steps are saved." in admin.done(path, **{**fields, "do": "save"})
    loop, nap = cast.alice.get(flow).json["steps"]
    first, second = loop["steps"][0]["branches"]
    assert (nap, [step["type"] for step in first]) == (NAP, ["wait_delay"])
    assert [step["type"] for step in second] == ["wait_event", "wait_delay"]


@pytest.mark.parametrize(
    ("before", "order"),
    [
        ("", ["one", "two", "new"]),
        ("0", ["new", "one", "two"]),
        ("1", ["one", "new", "two"]),
        ("9", ["one", "two", "new"]),
        ("x", ["one", "two", "new"]),
    ],
)
def test_workflow_step_is_inserted_at_chosen_place(
    app: Flask, cast: Cast, before: str, order: list[str]
) -> None:
    admin, path, _ = opened(app, cast, [create("one"), create("two")])
    fields = {**Fields(admin.get(path).text).values, "before": before, "kind": "wait_delay"}
    added = Fields(admin.send(path, **{**fields, "do": "add"}).text).values
    names = [added[f"{n}.name"] for n in range(3)]
    assert ["new" if name == "step_1" else name for name in names] == order


def test_workflow_steps_form_at_maximum_depth_offers_no_loop(app: Flask, cast: Cast) -> None:
    steps = [NAP]
    for depth in range(MAX_DEPTH - 1):
        steps = [{"name": f"loop_{depth}", "type": "loop", "items": [], "steps": steps}]
    admin, path, _ = opened(app, cast, steps)
    page = admin.get(path).text
    assert page.count('<option value="loop">') == MAX_DEPTH - 1
    inner = ".".join(["0.steps"] * (MAX_DEPTH - 1))
    fields = press(admin, path, Fields(page).values, f"add.{inner}", **{f"{inner}.kind": "loop"})
    assert fields[f"{inner}.count"] == "1"


def test_hook_actions_form(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    sent = {"type": "send_webhook", "config": {"url": URL, "headers": {"X-A": "very secret"}}}
    body = {"name": "x", "trigger": MANUAL, "condition": "true", "actions": [sent]}
    hook = cast.alice.post("hooks", body).json
    path, api = f"workflows/{cast.alice.account_id}/hook/{hook['id']}/steps", f"hooks/{hook['id']}"
    admin = Browser(app, cast.alice)
    page = admin.get(path).text
    assert 'value="loop"' not in page
    assert 'name="0.name"' not in page
    assert "very secret" not in page
    fields = press(admin, path, Fields(page).values, "add", kind="delete_record")
    answer = admin.send(path, **{**fields, "do": "save"})
    assert (answer.status_code, 'href="#i-1.collection"' in answer.text) == (400, True)
    fields |= {"1.collection": "posts", "1.record_id": "{{ trigger.id }}", "do": "save"}
    assert "The actions are saved." in admin.done(path, **fields)
    saved = cast.alice.get(api).json
    added = {"collection": "posts", "record_id": "{{ trigger.id }}"}
    assert saved["actions"][1] == {"type": "delete_record", "config": added}
    assert (saved["actions"][0]["config"]["url"], saved["condition"]) == (URL, "true")
    for caller, refusal in ((cast.bob, 403), (cast.charlie, 404)):
        assert Browser(app, caller).send(path, **fields).status_code == refusal
    assert admin.get(path.replace("/hook/", "/workflow/")).status_code == 404


def test_workflow_step_warning_is_shown_beside_input(app: Flask, cast: Cast) -> None:
    missing = action("two", "create_record", collection="postz", data={"title": "x"})
    admin, path, _ = opened(app, cast, [create("one"), missing, NAP, NAP_TOO])
    page = admin.get(path).text
    assert page.count('class="warned"') == 1
    assert "Step 2 “two”, Collection" in page
    marked = page.partition('<g class="box action warned">')[2]
    assert "two: Create in postz (see the warning)" in marked.partition("</g>")[0]
    assert "<option selected>postz</option>" in page
    assert 'aria-describedby="w-1.collection"' in page
    assert (
        "The collection “postz” does not exist." in page.partition('id="w-1.collection">')[2][:80]
    )
    assert (
        'id="i-1" open' in page
    )  # of four steps, those are closed of which there is nothing to say
    assert 'id="i-0" open' not in page
    fields = Fields(page).values
    wrong = admin.send(path, **{**fields, "do": "save", "1.data": "{"})
    assert (wrong.status_code, 'class="warned"' in wrong.text) == (400, False)
    assert 'id="e-1.data"' in wrong.text


def test_workflow_page_has_one_enable_switch(app: Flask, cast: Cast) -> None:
    admin, path, _ = opened(app, cast, [NAP])
    page = path.removesuffix("/steps")
    for action_now, action_then in (("disable", "enable"), ("enable", "disable")):
        text = admin.get(page).text
        assert text.count(f'{page}/{action_now}"') == 1
        assert f'{page}/{action_then}"' not in text
        admin.done(f"{page}/{action_now}")
        assert f'{page}/{action_now}"' not in admin.get(path).text


def data_of(caller: Caller, flow: str) -> Any:
    """The data of the first step, as stored."""
    return caller.get(flow).json["steps"][0]["config"]["data"]


DATA_BY_FIELD: list[dict[str, Any]] = [
    {"title": "{{ trigger.title }}", "effort": 5, "done": True},
    {"title": "5", "effort": "{{ trigger.n }}", "done": None, "kind": "a"},
    {"title": "true", "done": "{{ trigger.done }}", "tags": ["a", "b"]},
    {"extra": {"a": [1, "x"]}, "kind": "{{ trigger.kind }}"},
    {"nowhere": 5, "title": "two\nlines", "kind": "a\nb"},
    {},
]
DATA_AS_JSON: list[Any] = [
    "{{ trigger.all }}",
    {"title": ""},
    {"title": " x"},
    {"title": "a\rb"},
    {"title": 5},
    {"title": None},
    {"effort": "5"},
    {"effort": "many"},
    {"effort": True},
    {"done": 1},
    {"nowhere": "5"},
    {"no name": "x"},
]


def open_data(
    app: Flask, cast: Cast, data: Any, kind: str = "create_record"
) -> tuple[Browser, str, str]:
    """An admin at the form of a step that writes a record with fields of several types."""
    choices = {"options": {"choices": ["a", "b"]}}
    fields = [
        {"name": "title", "type": "text", "required": True},
        {"name": "effort", "type": "number"},
        {"name": "done", "type": "boolean"},
        {"name": "kind", "type": "select", **choices},
        {"name": "tags", "type": "multi_select", **choices},
        {"name": "extra", "type": "json"},
        {"name": "config", "type": "json"},
    ]
    make_collection(cast.root, "chores", schema=fields)
    more = {"record_id": "{{ trigger.id }}"} if kind == "update_record" else {}
    flow = make_workflow(cast.alice, [action("a", kind, collection="chores", **more, data=data)])
    path = f"workflows/{cast.alice.account_id}/workflow/{flow['id']}/steps"
    return Browser(app, cast.alice), path, f"workflows/{flow['id']}"


@pytest.mark.parametrize("kind", ["create_record", "update_record"])
@pytest.mark.parametrize("data", DATA_BY_FIELD)
def test_workflow_step_data_has_input_per_field(
    app: Flask, cast: Cast, data: dict[str, Any], kind: str
) -> None:
    admin, path, flow = open_data(app, cast, data, kind)
    fields = Fields(admin.get(path).text).values
    assert "0.data" not in fields
    shown = {name.removeprefix("0.data.") for name in fields if name.startswith("0.data.")}
    assert shown == {"title", "effort", "done", "kind", "tags", "extra", "config"} | data.keys()
    admin.done(path, **{**fields, "do": "save"})
    assert data_of(cast.alice, flow) == data
    as_json = press(admin, path, fields, "json.0")
    assert json.loads(as_json["0.data"]) == data
    assert "0.data" in press(admin, path, as_json, "add", kind="wait_delay")
    by_field = press(admin, path, as_json, "fields.0")
    assert {name: text for name, text in by_field.items() if name != "kind"} == {
        name: text for name, text in fields.items() if name != "kind"
    }


@pytest.mark.parametrize("data", DATA_AS_JSON)
def test_workflow_step_data_unfit_for_inputs_is_shown_as_json(
    app: Flask, cast: Cast, data: Any
) -> None:
    admin, path, flow = open_data(app, cast, data)
    page = admin.get(path).text
    fields = Fields(page).values
    assert not [name for name in fields if name.startswith("0.data.")]
    answer = admin.send(path, **{**fields, "do": "fields.0"})
    assert "This data can only be edited as JSON." in answer.text
    admin.done(path, **{**fields, "do": "save"})
    assert data_of(cast.alice, flow) == data


def test_workflow_new_step_has_data_inputs_after_collection_choice(app: Flask, cast: Cast) -> None:
    admin, path, flow = open_data(app, cast, {})
    fields = press(admin, path, Fields(admin.get(path).text).values, "add", kind="create_record")
    answer = admin.send(path, **{**fields, "do": "fields.1"})
    assert "Choose a collection that you may write to." in answer.text
    fields = press(admin, path, fields | {"1.collection": "chores"}, "fields.1")
    fields |= {"1.data.title": "{{ trigger.title }}", "1.data.effort": "3", "0.data.title": "x"}
    admin.done(path, **{**fields, "do": "save"})
    first, second = cast.alice.get(flow).json["steps"]
    assert second["config"]["data"] == {"title": "{{ trigger.title }}", "effort": 3}
    assert first["config"]["data"] == {"title": "x"}


def test_workflow_step_collection_is_chosen_or_a_template(app: Flask, cast: Cast) -> None:
    admin, path, flow = open_data(app, cast, {})
    page = admin.get(path).text
    assert '<select class="form-select" id="i-0.collection"' in page
    fields = Fields(page).values
    refused = admin.send(path, **{**fields, "0.collection": "{{", "do": "save"})
    assert refused.status_code == 400
    assert '<input class="form-control" id="i-0.collection"' in refused.text
    admin.done(path, **{**fields, "0.collection": "{{ trigger.where }}", "do": "save"})
    assert cast.alice.get(flow).json["steps"][0]["config"]["collection"] == "{{ trigger.where }}"
    assert 'value="{{ trigger.where }}"' in admin.get(path).text


def test_workflow_step_collection_change_keeps_entered_data(app: Flask, cast: Cast) -> None:
    admin, path, _ = open_data(app, cast, {"title": "x", "effort": 5})
    make_collection(cast.root)
    fields = Fields(admin.get(path).text).values | {"0.collection": "posts"}
    fields = press(admin, path, fields, "add", kind="wait_delay")
    assert (fields["0.data.title"], fields["0.data.effort"]) == ("x", "5")
    assert "0.data.done" not in fields


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("effort", "many", "Enter a number or a template."),
        ("effort", "true", "Enter a number or a template."),
        ("done", "yes", "Enter true, false or a template."),
        ("tags", "a, b", "Enter JSON or a template."),
        ("config", "{", "Enter JSON or a template."),
        ("nowhere", "x", None),
    ],
)
def test_workflow_step_data_error_is_shown_beside_field(
    app: Flask, cast: Cast, field: str, text: str, message: str | None
) -> None:
    admin, path, flow = open_data(app, cast, {"title": "x"})
    fields = Fields(admin.get(path).text).values | {f"0.data.{field}": text}
    answer = admin.send(path, **{**fields, "do": "save"})
    if message is None:
        page = admin.get(path).text
        assert f'id="w-0.data.{field}">chores has no field {field}' in page
        return
    assert answer.status_code == 400
    assert f'id="e-0.data.{field}">{message}' in answer.text
    assert f'href="#i-0.data.{field}"' in answer.text
    assert data_of(cast.alice, flow) == {"title": "x"}


def test_workflow_step_data_keeps_newlines_in_non_text_field(app: Flask, cast: Cast) -> None:
    admin, path, _ = open_data(app, cast, {"title": "x"})
    fields = Fields(admin.get(path).text).values | {"0.data.effort": "two\nlines"}
    shown = press(admin, path, fields, "add", kind="wait_delay")
    assert shown["0.data.effort"].split() == ["two", "lines"]


def test_workflow_step_without_record_ignores_data_inputs(app: Flask, cast: Cast) -> None:
    admin, path, flow = open_data(app, cast, {"title": "x"})
    sent = {"0.type": "send_webhook", "0.url": "https://hooks.example.com/x"}
    fields = Fields(admin.get(path).text).values | sent
    admin.done(path, **{**fields, "do": "save"})
    config = cast.alice.get(flow).json["steps"][0]["config"]
    assert config == {"url": "https://hooks.example.com/x"}


def test_workflow_step_data_offers_only_writable_fields(app: Flask, cast: Cast) -> None:
    admin, path, _ = open_data(app, cast, {"title": "x"})
    limited = {"create_fields": ["title", "done"]}
    assert cast.root.put("collections/chores/rules", limited).status_code == 200
    fields = Fields(admin.get(path).text).values
    assert {"0.data.title", "0.data.done"} == {name for name in fields if "0.data" in name}
