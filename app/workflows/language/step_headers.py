"""Headers of steps: values are stored encrypted and shown as `***`.

`***` keeps the stored value only while the step's URL stays: an admin who cannot read a value
cannot send it to another host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.db import reencryption
from app.errors import problem
from app.outbound import header_values
from app.outbound.header_values import MASK
from app.types import JSONObject
from app.workflows.language.definition import ACTION, CONDITION, LOOP, Written, lists_in

HOST = re.compile(r"https?://[^/?#\\]+[/?#]", re.IGNORECASE)
ENTER_AGAIN = (
    "Enter the value of {} again: *** keeps it only if the step's name and url stay the same."
)
TEMPLATE_OF_HOST = "Enter the value of {} again: the url is a template, and the steps have changed."
Steps = Sequence[Written]
Change = Callable[[str, Written, str, Any], Any]  # of place, step, name and value of a header


def masked(steps: Steps) -> list[JSONObject]:
    """Steps with masked header values."""
    return _changed(steps, lambda *about: MASK)


def comparable(steps: Steps) -> list[JSONObject]:
    """Steps with decrypted header values where a configured key reads them, for comparison."""
    return _changed(
        steps, lambda place, step, name, value: header_values.decrypt_or(value, default=value)
    )


def decrypted(config: Written) -> JSONObject:
    """The config of an action with decrypted headers. Raises InvalidToken."""
    headers = config.get("headers")
    if not isinstance(headers, Mapping):
        return dict(config)
    return {
        **config,
        "headers": {name: header_values.decrypt(value) for name, value in headers.items()},
    }


def problems(steps: Steps, before: Steps) -> list[JSONObject]:
    """Problems of `***` values that cannot keep a stored value."""
    known, found = _Known(steps, before), list[JSONObject]()

    def check(place: str, step: Written, name: str, value: object) -> object:
        if value == MASK and (wrong := known.problem(step, name)):
            found.append(problem(f"{place}.config.headers.{name}", "required", wrong))
        return value

    _changed(steps, check)
    return found


def encrypted(steps: Steps, before: Steps) -> list[JSONObject]:
    """Steps to store; unchanged values stay encrypted as they are."""
    known = _Known(steps, before)

    def seal(place: str, step: Written, name: str, value: Any) -> object:
        stored = known.stored(step, name)
        if stored is None or value not in (MASK, header_values.decrypt_or(stored)):
            return header_values.encrypt(value)
        return stored if isinstance(stored, dict) else header_values.encrypt(stored)

    return _changed(steps, seal)


@reencryption.json_column("workflows", "steps")
@reencryption.json_column("workflow_versions", "steps")
def renewed(steps: Steps) -> tuple[list[JSONObject], int]:
    """Steps encrypted with the newest key, and how many values were re-encrypted.

    Raises InvalidToken.
    """
    count = 0

    def renew(place: str, step: Written, name: str, value: object) -> object:
        nonlocal count
        new = header_values.reencrypt(value)
        count += new is not value
        return new

    return _changed(steps, renew), count


@dataclass
class _Known:
    """The stored values that `***` may refer to."""

    steps: Steps
    before: Steps
    _by_name: dict[str, Written] = field(init=False)

    def __post_init__(self) -> None:
        self._by_name = {step["name"]: step for step in _walk(self.before)}

    def stored(self, step: Written, name: str) -> Any:
        """The stored header of the step with the same name; None if there is none."""
        headers = (self._by_name.get(step["name"], {}).get("config") or {}).get("headers") or {}
        same = (value for one, value in headers.items() if one.lower() == name.lower())
        return next(same, None)

    def problem(self, step: Written, name: str) -> str | None:
        """Why a header's value cannot be kept, if so."""
        url = step["config"].get("url")
        if self.stored(step, name) is None or self._by_name[step["name"]]["config"]["url"] != url:
            return ENTER_AGAIN.format(name)
        if _has_fixed_host(url) or self._does_the_same():
            return None
        return TEMPLATE_OF_HOST.format(name)

    def _does_the_same(self) -> bool:
        # Another step may make another host of the same template.
        old, new = (
            [step for step in _walk(masked(steps)) if step["type"] != CONDITION]
            for steps in (self.before, self.steps)
        )
        return old == new


def _has_fixed_host(url: str) -> bool:
    before, template, _ = url.partition("{{")
    return not template or bool(HOST.match(before))


def _changed(steps: Steps, change: Change, place: str = "steps") -> list[JSONObject]:
    return [_changed_step(step, change, f"{place}[{i}]") for i, step in enumerate(steps)]


def _changed_step(step: Written, change: Change, place: str) -> JSONObject:
    found = dict(step)
    config = found.get("config")
    headers = config.get("headers") if step["type"] == ACTION and config else None
    if config and headers:
        new = {name: change(place, step, name, value) for name, value in headers.items()}
        found["config"] = {**config, "headers": new}
    if step["type"] == LOOP:
        found["steps"] = _changed(step["steps"], change, f"{place}.steps")
    elif lists := lists_in(step):
        found["branches"] = [
            _changed(one, change, f"{place}.branches[{i}]") for i, one in enumerate(lists)
        ]
    return found


def _walk(steps: Steps) -> Iterator[Written]:
    for step in steps:
        yield step
        for inner in lists_in(step):
            yield from _walk(inner)
