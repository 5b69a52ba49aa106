"""The file format of bundles: JSON lines and bytes, in numbered frames that are each encrypted.

A file begins with a line that names the format, and a line of JSON that says how the key follows
from the passphrase. Each frame is its length (4 bytes, big endian) and its text under AES-256-GCM.
Its nonce is the frame's number and whether it is the last one, so frames that are missing, moved or
cut off do not decrypt (the construction is known as STREAM). The header is authenticated with each
frame. As the salt is new for each file, so is the key: no nonce repeats.

The first byte of a frame's text says what follows: a piece of the zlib stream of all lines, or
bytes as they are, between two lines.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from app.errors import Conflict
from app.types import JSONMapping, JSONObject

MAGIC = b"atrium bundle 1\n"
FRAME_BYTES = 256 * 1024
TAG_BYTES = 16
LONGEST_HEADER, LONGEST_LINE = 4096, 64 * 2**20
LEVEL = 3
LINES, BYTES = b"\0", b"\1"
SHORTEST_PASSPHRASE, LONGEST_PASSPHRASE = 12, 1000
# One of OWASP's equal choices for scrypt: that with the least memory, as a command has 150 MiB.
SCRYPT = {"n": 2**13, "r": 8, "p": 10}
NO_BUNDLE = "The file is no bundle of this format."
UNREADABLE = "The passphrase is wrong, or the bundle was altered."
CUT = "The bundle is incomplete or was altered."


def new_header() -> JSONObject:
    """A header with a new salt."""
    return {"kdf": "scrypt", **SCRYPT, "salt": os.urandom(16).hex()}


def derive_key(passphrase: str, header: JSONMapping) -> bytes:
    """The key of a bundle. Raises Conflict for a header that this version does not read."""
    if {name: header.get(name) for name in SCRYPT} != SCRYPT or header.get("kdf") != "scrypt":
        raise Conflict(NO_BUNDLE)
    try:
        salt = bytes.fromhex(header["salt"])
    except (KeyError, TypeError, ValueError):
        raise Conflict(NO_BUNDLE) from None
    return hashlib.scrypt(passphrase.encode(), salt=salt, maxmem=64 * 2**20, dklen=32, **SCRYPT)


class Writer:
    def __init__(self, target: BinaryIO, header: JSONMapping, key: bytes) -> None:
        line = orjson.dumps(header) + b"\n"
        target.write(MAGIC + line)
        self._target, self._frames = target, _Frames(key, line)
        self._compressor, self._pending = zlib.compressobj(LEVEL), bytearray()
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        """The SHA-256 of all lines so far."""
        return self._digest.hexdigest()

    def write(self, value: object) -> None:
        line = orjson.dumps(value) + b"\n"
        self._digest.update(line)
        self._pending += self._compressor.compress(line)
        while len(self._pending) > FRAME_BYTES:
            self._write_lines(FRAME_BYTES)

    def write_bytes(self, piece: bytes) -> None:
        """Write bytes behind the last line, at most `FRAME_BYTES`."""
        self._digest.update(piece)
        self._pending += self._compressor.flush(zlib.Z_SYNC_FLUSH)
        while self._pending:
            self._write_lines(FRAME_BYTES)
        self._write_frame(BYTES + piece)

    def close(self) -> None:
        """Write what is pending, and the last frame."""
        self._pending += self._compressor.flush()
        while len(self._pending) > FRAME_BYTES:
            self._write_lines(FRAME_BYTES)
        self._write_lines(FRAME_BYTES, is_last=True)

    def _write_lines(self, size: int, *, is_last: bool = False) -> None:
        text = LINES + bytes(self._pending[:size])
        del self._pending[:size]
        self._write_frame(text, is_last=is_last)

    def _write_frame(self, text: bytes, *, is_last: bool = False) -> None:
        sealed = self._frames.seal(text, is_last=is_last)
        self._target.write(len(sealed).to_bytes(4, "big") + sealed)


class Reader:
    """Reads the lines of a bundle. Raises Conflict for anything that `Writer` did not write."""

    def __init__(self, source: BinaryIO, passphrase: str) -> None:
        if source.read(len(MAGIC)) != MAGIC:
            raise Conflict(NO_BUNDLE)
        line = source.readline(LONGEST_HEADER)
        try:
            header = orjson.loads(line)
        except orjson.JSONDecodeError:
            raise Conflict(NO_BUNDLE) from None
        if not isinstance(header, dict) or not line.endswith(b"\n"):
            raise Conflict(NO_BUNDLE)
        self._source, self._frames = source, _Frames(derive_key(passphrase, header), line)
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        """The SHA-256 of all lines before the one read last."""
        return self._digest.hexdigest()

    def lines(self) -> Iterator[object]:
        """The values of all lines and the bytes between them, to the last frame."""
        pending, last = bytearray(), b""
        for kind, piece in self._pieces():
            if kind == BYTES:
                if pending:
                    raise Conflict(CUT)
                self._digest.update(last)
                last = piece
                yield piece
                continue
            pending += piece
            *lines, rest = bytes(pending).split(b"\n")
            pending = bytearray(rest)
            if len(pending) > LONGEST_LINE:
                raise Conflict(CUT)
            for line in lines:
                self._digest.update(last)
                last = line + b"\n"
                yield _parsed(line)
        if pending:
            raise Conflict(CUT)

    def _pieces(self) -> Iterator[tuple[bytes, bytes]]:
        inflater, is_last = zlib.decompressobj(), False
        while not is_last:
            text, is_last = self._frame()
            kind, content = text[:1], text[1:]
            if kind == BYTES and not is_last:
                yield kind, content
                continue
            try:
                while content:
                    yield LINES, inflater.decompress(content, FRAME_BYTES)
                    content = inflater.unconsumed_tail
            except zlib.error:
                raise Conflict(CUT) from None
        yield LINES, inflater.flush()
        if not inflater.eof or inflater.unused_data or self._source.read(1):
            raise Conflict(CUT)

    def _frame(self) -> tuple[bytes, bool]:
        size = int.from_bytes(self._source.read(4), "big")
        sealed = self._source.read(size) if size <= 1 + FRAME_BYTES + TAG_BYTES else b""
        if not size or len(sealed) != size:
            raise Conflict(CUT)
        return self._frames.open(sealed)


def _parsed(line: bytes) -> object:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        raise Conflict(CUT) from None


class _Frames:
    """Encrypts and decrypts frames in their order."""

    def __init__(self, key: bytes, header: bytes) -> None:
        self._cipher, self._header, self._number = AESGCM(key), MAGIC + header, 0

    def seal(self, text: bytes, *, is_last: bool) -> bytes:
        """Encrypt the next frame."""
        return self._cipher.encrypt(self._nonce(is_last), text, self._header)

    def open(self, sealed: bytes) -> tuple[bytes, bool]:
        """Decrypt the next frame; also returns whether it is the last one."""
        first = self._number
        for is_last in (False, True):
            self._number = first
            try:
                nonce = self._nonce(is_last)
                return self._cipher.decrypt(nonce, sealed, self._header), is_last
            except InvalidTag:
                continue
        raise Conflict(CUT if first else UNREADABLE)

    def _nonce(self, is_last: bool) -> bytes:
        self._number += 1
        return bytes([is_last]) + self._number.to_bytes(11, "big")
