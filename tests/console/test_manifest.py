"""Manifests in the console: nothing happens before the plan was looked at."""

from __future__ import annotations

from io import BytesIO

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from tests.builders import Cast, make_collection, make_record
from tests.console.browser import Browser, alert, asks_to_sign_in
from tests.console.test_schemas import inputs

PATH = "collections/manifest"
NEW = """version: 1
collections:
- name: posts
  remove_fields: [views]
  rules: {list_rule: null}
accounts:
  acme:
    webhooks:
    - {collection: posts, url: "https://hooks.example.com/<b>", events: [create]}"""


def test_console_manifest_is_planned_then_applied(superadmin: Browser, cast: Cast) -> None:
    schema = [{"name": "title", "type": "text"}, {"name": "views", "type": "number"}]
    make_collection(cast.root, "posts", schema)
    make_record(cast.alice, views=1)
    plan = superadmin.send(PATH, manifest=NEW, do="plan")
    assert plan.status_code == 200
    for part in ("Webhook", "https://hooks.example.com/&lt;b&gt;", "1 record loses", "viewer"):
        assert part in plan.text
    assert len(cast.root.get("collections/posts").json["schema"]) == 2
    hidden = plan.text.partition('name="plan_hash" value="')[2].partition('"')[0]
    form = {"manifest": inputs(plan.text, "manifest-form")["manifest"], "plan_hash": hidden}
    done = superadmin.send(PATH, **form, do="apply")
    assert "is shown only now" in done.text
    assert [one["name"] for one in cast.root.get("collections/posts").json["schema"]] == ["title"]
    again = superadmin.send(PATH, **form, do="apply")
    assert "Nothing changes" in again.text


@pytest.mark.parametrize(
    ("manifest", "part"),
    [
        ("version: 1\nroles: 3", "Line 2"),
        ("version: 1\ncollections:\n- name: more", "cannot be applied yet"),
    ],
)
def test_console_manifest_problems_show_their_lines(
    superadmin: Browser, manifest: str, part: str
) -> None:
    answer = superadmin.send(PATH, manifest=manifest, do="plan")
    assert part in answer.text
    assert "Apply plan" not in answer.text


def test_console_manifest_with_stale_plan_is_409(superadmin: Browser, cast: Cast) -> None:
    manifest = "version: 1\nroles:\n- name: auditor"
    answer = superadmin.send(PATH, manifest=manifest, plan_hash="another", do="apply")
    assert (answer.status_code, "Plan again" in alert(answer)) == (409, True)


def test_console_manifest_export(superadmin: Browser) -> None:
    answer = superadmin.get(f"{PATH}/export")
    assert answer.text.startswith("version: 1\n")
    assert "attachment" in answer.headers["Content-Disposition"]


def test_console_manifest_requires_superadmin(app: Flask, cast: Cast) -> None:
    for caller in (cast.bob, cast.alice):
        browser = Browser(app, caller)
        assert browser.get(PATH).status_code == 403
        assert browser.get(f"{PATH}/export").status_code == 403
        assert browser.send(PATH, manifest=NEW, do="plan").status_code == 403
    assert asks_to_sign_in(Browser(app).send(PATH, manifest=NEW))


def test_console_manifest_is_planned_from_a_file(superadmin: Browser) -> None:
    manifest = b"version: 1\nroles:\n- name: auditor"

    def sent(content: bytes) -> TestResponse:
        return superadmin.send(PATH, manifest="", do="plan", file=(BytesIO(content), "a.yaml"))

    plan = sent(b"\xef\xbb\xbf" + manifest)
    assert (plan.status_code, "auditor" in plan.text, "Apply" in plan.text) == (200, True, True)
    assert inputs(plan.text, "manifest-form")["manifest"].strip() == manifest.decode()
    for content, part in (
        (b"\xff\xfe", "Choose a text file encoded in UTF-8."),
        (b"version: 1\nroles: 3", "Line 2"),
        (b"#" * (400 * 2**10 + 1), "The file is larger than 400 KiB."),
    ):
        answer = sent(content)
        assert (answer.status_code, part in answer.text) == (400, True), part
