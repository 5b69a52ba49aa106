"""`bin/atrium extension new` writes an extension that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.errors import AppError
from app.extend.testing import Instance
from app.extensions import loading, registry, scaffold
from app.extensions.registry import Kind

pytestmark = pytest.mark.usefixtures("first_instance")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(loading, "FOLDER", tmp_path / "extensions")
    return tmp_path / "extensions"


def test_new_extension_has_its_own_name_and_is_loaded(folder: Path) -> None:
    made = scaffold.create("greeter")
    assert made == folder / "greeter"
    files = {str(one.relative_to(made)) for one in made.rglob("*.*")}
    assert files == {
        "README.md",
        "pyproject.toml",
        "greeter/__init__.py",
        "tests/test_greeter.py",
    }
    assert not [one for one in files if scaffold.STARTER in (made / one).read_text()]
    assert ("greeter", made) in [(one.name, one.folder) for one in loading.available()]
    with Instance("greeter") as instance:
        assert registry.EXTENSIONS["greeter"].version == "0.1.0"
        assert registry.EXTENSIONS["greeter"].inside_imports == ()
        assert "orders" in registry.of(Kind.BEFORE_CREATE)
        instance.collection("orders", {"title": "text"})


@pytest.mark.parametrize("name", ["", "x", "Shop", "1st", "a-b", "../x", "json", "flask", "x" * 41])
def test_unusable_names_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(AppError):
        scaffold.create(name)
    assert not folder.exists()


def test_existing_folder_stays(folder: Path) -> None:
    scaffold.create("greeter")
    file = folder / "greeter" / "greeter" / "__init__.py"
    file.write_text("mine")
    with pytest.raises(AppError, match="exists already"):
        scaffold.create("greeter")
    assert file.read_text() == "mine"


def test_package_and_folder_of_one_name_are_ambiguous(folder: Path) -> None:
    scaffold.create("greeter")
    (folder / "greeter" / "__init__.py").touch()
    with pytest.raises(registry.LoadError, match="ambiguous"):
        loading.find("greeter")


def test_commands_begin_and_list_extensions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Instance() as instance:
        assert "extension new NAME" in instance.run_command("extension", "list")
        assert "make test T=extensions/greeter" in instance.run_command(
            "extension", "new", "greeter"
        )
        with pytest.raises(AssertionError, match="exists already"):
            instance.run_command("extension", "new", "greeter")
        monkeypatch.setenv("SERVICE_EXTENSIONS", "greeter,no_such")
        monkeypatch.setenv("SERVICE_INSTANCE_DIR", str(folder.parent))
        greeter, missing = instance.run_command("extension", "list").splitlines()
        assert greeter.split() == ["greeter", "0.1.0", "loaded", str(folder / "greeter")]
        assert missing.split() == ["no_such", "missing"]
        monkeypatch.setenv("SERVICE_EXTENSIONS", "")
        (greeter,) = instance.run_command("extension", "list").splitlines()
        assert "not loaded" in greeter
