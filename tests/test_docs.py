"""README, CHANGELOG and docs/: every link, anchor and path leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app import features, web
from app.jobs.queue import KINDS
from tests.project import PROJECT

GUIDES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
PAGES = [PROJECT / "CHANGELOG.md", *GUIDES]
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FOLDERS = "app|bench|deploy|docs|migrations|static|templates|tests"
SOURCE = re.compile(rf"`((?:{FOLDERS})/[\w./-]*)`")
PERIODIC_JOB = re.compile(r"^\| `([\w.]+)` \| (\d+) (s|minute|hour|day)s? \| \w", re.MULTILINE)
SECONDS = {"s": 1, "minute": 60, "hour": 3600, "day": 86_400}


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    text = FENCED.sub("", page.read_text())
    titles = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(text))
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_documentation_links_resolve(page: Path) -> None:
    broken = []
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        if re.match("[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_documentation_source_paths_exist(page: Path) -> None:
    missing = [path for path in SOURCE.findall(page.read_text()) if not (PROJECT / path).exists()]
    assert missing == []


def test_documentation_index_lists_every_page() -> None:
    folder = PROJECT / "docs"
    listed = set(LINK.findall((folder / "README.md").read_text()))
    assert {page.name for page in folder.glob("*.md")} - {"README.md"} <= listed
    decisions = set(LINK.findall((folder / "adr" / "README.md").read_text()))
    assert {page.name for page in (folder / "adr").glob("*.md")} - {"README.md"} == decisions


def test_retention_page_lists_every_periodic_job_with_its_period() -> None:
    assert features()  # imports the modules that declare jobs
    page = (PROJECT / "docs" / "retention.md").read_text()
    listed = [(kind, int(n) * SECONDS[unit]) for kind, n, unit in PERIODIC_JOB.findall(page)]
    declared = [
        (name, kind.period)
        for name, kind in KINDS.items()
        if kind.period and kind.handler.__module__.startswith("app.")
    ]
    assert sorted(listed) == sorted(declared)


def test_readme_is_under_200_lines() -> None:
    assert len((PROJECT / "README.md").read_text().splitlines()) < 200
    assert (PROJECT / "docs" / "images" / "console.png").stat().st_size < 200_000


def test_changelog_newest_release_equals_version() -> None:
    releases = re.findall(r"^## (.+)$", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == "Unreleased"
    assert re.fullmatch(re.escape(web.VERSION) + r" - \d{4}-\d{2}-\d{2}", releases[1])
