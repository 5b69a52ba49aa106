"""`bin/atrium export`, `plan` and `apply`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import Result
from flask import Flask

from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.manifest import document, schemas
from tests.builders import Caller, make_collection, make_record, make_user
from tests.project import PROJECT

pytestmark = pytest.mark.one_database
DOCS = PROJECT / "docs" / "manifest.md"
NEW = """\
version: 1
collections:
- name: posts
  schema:
  - {name: title, type: text}
  rules: {list_rule: "true"}
  tests:
  - {operation: list, as: viewer, expect: allow, name: Viewers read}
accounts:
  acme:
    webhooks:
    - {collection: posts, url: "https://hooks.example.com/x", events: [create]}
    workflows:
    - name: Nothing
      trigger: {type: manual}
"""


def run(app: Flask, *command: str | Path, text: str | None = None) -> Result:
    result = app.test_cli_runner().invoke(args=[str(part) for part in command], input=text)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "atrium.yaml"
    path.write_text(NEW)
    return path


def test_manifest_commands_plan_apply_export_and_undo(
    app: Flask, root: Caller, file: Path, tmp_path: Path
) -> None:
    plan = run(app, "plan", file, "--exit-code")
    assert plan.exit_code == 2
    *lines, total, hash_line = plan.output.splitlines()
    assert "+ collection posts" in lines
    assert "+ webhook posts https://hooks.example.com/x of acme" in lines
    assert "  line 8: posts list Viewers read: passed" in lines
    assert total == "Plan: 3 to create."
    plan_hash = hash_line.removeprefix("Hash: ")

    back = tmp_path / "back.yaml"
    done = run(app, "apply", file, "--plan", plan_hash, "--reverse", back)
    assert done.exit_code == 0, done.output
    assert "shown once: " in done.output
    assert done.output.endswith("Applied 3 changes.\n")
    owner = root.acting_in("acme").get("workflows").json["items"][0]["owner_id"]
    assert owner == root.id
    newest = root.get("audit-logs?sort_order=desc&limit=1").json["items"][0]
    assert newest["user_id"] == root.id

    whole = tmp_path / "whole.yaml"
    assert run(app, "export", whole).exit_code == 0
    assert run(app, "plan", whole, "--exit-code").exit_code == 0
    assert run(app, "apply", whole, "--yes").output.endswith("No changes.\n")
    assert run(app, "export").output == whole.read_text()
    assert "accounts: {}" in run(app, "export", "--no-accounts").output

    assert run(app, "apply", back, "--yes").exit_code == 1  # it removes
    plan = run(app, "plan", "-", "--json", text=back.read_text())
    plan_hash = json.loads(plan.output)["plan_hash"]
    undone = run(app, "apply", back, "--plan", plan_hash, "--json")
    assert json.loads(undone.output)["applied"] is True
    assert root.get("collections/posts").status_code == 404


def test_apply_command_without_confirmation_changes_nothing(
    app: Flask, root: Caller, file: Path
) -> None:
    result = run(app, "apply", file)
    assert result.exit_code == 1
    assert "Say --plan HASH, or --yes." in result.output
    stale = run(app, "apply", file, "--plan", "another")
    assert (stale.exit_code, "Plan again." in stale.output) == (1, True)
    assert root.get("collections/posts").status_code == 404
    assert run(app, "apply", file, "--yes").exit_code == 0


def test_manifest_command_with_several_superadmins_needs_as_option(
    app: Flask, root: Caller, file: Path
) -> None:
    make_user(app, SYSTEM_ACCOUNT_ID, "second@system.example")
    assert "--as EMAIL" in run(app, "plan", file).output
    assert "no such superadmin" in run(app, "plan", file, "--as", "x@system.example").output
    assert run(app, "plan", file, "--as", root.email).exit_code == 0


def test_plan_command_shows_lost_data_and_rule_changes(
    app: Flask, root: Caller, alice: Caller, file: Path
) -> None:
    make_collection(root, "posts", [{"name": "title", "type": "text"}])
    make_record(alice, title="one")
    text = """\
        version: 1
        collections:
        - name: posts
          remove_fields: [title]
          rules: {list_rule: null}
        """
    file.write_text(dedent(text))
    lines = run(app, "plan", file).output.splitlines()
    assert "~ collection posts" in lines
    assert "    remove_field title" in lines
    assert '    change_rule list_rule: "true" -> null' in lines
    assert "  posts.title: 1 record" in lines
    assert "  posts list viewer: +0 -1" in lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: 1\nroles: 3", "line 2: roles: Not a valid list."),
        ("version: 1\nroles: [", "not valid YAML"),
        ("version: 1\ncollections:\n- name: more", "line 3: collections.more: A new collection"),
    ],
)
def test_manifest_command_problems_have_lines(
    app: Flask, root: Caller, file: Path, text: str, message: str
) -> None:
    file.write_text(text)
    for command in (["plan", file], ["apply", file, "--yes"]):
        result = run(app, *command)
        assert result.exit_code == 1
        assert message in result.output


def test_plan_command_names_fields_of_index(app: Flask, root: Caller, file: Path) -> None:
    make_collection(root, "posts", [{"name": "title", "type": "text"}])
    text = """\
        version: 1
        collections:
        - name: posts
          indexes: [{fields: [title, -created_at]}]
        """
    file.write_text(dedent(text))
    assert "    add_index title -created_at" in run(app, "plan", file).output.splitlines()
    assert run(app, "apply", file, "--yes").output.splitlines()[-1] == "Applied 1 change."


def test_manifest_command_with_file_of_invalid_utf_8(app: Flask, root: Caller, file: Path) -> None:
    file.write_bytes(b"\xff\xfe")
    assert "not valid UTF-8" in run(app, "plan", file).output


def test_documented_manifests_are_valid(app: Flask) -> None:
    blocks = re.findall(r"```yaml\n(version: .*?)```", DOCS.read_text(), re.DOTALL)
    assert blocks
    for text in blocks:
        schemas.load(document.parse(text))
