"""The application is loaded as it is used: whole, once, or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.web.app import Application


@pytest.mark.parametrize("part", ["features", "routes"])
def test_application_that_was_loaded_in_half_fails_each_time(part: str) -> None:
    """It would answer 404 to what it lacks, or register twice what it has."""
    loaded = list[str]()

    def load(what: str) -> Callable[[Application], None]:
        def run(app: Application) -> None:
            loaded.append(what)
            if what == part:
                raise ZeroDivisionError

        return run

    app = Application("half")
    app.load_later(load("features"), load("routes"))
    with pytest.raises(ZeroDivisionError):
        app.load()
    for start in (app.load, app.test_client().get):
        with pytest.raises(RuntimeError, match="could not be loaded"):
            start()
    assert loaded == ["features", "routes"][: len(loaded)]


def test_application_is_loaded_once_by_first_requests_of_several_threads() -> None:
    loaded = list[str]()

    def features(app: Application) -> None:
        time.sleep(0.05)
        loaded.append("features")

    def routes(app: Application) -> None:
        time.sleep(0.05)
        app.add_url_rule("/", view_func=lambda: "here")
        loaded.append("routes")

    app = Application("late")
    app.load_later(features, routes)
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda _: app.test_client().get("/").status_code, range(4))
        assert list(answers) == [200] * 4
    assert loaded == ["features", "routes"]
