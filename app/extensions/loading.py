"""Loads extensions: installed packages, and folders in `extensions/` (docs/extensions.md)."""

from __future__ import annotations

import ast
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib import import_module, invalidate_caches, metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import structlog
from sqlalchemy.exc import SQLAlchemyError

from app.collections import definitions
from app.config import PROJECT
from app.extensions import registry
from app.extensions.registry import OF_COLLECTIONS, Extension, LoadError
from app.web.feature import Finding

log = structlog.get_logger()

GROUP = "atrium.extensions"
PARENT = "extensions"
"""The package that folders are imported from, as `extensions.shop`."""
FOLDER = PROJECT / PARENT
PUBLIC = "app.extend"


def load(names: Sequence[str]) -> None:
    """Load these extensions, in this order; those that are loaded already stay.

    Raises LoadError with one sentence; nothing of the call stays registered then.
    """
    with registry.restored(unless_done=True):
        for name in names:
            if name not in registry.EXTENSIONS:
                _load(find(name))
    registry.announce()


def find(name: str) -> Extension:
    """An extension that can be loaded. Raises LoadError if there is none, or more than one."""
    found = [one for one in available() if one.name == name]
    if len(found) == 1:
        return found[0]
    if found:
        places = " and ".join(str(one.folder or f"the package {one.package}") for one in found)
        raise _refusal(name, f"it is ambiguous: {places}.")
    near = get_close_matches(name, [one.name for one in available()], 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    folder = FOLDER / name
    if folder.is_dir():
        raise _refusal(name, f"{folder} has no __init__.py.")
    raise _refusal(name, f"no installed package and no folder in {FOLDER} has this name.{hint}")


def available() -> list[Extension]:
    """The extensions that could be loaded: of installed packages, and of folders."""
    found = [
        Extension(one.name, one.dist.version if one.dist else "", one.value, None)
        for one in metadata.entry_points(group=GROUP)
    ]
    for file in sorted(FOLDER.glob("*/__init__.py")):
        found.append(Extension(file.parent.name, "", f"{PARENT}.{file.parent.name}", file.parent))
    for file in sorted(FOLDER.glob("*/*/__init__.py")):
        if file.parent.name == file.parent.parent.name:
            found.append(project(file.parent.parent))
    return found


def project(folder: Path) -> Extension:
    """The extension in the folder of a project, which has a package of the same name."""
    folder = folder.resolve()
    return Extension(folder.name, "", folder.name, folder)


def _load(extension: Extension) -> None:
    _forget(extension)  # or its decorators would not run again
    if extension.folder:
        _make_importable(extension, extension.folder)
    try:
        with registry.loading(extension):
            module = import_module(extension.package)
        version = extension.version or str(getattr(module, "__version__", ""))
        file = Path(str(module.__file__))
        folder = file.parent if hasattr(module, "__path__") else None
        loaded = Extension(
            *(extension.name, version, extension.package, folder), inside_imports(folder or file)
        )
        registry.EXTENSIONS[extension.name] = loaded
    except BaseException as error:
        _forget(extension)
        if isinstance(error, LoadError):
            raise _refusal(extension.name, str(error)) from error
        if isinstance(error, KeyboardInterrupt):  # of who starts it
            raise
        raise _refusal(extension.name, _summary(error, extension)) from error


def _make_importable(extension: Extension, folder: Path) -> None:
    if extension.package != extension.name:
        parent = sys.modules.setdefault(PARENT, ModuleType(PARENT))
        parent.__path__ = [str(folder.parent)]
    elif str(folder) not in sys.path:  # last, so that it hides no other package
        sys.path.append(str(folder))
    invalidate_caches()
    spec = find_spec(extension.package)
    if spec is None or spec.origin is None or folder not in Path(spec.origin).parents:
        raise _refusal(extension.name, "another package has this name.")


def _forget(extension: Extension) -> None:
    package = f"{extension.package}."
    for name in [one for one in sys.modules if f"{one}.".startswith(package)]:
        del sys.modules[name]


def _refusal(name: str, reason: str) -> LoadError:
    return LoadError(f"The extension {name} of SERVICE_EXTENSIONS cannot be loaded: {reason}")


def _summary(error: BaseException, extension: Extension) -> str:
    """Return what an import raised, in one line, with the last place in the extension's sources."""
    what = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
    inside = f"/{extension.package.replace('.', '/')}"
    frames = [one for one in traceback.extract_tb(error.__traceback__) if inside in one.filename]
    return f"{what} ({frames[-1].filename}:{frames[-1].lineno})." if frames else f"{what}."


def inside_imports(place: Path) -> tuple[str, ...]:
    """Modules of the product that the sources in a folder or file import, but the public one.

    They have no promise: they change with any release, and know nothing of the caller's rights.
    """
    files = place.rglob("*.py") if place.is_dir() else [place]
    names = {name for one in files for name in _imports(one)}
    return tuple(sorted(name for name in names if not _is_public(name)))


def _is_public(name: str) -> bool:
    return name.partition(".")[0] != "app" or f"{name}.".startswith(f"{PUBLIC}.")


def _imports(file: Path) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # a file that nothing imports
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            inner = [f"app.{alias.name}" for alias in node.names]
            yield from inner if node.module == "app" else [node.module]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def log_loaded() -> None:
    """Log each loaded extension, and what is wrong with it."""
    for one in registry.EXTENSIONS.values():
        log.info("extension loaded", extension=one.name, version=one.version)
    with suppress(SQLAlchemyError):  # the database is not ready, which others say
        for warning in warnings():
            log.warning("extension", problem=warning)


def warnings() -> Iterator[str]:
    """Yield what is wrong with the loaded extensions, though they work."""
    for one in registry.EXTENSIONS.values():
        if one.inside_imports:
            names = ", ".join(one.inside_imports)
            yield f"{one.name} imports {names}: only app.extend stays as it is"
    known = {one.name.lower() for one in definitions.get_all()} if registry.EXTENSIONS else set()
    for handler in registry.handlers():
        if handler.kind in OF_COLLECTIONS and handler.subject.lower() not in known:
            yield f"{handler.name} is for {handler.subject}, and there is no such collection"


def check() -> Finding:
    """Name the loaded extensions, and what is wrong with them, for `bin/atrium doctor`."""
    found = [f"{one.name} {one.version}".strip() for one in registry.EXTENSIONS.values()]
    problems = list(warnings())
    if problems:
        return Finding("warn", "; ".join(problems))
    return Finding("ok", ", ".join(found) or "none")


@contextmanager
def loaded(*sources: str | Extension | Callable[[], object]) -> Iterator[None]:
    """Load extensions for the block, for tests, and remove them at its end.

    Each is one to import anew, also as the name of a module, whose last part is the extension's
    name; or a function that registers handlers of the extension that has its name.
    """
    places = [*sys.path]
    try:
        with registry.restored():
            for source in sources:
                if isinstance(source, str):
                    source = Extension(source.rpartition(".")[2], "", source, None)
                if isinstance(source, Extension):
                    _load(source)
                else:
                    with registry.loading(Extension(source.__name__, "", source.__module__, None)):
                        source()
            registry.announce()
            yield
    finally:
        for source in sources:
            if isinstance(source, Extension):
                _forget(source)
        sys.path[:] = places
