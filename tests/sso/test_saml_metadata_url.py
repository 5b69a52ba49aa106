"""Metadata by URL: read when it is saved and daily, with what changed shown to the admins."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from app import clock
from app.sso.saml import metadata, metadata_refresh
from tests.console.browser import Browser
from tests.sso import loopback, saml_idp
from tests.sso.flows import Stage
from tests.sso.saml_logout import SLO

PATH = "admin/configuration"
CONFIG = {"category": "saml_providers", "provider_name": "okta"}
EXPIRED = 'validUntil="2020-01-01T00:00:00Z"'


class Publisher(loopback.Server):
    """Publishes metadata, which tests exchange."""

    def __init__(self) -> None:
        self.text, self.status = saml_idp.metadata(), 200
        super().__init__()

    def answer(self, path: str, body: str | None) -> loopback.Answer:
        """The metadata at present."""
        return loopback.Answer(self.status, self.text, "application/samlmetadata+xml")


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    server = Publisher()
    yield server
    server.close()


def configured(stage: Stage, publisher: Publisher) -> str:
    """The id of settings by the publisher's address."""
    config = {"metadata_url": f"{publisher.address}/metadata"}
    answer = stage.cast.alice.post(PATH, {**CONFIG, "config": config})
    assert answer.status_code == 201, answer.json
    assert answer.json["config"]["idp_entity_id"] == saml_idp.ENTITY
    return str(answer.json["id"])


def read(stage: Stage, id: str) -> dict[str, Any]:
    answer = stage.cast.alice.post(f"{PATH}/{id}/metadata")
    assert answer.status_code == 200, answer.json
    found: dict[str, Any] = answer.json
    return found


def run_due(stage: Stage) -> None:
    with stage.app.app_context():
        metadata_refresh.refresh_due({})


def test_saml_metadata_url_updates_certificates_and_addresses(
    stage: Stage, publisher: Publisher
) -> None:
    id = configured(stage, publisher)
    assert read(stage, id)["changes"] == []
    assert stage.assert_in(key="next").status_code == 401
    publisher.text = saml_idp.metadata(key="next", slo=SLO)
    found = read(stage, id)
    changes = {change["name"]: change for change in found["changes"]}
    assert set(changes) == {"idp_slo_url", "idp_x509_cert"}
    (added,), (removed,) = (changes["idp_x509_cert"][part] for part in ("added", "removed"))
    assert (added[:6], removed[:5]) == ("next (", "idp (")
    assert changes["idp_slo_url"] == {"name": "idp_slo_url", "removed": [], "added": [SLO]}
    assert stage.assert_in(key="next").status_code == 302
    assert stage.assert_in().status_code == 401
    again = read(stage, id)
    assert (again["changes"], again["changed_at"]) == (found["changes"], found["changed_at"])
    page = Browser(stage.app, stage.cast.alice).get(f"sso/{stage.cast.alice.account_id}/{id}").text
    assert added in page
    audited = stage.cast.root.get("audit-logs?limit=500").json["items"]
    assert [e for e in audited if e["column_name"] == "config" and e["operation"] == "UPDATE"]


def test_saml_metadata_url_with_other_entity_changes_nothing(
    stage: Stage, publisher: Publisher
) -> None:
    id = configured(stage, publisher)
    publisher.text = saml_idp.metadata(key="evil").replace(saml_idp.ENTITY, "https://evil.example")
    found = read(stage, id)
    assert saml_idp.ENTITY in found["error"]
    assert stage.assert_in(key="evil").status_code == 401
    assert stage.assert_in().status_code == 302
    publisher.text = saml_idp.metadata()
    assert read(stage, id)["error"] is None


@pytest.mark.parametrize(
    ("status", "text", "part"),
    [
        (500, "", "500"),
        (200, "<a/>", "no entity"),
        (200, "x" * 600_000, "more than"),
        (200, saml_idp.metadata().replace("entityID", f"{EXPIRED} entityID"), "expired"),
    ],
)
def test_saml_metadata_url_failure_is_shown_and_changes_nothing(
    stage: Stage, publisher: Publisher, status: int, text: str, part: str
) -> None:
    id = configured(stage, publisher)
    before = stage.cast.alice.get(f"{PATH}/{id}").json
    publisher.status, publisher.text = status, text
    assert part in read(stage, id)["error"]
    shown = stage.cast.alice.get(f"{PATH}/{id}/metadata").json
    assert part in shown["error"]
    assert stage.cast.alice.get(f"{PATH}/{id}").json == before
    config = {"metadata_url": f"{publisher.address}/metadata"}
    new = {**CONFIG, "provider_name": "generic", "config": config}
    refused = stage.cast.alice.post(PATH, new)
    assert refused.json["details"][0]["field"] == "config.metadata_url"


def test_saml_metadata_url_is_read_daily(
    stage: Stage, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = configured(stage, publisher)
    path = f"{PATH}/{id}/metadata"
    assert stage.cast.alice.get(path).json["read_at"] is None
    run_due(stage)
    first = stage.cast.alice.get(path).json["read_at"]
    assert first is not None
    publisher.text = saml_idp.metadata(key="next")
    run_due(stage)
    assert stage.cast.alice.get(path).json["read_at"] == first
    now = clock.now() + timedelta(days=1)
    monkeypatch.setattr(clock, "now", lambda: now)
    run_due(stage)
    with stage.app.app_context():
        monkeypatch.undo()
    assert [one["name"] for one in stage.cast.alice.get(path).json["changes"]] == ["idp_x509_cert"]


def test_saml_metadata_url_with_several_entities_uses_named_one(
    stage: Stage, publisher: Publisher
) -> None:
    other = saml_idp.metadata(key="evil").replace(saml_idp.ENTITY, "https://evil.example")
    both = f'<md:EntitiesDescriptor xmlns:md="{saml_idp.NAMESPACES["md"]}">{other}'
    publisher.text = f"{both}{saml_idp.metadata()}</md:EntitiesDescriptor>"
    config = {"metadata_url": publisher.address, "idp_entity_id": saml_idp.ENTITY}
    answer = stage.cast.alice.post(PATH, {**CONFIG, "config": config})
    assert answer.status_code == 201, answer.json
    assert stage.assert_in().status_code == 302


def test_console_saml_metadata_read_and_key_rollover(stage: Stage, publisher: Publisher) -> None:
    id = configured(stage, publisher)
    stage.metadata()
    browser = Browser(stage.app, stage.cast.alice)
    base = f"sso/{stage.cast.alice.account_id}/{id}"
    assert "The metadata was read." in browser.done(f"{base}/metadata")
    page = browser.done(f"{base}/keys")
    assert "The key pair is created." in page
    old, new = (one["id"] for one in stage.cast.alice.get("account/sso/keys").json["items"])
    assert f"/keys/{new}/activate" in page
    assert "signed with this key pair now" in browser.done(f"{base}/keys/{new}/activate")
    assert "Activate the other one first." in browser.done(f"{base}/keys/{new}/remove")
    assert "The key pair is deleted." in browser.done(f"{base}/keys/{old}/remove")
    publisher.status = 404
    assert "The metadata was not read." in browser.done(f"{base}/metadata")


@pytest.mark.both_databases
def test_saml_metadata_url_failure_of_one_account_spares_others(
    stage: Stage, publisher: Publisher
) -> None:
    broken = configured(stage, publisher)
    charlie, other = stage.cast.charlie, Publisher()
    body = {**CONFIG, "config": {"metadata_url": f"{other.address}/metadata"}}
    id = charlie.post(PATH, body).json["id"]
    head, _, rest = saml_idp.metadata().partition("<ds:X509Certificate>")
    publisher.text = f"{head}<ds:X509Certificate>{rest[rest.index('</ds:X509C') :]}"
    run_due(stage)
    assert charlie.get(f"{PATH}/{id}/metadata").json["read_at"] is not None
    assert read(stage, broken)["error"] == "The metadata is incomplete."
    body = {**CONFIG, "provider_name": "generic", "config": {"idp_metadata": publisher.text}}
    assert stage.cast.alice.post(PATH, body).status_code == 400
    other.close()


def test_saml_metadata_addresses_must_be_https_without_fragment(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.changed(monkeypatch, env="production")
    plain, part = "http://idp.example/slo", f"{SLO}#part"
    texts = {address: saml_idp.metadata(slo=address) for address in (SLO, plain, part)}
    found = {address: metadata_settings(stage, text) for address, text in texts.items()}
    addresses = {address: one.get("idp_slo_url") for address, one in found.items()}
    assert addresses == {SLO: SLO, plain: None, part: None}
    with pytest.raises(metadata.InvalidMetadata, match="no sign-in address"):
        metadata_settings(stage, saml_idp.metadata().replace(saml_idp.SSO, "http://idp.example"))


def metadata_settings(stage: Stage, text: str) -> dict[str, Any]:
    """What metadata says, in the application."""
    with stage.app.app_context():
        return metadata.parse(text)
