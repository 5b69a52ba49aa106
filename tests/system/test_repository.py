"""What git and the shell make of the repository's files."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.project import PROJECT
from tests.test_repository import loaded, text


def test_compose_nginx_forwards_to_web(tmp_path: Path) -> None:
    *_, script = loaded(PROJECT / "compose.yaml")["services"]["nginx"]["command"]
    edit = script.partition(" && ")[0].replace("/etc/atrium.conf", "deploy/nginx.conf")
    edit = edit.replace("/etc/nginx/conf.d/default.conf", str(tmp_path / "atrium.conf"))
    subprocess.run(["sh", "-c", edit], cwd=PROJECT, check=True)
    edited = (tmp_path / "atrium.conf").read_text()
    assert re.findall(r"^    server (\S+)", edited, re.MULTILINE) == ["web:8000"] * 2
    assert {"/tls/atrium.pem", "/tls/atrium.key"} <= set(re.findall(r"ssl_\w+ +(\S+);", edited))


def test_git_blame_ignore_revs_are_commits_of_this_history() -> None:
    lines = [
        line for line in text(".git-blame-ignore-revs").splitlines() if line and line[0] != "#"
    ]
    assert all(re.fullmatch("[0-9a-f]{40}", line) for line in lines)
    git = shutil.which("git")
    if not git or not (PROJECT / ".git").exists():
        pytest.skip("no git checkout")
    shallow = [git, "rev-parse", "--is-shallow-repository"]
    if subprocess.check_output(shallow, cwd=PROJECT, text=True).strip() == "true":
        pytest.skip("a shallow clone has no history")
    for revision in lines:
        subprocess.run([git, "cat-file", "-e", f"{revision}^{{commit}}"], cwd=PROJECT, check=True)
