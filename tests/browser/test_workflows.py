"""Workflows, hooks and instances in a real browser: what forms answer in every look.

test_every_page.py looks at the pages themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from flask import Flask
from playwright.sync_api import Dialog, expect

from tests.browser.conftest import WITHOUT_SCRIPTS_TOO, Visit
from tests.browser.test_console import sign_in
from tests.browser.test_people import fill, press
from tests.builders import Cast
from tests.workflows.running import action, create, make_workflow, work


def test_workflow_form_responses_are_accessible_and_fit(
    visit: Visit, live_app: Flask, live_cast: Cast, look: Callable[[str], None]
) -> None:
    page = visit.page
    sign_in(visit, live_cast.alice)
    page.get_by_role("link", name="Workflows", exact=True).first.click()
    look("empty")
    press(visit, "New workflow")
    page.get_by_text("Steps as JSON").click()
    faulty = [create("write"), {"name": "rest", "type": "wait_delay", "duration": "soon"}]
    fill(visit, name="Welcome whoever is new", steps=json.dumps(faulty))
    press(visit, "Create workflow")
    look("refused")
    steps = [
        {
            "name": "each",
            "type": "loop",
            "items": ["a", "b"],
            "steps": [create("write", "{{item}}")],
        },
        action("fail", "create_record", collection="missing", data={"title": "a long text " * 30}),
    ]
    page.get_by_label("Started by").select_option("webhook")
    fill(visit, name="Welcome whoever is new", steps=json.dumps(steps))
    press(visit, "Create workflow")
    page.get_by_text("Delete…").click()
    page.get_by_text("Run now…").click()
    look("one")
    press(visit, "Run")
    look("pending")
    work(live_app)
    page.reload()
    page.locator("details.sample summary").first.click()
    look("failed")
    page.get_by_role("link", name="Instances", exact=False).first.click()
    page.get_by_text("Resume all failed…").click()
    press(visit, "Resume all")
    look("resumed")
    work(live_app)
    expect(page.get_by_text("1 failed again.")).to_be_visible()  # without being loaded again
    look("over")
    page.get_by_role("link", name="Workflows", exact=True).first.click()
    press(visit, "New workflow")
    page.get_by_text("Only a list of actions").click()
    page.get_by_text("Actions as JSON").click()
    fill(visit, name="Nightly", steps='[{"type": "fly"}]')
    press(visit, "Create workflow")
    look("hook")
    data = {"type": "create_record", "config": {"collection": "posts", "data": {"title": "x"}}}
    fill(visit, steps=json.dumps([data]))
    press(visit, "Create workflow")
    page.get_by_role("link", name="Workflows", exact=True).first.click()
    page.get_by_role("link", name="Nightly").wait_for()
    for kind in ("workflows", "hooks"):
        for one in live_cast.alice.get(kind).json["items"]:
            live_cast.alice.delete(f"{kind}/{one['id']}")


@WITHOUT_SCRIPTS_TOO
def test_workflow_step_data_is_filled_in_by_field(visit: Visit, live_cast: Cast) -> None:
    alice, page = live_cast.alice, visit.page
    flow = make_workflow(alice, [create("first")])
    sign_in(visit, alice)
    page.goto(f"/console/workflows/{alice.account_id}/workflow/{flow['id']}/steps")
    page.get_by_label("Add a step").select_option("update_record")
    press(visit, "Add")
    page.locator('[name="1.collection"]').select_option("posts")
    page.locator('[name="1.record_id"]').fill("{{ trigger.id }}")
    press(visit, "Edit by field: 2. step_1: Update a record")
    page.locator('[name="1.data.title"]').fill("{{ trigger.title }}")
    press(visit, "Save steps")
    page.get_by_text("The steps are saved.").wait_for()
    config = alice.get(f"workflows/{flow['id']}").json["steps"][1]["config"]
    assert config["data"] == {"title": "{{ trigger.title }}"}
    alice.delete(f"workflows/{flow['id']}")


def test_workflow_form_with_unsaved_steps_asks_before_leaving(
    visit: Visit, live_cast: Cast
) -> None:
    page = visit.page
    sign_in(visit, live_cast.alice)
    made = make_workflow(live_cast.alice, [create("write")])
    address = f"/console/workflows/{live_cast.alice.account_id}/workflow/{made['id']}"
    dialogs = list[str]()

    def stay(dialog: Dialog) -> None:
        dialogs.append(dialog.type)
        dialog.dismiss()

    page.on("dialog", stay)
    page.goto(f"{address}/steps")
    page.get_by_role("link", name="Cancel").click()  # nothing has changed
    page.wait_for_url(f"**{address}")
    page.goto(f"{address}/steps")
    page.get_by_label("Name").first.fill("other")
    page.get_by_role("link", name="Cancel").click()
    expect(page.get_by_label("Name").first).to_have_value("other")
    assert dialogs == ["beforeunload"]
    page.get_by_role("button", name="Save steps").last.click()
    page.wait_for_url(f"**{address}")
    assert dialogs == ["beforeunload"]
    live_cast.alice.delete(f"workflows/{made['id']}")
