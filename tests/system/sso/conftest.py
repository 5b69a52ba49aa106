"""The fixtures of tests/sso."""

from tests.sso.conftest import openid_provider, provider, stage  # noqa: F401
