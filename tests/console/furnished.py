"""Something of everything: what the console's pages show where an account has been at work."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from flask import Flask

from app import clock, db
from app.accounts.models import User
from app.auth import bootstrap
from app.auth import mail_tokens as mailed_links
from app.auth import principal as principals
from app.auth.models import LinkPurpose
from app.jobs import Job
from app.outbound import mail
from app.workflows import instances
from app.workflows.instances import InstanceFilter
from tests import builders, mailbox
from tests.builders import Caller, Cast
from tests.console.browser import HOSTILE
from tests.files.test_files import image, upload
from tests.webhooks import delivering
from tests.workflows import running

STRANGE = "strange-thing"
LONG = "a_very_long_word_without_any_place_to_break_it" * 4
REFUSING = "http://127.0.0.1:9/with/a/long-long-long-long-long-long-long-long-path"
BOOKS = [
    {
        "name": "title",
        "type": "text",
        "required": True,
        "options": {"index": True, "search": True},
    },
    {"name": "number", "type": "sequence", "options": {"prefix": "B-", "digits": 5}},
    {"name": "price", "type": "decimal", "options": {"precision": 12, "scale": 2}},
    {"name": "subjects", "type": "text_list"},
    {"name": "keeper", "type": "email", "default": {"expression": "@request.auth.email"}},
    {"name": "kind", "type": "text", "options": {"choices": ["novel", "poem"]}},
    {"name": "pages", "type": "number", "options": {"integer": True}},
    {"name": "lent", "type": "boolean"},
    {"name": "bought", "type": "datetime"},
    {"name": "printed", "type": "date"},
    {"name": "contact", "type": "email", "pii": True},
    {"name": "site", "type": "url"},
    {"name": "more", "type": "json"},
    {"name": "before", "type": "reference", "collection": "books"},
    {"name": "loud", "type": "computed", "return_type": "text", "expression": "upper(title)"},
]
SCANS = [{"name": "pages", "type": "file", "options": {"max_files": 9}}]
PROVIDER = {
    "category": "auth_providers",
    "provider_name": "google",
    "config": {"client_id": "one", "client_secret": "very secret"},
}


def furnish(app: Flask, cast: Cast) -> dict[str, str]:
    """Furnish acme, and name in globex what nobody of acme may read; what addresses are made of."""
    alice, charlie = cast.alice, cast.charlie
    cast.root.put("product", {"name": "Library", "accounts_may_brand": True})
    cast.root.put("plans", {"pro": {"quotas": {"records": {"hard": 9000}}, "flags": ["sla"]}})
    cast.root.patch(f"accounts/{alice.account_id}", {"plan": "pro"})
    small = {"version": 1, "account_templates": {"small": {"version": 1}}}
    planned = cast.root.post("manifest/plan", {"manifest": small}).json
    cast.root.post("manifest/apply", {"manifest": small, "plan_hash": planned["plan_hash"]})
    receiver = {"url": REFUSING, "types": ["user.*", "plan.changed"]}
    of_operator = f"operator/webhooks/{cast.root.post('operator/webhooks', receiver).json['id']}"
    assert cast.root.patch(f"users/{cast.bob.id}", {"name": "Bob"}).status_code == 200
    assert cast.root.get("operator/events").status_code == 200  # numbers events, for webhooks
    waiting = cast.root.get(f"{of_operator}/deliveries").json["items"][0]
    for admin in (alice, charlie):
        admin.put("account/brand", {"name": admin.slug.title()})
    builders.make_collection(cast.root)
    builders.make_collection(cast.root, "closed", list_rule=None)
    trash = {"trash": {"days": 30}}
    books = builders.make_collection(cast.root, "books", BOOKS, options=trash)["id"]
    first = builders.make_record(alice, "books", title=HOSTILE)
    second = {"title": LONG, "before": first["id"], "more": {"a": LONG}, "pages": 7}
    second |= {"price": "1234567890.10", "subjects": [LONG, HOSTILE, "poems"]}
    second |= {"site": f"https://books.example/{LONG}"}
    read = {"type": "view", "from": "books", "list_rule": "true", "view_rule": "true"}
    shelf = {"fields": ["title", "before.title"], "where": "pages = 7 || pages = null"}
    view = cast.root.post("collections", {"name": "shelf", **read, **shelf})
    assert view.status_code == 201, view.json
    sums = {"group_by": ["title", "before.title"], "aggregates": ["count()", "sum(pages)"]}
    grouped = cast.root.post("collections", {"name": "sums", **read, **sums})
    assert grouped.status_code == 201, grouped.json
    record = builders.make_record(alice, "books", contact="x@books.example", **second)["id"]
    gone = builders.make_record(alice, "books", title=f"{LONG}?")["id"]
    alice.delete(f"records/books/{gone}")
    builders.make_record(charlie, title=STRANGE)
    builders.make_collection(cast.root, "scans", SCANS)
    sent = {
        "<img src=x onerror=alert(1)>.png": image(),
        f"{LONG}.csv": b"a,b",
        "a.zip": b"PK\x03\x04",
    }
    scans = [upload(alice, data, name)["id"] for name, data in sent.items()]
    builders.make_record(alice, "scans", pages=scans)
    at_work = _outside(app, alice)
    for other in (alice, charlie):
        name = "finance" if other is alice else STRANGE
        other.post("api-keys", {"name": name})
        made = other.post("groups", {"name": name}).json
        other.post("invitations", {"email": f"new@{name}.example"})
    text = {"subject": STRANGE, "text": f"{STRANGE} {{{{ link }}}}"}
    charlie.put("account/mail-templates/invitation/de", text)
    delivering.make_webhook(charlie, f"https://{STRANGE}.example/")
    running.make_workflow(charlie, [running.create("one")], name=STRANGE)
    group = next(g for g in alice.get("groups").json["items"] if g["name"] == "finance")["id"]
    key = cast.bob.post("api-keys", {"name": "finance"}).json["id"]
    assert made["name"] == STRANGE
    setting = alice.post("admin/configuration", PROVIDER).json["id"]
    alice.put("account/security-log/stream", {"url": REFUSING})
    export = alice.post("account/export", {"passphrase": "a long enough passphrase"}).json["id"]
    domain = alice.post("account/domains", {"domain": "acme.example"}).json["id"]
    charlie.post("account/domains", {"domain": f"{STRANGE}.example"})
    alice.patch(f"records/books/{record}", {"title": f"{LONG}!"})
    alice.post("auth/forgot-password", {"account": alice.slug, "email": alice.email})
    mailbox.run_jobs(app)
    assert alice.patch("account", {"magic_link": True}).status_code == 200
    links = {mail["To"]: mailbox.link_in(mail) for mail in mailbox.outbox(app)}
    with app.app_context():
        user = db.db.session.get_one(User, (alice.account_id, cast.bob.id))
        undo = mailed_links.issue(user, LinkPurpose.EMAIL_UNDO, "bob@old.example")
        keep = mailed_links.issue(user, LinkPurpose.EMAIL_KEEP)
        magic = mailed_links.issue(user, LinkPurpose.MAGIC_LINK)
        sign_in = bootstrap.sign_in_link()
    return {
        **at_work,
        "operator_webhook_id": of_operator.rpartition("/")[2],
        "operator_delivery_id": waiting["id"],
        "account_id": alice.account_id,
        "collection_id": books,
        "definition_id": view.json["id"],
        "name": "books",
        "record_id": record,
        "group_id": group,
        "user_id": cast.bob.id,
        "role_id": "1",
        "setting_id": setting,
        "domain_id": domain,
        "export_id": export,
        "category": "saml_providers",
        "provider": "okta",
        "key_id": key,
        "setup_link_id": alice.post("account/setup-links", {"name": "IT"}).json["id"],
        "setup_token": setup_token(alice),
        "scim_token_id": alice.post("account/scim/tokens").json["id"],
        "file_id": scans[-1],
        "color": "0b5fff",
        "format": "csv",
        "mail_kind": "invitation",
        "language": "de",
        "token": links["new@finance.example"].rpartition("=")[2],
        "reset_token": links[alice.email].rpartition("=")[2],
        "undo_token": undo,
        "keep_token": keep,
        "magic_token": magic,
        "sign_in_link": str(sign_in),
        "explain_id": cast.bob.get("records/closed").json["explain_id"],
        "job_id": _job(app, alice.account_id),
        "entry_id": str(cast.root.get("audit-logs?limit=1").json["items"][0]["id"]),
    }


def setup_token(owner: Caller) -> str:
    """The token of a new setup link."""
    url = owner.post("account/setup-links", {"name": "IT"}).json["url"]
    return str(url.rpartition("/")[2])


def _job(app: Flask, account_id: str) -> str:
    """A job of an account."""
    with app.app_context():
        query = sa.select(Job.id).where(Job.account_id == account_id)
        return str(db.db.session.scalars(query.limit(1)).one())


def _outside(app: Flask, owner: Caller) -> dict[str, str]:
    """A webhook whose receiver refuses, and a workflow that fails; both have been at work."""
    webhook = delivering.make_webhook(owner, REFUSING, collection="posts")["id"]
    builders.make_record(owner, title="told")
    delivering.deliver(app)
    failing = running.action("fail", "create_record", collection="missing", data={"title": LONG})
    each = {"name": "each", "type": "loop", "items": ["a", "b"]}
    steps = [{**each, "steps": [running.create("write", "{{item}}")]}, failing]
    flow = running.make_workflow(owner, steps, name="Welcome whoever is new")
    instance = running.start(owner, flow)
    running.work(app)
    moment = clock.now()
    with app.app_context():
        by = principals.for_user(owner.account_id, owner.id)
        assert by is not None
        assert instances.resume_all(InstanceFilter(), by=by, resumed_at=moment) == 1
    running.work(app)
    actions = [{"type": "create_record", "config": {"collection": "posts", "data": {"title": "x"}}}]
    hook = {"name": "Nightly", "trigger": {"type": "schedule", "cron": "0 4 * * *"}}
    assert owner.post("hooks", {**hook, "actions": actions}).status_code == 201
    delivery = owner.get(f"webhooks/{webhook}/deliveries").json["items"][0]["id"]
    return {
        "webhook_id": webhook,
        "delivery_id": delivery,
        "workflow_id": flow["id"],
        "instance_id": instance,
        "moment": clock.iso(moment),
        "kind": "workflow",
    }


def addresses(app: Flask, known: Mapping[str, str]) -> dict[str, str]:
    """Where each page of the console is, by the name of its view; that which names an account."""
    with app.app_context():
        of_mails = {"name": mail.saved_names()[0]}
    urls, found = app.url_map.bind("atrium.test"), {}
    for rule in app.url_map.iter_rules():
        if rule.endpoint.startswith("console.") and "GET" in (rule.methods or ()):
            if "portal_id" in rule.arguments:  # the same pages, for a portal session
                continue
            values = of_mails if rule.endpoint == "console.show_mail" else known
            if rule.rule.startswith("/console/events/"):
                values = {name: known[f"operator_{name}"] for name in ("webhook_id", "delivery_id")}
            needed = {name: values[name] for name in rule.arguments}
            built = urls.build(rule.endpoint, needed)
            if len(built) > len(found.get(rule.endpoint, "")):
                found[rule.endpoint] = built
    found["console.show_reset_password"] += f"?token={known['reset_token']}"
    found["console.show_setup_link"] = f"/console/setup/{known['setup_token']}"
    found["console.show_undo_email_change"] += f"?token={known['undo_token']}"
    found["console.show_keep_email"] += f"?token={known['keep_token']}"
    found["console.show_magic_link"] += f"?token={known['magic_token']}"
    found["console.show_sign_in_link"] = known["sign_in_link"]
    return found


def editor(app: Flask, cast: Cast) -> Caller:
    """An editor of acme."""
    return Caller(app, builders.make_user(app, cast.alice.account_id, "ed@acme.example", "editor"))
