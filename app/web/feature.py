"""A feature's parts of the application: each package declares one, in its `feature.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Literal, NamedTuple

import click
from flask import Blueprint, Flask

from app.db.versioned_cache import VersionSource


class Finding(NamedTuple):
    """The result of a check: `ok`, `warn` (works, but should be fixed), or `fail`."""

    state: Literal["ok", "warn", "fail"]
    message: str


class Check(NamedTuple):
    """A check of `bin/atrium doctor`."""

    part: str
    """The word that its line begins with, of at most 11 characters."""
    run: Callable[[], Finding]
    reads_tables: bool = True
    """Whether it needs a migrated database, and is left out without one."""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """The parts of a feature that `create_app` registers, or that run once they are imported."""

    api: tuple[Blueprint, ...] = ()
    """Blueprints of the API, in the order of its description."""
    pages: tuple[Blueprint, ...] = ()
    """Blueprints that the API description leaves out."""
    routes: tuple[ModuleType, ...] = ()
    """Modules that add routes to blueprints of other modules."""
    jobs: tuple[ModuleType, ...] = ()
    """Modules with periodic jobs, or loops of workers."""
    subscribers: tuple[ModuleType, ...] = ()
    """Modules that subscribe to events."""
    version_sources: tuple[VersionSource, ...] = ()
    """Further versions that a write of records verifies (`versioned_cache`)."""
    checks: tuple[Check, ...] = ()
    """Checks of `bin/atrium doctor`."""
    commands: tuple[click.Command, ...] = ()
    """Commands of `bin/atrium`."""
    init: tuple[Callable[[Flask], None], ...] = ()
    """Called with the application: error handlers, and what else it needs once."""
