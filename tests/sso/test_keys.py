"""The keys that stored secrets are encrypted with: a new one takes over, an old one is retired."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from app import db
from app.db import reencryption
from tests.sso import openid
from tests.sso.flows import Stage

MODELS = Path(reencryption.__file__).parent.parent.rglob("*models.py")
FOR_MINUTES = {("sso_flows", "verifier"), ("sso_flows", "outcome")}


def test_encryption_key_is_retired_by_reencrypt_command(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, runner = stage.cast.alice, stage.app.test_cli_runner()
    path = f"admin/configuration/{stage.oauth(alice)['id']}"
    hook = {"url": "https://hooks.example/", "collection": "posts", "events": ["create"]}
    webhook = alice.post("webhooks", hook).json["id"]
    assert alice.post(f"webhooks/{webhook}/rotate-secret").status_code == 200
    steps = [{"name": "a", "type": "wait_delay", "duration": "1s"}]
    flow = {"name": "f", "trigger": {"type": "webhook"}, "steps": steps}
    made = alice.post("workflows", flow).json
    before = alice.get(path).json
    old, new = stage.app.extensions["atrium.config"].encryption_key, Fernet.generate_key().decode()
    stage.changed(monkeypatch, encryption_key=(new, *old))
    for count in (4, 0):
        told = runner.invoke(args=["reencrypt"])
        assert (told.exit_code, told.stdout.split()[0]) == (0, str(count)), told.output
    stage.changed(monkeypatch, encryption_key=(new,))
    assert alice.get(path).json == before
    assert stage.sign_in().status_code == 302
    assert stage.provider.forms[-1]["client_secret"] == openid.SECRET
    assert alice.get(f"workflows/{made['id']}").json["trigger"] == made["trigger"]


def test_encrypted_secret_without_its_key_is_asked_for_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = stage.cast.alice
    path = f"admin/configuration/{stage.oauth(alice)['id']}"
    stage.changed(monkeypatch, encryption_key=(Fernet.generate_key().decode(),))
    assert stage.app.test_cli_runner().invoke(args=["reencrypt"]).exit_code == 1
    shown = alice.get(path)
    assert (shown.status_code, shown.json["config"]["client_secret"]) == (200, None)
    refused = stage.browser().get("/oauth/google/authorize?account=acme")
    assert (refused.status_code, "lacks its secret" in refused.json["message"]) == (404, True)
    missing = alice.patch(path, {"config": {}})
    assert [one["field"] for one in missing.json["details"]] == ["config.client_secret"]
    mended = alice.patch(path, {"config": {"client_secret": openid.SECRET}})
    assert (mended.status_code, stage.sign_in().status_code) == (200, 302)


def test_oauth_sign_in_begun_under_retired_key_is_400(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"admin/configuration/{stage.oauth(stage.cast.alice)['id']}"
    browser = stage.browser()
    address = stage.begin(browser)
    stage.changed(monkeypatch, encryption_key=(Fernet.generate_key().decode(),))
    mended = stage.cast.alice.patch(path, {"config": {"client_secret": openid.SECRET}})
    assert (mended.status_code, stage.back(browser, address).status_code) == (200, 400)
    assert stage.checks(stage.cast.alice) == ["state"]


def test_encrypted_columns_are_all_known_to_reencryption() -> None:
    found = set()
    for models in MODELS:
        table = ""
        for line in models.read_text().splitlines():
            if named := re.search(r'__tablename__ = "(\w+)"', line):
                table = named[1]
            if column := re.search(r"^    (\w+): .*#.*\bencrypted\b", line):
                found.add((table, column[1]))
    policies = db.policies().items()
    texts = {(name, column) for name, policy in policies for column in policy.encrypted}
    json = {(name, column) for name, policy in policies for column in policy.encrypted_json}
    assert found == texts | json | FOR_MINUTES
    assert json == reencryption.JSON_COLUMNS.keys()
