"""What stands around the code agrees with it: CI, hooks, images, templates, versions."""

from __future__ import annotations

import json
import re
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from app import web
from app.auth import tokens
from tests.project import PROJECT, procfile
from tests.services import PREFERRED_POSTGRES

GITHUB = PROJECT / ".github"
WORKFLOW = GITHUB / "workflows" / "ci.yml"
YAML_FILES = [
    *(PROJECT / name for name in ("compose.yaml", ".pre-commit-config.yaml")),
    *sorted(path for path in GITHUB.rglob("*") if path.suffix in (".yml", ".yaml")),
]
PAGES = [
    *(PROJECT / name for name in ("CONTRIBUTING.md", "SECURITY.md")),
    *(PROJECT / "docs" / name for name in ("docker.md", "releasing.md")),
]
CI_TARGETS = {"browser", "slow", "system", "test", "coverage", "vulnerabilities"}


def text(name: str) -> str:
    """A file of the repository."""
    return (PROJECT / name).read_text()


def loaded(path: Path) -> Any:
    """A YAML file; a key that stands twice is an error."""
    return yaml.load(path.read_text(), StrictLoader)  # noqa: S506 - a subclass of SafeLoader


class StrictLoader(yaml.SafeLoader):
    """YAML without duplicate keys, which the loader would drop silently."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Refuse duplicates."""
        keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        assert len(keys) == len(set(keys)), f"duplicate key in {node.start_mark}"
        return super().construct_mapping(node, deep)


def make_targets() -> dict[str, list[str]]:
    """The Makefile's targets with their recipes."""
    targets: dict[str, list[str]] = {}
    names: list[str] = []
    for line in text("Makefile").splitlines():
        if line.startswith("\t"):
            for name in names:
                targets[name].append(line.strip())
        elif rule := re.match(r"([a-z][a-z -]*):(?!=)(?!.*:=)", line):
            names = rule[1].split()
            targets |= {name: targets.get(name, []) for name in names}
        elif line and not line.startswith("#"):
            names = []
    return targets


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments."""
    lines = re.sub(r"^#.*\n|\\\n", "", text("Dockerfile"), flags=re.MULTILINE).splitlines()
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines if line.strip()]


def argument(instruction: str) -> str:
    """The argument of the last such instruction."""
    return [value for name, value in instructions() if name == instruction][-1]


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: path.name)
def test_yaml_parses(path: Path) -> None:
    assert loaded(path)


# --- References ---------------------------------------------------------------


@pytest.mark.parametrize("folder", ["app", "migrations", "bench", "deploy"])
def test_comments_cite_no_numbered_section_of_another_document(folder: str) -> None:
    citing = re.compile(r"\b(spec|contract|checks?)( sections?)? [0-9]")
    files = (PROJECT / folder).rglob("*.py")
    assert [path for path in files if citing.search(path.read_text())] == []


# --- CI and hooks -------------------------------------------------------------


def test_ci_runs_targets_of_the_makefile() -> None:
    steps = [step for job in loaded(WORKFLOW)["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    called = {name for run in commands for name in re.findall(r"\bmake ([a-z-]+)", run)}
    assert called == CI_TARGETS
    assert called <= make_targets().keys()


def test_ci_workflow_has_read_permissions_and_timeouts() -> None:
    workflow = loaded(WORKFLOW)
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] for job in workflow["jobs"].values())
    assert "pull_request_target" not in text(".github/workflows/ci.yml")


def test_pre_commit_hooks_equal_linters_of_makefile() -> None:
    hooks = [
        hook
        for repo in loaded(PROJECT / ".pre-commit-config.yaml")["repos"]
        for hook in repo["hooks"]
    ]
    linted = [line.replace("$(BIN)", ".venv/bin") for line in make_targets()["lint"]]
    names = [" ".join(re.findall(r"\.venv/bin/\w+(?: (?:check|format))?", line)) for line in linted]
    entries = [hook["entry"] for hook in hooks]
    assert len(entries) == len(names)
    assert all(entry.startswith(name) for entry, name in zip(entries, names, strict=True))


# --- The image ----------------------------------------------------------------


def test_docker_image_command_equals_procfile() -> None:
    command = " ".join(re.findall(r'"([^"]+)"', argument("CMD")))
    assert command == procfile()["web"]


def test_docker_image_runs_without_root() -> None:
    user, group = map(
        int, argument("USER").split(":")
    )  # numbers: platforms check that it is not root
    assert user > 0
    assert group > 0
    assert "/live" in argument("HEALTHCHECK")


def test_dockerignore_allows_needed_files_only() -> None:
    lines = [line for line in text(".dockerignore").splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    allowed = [line[1:] for line in lines if line.startswith("!")]
    assert all((PROJECT / name).exists() for name in allowed)
    assert {"app", "deploy", "migrations", "static", "templates", "wsgi.py"} <= set(allowed)
    assert not {".env", "instance", ".git"} & set(allowed)


def test_compose_runs_the_procfile() -> None:
    services = loaded(PROJECT / "compose.yaml")["services"]
    assert {name: services[name]["command"] for name in procfile()} == procfile()


@pytest.mark.parametrize("name", procfile())
def test_compose_services_have_no_privileges(name: str) -> None:
    service = loaded(PROJECT / "compose.yaml")["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "user" not in service  # the image's own


def test_compose_publishes_web_on_loopback_only() -> None:
    services = loaded(PROJECT / "compose.yaml")["services"]
    ports = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert ports.pop("nginx") == ["80:80", "443:443"]
    assert services["nginx"]["profiles"] == ["nginx"]
    assert ports == {"web": ["127.0.0.1:8000:8000"]}


def test_heroku_manifest_names_existing_settings() -> None:
    described = json.loads(text("app.json"))
    assert set(described["formation"]) == set(procfile()) - {"release"}
    names = {name for name in described["env"] if name.startswith("SERVICE_")}
    assert names <= set(re.findall(r"SERVICE_[A-Z_]+", text("docs/settings.md")))


# --- Versions -----------------------------------------------------------------


def test_changelog_names_current_version() -> None:
    changelog = text("CHANGELOG.md")
    dated = re.findall(r"^## \W*(\d+\.\d+\.\d+)\W+\d{4}-\d\d-\d\d", changelog, re.MULTILINE)
    named = dated or re.findall(r"version is (\d+\.\d+\.\d+)", changelog)
    assert named[0] == web.VERSION


def test_python_minimum_version_is_equal_everywhere() -> None:
    parser = ConfigParser()
    parser.read(PROJECT / "setup.cfg")
    oldest = parser["mypy"]["python_version"]
    digits = oldest.replace(".", "")
    assert tomllib.loads(text("ruff.toml"))["target-version"] == f"py{digits}"
    assert f"({oldest.replace('.', ', ')})" in text("Makefile")
    assert text(".python-version") == f"{oldest}\n"
    assert f"FROM=python:{oldest}" in text("Dockerfile").replace("ARG PYTHON", "FROM")
    jobs = loaded(WORKFLOW)["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    versions = {
        step["with"]["python-version"] for step in steps if "setup-python" in step.get("uses", "")
    }
    assert versions == {oldest, "${{ matrix.python }}"}
    assert jobs["test"]["strategy"]["matrix"]["python"][0] == oldest
    pages = [*PROJECT.glob("*.md"), *(PROJECT / "docs").glob("*.md")]
    told = {v for page in pages for v in re.findall(r"Python (3\.\d+) or newer", page.read_text())}
    assert told == {oldest}


def test_postgresql_version_is_equal_in_tests_image_and_compose() -> None:
    image = loaded(PROJECT / "compose.yaml")["services"]["postgres"]["image"]
    assert image == f"postgres:{PREFERRED_POSTGRES}"
    assert f"postgresql-client-{PREFERRED_POSTGRES} " in text("Dockerfile")


# --- Texts --------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_community_page_links_resolve(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_community_pages_name_existing_make_targets(page: Path) -> None:
    named = set(re.findall(r"(?:^ {4}|`)make ([a-z-]+)", page.read_text(), re.MULTILINE))
    assert named <= make_targets().keys()


@pytest.mark.parametrize(
    ("path", "logged"),
    [
        ("/console/setup/{token}", "/console/setup"),
        ("/console/setup/{token}?x=1", "/console/setup"),
        ("/auth/verify-email?token={token}", "/auth/verify-email"),
        ("/api/v1/records/posts?filter=a", "/api/v1/records/posts"),
    ],
)
def test_nginx_logs_no_token_of_a_path(path: str, logged: str) -> None:
    (pattern,) = re.findall(
        r'map \$request_uri \$atrium_path \{\s+"~(\S+)"', text("deploy/nginx.conf")
    )
    token = tokens.random_token("AA0001")
    match = re.match(pattern.replace("(?<", "(?P<", 1), path.format(token=token))
    assert match
    assert match["atrium_short"] == logged


# What macOS lacks, and the modules that do without it there.
LINUX_ONLY = re.compile(
    r"/proc/|/dev/(shm|full)|\bsched_|posix_fa|\bprctl\b|\bepoll\b|F_OFD|SO_ATTACH|RDHUP|USER_TIMEOUT"
)
SAFE_ON_MACOS = {
    "app/db/disk.py",
    "app/db/sqlite_driver.py",
    "app/db/watch.py",
    "app/realtime/connections.py",
    "deploy/serving.py",
}
GNU_ONLY = re.compile(r"sed -i|sed .*\\t|grep -\w*P|xargs -\w*r|date -d|stat -c|sort -V|mktemp --")


def test_linux_features_are_used_by_known_modules_only() -> None:
    served = [*(PROJECT / "app").rglob("*.py"), *(PROJECT / "deploy").glob("*.py")]
    found = {str(one.relative_to(PROJECT)) for one in served if LINUX_ONLY.search(one.read_text())}
    assert found - {"deploy/cluster.py"} == SAFE_ON_MACOS


def test_make_run_and_test_need_no_gnu_tools() -> None:
    recipes = [line for name, lines in make_targets().items() if name != "lock" for line in lines]
    commands = [*recipes, *text("bin/atrium").splitlines(), *procfile().values()]
    assert [line for line in commands if GNU_ONLY.search(line)] == []
