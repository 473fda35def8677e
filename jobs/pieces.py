"""Text that is printed in pieces: find the secrets that lie across them, in time in proportion to the text.

A stream passes on what it gets before it knows the rest. Four rules keep a secret from passing in parts:

* lines pass as a whole: text without an end of line waits for it, for `flush`, or for LONGEST characters;
* `flush` passes text on for progress bars and prompts, but a last word that may be the first part of a token waits;
* each piece is searched together with what has passed of its line, and of lines before that have no end of their own
  (`HF_TOKEN=`, `password:`, a netrc file), CONTEXT characters at most: the part that has not passed is replaced;
* from the begin of a private key to its end, KEY characters at most, lines of a key's characters are dropped.

What waits is lost only if a signal kills the process.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from jobs.secret_patterns import KEY_BLOCK
from jobs.secrets import REDACTED

LONGEST = 65_536
CONTEXT = 512
LONGEST_WORD = 4096
KEY = 16_000

# After these, a word has ended: prompts, bars of progress, sentences.
WORD_WAITS = re.compile(r"[A-Za-z0-9_+/~=!$&*^#@\\-]\Z")
BEGIN_WAITS = re.compile(r"-{2,5}[ ]?(?:BEGIN[A-Z0-9 ]{0,90}-{0,5})?\Z")
GOES_ON = re.compile(r"""[:=,\\"'({\uff1a\uff1d]\Z|\b(?:machine|login)\s[^\n]*\Z""")

KEY_BEGINS = re.compile(rf"{KEY_BLOCK}|\bPrivate-Lines:[ ]*+\d++")
KEY_ENDS = re.compile(r"-{4,5}[ ]?END[ ][A-Z0-9 ]{0,90}-{4,5}|\bPrivate-MAC:[ ]*+\w*+")
OF_A_KEY = re.compile(r"[A-Za-z0-9+/]++=*+")
# Lines of a key behind the time and level of a logger. PEM has 64 characters a line, OpenSSH 70, PGP 64 or 76.
LONG_RUN = re.compile(r"[A-Za-z0-9+/]{40,}+=*+")
LAST_RUN = re.compile(r"[A-Za-z0-9+/]++=*+(?=\W*\Z)")
LEAST_LINE = 16


class Pieces:
    """The pieces of one stream; each method returns the text that passes, after `clean`."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self._waiting: list[str] = []
        self._size = 0
        # What has passed and may begin a secret, as it was and as it was shown.
        self._before = self._shown = ""
        self._key_left = 0
        self._in_key = False

    def add(self, text: str) -> str:
        """Take a piece; return the lines that are complete."""
        self._waiting.append(text)
        self._size += len(text)
        if "\n" in text:
            lines, end, rest = self._all().rpartition("\n")
            return self._passed(lines + end, rest)
        if self._size <= LONGEST:
            return ""
        return self._pass_words()

    def flush(self) -> str:
        """Return all that waits but a word that may not be complete."""
        return self._pass_words() if self._size else ""

    def end(self) -> str:
        """Return all that waits."""
        return self._passed(self._all(), "")

    def _all(self) -> str:
        return "".join(self._waiting)

    def _pass_words(self) -> str:
        text = self._all()
        at = len(text)
        if begins := BEGIN_WAITS.search(text, max(0, at - 128)):
            at = begins.start()
        elif WORD_WAITS.search(text, at - 1):
            tail = text[-LONGEST_WORD:]
            at -= len(tail) - len(tail.rstrip()) + len(tail.split()[-1])
        return self._passed(text[:at], text[at:])

    def _passed(self, text: str, rest: str) -> str:
        self._waiting, self._size = [rest], len(rest)
        if not text:
            return ""
        text = self._without_keys(text)
        both = self._before + text
        full = self._clean(both)
        new = full[equal_characters(full, self._shown) :]
        before = both[context_of(both) :]
        self._shown = full if before == both else self._clean(before) if before else ""
        self._before = before
        return new

    def _without_keys(self, text: str) -> str:
        """Return lines without the lines of private keys; a key may begin or end in other pieces."""
        if not self._key_left and "BEGIN" not in text and "Private-Lines" not in text:
            return text
        return "".join(map(self._without_key, text.splitlines(keepends=True)))

    def _without_key(self, line: str) -> str:
        if self._key_left:
            self._key_left = max(0, self._key_left - len(line))
            if end := KEY_ENDS.search(line):
                self._key_left = 0
                line = line[end.end() :].lstrip("\r\n")
            else:
                line = self._inside_a_key(line)
        if begin := KEY_BEGINS.search(line):
            if end := KEY_ENDS.search(line, begin.end()):
                return line[: begin.start()] + REDACTED + self._without_key(line[end.end() :])
            self._key_left, self._in_key = KEY, False
            return line[: begin.start()] + REDACTED + self._inside_a_key(line[begin.end() :])
        return line

    def _inside_a_key(self, line: str) -> str:
        words = line.strip()
        if not words:
            return line
        whole = OF_A_KEY.fullmatch(words)
        if whole and (len(words) >= LEAST_LINE or words.endswith("=") or self._in_key):
            self._in_key = True
            return ""
        shown = LONG_RUN.sub(REDACTED, line)
        after_a_key, self._in_key = self._in_key, shown != line
        return shown if self._in_key or not after_a_key else LAST_RUN.sub(REDACTED, line)


def equal_characters(one: str, other: str) -> int:
    """Return the number of characters at the begin of two texts that are equal."""
    if one.startswith(other):
        return len(other)
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


def context_of(text: str) -> int:
    """Return where the lines begin that the next piece may continue: the last one, and those before that go on."""
    least = max(0, len(text) - CONTEXT)
    at = max(text.rfind("\n"), text.rfind("\r")) + 1
    while at > least:
        line = max(least, text.rfind("\n", 0, at - 1) + 1)
        if not GOES_ON.search(text[line:at].rstrip()):
            break
        at = line
    return max(at, least)
