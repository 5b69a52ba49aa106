"""An example made into a package, installed, and found by its entry point."""

from __future__ import annotations

import shutil
from importlib import import_module, metadata
from pathlib import Path
from zipfile import ZipFile

import pytest

from app.extend.testing import Instance
from app.extensions import loading, registry
from tests.project import PROJECT

pytestmark = pytest.mark.usefixtures("first_instance")
EXAMPLES = ("order_numbers", "day_sheet", "starter")


def installed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Build a package of an example, by its own backend, and unpack it where Python looks."""
    project = shutil.copytree(PROJECT / "examples" / name, folder / name)
    monkeypatch.chdir(project)
    wheel = import_module("flit_core.buildapi").build_wheel(str(folder))
    site = folder / "site-packages"
    with ZipFile(folder / wheel) as package:
        package.extractall(site)
    monkeypatch.syspath_prepend(str(site))
    return site


@pytest.mark.parametrize("name", EXAMPLES)
def test_package_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert name not in [one.name for one in loading.available()]
    installed(name, tmp_path, monkeypatch)
    (found,) = [one for one in loading.available() if one.name == name]
    assert found.version == metadata.version(name)
    assert found.folder is None


def test_installed_package_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = installed("order_numbers", tmp_path, monkeypatch)
    url = "https://prices.example"
    with Instance("order_numbers", SERVICE_X_ORDER_NUMBERS_PRICES_URL=url) as instance:
        loaded = registry.EXTENSIONS["order_numbers"]
        assert (loaded.version, loaded.folder) == ("1.0.0", site / "order_numbers")
        instance.collection("orders", {"number": {"type": "text", "unique": True}})
        order = instance.account("acme").user("ann").post("records/orders", {}).json
        assert len(order["number"]) == 10


def test_package_keeps_what_pages_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = installed("day_sheet", tmp_path, monkeypatch)
    with Instance("day_sheet") as instance:
        assert registry.EXTENSIONS["day_sheet"].folder == site / "day_sheet"
        instance.collection("visits", {"title": "text", "day": "date", "done": "boolean"})
        ann = instance.account("acme").user("ann")
        page = ann.open_page("/console/x/day_sheet/today", language="de")
        assert "Heute gibt es keine Besuche." in page.text
