"""The settings of extensions: `SERVICE_X_{EXTENSION}_{NAME}` in the environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from app.config import ConfigError, parsing
from app.config.settings import OF_EXTENSIONS, of_extensions
from app.extensions import registry
from app.extensions.registry import Kind, LoadError
from app.types import cached_property

T = TypeVar("T")
NAME = re.compile("[a-z][a-z0-9_]*", re.ASCII)
REQUIRED: Any = ...
"""The default of a setting without one: the instance does not start before it is set."""


def _number(parse: Callable[[str], Any], what: str) -> Callable[[str], Any]:
    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError:
            raise ValueError(f"must be {what}") from None

    return parsed


# Python reads "false" as true.
PARSERS: dict[object, Callable[[str], Any]] = {
    bool: parsing.boolean,
    int: _number(int, "a whole number"),
    float: _number(float, "a number"),
}


@dataclass(eq=False)
class Setting(Generic[T]):
    """A setting of an extension."""

    variable: str
    parse: Callable[[str], T]
    default: T
    help: str
    secret: bool

    @cached_property
    def value(self) -> T:
        """The value, or the default. Raises ConfigError if it is missing or cannot be parsed."""
        text = of_extensions().get(self.variable, "")
        if not text and self.default is REQUIRED:
            raise ConfigError(f"{self.variable} is required: {self.help}")
        try:
            return self.parse(parsing.utf8(text)) if text else self.default
        except ValueError as error:
            # The message may quote a secret.
            reason = "cannot be parsed" if self.secret else str(error)
            raise ConfigError(f"{self.variable} {reason}") from None


def setting(
    name: str,
    parse: Callable[[str], T] = str,  # type: ignore[assignment]
    *,
    default: T = REQUIRED,
    help: str,
    secret: bool = False,
) -> Setting[T]:
    """Declare a setting of the extension that is being loaded; its `value` is read once.

    `parse` raises ValueError with what the value must be. Without a default it is required.
    """
    extension = registry.current(f"The setting {name}")
    if not NAME.fullmatch(name):
        raise LoadError(f"the name of a setting has small letters and digits, not {name!r}.")
    variable = f"{OF_EXTENSIONS}{extension.name}_{name}".upper()
    declared = Setting(variable, PARSERS.get(parse, parse), default, help, secret)

    def get() -> Setting[Any]:
        return declared

    get.__name__ = variable
    registry.add(Kind.SETTING, get, variable)
    return declared


def declared() -> Iterator[Setting[Any]]:
    """The settings of all loaded extensions."""
    for (handler,) in registry.of(Kind.SETTING).values():
        yield handler.function()


def listing() -> list[tuple[str, str, str]]:
    """Return (variable, value without secrets, help) of every setting."""
    return [
        (one.variable, "(set)" if one.secret and one.value else str(one.value or ""), one.help)
        for one in declared()
    ]


def check() -> None:
    """Raise ConfigError with every setting of extensions that is missing, invalid or unknown."""
    problems = []
    known = {one.variable: one for one in declared()}
    for one in known.values():
        try:
            one.value  # noqa: B018 - parses it
        except ConfigError as error:
            problems.append(str(error))
    for variable in sorted(of_extensions().keys() - known):
        near = get_close_matches(variable, known, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        problems.append(f"{variable} is not a setting of a loaded extension.{hint}")
    if problems:
        raise ConfigError("\n".join(problems))
