"""Exports of an account: what a bundle has, starting one, and the former ones."""

from __future__ import annotations

from flask import Response, redirect, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.auth.portals import PortalPage
from app.console.admin.account_settings import ACCOUNT_SETTINGS
from app.console.records import writers
from app.console.shell import forms, lists
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import AccountScope
from app.errors import InvalidValues, NotFound, problem
from app.files import responses
from app.portability.bundle import exports, frames
from app.portability.bundle.models import AccountExport, ExportFormat, ExportState
from app.web.languages import gettext, lazy_gettext

EXPORTS = f"{ACCOUNT_SETTINGS}/export"
ONE_EXPORT = f"{EXPORTS}/<uuid:export_id>"
COMMAND = "bin/atrium account"
FIELDS = ("passphrase", "passphrase_again")
FORMATS = {
    ExportFormat.BUNDLE: lazy_gettext("Encrypted, with everything: to move, copy or bring back"),
    ExportFormat.ZIP: lazy_gettext("To read: a ZIP archive of JSON lines and files, no secrets"),
}


@page(EXPORTS, role=ADMIN, portal=PortalPage.EXPORT)
def show_exports(scope: AccountScope, form: Form | None = None) -> Page:
    """The exports of an account, with the form that starts one."""
    listing = lists.from_request("console.show_exports", **scope.url_args)
    listing.with_page(exports.page(listing.page_args, by=scope.by))
    newest: AccountExport | None = next(iter(listing.items), None) if listing.page == 1 else None
    contents = exports.contents(by=scope.by)
    is_going = newest is not None and newest.state in (ExportState.PENDING, ExportState.RUNNING)
    percent = None
    if newest and is_going:
        expected = max(exports.expected_lines(contents, by=scope.by), 1)
        percent = min(99, newest.lines * 100 // expected)
    rows = [{"created_by": export.requested_by} for export in listing.items]
    return (form or Form({"format": ExportFormat.BUNDLE})).render(
        "console/settings/exports.html",
        scope=scope,
        listing=listing,
        people=writers.names(scope, rows),
        contents=contents,
        newest=newest,
        percent=percent,
        is_live=is_going and request.method == "GET",
        commands=_commands(scope.account.slug, newest),
        may_export=exports.may_export(scope.by),
        is_system=scope.account.id == SYSTEM_ACCOUNT_ID,
        shortest=frames.SHORTEST_PASSPHRASE,
        formats=FORMATS,
    )


# An address without a page: a passphrase is never part of a form that comes back.
@page(f"{EXPORTS}/start", "POST", role=ADMIN, portal=PortalPage.EXPORT, form_page=show_exports)
def start_export(scope: AccountScope) -> BaseResponse:
    form = forms.submitted("format", *FIELDS)
    scope.by.require_recent_sign_in()
    format = form["format"] or ExportFormat.BUNDLE
    if format not in [*ExportFormat]:
        text = gettext("Choose a format.")
        raise InvalidValues([problem("format", "invalid_option", text)])
    if format == ExportFormat.ZIP:
        if form["passphrase"]:
            text = gettext("A ZIP archive is not encrypted: leave the passphrase empty.")
            raise InvalidValues([problem("passphrase", "invalid_option", text)])
        exports.start(None, by=scope.by)
        return redirect(url_for("console.show_exports", **scope.url_args), 303)
    passphrase = form.validated(FIELDS, passphrase=frames.LONGEST_PASSPHRASE)["passphrase"]
    if len(passphrase) < frames.SHORTEST_PASSPHRASE:
        text = gettext("At least %(count)s characters.", count=frames.SHORTEST_PASSPHRASE)
        raise InvalidValues([problem("passphrase", "too_short", text)])
    if form["passphrase_again"] != passphrase:
        text = gettext("The passphrases differ.")
        raise InvalidValues([problem("passphrase_again", "mismatch", text)])
    exports.start(passphrase, by=scope.by)
    return redirect(url_for("console.show_exports", **scope.url_args), 303)


@page(f"{ONE_EXPORT}/download", role=ADMIN, portal=PortalPage.EXPORT)
def download_export(scope: AccountScope, export_id: str) -> Response:
    export = exports.ready(export_id, by=scope.by)
    return responses.send(exports.as_file(export, by=scope.by))


@page(f"{ONE_EXPORT}/delete", "POST", role=ADMIN, portal=PortalPage.EXPORT)
def delete_export(scope: AccountScope, export_id: str) -> BaseResponse:
    """Delete an export; doing it twice succeeds."""
    try:
        exports.delete(export_id, by=scope.by)
    except NotFound:
        notice = gettext("The export is gone already.")
    else:
        notice = gettext("The export is deleted.")
    return redirect_with_notice(notice, "console.show_exports", **scope.url_args)


def _commands(slug: str, newest: AccountExport | None) -> dict[str, str]:
    """The shell commands for operators, by the newest bundle or for a new one."""
    is_ready = newest is not None and newest.state == ExportState.READY
    is_ready = is_ready and newest is not None and newest.format == ExportFormat.BUNDLE
    file = exports.file_name(slug, newest) if newest and is_ready else f"{slug}.bundle"
    return {
        "import": f"{COMMAND} import {file}",
        "import_as": f"{COMMAND} import {file} --slug {slug}-restored",
        "clone": f"{COMMAND} clone {slug} {slug}-copy",
        "restore": f"{COMMAND} restore {slug} --at {clock.now():%Y-%m-%dT%H:%MZ}",
    }
