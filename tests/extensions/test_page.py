"""The page of the console that lists extensions, and the check of doctor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import jobs
from app.context import tracing
from app.context.spans import Span
from app.db import transaction
from app.extend import Refused, after_delete, before_create, before_update, setting
from app.extensions import loading, registry
from app.extensions.registry import Extension
from tests.builders import Cast, make_collection, make_record
from tests.console.browser import Browser


def shop() -> None:
    """Handlers that work, fail and have no collection."""

    @before_create("posts")
    def check_title(caller: Any, record: dict[str, Any]) -> None:
        if record["title"] == "raise":
            raise ZeroDivisionError
        if record["title"] == "refuse":
            raise Refused(code="no", message="No.")

    @before_update("ordres")
    def misspelt(caller: Any, old: Any, record: Any) -> None: ...


def test_failed_jobs_are_counted_as_failures(app: Flask, cast: Cast) -> None:
    def mourning() -> None:
        setting("rate", default="", help="no handler")

        @after_delete("posts")
        def mourn(caller: Any, record: dict[str, Any]) -> None: ...

    make_collection(cast.root)
    with loading.loaded(mourning):
        for _ in range(2):
            post = make_record(cast.bob)
            assert cast.bob.delete(f"records/posts/{post['id']}").status_code == 204
        with app.app_context(), transaction() as session:
            session.execute(sa.update(jobs.TABLE).values(status=jobs.JobState.FAILED))
        page = Browser(app, cast.root).get("extensions").text
    row = page[page.index("mourning.mourn") :].partition("</tr>")[0]
    assert '<span class="state bad">2</span>' in row
    assert 'href="/console/jobs?kind=extensions.mourning.mourn"' in row
    assert "SERVICE_X_MOURNING_RATE" not in page  # settings are not called


def test_page_lists_extensions_with_calls_and_failures(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    superadmin = Browser(app, cast.root)
    assert "No extension is loaded" in superadmin.get("extensions").text
    with loading.loaded(shop):
        before = _row(superadmin.get("extensions").text, "check_<wbr>title")
        make_record(cast.bob, title="a")
        for title in ("raise", "refuse"):
            cast.bob.post("records/posts", {"title": title})
        page = superadmin.get("extensions").text
    after = _row(page, "check_<wbr>title")
    assert [one - other for one, other in zip(after, before, strict=True)] == [3, 1, 0]
    assert "@before_create posts" in page
    assert "shop.misspelt is for ordres, and there is no such collection" in page


def _row(page: str, name: str) -> list[int]:
    """Calls, failures and slow calls of a handler."""
    row = page[page.index(name) :].partition("</tr>")[0]
    cells = row.split('class="number">')[1:4]
    return [int("".join(filter(str.isdigit, one.rpartition("</td>")[0]))) for one in cells]


@pytest.mark.parametrize("who", ["alice", "bob"])
def test_page_is_the_superadmins(app: Flask, cast: Cast, who: str) -> None:
    assert Browser(app, getattr(cast, who)).get("extensions").status_code == 403


def test_doctor_names_extensions_and_their_problems(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    settings = app.extensions["atrium.config"]
    app.extensions["atrium.config"] = replace(settings, extensions=("shop",))
    with loading.loaded(shop):
        output = app.test_cli_runner().invoke(args=["doctor"]).output
        (line,) = [one for one in output.splitlines() if "extensions" in one.split()]
        assert line.split()[:2] == ["warn", "extensions"]
        assert "shop.misspelt is for ordres" in line
        registry.EXTENSIONS["shop"] = Extension("shop", "1.2", "shop", None, ("app.db",))
        output = app.test_cli_runner().invoke(args=["doctor"]).output
        assert "shop imports app.db: only app.extend stays as it is" in output
    assert loading.check().message == "none"


def test_collection_that_extensions_name_keeps_its_name(cast: Cast) -> None:
    path = f"collections/{make_collection(cast.root)['id']}"
    with loading.loaded(shop):
        answer = cast.root.patch(path, {"name": "articles"})
        assert answer.status_code == 400, answer.json
        (problem,) = answer.json["details"]
        assert problem["code"] == "collection_in_use"
        assert "shop.check_title" in problem["message"]
    assert cast.root.patch(path, {"name": "articles"}).status_code == 200


def test_call_has_a_span(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    make_collection(cast.root)
    spans = []

    class Exporter:
        """Takes note of spans."""

        def inner_span(self, name: str, attributes: Mapping[str, str]) -> Span:
            spans.append((name, dict(attributes)))
            return Span()

        def ids(self) -> dict[str, str]:
            return {}

        def __getattr__(self, name: str) -> Any:
            return lambda *_: Span() if name.endswith("_span") else False

    with loading.loaded(shop):
        monkeypatch.setattr(tracing, "_exporting", Exporter())
        make_record(cast.bob, title="a")
    kind = {"atrium.extension.kind": "before_create"}
    handler = {"atrium.extension.handler": "shop.check_title"}
    assert spans == [("extension shop.check_title", handler | kind)]
