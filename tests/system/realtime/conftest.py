"""The fixtures of tests/realtime."""

from tests.realtime.conftest import attached, port  # noqa: F401
