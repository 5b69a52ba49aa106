"""The words of texts without case and accents, for what is found by words on both databases.

Databases fold and split texts in ways of their own, so that they would find different ones. Here
texts are split before they are stored; the databases only index the words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

LONGEST_WORD = 64
LONGEST_TEXT = 100_000
"""The characters of a text that are looked at."""
MAX_BYTES = 500_000
"""Of a text's words: PostgreSQL takes a mebibyte, with `KEY_BYTES` more for each word."""
KEY_BYTES = 16
SURELY_SHORT = 5000
# Letters that Unicode does not take for another one with an accent.
SIMPLE = str.maketrans({"\u0131": "i", "ł": "l", "ø": "o", "đ": "d", "æ": "ae", "œ": "oe"})
ZERO_WIDTH_SPACE = "\u200b"
JOINING = ("Cf", "Me")  # what joins the characters around it, or encloses one
# Thai, Lao, Tibetan, Myanmar, Khmer, Japanese and Chinese: they put no spaces between words.
UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
PARTS = re.compile(rf"[{UNSPACED}]+|[^\s{UNSPACED}]+")
IS_UNSPACED = re.compile(rf"[{UNSPACED}]")


def folded(text: str) -> str:
    """A text without case and accents."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    plain = decomposed.translate(SIMPLE).casefold()
    bare = "".join(c for c in plain if unicodedata.category(c) != "Mn")
    return unicodedata.normalize("NFC", bare)


class _Spaced(dict[int, str]):
    """What stands for a character, by its code point: folded, with spaces around what is no word.

    A symbol such as an emoji is a word of its own.
    """

    MOST = 20_000

    def __missing__(self, code: int) -> str:
        if len(self) >= self.MOST:
            self.clear()
        self[code] = "".join(map(self._part, folded(chr(code))))
        return self[code]

    @staticmethod
    def _part(character: str) -> str:
        category = unicodedata.category(character)
        if category == "So":
            return f" {character} "
        if category in JOINING and character != ZERO_WIDTH_SPACE:
            return ""
        return character if category[0] in "LNM" else " "


SPACED = _Spaced()


def spaced(text: str) -> str:
    """The words of a text, folded, with spaces between them; those of unspaced scripts together."""
    return unicodedata.normalize("NFC", text[:LONGEST_TEXT]).translate(SPACED)


def split(text: str) -> list[str]:
    """The words of a text, in order; of a script without spaces each pair of letters.

    The last letter before another script stands alone.
    """
    result = list[str]()
    for part in PARTS.findall(spaced(text)):
        if IS_UNSPACED.match(part):
            result += [part[place : place + 2] for place in range(len(part))]
        else:
            result.append(part[:LONGEST_WORD])
    return result


def sought(text: str) -> tuple[list[str], bool]:
    """The words of what is looked for, and whether the last one may be the beginning of another.

    A text that ends in a script without spaces may go on there.
    """
    found, parts = split(text), PARTS.findall(spaced(text))
    if not parts or not IS_UNSPACED.match(parts[-1]):
        return found, False
    is_single = len(parts[-1]) == 1
    return found if is_single else found[:-1], is_single


def marked(*texts: str) -> str:
    """The words of texts, each between `<` and `>`; of very long ones the first words.

    Between texts is an empty word: none follow each other across them.
    """
    found = split(texts[0]) if texts else []
    for text in texts[1:]:
        found += ["", *split(text)]
    if sum(map(len, texts)) > SURELY_SHORT:
        size = 0
        for place, word in enumerate(found):
            size += len(word.encode()) + KEY_BYTES
            if size > MAX_BYTES:
                found = found[:place]
                break
    return joined(found)


class Placed(NamedTuple):
    """A word, and where it is in a text."""

    word: str
    ends: Sequence[int]
    """Where each character of the word ends in the text."""
    start: int

    def end_of(self, beginning: str) -> int:
        """Where the word ends; of a script without spaces, where its beginning ends."""
        is_part = IS_UNSPACED.match(self.word) is not None
        return self.ends[len(beginning) - 1] if is_part else self.ends[-1]


def placed(text: str) -> list[Placed]:
    """The words of a text in NFC, in order, as `split` has them."""
    spaced_parts = [SPACED[ord(character)] for character in text]
    spaced_text = "".join(spaced_parts)
    starts, ends = list(range(len(text))), list(range(1, len(text) + 1))
    if len(spaced_text) != len(text) or "" in spaced_parts:
        starts, ends = [], []
        for place, part in enumerate(spaced_parts):
            starts += [place] * len(part)
            ends += [place + 1] * len(part)
            if not part and ends:  # an accent belongs to the letter before it
                ends[-1] = place + 1
    result = list[Placed]()
    for match in PARTS.finditer(spaced_text):
        part, first = match[0], match.start()
        unspaced = IS_UNSPACED.match(part) is not None
        for offset in range(len(part)) if unspaced else (0,):
            word = part[offset : offset + 2] if unspaced else part[:LONGEST_WORD]
            place = first + offset
            until = ends[place : place + len(word)]
            if not unspaced:
                until[-1] = ends[match.end() - 1]
            result.append(Placed(word, until, starts[place]))
    return result


def joined(words: list[str]) -> str:
    """Words, each between `<` and `>`."""
    return "".join([f"<{word}>" for word in words])
