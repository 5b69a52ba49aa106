"""The rules that keep the house in order (docs/architecture.md), held by reading the sources."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from app.config import Config

PROJECT = Path(__file__).resolve().parent.parent
SOURCES = {
    ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((PROJECT / "app").rglob("*.py"))
}

# The rooms of `app`, from the top to the bottom: one imports from itself and from lower lines only.
ORDER = [
    ("app",),
    ("hooks",),
    ("isolation",),
    ("console",),
    ("ops",),
    ("realtime",),
    ("bundle",),
    ("manifest", "scim", "retention"),
    ("workflows",),
    ("feed",),
    ("records",),
    ("files",),
    ("webhooks",),
    ("security",),
    ("audit",),
    ("collections",),
    ("admin_api",),
    ("sso",),
    ("auth",),
    ("domains",),
    ("usage",),
    ("accounts",),
    ("http",),
    ("jobs",),
    ("db",),
    ("outbound", "sockets"),
    ("context",),
    ("rest",),
    ("crypto",),
    ("config",),
    ("clock", "errors", "events", "ids", "slugs"),
    ("rules", "types"),
]
HEIGHT = {room: -depth for depth, rooms in enumerate(ORDER) for room in rooms}
MOST_LOOSE = 8

# Where a request may be known: the edge, and what stands around it.
EDGE = re.compile(
    r"app\.(hooks|.+routes|.+\.api\..+|ops\.metrics|auth\.(guard|cors)|(auth|sso)\.responses|console(\..+)?|rest\..+|http\..+)$"
)
REQUEST = {"request", "g", "session", "abort", "redirect", "make_response", "jsonify"}
PAGES = {"app.rest.docs_pages": {"make_response"}}

# The only places that catch everything, each with its reason beside it.
CATCH_ALL = {
    "app.db.transactions": 2,  # any error rolls the transaction, or its part, back, and goes on
    "app.db.pool": 1,  # a connection that is not fit to be lent: its place comes back
    "app.sso.saml.assertions": 1,  # what the library cannot read, which it tells by any exception
    "app.sso.saml.checks": 1,  # a time that it cannot read, by that very class
    "app.jobs.rq_queues": 1,  # a task that cannot be enqueued, which the sweep finds
    "app.jobs.wakeups": 2,  # lost connections of the sender and the listener
    "app.realtime.hub": 3,  # a look, an account or a subscription without its database
    "app.jobs.worker": 2,  # a failed job, a worker without its database
    "app.webhooks.dispatch": 2,  # a broken attempt, a worker without its database
    "app.workflows.triggers.schedules": 1,  # a due time that cannot be fired
    "app.workflows.dispatch": 2,  # a broken instance, a worker without its database
}


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a source."""
    return ast.parse(path.read_text())


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a source's syntax tree."""
    return list(ast.walk(tree_of(path)))


def nodes(module: str) -> list[ast.AST]:
    """All nodes of a module's syntax tree."""
    return nodes_of(SOURCES[module])


def room(module: str) -> str:
    """The room that a module belongs to; loose modules are rooms of their own."""
    return module.split(".")[1] if "." in module else "app"


def imports(module: str) -> Iterator[str]:
    """The modules of ours that a module imports, within functions too."""
    for node in nodes(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "app":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in SOURCES else str(node.module)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in SOURCES)


def names_from(module: str, package: str) -> set[str]:
    """The names that a module imports from a package that is not ours."""
    return {
        alias.name
        for node in nodes(module)
        if isinstance(node, ast.ImportFrom) and node.module == package
        for alias in node.names
    }


def packages(module: str) -> set[str]:
    """The outermost names of everything that a module imports."""
    return imported_packages(nodes(module))


def imported_packages(all_nodes: list[ast.AST]) -> set[str]:
    """The outermost names of everything that a source imports."""
    found = set()
    for node in all_nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


# Distributions whose package has another name, and those that nothing imports: programs, and what
# another one loads.
PACKAGES = {
    "argon2-cffi": "argon2",
    "dnspython": "dns",
    "google-re2": "re2",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
    "pillow": "PIL",
    "psycopg2-binary": "psycopg2",
    "pyyaml": "yaml",
    "pyjwt": "jwt",
    "python3-saml": "onelogin",
}
PROGRAMS = {"honcho", "xmlsec"}


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    files = [PROJECT / "requirements.in", PROJECT / "requirements-otel.in"]
    lines = [line for file in files for line in file.read_text().splitlines()]
    names = {re.split(r"[<>=]", line)[0] for line in lines if line and line[0] not in "#-"}
    declared = {PACKAGES.get(name, name.replace("-", "_")) for name in names - PROGRAMS}
    sources = [*SOURCES.values(), PROJECT / "wsgi.py"]
    sources += [*(PROJECT / "deploy").glob("*.py"), *(PROJECT / "migrations").rglob("*.py")]
    imported = set().union(*(imported_packages(nodes_of(path)) for path in sources))
    own = {path.stem for path in (PROJECT / "deploy").glob("*.py")} | {
        "app",
        "deploy",
        "_typeshed",
        "",
    }
    assert imported - sys.stdlib_module_names - own == declared


def test_every_module_has_its_room() -> None:
    assert {room(module) for module in SOURCES} == HEIGHT.keys()


def test_few_modules_are_loose() -> None:
    loose = [path.stem for path in (PROJECT / "app").glob("*.py") if path.stem != "__init__"]
    assert len(loose) <= MOST_LOOSE, loose


def test_rooms_import_from_lower_rooms_only() -> None:
    uphill = [
        f"{module} -> {other}"
        for module in SOURCES
        for other in imports(module)
        if room(other) != room(module)
        if HEIGHT[room(other)] >= HEIGHT[room(module)]
    ]
    assert uphill == []


def inner_room(module: str) -> str:
    """The inner room that a module belongs to; a module beside the inner rooms is its own."""
    return ".".join(module.split(".")[:3])


@pytest.mark.parametrize("one_of", [lambda module: module, inner_room], ids=["modules", "rooms"])
def test_imports_never_go_round(one_of: Callable[[str], str]) -> None:
    arrows: dict[str, set[str]] = {}
    for module in SOURCES:
        others = {one_of(other) for other in imports(module)} - {one_of(module)}
        arrows.setdefault(one_of(module), set()).update(others)

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for other in arrows.get(name, ()):
                visit(other, (*path, name))
            done.add(name)

    done: set[str] = set()
    for name in arrows:
        visit(name, ())


def test_only_the_edge_knows_requests() -> None:
    for module in SOURCES:
        if not EDGE.match(module):
            known = names_from(module, "flask") & REQUEST - PAGES.get(module, set())
            assert known == set(), module
            assert "flask.request" not in SOURCES[module].read_text(), module
            assert "app.rest.current_request" not in set(imports(module)), module


CLIENTS = re.compile(r"requests|urllib3|http$|http\.client|urllib\.request|urllib$")


def test_requests_is_the_only_client_of_other_hosts() -> None:
    clients = {
        module: {name for name in imported_names(module) if CLIENTS.match(name)}
        for module in SOURCES
    }
    ours = clients.pop("app.outbound.client")
    assert {name.partition(".")[0] for name in ours} == {"requests", "urllib3"}
    assert {module for module, names in clients.items() if names} == set()


def imported_names(module: str) -> Iterator[str]:
    """Everything that a module imports, with the names of its packages."""
    for node in nodes(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_rules_know_neither_flask_nor_the_clock() -> None:
    for module in SOURCES:
        if module.startswith("app.rules"):
            assert not packages(module) & {"flask", "time", "os", "random", "secrets"}, module
            assert set(imports(module)) <= {m for m in SOURCES if m.startswith("app.rules")}
            clocks = {"now", "today", "utcnow", "fromtimestamp", "utcfromtimestamp"}
            assert calls_on_types(module) & clocks == set(), module


def calls_on_types(module: str) -> set[str]:
    """The methods that a module calls on `date` and `datetime` themselves."""
    return {
        node.func.attr
        for node in nodes(module)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if isinstance(node.func.value, ast.Name | ast.Attribute)
        and ast.unparse(node.func.value).split(".")[-1] in ("date", "datetime")
    }


def test_only_the_edge_knows_marshmallow() -> None:
    rest = {f"app.rest.{name}" for name in ("fields", "paging", "parsing", "schemas")}
    edge = {*rest, "app.ops.health"}
    for module in SOURCES:
        if "marshmallow" in packages(module):
            assert module in edge or module.endswith(("routes", "schemas")), module


# How a connection commits.
DRIVERS = ("app.db.postgres_driver", "app.db.sqlite_driver", "app.db.traced_drivers")


def test_only_transaction_commits() -> None:
    commits = [
        f"{module}:{node.lineno}"
        for module in SOURCES
        if module not in ("app.db.transactions", *DRIVERS)
        for node in nodes(module)
        if isinstance(node, ast.Attribute) and node.attr in ("commit", "begin", "begin_nested")
    ]
    assert commits == []


def test_only_config_reads_the_environment() -> None:
    for module in SOURCES:
        if module != "app.config.settings":
            assert not names_from(module, "os") & {"environ", "getenv"}, module
            text = SOURCES[module].read_text()
            assert not re.search(r"os\.(environ|getenv)|load_dotenv", text), module


def test_only_the_clock_tells_the_time_of_day() -> None:
    for module in SOURCES:
        if module != "app.clock":
            text = SOURCES[module].read_text()
            assert not re.search(r"\.(utcnow|today)\(|datetime\.now\(|time\.time\(", text), module


def catches_all(node: ast.AST) -> bool:
    """Whether an `except` takes every exception there is."""
    if not isinstance(node, ast.ExceptHandler):
        return False
    caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return any(
        one is None or (isinstance(one, ast.Name) and one.id in ("Exception", "BaseException"))
        for one in caught
    )


def test_only_a_few_places_catch_everything_and_say_why() -> None:
    found: dict[str, int] = {}
    for module in SOURCES:
        lines = SOURCES[module].read_text().splitlines()
        for node in nodes(module):
            if catches_all(node):
                found[module] = found.get(module, 0) + 1
                reraises = isinstance(node.body[-1], ast.Raise)  # type: ignore[attr-defined]
                said = re.search(r"# noqa: BLE001 - \w+", lines[node.lineno - 1])  # type: ignore[attr-defined]
                assert reraises or said, f"{module}:{node.lineno}"  # type: ignore[attr-defined]
    assert found == CATCH_ALL


def public_parts(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """The functions, classes and methods that others may use."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
                    yield inner


def test_everything_public_says_what_it_is_for() -> None:
    missing = [module for module, path in SOURCES.items() if not ast.get_docstring(tree_of(path))]
    missing += [
        f"{module}.{node.name}"
        for module, path in SOURCES.items()
        for node in public_parts(tree_of(path))
        if not ast.get_docstring(node)
    ]
    assert missing == []


def test_functions_stay_short() -> None:
    long = [
        f"{module}.{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for module in SOURCES
        for node in nodes(module)
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= 60
    ]
    assert long == []


SETTINGS = (PROJECT / "docs" / "settings.md").read_text()


def test_every_setting_is_documented() -> None:
    names = (f"SERVICE_{setting.name.upper()}" for setting in fields(Config))
    assert [name for name in names if f"`{name}`" not in SETTINGS] == []


def test_every_documented_setting_exists() -> None:
    named = set(re.findall(r"`SERVICE_([A-Z_]+)`", SETTINGS))
    assert named <= {setting.name.upper() for setting in fields(Config)}


def test_a_process_loads_large_libraries_only_where_it_uses_them() -> None:
    large = {"authlib", "dns", "lxml", "onelogin", "opentelemetry", "PIL", "segno"}
    large |= {"webauthn", "xmlsec"}
    code = "import app, sys; print(*(m for m in sys.modules if '.' not in m))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert not large & set(done.stdout.split())
