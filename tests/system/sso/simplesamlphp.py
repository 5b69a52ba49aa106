"""SimpleSAMLphp as identity provider, in PHP's own web server on loopback."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

import requests

from tests import services
from tests.sso import saml_idp

ENTITY = "https://simplesamlphp.example/idp"
FIELD = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)"')
TARGET = re.compile(r'<form[^>]* action="([^"]*)"')
PLACE = re.compile(r"\{(folder|port|entity)\}")
CONFIG = """<?php
require '/etc/simplesamlphp/config.php';
$config = array_merge($config, [
    'baseurlpath' => 'http://127.0.0.1:{port}/', 'enable.saml20-idp' => true,
    'certdir' => '{folder}/', 'loggingdir' => '{folder}/', 'datadir' => '{folder}/',
    'tempdir' => '{folder}/temporary', 'metadatadir' => '{folder}/metadata/',
    'logging.handler' => 'file', 'logging.level' => SimpleSAML\\Logger::DEBUG,
    'statistics.out' => [], 'timezone' => 'UTC',
    'session.cookie.secure' => false, 'session.cookie.samesite' => null,
    'session.phpsession.savepath' => '{folder}/sessions', 'store.type' => 'phpsession',
    'secretsalt' => 'a-salt-of-the-tests', 'auth.adminpassword' => 'admin-of-the-tests',
    'module.enable' => ['exampleauth' => true, 'core' => true, 'saml' => true],
    'metadata.sources' => [['type' => 'flatfile']],
]);
"""
SOURCES = """<?php
$config = ['example' => ['exampleauth:StaticSource', 'uid' => ['dora'],
    'mail' => ['dora@acme.example'], 'displayName' => ['Dora']]];
"""
HOSTED = """<?php
$options = json_decode(file_get_contents('{folder}/options.json'), true);
$metadata['{entity}'] = $options + ['host' => '__DEFAULT__', 'auth' => 'example',
    'privatekey' => 'idp.key', 'certificate' => 'idp.crt',
    'redirect.sign' => true, 'redirect.validate' => true,
    'signature.algorithm' => 'http://www.w3.org/2001/04/xmldsig-more#rsa-sha256',
    'authproc' => [3 => ['class' => 'saml:PersistentNameID', 'attribute' => 'uid']]];
"""
REMOTE = """<?php
$xml = file_get_contents('{folder}/sp.xml');
foreach (\\SimpleSAML\\Metadata\\SAMLParser::parseDescriptorsString($xml) as $entity) {
    $found = $entity->getMetadata20SP();
    $metadata[$found['entityid']] = $found;
}
"""


class SimpleSamlPhp(services.Server):
    """SimpleSAMLphp with one user, Dora, who is always signed in."""

    name = "simplesamlphp"
    refuses_root = False
    abrupt_signal = signal.SIGKILL
    orderly_signal = signal.SIGTERM

    def __init__(self) -> None:
        """A server of one's own."""
        super().__init__(private=True)

    def know(self, metadata: bytes, **options: Any) -> None:
        """Take our metadata, and options of the identity provider."""
        assert self._folder is not None
        (self._folder / "sp.xml").write_bytes(metadata)
        (self._folder / "options.json").write_text(json.dumps(options))

    def log(self) -> str:
        """What it has logged."""
        assert self._folder is not None
        return (self._folder / "simplesamlphp.log").read_text()

    def _own_url(self, port: int) -> str:
        return f"http://127.0.0.1:{port}"

    def _prepare(self, folder: Path) -> None:
        for name in ("config", "metadata", "sessions", "temporary"):
            (folder / name).mkdir()
        key, certificate = saml_idp.pair("idp")
        (folder / "idp.key").write_text(key)
        (folder / "idp.crt").write_text(certificate)
        (folder / "options.json").write_text("{}")

    def _command(self, folder: Path, port: int) -> list[str]:
        program, php = services.simplesamlphp(), shutil.which("php")
        if not program or not php:
            raise services.ServiceError("The tests need SimpleSAMLphp (package simplesamlphp).")
        places = {"{folder}": str(folder), "{port}": str(port), "{entity}": ENTITY}
        for name, text in {
            "config/config.php": CONFIG,
            "config/authsources.php": SOURCES,
            "metadata/saml20-idp-hosted.php": HOSTED,
            "metadata/saml20-sp-remote.php": REMOTE,
        }.items():
            (folder / name).write_text(PLACE.sub(lambda found: places[found[0]], text))
        (folder / "sp.xml").write_text("")
        variable = f"SIMPLESAMLPHP_CONFIG_DIR={folder / 'config'}"
        served = ["-S", f"127.0.0.1:{port}", "-t", str(program / "www")]
        return ["env", variable, php, *served]

    def _try_to_connect(self) -> None:
        socket.create_connection(("127.0.0.1", self._port), timeout=5).close()


@dataclass
class Person:
    """A browser at the identity provider."""

    session: requests.Session = field(default_factory=requests.Session)

    def open(self, url: str) -> tuple[str, dict[str, str]]:
        """Open a page; returns the address that it leads to, and the fields if by a form."""
        answer = self.session.get(url, allow_redirects=False, timeout=30)
        while answer.is_redirect and "127.0.0.1" in answer.headers["Location"][:20]:
            answer = self.session.get(answer.headers["Location"], allow_redirects=False, timeout=30)
        if answer.is_redirect:
            return answer.headers["Location"], {}
        target = TARGET.search(answer.text)
        assert target, answer.text
        fields = {name: unescape(value) for name, value in FIELD.findall(answer.text)}
        return unescape(target[1]), fields
