"""The interface of spans, and the span that does nothing."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

Attributes = Mapping[str, str | int]


class Span:
    """A span that is not recorded; the base of those that are."""

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def rename(self, name: str) -> None:
        """Set the name."""

    def set(self, name: str, value: str | int) -> None:
        """Set an attribute."""

    def fail(self, error_type: str) -> None:
        """Mark the span as failed, with a class of errors or a status."""
