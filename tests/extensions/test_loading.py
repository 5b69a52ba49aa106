"""Loading: from folders and installed packages; what fails keeps the service from starting."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from flask import Flask

from app import create_app, extend
from app.config import Config, ConfigError
from app.extensions import loading, registry
from app.extensions.registry import Kind, LoadError

HOOK = """
from app.extend import before_create

@before_create("orders")
def number(caller, record):
    pass
"""


COMMAND = "from app.extend import command\n@command('a')"
READ = "from app.extend import endpoint\n"
TWICE = "from app.extend import periodic\n"
PAGES = "from app.extend import console_page\n@console_page('/a', title='A')\n"
FIELD_TYPE = """
from app.extend import field_type

@field_type("kind")
class Kind:
    label = "Kind"
    schema = {{"type": "string"}}
    def clean(self, value, options): return value
    {}
"""
STEP = "from app.extend import workflow_step\n@workflow_step('charge')\ndef charge(c, i): pass\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of extensions, of which nothing stays loaded."""
    monkeypatch.setattr(loading, "FOLDER", tmp_path / "extensions")
    monkeypatch.syspath_prepend(tmp_path / "installed")
    monkeypatch.delitem(sys.modules, loading.PARENT, raising=False)
    with registry.restored():
        yield tmp_path


def write(folder: Path, name: str, source: str, **modules: str) -> None:
    """Write an extension into the folder."""
    package = folder / "extensions" / name
    package.mkdir(parents=True)
    for file, text in {"__init__": source, **modules}.items():
        (package / f"{file}.py").write_text(text)


def install(folder: Path, name: str, distribution: str, package: str, source: str = HOOK) -> None:
    """Install a distribution with an entry point."""
    installed = folder / "installed"
    (installed / package).mkdir(parents=True)
    (installed / package / "__init__.py").write_text(source)
    about = installed / f"{distribution}-2.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 2.1\n")
    (about / "entry_points.txt").write_text(f"[atrium.extensions]\n{name} = {package}\n")


def refusal(*names: str) -> str:
    with pytest.raises(LoadError) as caught:
        loading.load(names)
    return str(caught.value)


def test_folder_with_several_modules_is_loaded(folder: Path) -> None:
    source = "from . import hooks\n__version__ = '1.2'\n"
    write(folder, "shop", source, hooks=HOOK)
    loading.load(["shop"])
    (handler,) = registry.of(Kind.BEFORE_CREATE)["orders"]
    assert (handler.name, handler.extension) == ("shop.number", "shop")
    extension = registry.EXTENSIONS["shop"]
    assert (extension.version, extension.package) == ("1.2", "extensions.shop")
    assert extension.inside_imports == ()
    loading.load(["shop"])  # stays as it is
    assert len(registry.of(Kind.BEFORE_CREATE)["orders"]) == 1


def test_installed_package_is_loaded_by_its_entry_point(folder: Path) -> None:
    install(folder, "billing", "acme-billing", "acme_billing")
    loading.load(["billing"])
    assert registry.EXTENSIONS["billing"].version == "2.1"
    (handler,) = registry.of(Kind.BEFORE_CREATE)["orders"]
    assert handler.name == "billing.number"


def test_extensions_are_loaded_in_the_order_of_the_setting(folder: Path) -> None:
    for name in ("first", "second"):
        write(folder, name, HOOK)
    loading.load(["second", "first"])
    names = [one.name for one in registry.of(Kind.BEFORE_CREATE)["orders"]]
    assert names == ["second.number", "first.number"]


def test_names_that_cannot_be_found_say_why(folder: Path) -> None:
    write(folder, "shop", HOOK)
    (folder / "extensions" / "empty").mkdir()
    assert refusal("shopp").endswith("has this name. Did you mean shop?")
    assert refusal("empty").endswith("empty has no __init__.py.")
    install(folder, "shop", "acme-shop", "acme_shop")
    assert "it is ambiguous: the package acme_shop and " in refusal("shop")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import nothing_like_it", "ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def broken(:", "SyntaxError"),
        (f"{HOOK}\n{HOOK.replace('orders', 'lines')}", "two of its handlers are named number"),
        (HOOK.replace('"orders"', "7"), "@before_create of number needs a text"),
        (
            f"{COMMAND}\ndef a(): pass\n{COMMAND}\ndef b(): pass",
            "shop.a and shop.b are both @command a",
        ),
        ("import asyncio\nraise asyncio.CancelledError('stop')", "CancelledError: stop"),
        (
            "from app.extensions import loading\nloading.load(['shop'])",
            "cannot be loaded: shop loads it: only SERVICE_EXTENSIONS does that.",
        ),
        (
            "from functools import partial\nbefore_create('lines')(partial(print, 1))",
            "@before_create of a handler needs a function",
        ),
        (HOOK.replace("number", "late").replace("def", "async def"), "late must not be async"),
        (HOOK.replace("number", "many").replace("pass", "yield"), "many must not be async"),
        (
            HOOK.replace("create", "update").replace("number", "few"),
            "@before_update of few is called with (caller, old, record): too many positional",
        ),
        (
            f"{READ}@endpoint('GET', '/a/<uuid:id>')\ndef read(caller, body): pass",
            "@endpoint of read is called with (caller, body, id): got an unexpected keyword",
        ),
        (
            f"{TWICE}@periodic('0 3 * * *')\n@periodic('0 4 * * *')\ndef both(caller): pass",
            "both is @periodic twice",
        ),
        (
            f"{PAGES}@console_page('/b', title='B')\ndef both(caller, request): pass",
            "both is @console_page twice",
        ),
        (FIELD_TYPE.format("def __init__(self, a): pass"), "the class is called without arguments"),
        (FIELD_TYPE.format("options = 3"), "options must be a list of names"),
        (FIELD_TYPE.format("label = 5"), "give the class a label"),
        (FIELD_TYPE.format("async def clean(self, value, options): pass"), "must not be async"),
    ],
)
def test_what_fails_is_one_sentence_and_leaves_nothing(
    folder: Path, source: str, reason: str
) -> None:
    write(folder, "good", HOOK)
    write(folder, "shop", f"{HOOK.replace('number', 'first')}\n{source}\n")
    told = refusal("good", "shop")
    assert told.startswith("The extension shop of SERVICE_EXTENSIONS cannot be loaded: ")
    assert reason in told
    assert told.count("\n") == 0
    assert registry.EXTENSIONS == {}
    assert list(registry.handlers()) == []
    assert not [name for name in sys.modules if name.startswith("extensions.shop")]
    loading.load(["good"])  # what was loaded before the failure is imported anew
    assert [one.name for one in registry.handlers()] == ["good.number"]


def test_same_step_of_two_extensions_is_refused(folder: Path) -> None:
    step = (
        "from app.extend import workflow_step\n@workflow_step('charge')\ndef charge(c, i): pass\n"
    )
    for name in ("one", "two"):
        write(folder, name, step)
    assert "one.charge and two.charge are both @workflow_step charge." in refusal("one", "two")


def test_start_of_the_application_fails(folder: Path, app: Flask) -> None:
    settings: Config = app.extensions["atrium.config"]
    with pytest.raises(ConfigError, match="nothing"):
        create_app(replace(settings, extensions=("nothing",)))
    write(folder, "shop", HOOK)
    create_app(replace(settings, extensions=("shop",)))
    assert list(registry.EXTENSIONS) == ["shop"]


def test_handler_outside_of_an_extension_is_refused() -> None:
    with pytest.raises(LoadError, match="outside of an extension"):
        extend.before_create("orders")(print)


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("from app import db, extend", ("app.db",)),
        ("import app.records.service\nimport app.extend.testing", ("app.records.service",)),
        ("from app.extend import fields\nfrom . import prices", ("app.errors",)),
        ("import importlib\nimportlib.import_module('app.db.session')", ("app.db.session",)),
        ("import application\nfrom apple import pie", ()),
    ],
)
def test_imports_of_the_products_insides_are_named(
    folder: Path, source: str, modules: tuple[str, ...]
) -> None:
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").write_text(source)
    if "prices" in source:
        (package / "prices.py").write_text("def f():\n    from app.errors import AppError\n")
    assert loading.inside_imports(package) == modules


@pytest.mark.parametrize("names", ["Shop", "a-b", "shop,shop", "a.b", "1a"])
def test_setting_takes_identifiers_once(tmp_path: Path, names: str) -> None:
    environ = {"SERVICE_INSTANCE_DIR": str(tmp_path), "SERVICE_EXTENSIONS": names}
    with pytest.raises(ConfigError, match="SERVICE_EXTENSIONS must list extensions"):
        Config.from_env(environ)
    good = Config.from_env({**environ, "SERVICE_EXTENSIONS": "shop, billing_2"})
    assert good.extensions == ("shop", "billing_2")
