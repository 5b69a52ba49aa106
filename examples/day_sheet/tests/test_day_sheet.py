"""The page shows what its reader may see; what was left is carried over in the night."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.extend.testing import Account, Client, Instance

PAGE = "/console/x/day_sheet/today"
VISITS = {"title": "text", "day": "date", "done": {"type": "boolean", "default": False}}


@pytest.fixture
def instance() -> Iterator[Instance]:
    with Instance(Path(__file__).parent.parent) as instance:
        own = "@owns_record() || @has_role(editor)"
        instance.collection("visits", VISITS, list_rule=own, update_rule=own)
        yield instance


@pytest.fixture
def acme(instance: Instance) -> Account:
    return instance.account("acme")


def plan(by: Client, title: str, days_ago: int = 0) -> Any:
    day = datetime.now(UTC).date() - timedelta(days=days_ago)
    answer = by.post("records/visits", {"title": title, "day": day.isoformat()})
    assert answer.status_code == 201, answer.json
    return answer.json


def test_readers_see_their_visits_of_today(acme: Account) -> None:
    ann, bea = acme.user("ann"), acme.user("bea")
    plan(ann, "Lamp <3")
    plan(ann, "Ladder", days_ago=1)
    plan(bea, "Chair")
    page = ann.open_page(PAGE)
    assert page.status_code == 200
    assert "Lamp &lt;3" in page.text
    assert "Ladder" not in page.text
    assert "Chair" not in page.text
    german = ann.open_page(PAGE, language="de").text
    assert "Besuche am" in german
    assert "Tagesblatt" in german


def test_a_button_marks_a_visit_as_done(acme: Account) -> None:
    ann = acme.user("ann")
    visit = plan(ann, "Lamp")
    assert ann.send_form(PAGE, visit=visit["id"]).status_code == 303
    assert ann.get(f"records/visits/{visit['id']}").json["done"] is True
    assert "The visit is done." in ann.open_page(PAGE).text


def test_the_page_needs_a_session(instance: Instance) -> None:
    assert instance.anybody.get(PAGE).status_code == 302


def test_visits_are_carried_over_at_night(instance: Instance, acme: Account) -> None:
    acme.service_user("day-sheet")
    ann = acme.user("ann")
    visit = plan(ann, "Lamp")
    done = plan(ann, "Ladder")
    ann.patch(f"records/visits/{done['id']}", {"done": True})
    other = instance.account("globex").user("bob")
    left = plan(other, "Chair")  # of an account without the service user
    instance.run_jobs()
    instance.move_clock(days=1)
    instance.run_jobs()
    today = datetime.now(UTC).date().isoformat()
    assert ann.get(f"records/visits/{visit['id']}").json["day"] == today
    assert ann.get(f"records/visits/{done['id']}").json["day"] == done["day"]
    assert other.get(f"records/visits/{left['id']}").json["day"] == left["day"]
