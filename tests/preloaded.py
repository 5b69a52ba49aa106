"""Imports all that the application loads later, for processes that are forks of this one."""

from app import FEATURES, features

named = dict(zip(FEATURES, features(), strict=True))
for name in sorted(named):  # as the application imports them
    named[name].routes()
