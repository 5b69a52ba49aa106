"""Types that every room shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Self, TypeVar, overload

JSONObject = dict[str, Any]  # decoded, or to be encoded
JSONMapping = Mapping[str, Any]  # the same, only read

T = TypeVar("T")


class cached_property(Generic[T]):
    """A property that is made once: of threads that make it at a time, all get the first one's.

    That of functools holds a lock for all instances meanwhile, on Python 3.11; SQLAlchemy's gives
    each thread its own, and a statement with two makes of a table reads their product.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        made: T = instance.__dict__.setdefault(self._name, self._make(instance))
        return made
