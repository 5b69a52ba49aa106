"""A feature's parts of the application: each package declares one, in its `feature.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Literal, NamedTuple

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
class Routes:
    """What a feature answers requests with."""

    api: tuple[Blueprint, ...] = ()
    """Blueprints of the API, in the order of its description."""
    pages: tuple[Blueprint, ...] = ()
    """Blueprints that the API description leaves out."""
    modules: tuple[ModuleType, ...] = ()
    """Modules that add routes to blueprints of other modules."""
    init: tuple[Callable[[Flask], None], ...] = ()
    """Called with the application: error handlers, and what else it needs once."""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """The parts of a feature that are registered, or that run once they are imported."""

    routes: Callable[[], Routes] = Routes
    """Imports them, which commands and workers do without."""
    jobs: tuple[ModuleType, ...] = ()
    """Modules with jobs, or loops of workers."""
    subscribers: tuple[ModuleType, ...] = ()
    """Modules that subscribe to events, or declare where names of roles and groups stand."""
    version_sources: tuple[VersionSource, ...] = ()
    """Further versions that a write of records verifies (`versioned_cache`)."""
    checks: tuple[Check, ...] = ()
    """Checks of `bin/atrium doctor`."""
