"""Types that every room shares."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

JSONObject = dict[str, Any]  # decoded, or to be encoded
JSONMapping = Mapping[str, Any]  # the same, only read

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """`functools.cached_property` without a lock, as it is from Python 3.12 on.

        Python 3.11 locks the property of all instances while one works it out
        (https://docs.python.org/3/library/functools.html#functools.cached_property): a request
        that waits for a connection held up all others, also those that had one to return.
        """

        def __get__(self, instance, owner=None):
            """Return the instance's value, and keep it in its `__dict__`."""
            if instance is None:
                return self
            value = instance.__dict__[self.attrname] = self.func(instance)
            return value
