"""Types that every room shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Self, TypeVar, overload

JSONObject = dict[str, Any]  # decoded, or to be encoded
JSONMapping = Mapping[str, Any]  # the same, only read

T = TypeVar("T")


class cached_property(Generic[T]):
    """A property that is computed once: threads that compute it at once all get the first result.

    That of functools locks all instances meanwhile, on Python 3.11. SQLAlchemy's gives each thread
    its own result; a statement with two copies of a table reads their cartesian product.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        result: T = instance.__dict__.setdefault(self._name, self._compute(instance))
        return result
