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
from app.workflows.language.definition import ACTION, CONDITION, LOOPS, Written, lists_in

HOST = re.compile(r"https?://[^/?#\\]+[/?#]", re.IGNORECASE)
REENTER_VALUE = (
    "Enter the value of {} again: *** keeps it only if the step's name and url stay the same."
)
REENTER_FOR_TEMPLATE = (
    "Enter the value of {} again: the url is a template, and the steps have changed."
)
Steps = Sequence[Written]
Change = Callable[[str, Written, str, Any], Any]  # of place, step, name and value of a header


def masked(steps: Steps) -> list[JSONObject]:
    """Steps with masked header values."""
    return _changed(steps, lambda *_: MASK)


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


def problems(steps: Steps, stored_steps: Steps) -> list[JSONObject]:
    """Problems of `***` values that cannot keep a stored value."""
    stored_headers, problems_ = _StoredHeaders(steps, stored_steps), list[JSONObject]()

    def check(place: str, step: Written, name: str, value: object) -> object:
        if value == MASK and (message := stored_headers.problem(step, name)):
            problems_.append(problem(f"{place}.config.headers.{name}", "required", message))
        return value

    _changed(steps, check)
    return problems_


def encrypted(steps: Steps, stored_steps: Steps) -> list[JSONObject]:
    """Steps to store; unchanged values stay encrypted as they are."""
    stored_headers = _StoredHeaders(steps, stored_steps)

    def seal(place: str, step: Written, name: str, value: Any) -> object:
        stored = stored_headers.stored(step, name)
        if stored is None or value not in (MASK, header_values.decrypt_or(stored)):
            return header_values.encrypt(value)
        return stored if isinstance(stored, dict) else header_values.encrypt(stored)

    return _changed(steps, seal)


@reencryption.json_column("workflows", "steps")
@reencryption.json_column("workflow_versions", "steps")
def reencrypted(steps: Steps) -> tuple[list[JSONObject], int]:
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
class _StoredHeaders:
    """The stored values that `***` may refer to."""

    steps: Steps
    before: Steps
    _by_name: dict[str, Written] = field(init=False)

    def __post_init__(self) -> None:
        self._by_name = {step["name"]: step for step in _walk(self.before)}

    def stored(self, step: Written, name: str) -> Any:
        """The stored header of the step with the same name; None if there is none."""
        headers = (self._by_name.get(step["name"], {}).get("config") or {}).get("headers") or {}
        matches = (value for header, value in headers.items() if header.lower() == name.lower())
        return next(matches, None)

    def problem(self, step: Written, name: str) -> str | None:
        """The reason why a header's value cannot be kept; None if it can."""
        url = step["config"].get("url")
        if self.stored(step, name) is None or self._by_name[step["name"]]["config"]["url"] != url:
            return REENTER_VALUE.format(name)
        if _has_fixed_host(url) or self._does_the_same():
            return None
        return REENTER_FOR_TEMPLATE.format(name)

    def _does_the_same(self) -> bool:
        # Other steps may render the same template to another host.
        old, new = (
            [step for step in _walk(masked(steps)) if step["type"] != CONDITION]
            for steps in (self.before, self.steps)
        )
        return old == new


def _has_fixed_host(url: str) -> bool:
    prefix, template, _ = url.partition("{{")
    return not template or bool(HOST.match(prefix))


def _changed(steps: Steps, change: Change, place: str = "steps") -> list[JSONObject]:
    return [_changed_step(step, change, f"{place}[{i}]") for i, step in enumerate(steps)]


def _changed_step(step: Written, change: Change, place: str) -> JSONObject:
    result = dict(step)
    config = result.get("config")
    headers = config.get("headers") if step["type"] == ACTION and config else None
    if config and headers:
        changed_headers = {
            name: change(place, step, name, value) for name, value in headers.items()
        }
        result["config"] = {**config, "headers": changed_headers}
    if step["type"] in LOOPS:
        result["steps"] = _changed(step["steps"], change, f"{place}.steps")
    elif lists := lists_in(step):
        result["branches"] = [
            _changed(steps, change, f"{place}.branches[{i}]") for i, steps in enumerate(lists)
        ]
    return result


def _walk(steps: Steps) -> Iterator[Written]:
    for step in steps:
        yield step
        for inner in lists_in(step):
            yield from _walk(inner)
