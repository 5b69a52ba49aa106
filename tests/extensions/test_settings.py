"""Settings and commands of extensions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from flask import Flask
from flask.cli import ScriptInfo

from app.config import Config, ConfigError
from app.extensions import commands, loading, registry, settings
from app.extensions.registry import LoadError
from app.ops.main import Atrium
from tests.extensions.folders import Extended, extended

SHOP = "stock/__init__.py"
MISSPELT = (
    "SERVICE_X_STOCK_ULR is not a setting of a loaded extension. Did you mean SERVICE_X_STOCK_URL?"
)
REQUIRED = 'from app.extend import setting\nURL = setting("url", help="where prices come from")\n'


def run(app: Flask, *command: str) -> Result:
    return app.test_cli_runner().invoke(args=list(command))


def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Load an extension with this text, and check its settings, as at a start."""
    folder = tmp_path / "extensions" / "stock"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(text)
    monkeypatch.setattr(loading, "FOLDER", folder.parent)
    loading.load(["stock"])
    settings.check()
    commands.of_extensions()


@pytest.mark.parametrize(
    ("text", "set_", "problem"),
    [
        (REQUIRED, {}, "SERVICE_X_STOCK_URL is required: where prices come from"),
        (
            'from app.extend import setting\nsetting("rate", int, default=1, help="rate")',
            {"SERVICE_X_STOCK_RATE": "much"},
            "SERVICE_X_STOCK_RATE must be a whole number",
        ),
        (
            'from app.extend import setting\nsetting("pin", int, help="a pin", secret=True)',
            {"SERVICE_X_STOCK_PIN": "hunter2"},
            "SERVICE_X_STOCK_PIN cannot be parsed",
        ),
        (
            REQUIRED,
            {"SERVICE_X_STOCK_URL": "x", "SERVICE_X_STOCK_ULR": "y"},
            MISSPELT,
        ),
    ],
)
def test_setting_that_is_wrong_ends_the_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    set_: dict[str, str],
    problem: str,
) -> None:
    for name, value in set_.items():
        monkeypatch.setenv(name, value)
    with registry.restored(), pytest.raises(ConfigError) as refused:
        load(tmp_path, monkeypatch, text)
    assert str(refused.value) == problem


def test_without_extensions_their_settings_are_unknown() -> None:
    with pytest.raises(ConfigError, match="SERVICE_X_SHOP_RATE is not a setting"):
        Config.from_env({"SERVICE_ENV": "test", "SERVICE_X_SHOP_RATE": "1"})


@pytest.mark.parametrize("name", ["settings", "x y", "", "Import"])
def test_command_name_that_is_taken_or_odd_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    text = f"from app.extend import command\n@command({name!r})\ndef run(): pass\n"
    with registry.restored(), pytest.raises(LoadError, match="command"):
        load(tmp_path, monkeypatch, text)


@pytest.fixture(scope="module")
def shop() -> Iterator[Extended]:
    """An application with the extension shop."""
    with extended("sqlite", "shop", SERVICE_X_SHOP_RATE="2.5", SERVICE_X_SHOP_TOKEN="abc") as one:
        yield one


def test_settings_are_listed_without_secrets(shop: Extended) -> None:
    told = run(shop.app, "settings").output
    assert "SERVICE_X_SHOP_RATE" in told
    assert "2.5" in told
    assert "SERVICE_X_SHOP_TOKEN" in told
    assert "(set)" in told
    assert "abc" not in told


def test_command_gets_its_words(shop: Extended) -> None:
    assert run(shop.app, "price-list", "nail", "--all").output == "nail 1 at 2.5\n"
    missing = run(shop.app, "price-list")
    assert missing.exit_code == 2
    assert "article" in missing.output


def test_doctor_names_loaded_extensions(shop: Extended) -> None:
    line = next(one for one in run(shop.app, "doctor").output.splitlines() if "extensions" in one)
    assert line.startswith("ok")
    assert "shop" in line


def test_help_lists_commands_of_extensions(shop: Extended, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Atrium(name="atrium", add_version_option=False)
    info = ScriptInfo(create_app=lambda: shop.app)
    monkeypatch.delenv("SERVICE_EXTENSIONS", raising=False)
    assert "price-list" not in CliRunner().invoke(group, ["--help"], obj=info).output
    monkeypatch.setenv("SERVICE_EXTENSIONS", "shop")
    told = CliRunner().invoke(group, ["--help"], obj=info).output
    assert "price-list  " in told.partition("Extensions:")[2]
    assert "Print the words." in told


def test_extensions_are_listed_where_none_can_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_EXTENSIONS", "missing")
    told = CliRunner().invoke(commands.extension, ["list"], obj=ScriptInfo(create_app=None))
    assert told.exit_code == 0, told.output
    assert "missing" in told.output
