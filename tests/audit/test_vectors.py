"""The vectors hold for the application and for the verifier that stands alone."""

from __future__ import annotations

import copy
import json
from base64 import urlsafe_b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from hypothesis import given
from hypothesis import strategies as st

from app.audit.chain import digest, verify
from tests.audit.chains import PROJECT, stand_alone

VECTORS = json.loads((Path(__file__).parents[1] / "cases/audit.json").read_text())
alone = stand_alone()
CHAINS = pytest.mark.parametrize(
    "case", VECTORS["chains"], ids=[c["name"] for c in VECTORS["chains"]]
)


def test_canonical_json_vectors() -> None:
    for case in VECTORS["canonical"]:
        assert digest.canonical(case["value"]).decode() == case["json"]
        assert alone.j(case["value"]).decode() == case["json"]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.dictionaries(TEXTS, TEXTS | st.integers(-(2**63), 2**63 - 1) | st.none()))
def test_canonical_json_of_application_and_verifier_is_equal(value: dict[str, Any]) -> None:
    assert digest.canonical(value) == alone.j(value)


@CHAINS
def test_audit_vectors_hold_for_application(
    app: Flask, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = urlsafe_b64encode(bytes.fromhex(VECTORS["private_key_of_the_checkpoints"])).decode()
    settings = replace(app.extensions["atrium.config"], audit_checkpoint_key=(key,))
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    with app.app_context():
        found = verify.verify_export(copy.deepcopy(case["entries"]), case.get("checkpoints", ()))
    expected = {name: value for name, value in case.items() if name in found}
    assert {name: found[name] for name in expected} == expected


@CHAINS
def test_audit_vectors_hold_for_stand_alone_verifier(case: dict[str, Any]) -> None:
    (chain,) = alone.verify(case["entries"], case.get("checkpoints", ())).values()
    assert (chain.fault is None) == case["valid"]
    if case["valid"]:
        counted = (case["values_masked"], case["values_erased"])
        assert (chain.masked, chain.erased) == counted
        assert chain.checked == len(case["entries"])
    elif "forged" not in case["name"]:
        assert str(case["first_broken_id"]) in chain.fault


def test_checkpoint_with_other_public_key_is_refused() -> None:
    case = next(case for case in VECTORS["chains"] if case.get("checkpoints") and case["valid"])
    own = case["checkpoints"][0]["public_key"]
    for key, valid in ((own, True), ("11" * 32, False)):
        (chain,) = alone.verify(case["entries"], case["checkpoints"], key).values()
        assert (chain.fault is None) == valid


def test_stand_alone_verifier_is_short_and_imports_no_application() -> None:
    text = (PROJECT / "docs/verify_audit.py").read_text()
    assert len(text.splitlines()) <= 200
    assert "import app" not in text
    assert "from app" not in text
