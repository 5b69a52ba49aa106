"""Account templates: what new accounts have from the start."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock, db, jobs
from app.accounts import service as accounts
from app.accounts.models import ADMIN, SYSTEM_ACCOUNT_ID
from app.jobs import worker
from app.manifest import templates, upgrades
from tests import mailbox
from tests.builders import PASSWORD, Caller, Cast, make_collection, make_user
from tests.manifest.manifests import exported

pytestmark = pytest.mark.both_databases
TEMPLATE: dict[str, Any] = {
    "version": 1,
    "settings": {"mfa_grace_days": 3, "cors_origins": ["https://{{ account.slug }}.example.com"]},
    "groups": [{"name": "agents", "description": "Of {{ account.slug }}."}],
    "attributes": {"industry": "unknown"},
    "plan": "free",
    "workflows": [
        {
            "name": "greet",
            "trigger": {
                "type": "event",
                "event": "records.create",
                "collection": "posts",
                "condition": "@account.plan = 'free'",
            },
            "steps": [{"name": "wait", "type": "wait_delay", "duration": "1h"}],
        }
    ],
    "webhooks": [
        {
            "collection": "posts",
            "url": "http://127.0.0.1:9/{{ account.slug }}",
            "events": ["create"],
            "enabled": False,
        }
    ],
    "records": {
        "posts": [{"title": "Welcome, {{ account.name }}"}, {"title": "{{ account.code }}"}]
    },
}


def plan(cast: Cast, **templates: Any) -> Any:
    manifest = {"version": 1, "account_templates": templates}
    response = cast.root.post("manifest/plan", {"manifest": manifest})
    assert response.status_code == 200, response.json
    return response.json


def apply(cast: Cast, **templates: Any) -> Any:
    manifest = {"version": 1, "account_templates": templates}
    planned = plan(cast, **templates)
    assert planned["problems"] == [], planned["problems"]
    body = {"manifest": manifest, "plan_hash": planned["plan_hash"]}
    response = cast.root.post("manifest/apply", body)
    assert response.status_code == 200, response.json
    return response.json


@pytest.fixture
def prepared(cast: Cast) -> Cast:
    """A collection, a plan and an attribute that the template needs."""
    make_collection(cast.root)
    assert cast.root.put("plans", {"free": {}}).status_code == 200
    fields = {"fields": [{"name": "industry", "type": "text"}]}
    assert cast.root.put("attributes/accounts", fields).status_code == 200
    return cast


@pytest.fixture
def templated(prepared: Cast) -> Cast:
    apply(prepared, default=TEMPLATE)
    return prepared


def check_filled(root: Caller, account: dict[str, Any]) -> None:
    there, slug = root.acting_in(account["slug"]), account["slug"]
    shown = there.get("account").json
    assert (shown["plan"], shown["mfa_grace_days"]) == ("free", 3)
    assert shown["cors_origins"] == [f"https://{slug}.example.com"]
    assert shown["attributes"] == {"industry": "unknown"}
    groups = {one["name"]: one["description"] for one in there.get("groups").json["items"]}
    assert groups["agents"] == f"Of {slug}."
    [webhook] = there.get("webhooks").json["items"]
    assert webhook["url"] == f"http://127.0.0.1:9/{slug}"
    titles = {one["title"] for one in there.get("records/posts").json["items"]}
    assert titles == {f"Welcome, {account['name']}", account["account_code"]}
    [workflow] = there.get("workflows").json["items"]
    instances = there.get(f"workflows/{workflow['id']}/instances").json
    assert instances["total"] == 2, "the first records start workflows of the template"


def test_new_account_is_filled_by_the_default_template(templated: Cast) -> None:
    response = templated.root.post("accounts", {"name": "New & Co {{ x }}", "slug": "new-co"})
    assert response.status_code == 201, response.json
    made = response.json
    assert (made["template"], made["template_version"], made["plan"]) == ("default", 1, "free")
    check_filled(templated.root, made)
    [listed] = templated.root.get("account-templates").json["items"]
    assert {name: listed[name] for name in ("name", "version", "accounts", "behind")} == {
        "name": "default",
        "version": 1,
        "accounts": 1,
        "behind": 0,
    }
    assert listed["template"]["groups"] == TEMPLATE["groups"]
    apply(templated, default=TEMPLATE | {"version": 2})
    assert templated.root.get("account-templates").json["items"][0]["behind"] == 1


def test_registered_account_is_filled_by_the_default_template(app: Flask, templated: Cast) -> None:
    anyone = Caller(app)
    body = {"email": "ann@new.example", "password": PASSWORD, "account_name": "New"}
    response = anyone.post("auth/register", body)
    assert response.status_code in (200, 201, 202), response.json
    found = templated.root.get("accounts?search=New").json["items"]
    check_filled(templated.root, found[0])


def test_template_is_chosen_by_name(templated: Cast) -> None:
    apply(templated, small={"version": 7, "groups": [{"name": "few"}]})
    response = templated.root.post("accounts", {"name": "Small", "template": "small"})
    made = response.json
    assert (made["template"], made["template_version"], made["plan"]) == ("small", 7, None)
    there = templated.root.acting_in(made["slug"])
    assert "few" in {one["name"] for one in there.get("groups").json["items"]}
    assert there.get("records/posts").json["total"] == 0
    response = templated.root.post("accounts", {"name": "None", "template": "none"})
    assert response.status_code == 400
    assert response.json["details"][0]["field"] == "template"
    assert templated.root.get("accounts?search=None").json["total"] == 0
    apply(templated, default={"removed": True})
    plain = templated.root.post("accounts", {"name": "Plain"}).json
    assert (plain["template"], plain["plan"]) == (None, None)


def test_template_with_a_fault_is_not_stored_and_says_where(prepared: Cast) -> None:
    wrong = {
        "version": 1,
        "plan": "gold",
        "settings": {"cors_origins": ["nowhere"]},
        "attributes": {"nothing": 1},
        "groups": [{"name": "agents", "removed": True}],
        "webhooks": [
            {
                "collection": "posts",
                "url": "http://127.0.0.1:9/{{ account.name }}",
                "events": ["create"],
                "secret": "s" * 40,
                "filter": "1 =",
            }
        ],
        "workflows": [{"name": "w", "trigger": {"type": "nothing"}}],
        "records": {"posts": [{"title": 1}, {"nothing": "x"}], "none": [{}]},
    }
    fields = [one["field"] for one in plan(prepared, default=wrong)["problems"]]
    start = "account_templates.default."
    for place in (
        "plan",
        "cors_origins",
        "attributes.nothing",
        "groups.agents",
        "webhooks[0].url",
        "webhooks[0].secret",
        "webhooks[0].filter",
        "workflows.w.trigger.type",
        "records.posts[0].title",
        "records.posts[1].nothing",
        "records.none",
    ):
        assert any(one == start + place or one.endswith(f".{place}") for one in fields), (
            place,
            fields,
        )
    assert prepared.root.get("account-templates").json["items"] == []


def test_fault_that_came_later_creates_no_account_at_all(app: Flask, templated: Cast) -> None:
    root = templated.root
    posts = root.get("collections/posts").json["id"]
    schema = [{"name": "title", "type": "text"}, {"name": "by", "type": "text", "required": True}]
    response = root.patch(f"collections/{posts}", {"schema": schema})
    assert response.status_code == 200, response.json
    before = root.get("accounts").json["total"]
    response = root.post("accounts", {"name": "Half", "slug": "half"})
    assert (response.status_code, response.json["error"]) == (409, "template_fault")
    assert response.json["details"][0]["field"] == "default.records.posts[0].by"
    body = {"email": "ann@new.example", "password": PASSWORD, "account_name": "Half"}
    response = Caller(app).post("auth/register", body)
    assert (response.status_code, response.json["error"]) == (409, "template_fault")
    assert "details" not in response.json
    assert root.get("accounts").json["total"] == before
    assert root.acting_in("half").get("account").status_code == 404


def test_changed_template_needs_a_later_version(templated: Cast) -> None:
    changed = TEMPLATE | {"plan": None}
    [problem] = plan(templated, default=changed)["problems"]
    assert (problem["field"], problem["code"]) == (
        "account_templates.default.version",
        "version_required",
    )
    assert plan(templated, default=TEMPLATE)["has_changes"] is False
    result = apply(templated, default=changed | {"version": 2})
    assert result["reverse"]["account_templates"]["default"] == TEMPLATE | {"version": 3}


def test_plan_that_a_template_names_is_kept_and_followed(templated: Cast) -> None:
    root = templated.root
    response = root.put("plans", {})
    assert response.status_code == 409
    assert sorted(one["field"] for one in response.json["details"]) == [
        "account_templates.default.plan",
        "account_templates.default.workflows.greet.trigger.condition",
    ]
    assert root.patch("plans", {"gratis": {"rename_from": "free"}}).status_code == 200
    [listed] = root.get("account-templates").json["items"]
    assert listed["template"]["plan"] == "gratis"
    trigger = listed["template"]["workflows"][0]["trigger"]
    assert trigger["condition"] == "@account.plan = 'gratis'"
    assert root.post("accounts", {"name": "New"}).json["plan"] == "gratis"


def test_owner_of_a_template_is_a_service_user_of_each_account(app: Flask, templated: Cast) -> None:
    root = templated.root
    role = root.post("roles", {"name": "maker"}).json
    make(templated, "old")
    more = {"name": "bye", "trigger": {"type": "manual"}, "steps": []}
    owned = TEMPLATE | {"version": 2, "owner": {"name": "Automation", "role": "maker"}}
    owned["workflows"] = [*TEMPLATE["workflows"], more]
    apply(templated, default=owned)
    assert root.post("accounts", {"name": "One", "slug": "one"}).status_code == 201
    there = root.acting_in("one")
    [service] = there.get("account/users?kind=service").json["items"]
    assert (service["name"], service["role"]) == ("Automation", "maker")
    for path in ("workflows", "webhooks"):
        owners = {one["owner_id"] for one in there.get(path).json["items"]}
        assert owners == {service["id"]}, path
    upgrade(templated)
    mailbox.run_jobs(app)
    old = root.acting_in("old")
    [service] = old.get("account/users?kind=service").json["items"]
    owners = {one["name"]: one["owner_id"] for one in old.get("workflows").json["items"]}
    assert owners == {"greet": root.id, "bye": service["id"]}
    assert root.patch(f"roles/{role['id']}", {"name": "author"}).status_code == 200
    [listed] = root.get("account-templates").json["items"]
    assert listed["template"]["owner"] == {"name": "Automation", "role": "author"}
    wrong = owned | {"version": 3, "owner": {"name": "Automation", "role": "maker"}}
    [found] = plan(templated, default=wrong)["problems"]
    assert (found["field"], found["code"]) == (
        "account_templates.default.owner.role",
        "invalid_reference",
    )


def test_templates_are_for_superadmins(templated: Cast) -> None:
    for caller in (templated.alice, templated.bob):
        assert caller.get("account-templates").status_code == 403


CHANGED = TEMPLATE | {
    "version": 2,
    "plan": None,
    "settings": TEMPLATE["settings"] | {"mfa_grace_days": 5},
    "groups": [{"name": "agents", "description": "All of {{ account.slug }}."}, {"name": "leads"}],
    "webhooks": [TEMPLATE["webhooks"][0] | {"events": ["create", "update"]}],
}


def make(cast: Cast, *slugs: str) -> None:
    for slug in slugs:
        assert cast.root.post("accounts", {"name": slug, "slug": slug}).status_code == 201


def upgrade(cast: Cast, **body: Any) -> Any:
    """Plan an upgrade and have it done; returns the plan's items."""
    body = {"accounts": "all", **body}
    planned = cast.root.post("account-templates/default/plan", body)
    assert planned.status_code == 200, planned.json
    plan_hash = planned.json["plan_hash"]
    started = cast.root.post("account-templates/default/apply", body | {"plan_hash": plan_hash})
    assert (started.status_code, started.json["version"]) == (202, 2)
    assert (started.json["job"]["status"], started.json["job"]["version"]) == ("pending", 2)
    return planned.json["items"]


def newest_job(cast: Cast) -> Any:
    """The newest job, from the list and from its own address."""
    listed = cast.root.get("account-templates/default/jobs").json["items"][0]
    answer = cast.root.get(f"account-templates/default/jobs/{listed['id']}")
    assert answer.json == listed
    return listed


def state(cast: Cast, slug: str) -> dict[str, Any]:
    there = cast.root.acting_in(slug)
    account = there.get("account").json
    groups = {one["name"]: one["description"] for one in there.get("groups").json["items"]}
    groups.pop("pii_access")
    webhooks = [one["events"] for one in there.get("webhooks").json["items"]]
    return {
        "plan": account["plan"],
        "grace": account["mfa_grace_days"],
        "groups": groups,
        "webhooks": webhooks,
        "records": there.get("records/posts").json["total"],
    }


def new(slug: str) -> dict[str, Any]:
    groups = {"agents": f"All of {slug}.", "leads": None}
    webhooks = [["create", "update"]]
    return {"plan": None, "grace": 5, "groups": groups, "webhooks": webhooks, "records": 2}


def test_upgrade_brings_accounts_to_the_new_version(app: Flask, templated: Cast) -> None:
    make(templated, "one", "two")
    apply(templated, default=CHANGED)
    [first, second] = upgrade(templated)
    assert (first["account"], first["from_version"], first["kept"]) == ("one", 1, [])
    changed = {one["place"]: (one["action"], one["properties"]) for one in first["changes"]}
    assert changed == {
        "plan": ("update", ["plan"]),
        "settings": ("update", ["mfa_grace_days"]),
        "groups.agents": ("update", ["description"]),
        "groups.leads": ("create", []),
        "webhooks.posts http://127.0.0.1:9/one": ("update", ["events"]),
    }
    assert second["account"] == "two"
    assert state(templated, "one")["plan"] == "free", "nothing is done before the job"
    mailbox.run_jobs(app)
    assert [state(templated, slug) for slug in ("one", "two")] == [new("one"), new("two")]
    [listed] = templated.root.get("account-templates").json["items"]
    assert (listed["accounts"], listed["behind"]) == (2, 0)
    job = newest_job(templated)
    assert {name: job[name] for name in ("status", "total", "done", "kept", "failed")} == {
        "status": "done",
        "total": 2,
        "done": 2,
        "kept": 0,
        "failed": 0,
    }
    assert templated.root.get("accounts?search=acme").json["items"][0]["template"] is None


def test_upgrade_tells_and_keeps_what_was_changed_by_hand(app: Flask, templated: Cast) -> None:
    make(templated, "one", "two")
    there = templated.root.acting_in("one")
    groups = {one["name"]: one["id"] for one in there.get("groups").json["items"]}
    assert there.patch(f"groups/{groups['agents']}", {"description": "Ours."}).status_code == 200
    assert there.patch("account", {"mfa_grace_days": 9}).status_code == 200
    [webhook] = there.get("webhooks").json["items"]
    assert there.delete(f"webhooks/{webhook['id']}").status_code == 204
    assert there.post("groups", {"name": "leads", "description": "Own."}).status_code == 201
    apply(templated, default=CHANGED)
    first = upgrade(templated)[0]
    mailbox.run_jobs(app)
    assert [(one["place"], one["action"]) for one in first["changes"]] == [("plan", "update")]
    assert [(one["place"], one["action"], one["properties"]) for one in first["kept"]] == [
        ("settings", "update", ["mfa_grace_days"]),
        ("groups.agents", "update", ["description"]),
        ("webhooks.posts http://127.0.0.1:9/one", "create", []),
    ]
    kept = {"agents": "Ours.", "leads": "Own."}
    assert state(templated, "one") == new("one") | {"grace": 9, "groups": kept, "webhooks": []}
    assert state(templated, "two") == new("two")
    job = newest_job(templated)
    assert (job["done"], job["kept"]) == (2, 1)
    body = {"accounts": ["one", "two"], "force": True}
    assert templated.root.post("account-templates/default/plan", body).json["items"] == []


def test_forced_upgrade_overwrites_what_was_changed_by_hand(app: Flask, templated: Cast) -> None:
    make(templated, "one")
    there = templated.root.acting_in("one")
    groups = {one["name"]: one["id"] for one in there.get("groups").json["items"]}
    there.patch(f"groups/{groups['agents']}", {"description": "Ours."})
    there.patch("account", {"mfa_grace_days": 9})
    apply(templated, default=CHANGED)
    [first] = upgrade(templated, force=True)
    assert first["kept"] == []
    mailbox.run_jobs(app)
    assert state(templated, "one") == new("one")


def test_upgrade_of_chosen_accounts_takes_those_without_a_template(
    app: Flask, templated: Cast
) -> None:
    make(templated, "one")
    apply(templated, default=CHANGED)
    items = upgrade(templated, accounts=["acme"])
    assert [(one["account"], one["from_version"]) for one in items] == [("acme", None)]
    mailbox.run_jobs(app)
    assert state(templated, "acme") == new("acme") | {"records": 0}
    assert state(templated, "one")["plan"] == "free"
    wrong = templated.root.post("account-templates/default/plan", {"accounts": ["nobody"]})
    assert (wrong.status_code, wrong.json["details"][0]["field"]) == (400, "accounts")
    missing = templated.root.post("account-templates/none/plan", {"accounts": "all"})
    assert missing.status_code == 404
    stale = {"accounts": "all", "plan_hash": "x"}
    answer = templated.root.post("account-templates/default/apply", stale)
    assert (answer.status_code, answer.json["error"]) == (409, "plan_stale")


def test_upgrade_goes_on_after_a_kill(
    app: Flask, templated: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    slugs = [f"acc-{n}" for n in range(5)]
    make(templated, *slugs)
    monkeypatch.setattr(upgrades, "PIECE", 2)
    apply(templated, default=CHANGED)
    upgrade(templated)
    done = list[str]()
    real = upgrades.upgrade

    def killed(account_id: str, *args: Any, **options: Any) -> Any:
        done.append(account_id)
        if len(done) == 4:
            raise KeyboardInterrupt
        return real(account_id, *args, **options)

    monkeypatch.setattr(upgrades, "upgrade", killed)
    with pytest.raises(KeyboardInterrupt):
        mailbox.run_jobs(app)
    [listed] = templated.root.get("account-templates").json["items"]
    assert listed["behind"] == 2
    with app.app_context():
        owner = templates.operator(None)
        job = upgrades.order("default", "all", force=False, by=owner, after=300)
        shown = [one.account.slug for one in upgrades.run(job)]
    assert shown == slugs[3:]
    listed = newest_job(templated)
    assert (listed["status"], listed["total"], listed["done"]) == ("done", 2, 2)
    assert [state(templated, slug) for slug in slugs] == [new(slug) for slug in slugs]


def test_account_that_cannot_be_brought_up_stays_whole(app: Flask, templated: Cast) -> None:
    make(templated, "one", "two")
    there = templated.root.acting_in("one")
    assert there.post("groups", {"name": "Leads"}).status_code == 201
    apply(templated, default=CHANGED)
    upgrade(templated)
    mailbox.run_jobs(app)
    assert state(templated, "one")["plan"] == "free", "all or nothing"
    assert state(templated, "two") == new("two")
    assert templated.root.get("account-templates").json["items"][0]["behind"] == 1
    job = newest_job(templated)
    assert (job["status"], job["done"], job["failed"]) == ("done", 1, 1)
    [failure] = job["failures"]
    assert failure["account"] == "one"
    assert failure["message"]


def test_job_ends_once_its_template_changes(app: Flask, templated: Cast) -> None:
    make(templated, "one")
    apply(templated, default=CHANGED)
    upgrade(templated)
    apply(templated, default=CHANGED | {"version": 3})
    mailbox.run_jobs(app)
    job = newest_job(templated)
    assert (job["status"], job["done"]) == ("failed", 0)
    assert "Plan again" in job["error"]
    assert state(templated, "one")["plan"] == "free"
    for path in ("none/jobs/" + job["id"], f"default/jobs/{templated.alice.id}"):
        assert templated.root.get(f"account-templates/{path}").status_code == 404
    assert templated.alice.get("account-templates/default/jobs").status_code == 403


def test_job_ends_once_whoever_ordered_it_is_no_superadmin(app: Flask, templated: Cast) -> None:
    make(templated, "one")
    apply(templated, default=CHANGED)
    ben = make_user(app, SYSTEM_ACCOUNT_ID, "ben@system.example", ADMIN)
    upgrade(replace(templated, root=Caller(app, ben)))
    gone = templated.root.patch(f"users/{ben.id}", {"is_active": False})
    assert gone.status_code == 200, gone.json
    mailbox.run_jobs(app)
    job = newest_job(templated)
    assert (job["status"], job["done"], job["requested_by"]) == ("failed", 0, ben.id)
    assert "no superadmin any more" in job["error"]
    assert state(templated, "one")["plan"] == "free"


@pytest.mark.long
def test_hundreds_of_accounts_are_brought_up_in_spite_of_kills(
    app: Flask, templated: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    slugs = [f"acc-{n:03}" for n in range(200)]
    with app.app_context(), db.transaction():
        for slug in slugs:
            accounts.create_account(slug, slug, slug_field="slug", template="default")
    monkeypatch.setattr(upgrades, "PIECE", 15)
    monkeypatch.setattr(worker, "LEASE_SECONDS", 0)
    apply(templated, default=CHANGED)
    upgrade(templated)
    real, calls, done = upgrades.upgrade, list[str](), list[str]()

    def killed(account_id: str, *args: Any, **options: Any) -> Any:
        calls.append(account_id)
        if len(calls) % 41 == 0:  # before the account, the next time after it
            raise KeyboardInterrupt
        found = real(account_id, *args, **options)
        done.extend([account_id] if found else [])
        if len(calls) % 67 == 0:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(upgrades, "upgrade", killed)
    progress = [0]
    while newest_job(templated)["status"] in ("pending", "running"):
        with suppress(KeyboardInterrupt):
            mailbox.run_jobs(app)
        progress.append(newest_job(templated)["done"])
        with app.app_context(), db.transaction() as session:  # as the lease of the dead ends
            session.execute(sa.update(jobs.TABLE).values(due_at=clock.now()))
    assert len(calls) > len(slugs), "it was killed before some of them"
    assert progress == sorted(progress)
    assert len(done) == len({*done}) == len(slugs), "each is done once"
    job = newest_job(templated)
    assert (job["status"], job["total"], job["done"], job["failed"]) == ("done", 200, 200, 0)
    assert templated.root.get("account-templates").json["items"][0]["behind"] == 0
    assert state(templated, "acc-123") == new("acc-123")


def test_account_is_never_seen_half_filled(app: Flask, templated: Cast) -> None:
    """By anybody who looks while it is made."""
    seen, over = list[dict[str, Any]](), threading.Event()
    root = templated.root

    def look() -> None:
        while not over.is_set():
            for number in range(5):
                there = root.acting_in(f"new-{number}")
                groups = there.get("groups")
                if groups.status_code == 404:
                    continue
                assert groups.status_code == 200, groups.json
                names = {one["name"] for one in groups.json["items"]}
                account, webhooks = there.get("account").json, there.get("webhooks").json
                seen.append(
                    {
                        "groups": names >= {"agents", "pii_access"},
                        "plan": account["plan"],
                        "grace": account["mfa_grace_days"],
                        "webhooks": len(webhooks["items"]),
                        "records": there.get("records/posts").json["total"],
                        "workflows": len(there.get("workflows").json["items"]),
                    }
                )

    with ThreadPoolExecutor(2) as pool:
        lookers = [pool.submit(look) for _ in range(2)]
        for number in range(5):
            make(templated, f"new-{number}")
            time.sleep(0.1)  # for those who look
        over.set()
        for looker in lookers:
            looker.result()
    whole = {"groups": True, "plan": "free", "grace": 3}
    whole |= {"webhooks": 1, "records": 2, "workflows": 1}
    assert seen
    assert [one for one in seen if one != whole] == []


PROVIDER = {"category": "auth_providers", "provider_name": "google"}


@pytest.mark.parametrize(
    ("providers", "place", "code"),
    [
        ([PROVIDER | {"config": {"client_id": "a"}}], "google.config.client_secret", "required"),
        (
            [PROVIDER | {"config": {"client_id": "a", "client_secret": "b"}}],
            "google.config.client_secret",
            "secret_in_template",
        ),
        (
            [PROVIDER | {"enabled": False, "config": {"odd": 1}}],
            "google.config.odd",
            "unknown_field",
        ),
        ([PROVIDER | {"enabled": False}], "google.config", "required"),
        (
            [PROVIDER | {"provider_name": "nobody", "config": {}}],
            "nobody.provider_name",
            "invalid_option",
        ),
        (
            [PROVIDER | {"enabled": False, "config": {"client_id": one}} for one in "ab"],
            "google",
            "name_duplicate",
        ),
    ],
)
def test_provider_of_a_template_is_checked_as_it_is_applied(
    prepared: Cast, providers: list[Any], place: str, code: str
) -> None:
    problems = plan(prepared, default={"version": 1, "providers": providers})["problems"]
    assert [(one["field"], one["code"]) for one in problems] == [
        (f"account_templates.default.providers.{place}", code)
    ]


def test_provider_without_secrets_is_stamped(prepared: Cast) -> None:
    provider = PROVIDER | {"enabled": False, "config": {"client_id": "{{ account.slug }}"}}
    apply(prepared, default={"version": 1, "providers": [provider]})
    make(prepared, "one")
    there = exported(prepared.root, "?accounts=one")["accounts"]["one"]["providers"]
    assert [one["config"]["client_id"] for one in there] == ["one"]


def test_command_applies_a_file_and_brings_accounts_up(
    app: Flask, templated: Cast, tmp_path: Path
) -> None:
    make(templated, "one", "two")
    file = tmp_path / "atrium.json"
    manifest = {"version": 1, "account_templates": {"default": CHANGED}}
    file.write_text(json.dumps(manifest))
    run = app.test_cli_runner()
    plan_hash = templated.root.post("manifest/plan", {"manifest": manifest}).json["plan_hash"]
    given = ["apply", str(file), "--plan", plan_hash, "--accounts", "two"]
    result = run.invoke(args=given)
    assert (result.exit_code, "two: 5 changed" in result.output) == (0, True), result.output
    assert state(templated, "one")["plan"] == "free"
    assert state(templated, "two") == new("two")
    job = newest_job(templated)
    assert (job["status"], job["accounts"], job["requested_by"]) == (
        "done",
        ["two"],
        templated.root.id,
    )
    assert (job["total"], job["done"], job["failed"]) == (1, 1, 0)
    result = run.invoke(args=["apply", str(file), "--yes", "--accounts", "all"])
    assert (result.exit_code, "one: 5 changed" in result.output) == (0, True), result.output
    assert "two" not in result.output
    assert state(templated, "one") == new("one")


def test_command_that_is_killed_leaves_accounts_to_a_worker(
    app: Flask, templated: Cast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(templated, "one", "two")
    file = tmp_path / "atrium.json"
    file.write_text(json.dumps({"version": 1, "account_templates": {"default": CHANGED}}))
    given = ["apply", str(file), "--yes", "--accounts", "all"]
    with monkeypatch.context() as patched:

        def killed(account_id: str, *args: Any, **options: Any) -> Any:
            raise SystemExit(137)

        patched.setattr(upgrades, "upgrade", killed)
        assert app.test_cli_runner().invoke(args=given).exit_code == 137
    job = newest_job(templated)
    assert (job["status"], job["total"], job["done"]) == ("running", 2, 0)
    mailbox.run_jobs(app)
    assert newest_job(templated)["status"] == "running", "not yet: the command may still be at it"
    with app.app_context(), db.transaction() as session:
        past = clock.now() - timedelta(seconds=1)  # databases have coarser clocks
        session.execute(sa.update(jobs.TABLE).values(due_at=past))
    mailbox.run_jobs(app)
    job = newest_job(templated)
    assert (job["status"], job["done"]) == ("done", 2)
    assert state(templated, "one") == new("one")


def test_command_names_accounts_that_failed(app: Flask, templated: Cast, tmp_path: Path) -> None:
    make(templated, "one", "two")
    assert templated.root.acting_in("one").post("groups", {"name": "Leads"}).status_code == 201
    file = tmp_path / "atrium.json"
    file.write_text(json.dumps({"version": 1, "account_templates": {"default": CHANGED}}))
    run = app.test_cli_runner()
    for given in (["--accounts", "none"], ["--force"]):
        assert run.invoke(args=["apply", str(file), "--yes", *given]).exit_code != 0
        [listed] = templated.root.get("account-templates").json["items"]
        assert listed["version"] == 1, "nothing is applied"
    result = run.invoke(args=["apply", str(file), "--yes", "--accounts", "all"])
    assert (result.exit_code, "one: failed: " in result.output) == (1, True)
    assert "1 of 2 brought up" in result.output
    file.write_text(json.dumps({"version": 1}))
    wrong = run.invoke(args=["apply", str(file), "--yes", "--accounts", "all"])
    assert (wrong.exit_code, "account_templates" in wrong.output) == (2, True)
