"""The fixtures of tests/bundle."""

from tests.bundle.conftest import real_scrypt  # noqa: F401
