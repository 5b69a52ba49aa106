"""The helpdesk of `examples/helpdesk`: what its roles may do, and see of each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask

from tests.builders import PASSWORD, Caller, make_record, make_user
from tests.manifest.manifests import applied, planned
from tests.project import PROJECT
from tests.workflows.running import work

MANIFEST = (PROJECT / "examples" / "helpdesk" / "atrium.yaml").read_text()


@dataclass
class Helpdesk:
    """People of one account: staff, and customers of two companies, each with a ticket."""

    lead: Caller
    agent: Caller
    ann: Caller
    bea: Caller
    companies: list[dict[str, Any]]
    tickets: list[dict[str, Any]]


@pytest.fixture
def desk(app: Flask, alice: Caller, root: Caller) -> Helpdesk:
    assert applied(root, MANIFEST)
    lead, agent, ann, bea = (
        Caller(app, make_user(app, alice.account_id, f"{name}@acme.example", role))
        for name, role in (
            ("lead", "lead"),
            ("agent", "agent"),
            ("ann", "customer"),
            ("bea", "customer"),
        )
    )
    members = (("Tyrell", [ann.id, bea.id]), ("Wallace", [bea.id]))
    companies = [make_record(lead, "companies", name=one, members=ids) for one, ids in members]
    tickets = [
        make_record(by, "tickets", title=title, company=company["id"])
        for by, title, company in zip((ann, bea), ("Printer", "Lamp"), companies, strict=True)
    ]
    return Helpdesk(lead, agent, ann, bea, companies, tickets)


def titles(caller: Caller, query: str = "") -> list[str]:
    answer = caller.get(f"records/tickets?sort=title{query}")
    assert answer.status_code == 200, answer.json
    return [one["title"] for one in answer.json["items"]]


def test_helpdesk_manifest_passes_its_rule_tests_and_changes_nothing_twice(
    desk: Helpdesk, root: Caller
) -> None:
    plan = planned(root, MANIFEST)
    assert (plan["problems"], plan["warnings"], plan["operations"]) == ([], [], [])
    assert len(plan["tests"]) == 11
    assert all(one["passed"] for one in plan["tests"])


def test_customers_see_what_is_of_their_companies(desk: Helpdesk, alice: Caller) -> None:
    assert titles(desk.agent) == titles(desk.lead) == ["Lamp", "Printer"]
    assert titles(desk.ann) == ["Printer"]
    assert titles(desk.bea) == ["Lamp", "Printer"]
    assert [one["name"] for one in desk.ann.get("records/companies").json["items"]] == ["Tyrell"]
    stranger = {"title": "x", "company": desk.companies[1]["id"]}
    assert desk.ann.post("records/tickets", stranger).status_code in (400, 403)
    company = f"records/companies/{desk.companies[0]['id']}"
    assert desk.lead.patch(company, {"members": [desk.bea.id]}).status_code == 200
    assert titles(desk.ann) == []
    assert desk.ann.get(f"records/tickets/{desk.tickets[0]['id']}").status_code == 404


def test_staff_assign_tickets_and_find_their_own(desk: Helpdesk) -> None:
    url = f"records/tickets/{desk.tickets[0]['id']}"
    assert desk.agent.patch(url, {"assignee": desk.agent.id}).status_code == 200
    assert titles(desk.agent, "&filter=assignee = @request.auth.id") == ["Printer"]
    shown = desk.agent.get(f"{url}?expand=assignee,created_by").json["expand"]
    assert shown["assignee"] == {"id": desk.agent.id, "name": None, "role": "agent"}
    seen = desk.ann.get(f"{url}?expand=assignee").json
    assert seen["expand"] == {"assignee": desk.agent.id}
    assert desk.ann.patch(url, {"status": "closed"}).status_code == 403
    people = {one["id"] for one in desk.agent.get("directory").json["items"]}
    assert {desk.lead.id, desk.ann.id} <= people
    assert [one["id"] for one in desk.ann.get("directory").json["items"]] == [desk.ann.id]


def test_priority_is_seen_by_staff_and_set_by_leads(desk: Helpdesk) -> None:
    url = f"records/tickets/{desk.tickets[0]['id']}"
    assert desk.agent.patch(url, {"priority": "high"}).status_code == 400
    assert desk.lead.patch(url, {"priority": "high"}).status_code == 200
    assert desk.agent.get(url).json["priority"] == "high"
    assert "priority" not in desk.ann.get(url).json
    assert desk.ann.get("records/tickets?filter=priority = 'high'").status_code == 400
    opened = {"title": "x", "company": desk.companies[0]["id"], "status": "closed"}
    assert desk.ann.post("records/tickets", opened).status_code == 400


def test_internal_comments_are_for_staff(desk: Helpdesk) -> None:
    ticket = desk.tickets[0]["id"]
    make_record(desk.agent, "comments", ticket=ticket, text="Works as sold.", internal=True)
    make_record(desk.agent, "comments", ticket=ticket, text="We look into it.")
    make_record(desk.ann, "comments", ticket=ticket, text="Thank you.")

    def texts(caller: Caller) -> list[str]:
        return [one["text"] for one in caller.get("records/comments?sort=text").json["items"]]

    assert texts(desk.ann) == texts(desk.bea) == ["Thank you.", "We look into it."]
    assert texts(desk.lead) == ["Thank you.", "We look into it.", "Works as sold."]
    other = {"ticket": desk.tickets[1]["id"], "text": "x"}
    assert desk.ann.post("records/comments", other).status_code in (400, 403)


def test_company_that_signs_up_finds_what_it_needs(app: Flask, root: Caller) -> None:
    applied(root, MANIFEST)
    body = {"account_name": "Wallace Corp", "name": "Wanda", "email": "wanda@wallace.example"}
    answer = Caller(app).post("auth/register", {**body, "password": PASSWORD})
    assert answer.status_code == 201, answer.json
    there = root.acting_in("wallace-corp")
    assert "escalations" in {one["name"] for one in there.get("groups").json["items"]}
    [workflow] = there.get("workflows").json["items"]
    assert (workflow["name"], workflow["enabled"]) == ("Welcome", True)
    labels = {one["status"]: one["label"] for one in there.get("records/statuses").json["items"]}
    assert labels == {"open": "new", "pending": "waiting", "closed": "done"}
    [company] = there.get("records/companies").json["items"]
    assert company["name"] == "Wallace Corp"
    work(app)
    account_id = there.get("account").json["id"]
    agent = Caller(app, make_user(app, account_id, "otto@wallace.example", "agent"))
    [ticket] = agent.get("records/tickets").json["items"]
    assert (ticket["title"], ticket["company"]) == ("Welcome, Wallace Corp", company["id"])
    assert root.get("account-templates").json["items"][0]["accounts"] == 1
