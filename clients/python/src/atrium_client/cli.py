"""The command `atrium`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from atrium_client._sync.client import Client
from atrium_client.errors import AtriumError
from atrium_client.typegen import write_module

EPILOG = """
Credentials: ATRIUM_API_KEY; or ATRIUM_ACCOUNT, ATRIUM_EMAIL and ATRIUM_PASSWORD.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        with _client(options) as client:
            description = client.session.get("/openapi.json", params={"collections": "1"}).json()
    except AtriumError as error:
        print(f"atrium: {error}", file=sys.stderr)
        return 1
    print(write_module(description, options.url), end="")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("atrium")
    commands = parser.add_subparsers(required=True)
    summary = "Print a Python module with the types of the collections that you may see."
    types = commands.add_parser("types", help=summary, description=summary, epilog=EPILOG)
    url = os.environ.get("ATRIUM_URL")
    types.add_argument("--url", default=url, required=url is None, help="default: ATRIUM_URL")
    for name in ("api-key", "account", "email"):
        variable = f"ATRIUM_{name.upper().replace('-', '_')}"
        types.add_argument(
            f"--{name}", default=os.environ.get(variable), help=f"default: {variable}"
        )
    return parser


def _client(options: argparse.Namespace) -> Client:
    if options.api_key:
        return Client(options.url, api_key=options.api_key)
    client = Client(options.url)
    password = os.environ.get("ATRIUM_PASSWORD", "")
    client.sign_in(options.account or "", options.email or "", password)
    return client
