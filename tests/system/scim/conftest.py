"""The fixtures of tests/scim."""

from tests.scim.conftest import entra, okta  # noqa: F401
