"""The rules that keep the house in order (docs/architecture.md), held by reading the sources."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path

import click
import pytest

from app import features
from app.config import Config
from app.ops.listed import COMMANDS, Commands

PROJECT = Path(__file__).resolve().parent.parent
MIGRATIONS = PROJECT / "migrations"
SOURCES = {
    ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((PROJECT / "app").rglob("*.py"))
}

# The floors of `app`: the platform, on it the features, which are all other packages, and the
# edges, which import what they need.
PLATFORM = {
    *("config", "context", "db", "jobs", "outbound", "rules", "web"),
    *("clock", "crypto", "errors", "events", "ids", "slugs", "types"),
}
WEB = "app.web."
EDGE = re.compile(
    r"app(\.(console|welcome|ops|isolation|hooks|extend)(\..+)?)?"
    r"|app\..+\.api(\..+)?|app\.(.+[._])?(routes|schemas|responses|commands|feature)(\..+)?|app\.auth\.guard(\..+)?"
)
# What is read by schemas below the edges: a manifest, by those of the requests that it stands for,
# and members of a directory, as SCIM sends them in many shapes.
MANIFEST, INNER_SCHEMAS = "app.manifest.schemas", ("app.manifest.schemas", "app.sso.scim.schemas")
MOST_LOOSE = 8

REQUEST = {"request", "g", "session", "abort", "redirect", "make_response", "jsonify"}
CURRENT_REQUEST = {"get_request", "get_header", "get_g"}
PAGES = {"app.web.openapi": {"make_response"}}

# The only places that catch everything, each with its reason beside it.
CATCH_ALL = {
    "app.extensions.loading": 1,  # what an import raises, which ends the start with a sentence
    "app.extensions.running": 1,  # what a handler raises, which is a 500 in its extension's name
    "app.audit.sealing": 2,  # an account that is not sealed, a worker without its database
    "app.db.transactions": 2,  # any error rolls the transaction, or its part, back, and goes on
    "app.db.engine": 1,  # a connection that is not fit to be lent: its place comes back
    "app.sso.saml.assertions": 1,  # what the library cannot read, which it tells by any exception
    "app.sso.saml.checks": 1,  # a time that it cannot read, by that very class
    "app.extensions.jobs": 1,  # what a handler raises, for the thread of its job
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


@pytest.fixture(scope="module", autouse=True)
def parsed_sources() -> None:
    """Parse all sources before the first test, whose time would else be that of all."""
    for path in SOURCES.values():
        nodes_of(path)


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


@pytest.mark.long
def test_imported_packages_equal_declared_requirements() -> None:
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
        "migrations",
        "_typeshed",
        "",
    }
    assert imported - sys.stdlib_module_names - own == declared


def test_revisions_import_nothing_of_the_application() -> None:
    """They and their support stay as they are while the application changes."""
    files = [path for name in ("versions", "support") for path in MIGRATIONS.glob(f"{name}/*.py")]
    assert len(files) > 60
    libraries = {"alembic", "sqlalchemy", "orjson", "structlog", "uuid_utils", "email_validator"}
    imported = set().union(*(imported_packages(nodes_of(path)) for path in files))
    assert imported - sys.stdlib_module_names <= libraries | {"migrations"}
    inner = {
        node.module
        for path in files
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("migrations")
    }
    assert all(module and module.startswith("migrations.support") for module in inner)


# The decorators of what runs without being called, and where its module is declared.
RUNNING = {
    "events.subscribe": "subscribers",
    "names.place": "subscribers",
    "role_names.place": "subscribers",
    "registry.on_change": "subscribers",
    "jobs.job": "jobs",
    "jobs.periodic": "jobs",
    "worker.loop": "jobs",
}


def test_feature_subscribers_and_jobs_are_declared() -> None:
    declared = {
        (part, module.__name__)
        for feature in features()
        for part in ("subscribers", "jobs")
        for module in getattr(feature, part)
    }
    assert declared == set(decorated(RUNNING))


def test_commands_are_listed_with_the_first_lines_of_their_help() -> None:
    modules = [name for name in SOURCES if name.endswith("commands") or name == "app.ops.cli"]
    values = [value for name in modules for value in vars(import_module(name)).values()]
    found = {value for value in values if isinstance(value, click.Command)}
    groups = [one for one in found if isinstance(one, click.Group)]
    inner = {command for group in groups for command in group.commands.values()}
    commands = Commands("atrium")
    listed = {name: commands.get_command(click.Context(commands), name) for name in COMMANDS}
    assert found - inner == {one for name, one in listed.items() if name != "openapi"}
    for name, one in listed.items():
        assert one
        assert one.name == name
        assert " ".join((one.help or "").split("\n\n")[0].split()) == COMMANDS[name].help


def decorated(parts: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The modules of features that use one of the decorators, each with what that declares."""
    for module in SOURCES:
        for node in nodes(module) if room(module) not in PLATFORM else ():
            for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                name = ast.unparse(decorator).partition("(")[0]
                if name in parts:
                    yield parts[name], module


def test_top_level_modules_are_few() -> None:
    loose = [path.stem for path in (PROJECT / "app").glob("*.py") if path.stem != "__init__"]
    assert len(loose) <= MOST_LOOSE, loose


def is_edge(module: str) -> bool:
    """Whether a module is one of the edges: routes with their schemas, pages, commands."""
    return bool(EDGE.fullmatch(module)) and not module.startswith((WEB, *INNER_SCHEMAS))


def test_platform_imports_no_feature() -> None:
    uphill = [
        f"{module} -> {other}"
        for module in SOURCES
        if room(module) in PLATFORM
        for other in imports(module)
        if room(other) not in PLATFORM
    ]
    assert uphill == []


def test_edge_modules_are_imported_by_edges_only() -> None:
    uphill = [
        f"{module} -> {other}"
        for module in SOURCES
        if not is_edge(module) and module != MANIFEST
        for other in imports(module)
        if is_edge(other)
    ]
    assert uphill == []


def test_package_imports_have_no_circle() -> None:
    arrows: dict[str, set[str]] = {}
    for module in SOURCES:
        if not is_edge(module):
            arrows.setdefault(room(module), set()).update(map(room, imports(module)))
    assert_no_circle({name: others - {name} for name, others in arrows.items()})


def test_module_imports_have_no_circle() -> None:
    assert_no_circle({module: set(imports(module)) - {module} for module in SOURCES})


def assert_no_circle(arrows: dict[str, set[str]]) -> None:
    """Fail with the first circle that arrows form."""

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for other in arrows.get(name, ()):
                visit(other, (*path, name))
            done.add(name)

    done: set[str] = set()
    for name in arrows:
        visit(name, ())


def test_flask_request_is_used_by_edge_modules_only() -> None:
    for module in SOURCES:
        if not is_edge(module) and not module.startswith(WEB):
            known = names_from(module, "flask") & REQUEST - PAGES.get(module, set())
            assert known == set(), module
            assert "flask.request" not in SOURCES[module].read_text(), module
            assert not names_from(module, "app.web.app") & CURRENT_REQUEST, module
            assert "app" not in names_from(module, "app.web"), module


CLIENTS = re.compile(r"requests|urllib3|http$|http\.client|urllib\.request|urllib$")


def test_requests_library_is_used_by_outbound_client_only() -> None:
    clients = {
        module: {name for name in imported_names(nodes(module)) if CLIENTS.match(name)}
        for module in SOURCES
    }
    ours = clients.pop("app.outbound.client")
    assert {name.partition(".")[0] for name in ours} == {"requests", "urllib3"}
    assert {module for module, names in clients.items() if names} == set()


def imported_names(all_nodes: list[ast.AST]) -> Iterator[str]:
    """Everything that a source imports, with the names of its packages."""
    for node in all_nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_rules_package_imports_neither_flask_nor_clock() -> None:
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


def test_marshmallow_is_used_by_edge_modules_only() -> None:
    shared = {f"app.web.{name}" for name in ("examples", "fields", "paging", "parsing", "schemas")}
    for module in SOURCES:
        if "marshmallow" in packages(module):
            assert module in {*shared, *INNER_SCHEMAS} or is_edge(module), module


# How a connection commits.
DRIVERS = ("app.db.postgres_driver", "app.db.sqlite_driver", "app.db.traced_drivers")


def test_commits_are_made_by_transaction_module_only() -> None:
    commits = [
        f"{module}:{node.lineno}"
        for module in SOURCES
        if module not in ("app.db.transactions", *DRIVERS)
        for node in nodes(module)
        if isinstance(node, ast.Attribute) and node.attr in ("commit", "begin", "begin_nested")
    ]
    assert commits == []


def test_environment_is_read_by_config_module_only() -> None:
    for module in SOURCES:
        if module != "app.config.settings":
            assert not names_from(module, "os") & {"environ", "getenv"}, module
            text = SOURCES[module].read_text()
            assert not re.search(r"os\.(environ|getenv)|load_dotenv", text), module


def test_current_time_is_read_by_clock_module_only() -> None:
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


def test_catch_all_handlers_are_listed_and_commented() -> None:
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


def is_api_view(module: str, node: ast.FunctionDef) -> bool:
    """Whether a function answers a route of the API, whose summary is its docstring."""
    return not module.startswith(("app.console.", "app.welcome.")) and any(
        ".route(" in ast.unparse(decorator) for decorator in node.decorator_list
    )


@cache
def shared_names() -> set[str]:
    """What modules use of each other, as "module.name"."""
    found = set()
    for module in SOURCES:
        aliases = {}
        for node in nodes(module):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        found |= set(aliases.values()) | {
            f"{aliases[node.value.id]}.{node.attr}"
            for node in nodes(module)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in aliases
        }
    return found


def test_modules_services_and_api_views_say_what_they_are_for() -> None:
    missing = [module for module, path in SOURCES.items() if not ast.get_docstring(tree_of(path))]
    missing += [
        f"{module}.{node.name}"
        for module, path in SOURCES.items()
        for node in tree_of(path).body
        if isinstance(node, ast.FunctionDef) and not ast.get_docstring(node)
        if is_api_view(module, node)
        or (
            not is_edge(module)
            and not node.name.startswith("_")
            and f"{module}.{node.name}" in shared_names()
        )
    ]
    assert missing == []


def test_functions_are_under_60_lines() -> None:
    long = [
        f"{module}.{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for module in SOURCES
        for node in nodes(module)
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= 60
    ]
    assert long == []


SETTINGS = (PROJECT / "docs" / "settings.md").read_text()


def test_settings_are_all_documented() -> None:
    names = (f"SERVICE_{setting.name.upper()}" for setting in fields(Config))
    assert [name for name in names if f"`{name}`" not in SETTINGS] == []


def test_documented_settings_all_exist() -> None:
    named = set(re.findall(r"`SERVICE_([A-Z_]+)`", SETTINGS))
    assert named <= {setting.name.upper() for setting in fields(Config)}


# --- The tests ------------------------------------------------------------------

# What starts processes, and where it may: all other tests run in process.
STARTERS = re.compile(
    r"(subprocess|multiprocessing|playwright|tests\.(processes|npm|system|browser))(\.|$)"
)
MAY_START = re.compile(r"tests/(system/|browser/|(processes|npm|services)\.py$)")


@pytest.mark.long
def test_process_and_browser_helpers_are_used_by_their_tests_only() -> None:
    started = {
        f"{path.relative_to(PROJECT)}: {name}"
        for path in sorted((PROJECT / "tests").rglob("*.py"))
        if "node_modules" not in path.parts
        if not MAY_START.match(path.relative_to(PROJECT).as_posix())
        if re.search(
            "subprocess|multiprocessing|playwright|processes|npm|system|browser", path.read_text()
        )
        for name in imported_names(nodes_of(path))
        if STARTERS.match(name)
    }
    assert started == set()
