"""The fixtures of tests/console."""

from tests.console.conftest import admin, browser, ids, superadmin  # noqa: F401
