"""The fixtures of tests/files."""

from tests.files.conftest import _drawer, in_bucket, s3  # noqa: F401
