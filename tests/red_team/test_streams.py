"""Secrets that are printed in pieces: by lines, words, characters, bytes, with and without a flush in the middle."""

from __future__ import annotations

import base64
import codecs
import io
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.output import Guarded
from jobs.secrets import REDACTED, redact
from tests.support.paths import ROOT

pytestmark = pytest.mark.red_team

draw = random.Random(4)
TOKEN = "hf_" + "".join(draw.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOP", k=34))
PASSWORD = "Corr3ct-Horse!Battery"


def block(kind: str, *, width: int = 64, head: str = "", size: int = 1200) -> str:
    body = base64.b64encode(draw.randbytes(size)).decode()
    lines = [body[at : at + width] for at in range(0, len(body), width)]
    return "\n".join([f"-----BEGIN {kind}-----", *head.splitlines(), *lines, f"-----END {kind}-----", ""])


RSA = block("RSA PRIVATE KEY")
OPENSSH = block("OPENSSH PRIVATE KEY", width=70)
ENCRYPTED = block("RSA PRIVATE KEY", head="Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123456789ABCDEF\n\n")
PGP = block("PGP PRIVATE KEY BLOCK", width=76, head="Comment: of a test\n\n")
SHORT = block("PRIVATE KEY", size=48)
ODD_END = block("EC PRIVATE KEY", size=100)
PUTTY = "\n".join(
    ["PuTTY-User-Key-File-3: ssh-rsa", "Encryption: none", "Private-Lines: 14",
     *(base64.b64encode(draw.randbytes(48)).decode() for _ in range(14)), "Private-MAC: " + "0a1b" * 16, ""]
)  # fmt: skip
FLUSH = None
Piece = str | bytes | None


def lines_of(text: str, before: str = "") -> list[Piece]:
    return [f"{before}{line}\n" for line in text.splitlines()]


def flushed(pieces: list[Piece]) -> list[Piece]:
    return [each for piece in pieces for each in (piece, FLUSH)]


def in_parts(text: str, size: int) -> list[Piece]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def as_bytes(text: str, size: int) -> list[Piece]:
    data = text.encode()
    return [data[at : at + size] for at in range(0, len(data), size)]


PIECES: dict[str, tuple[list[Piece], str]] = {
    "a key, line by line": (lines_of(RSA), RSA),
    "a key, line by line, flushed": (flushed(lines_of(RSA)), RSA),
    "a key, each line in two parts, flushed": (flushed(in_parts(RSA, 33)), RSA),
    "a key in single characters": (in_parts(RSA, 1), RSA),
    "a key in single characters, flushed": (flushed(in_parts(RSA, 1)), RSA),
    "a key with lines of Windows": (lines_of(RSA.replace("\n", "\r\n")), RSA),
    "a key behind the prefix of a logger": (lines_of(RSA, "2026-01-01 10:00:00 INFO key: "), RSA),
    "a key behind a rank, flushed": (flushed(lines_of(OPENSSH, "[rank0]: ")), OPENSSH),
    "a key of OpenSSH": (lines_of(OPENSSH), OPENSSH),
    "a key with headers": (lines_of(ENCRYPTED), ENCRYPTED.partition("EF\n")[2]),
    "a key of PGP": (lines_of(PGP), PGP.partition("test\n")[2]),
    "a key of PuTTY": (lines_of(PUTTY), PUTTY.partition("14\n")[2]),
    "a short key": (lines_of(SHORT), SHORT),
    "a key whose last line is short": (lines_of(ODD_END, "x: "), ODD_END),
    "a key without an end": (lines_of(RSA)[:-1], RSA),
    "a key that other lines interrupt": ([*lines_of(RSA)[:4], "step 1 loss 2.5\n", *lines_of(RSA)[4:]], RSA),
    "a key whose begin is flushed in parts": (["-----BEGIN ", FLUSH, *in_parts(RSA[11:], 40)], RSA),
    "a key whose dashes are flushed": (["--", FLUSH, "---BEGIN RSA PRIVATE KEY", FLUSH, RSA[26:]], RSA),
    "two keys": ([*lines_of(RSA), *lines_of(SHORT)], RSA + SHORT),
    "bytes of a key": (as_bytes(RSA, 50), RSA),
    "a key after text on its line": (["found: " + RSA[:40], *in_parts(RSA[40:], 100)], RSA),
    "a token in two writes": ([f"token {TOKEN[:9]}", f"{TOKEN[9:]}\n"], TOKEN),
    "a token with a flush in it": ([f"use {TOKEN[:5]}", FLUSH, TOKEN[5:], "\n"], TOKEN),
    "a token with a flush after each character": ([*flushed(in_parts(f"use {TOKEN} now\n", 1))], TOKEN),
    "a token in bytes": ([TOKEN[:9].encode(), FLUSH, TOKEN[9:].encode(), b"\n"], TOKEN),
    "a token in bytes and text": ([TOKEN[:9].encode(), TOKEN[9:], b"\n"], TOKEN),
    "a name and its value": (["HF_TOKEN=", FLUSH, PASSWORD, "\n"], PASSWORD),
    "a name, blanks and its value": (["DB_PASSWORD = ", FLUSH, PASSWORD, FLUSH, "\n"], PASSWORD),
    "a value in three parts": (["DB_PASS=", FLUSH, PASSWORD[:5], FLUSH, PASSWORD[5:12], FLUSH, PASSWORD[12:], "\n"],
                               PASSWORD),
    "a value that ends in a sign": (["DB_PASS=Corr3ct!", FLUSH, PASSWORD[7:], "\n"], PASSWORD[8:]),
    "a value on the next line": (["password:\n", f"{PASSWORD}\n"], PASSWORD),
    "a value on the next line of JSON": (['{"api_key":\n', f'  "{PASSWORD}"}}\n'], PASSWORD),
    "a value in quotes on the next line": (["DB_PASSWORD =\n", f'    "{PASSWORD}"\n'], PASSWORD),
    "an option and its value": (["run --password ", FLUSH, PASSWORD, "\n"], PASSWORD),
    "a header": (["Authorization: Bearer ", FLUSH, TOKEN[3:], "\n"], TOKEN[3:]),
    "a URL": (["https://bob:", FLUSH, PASSWORD, FLUSH, "@host/x\n"], PASSWORD),
    "a URL cut in the password": ([f"https://bob:{PASSWORD[:6]}", FLUSH, f"{PASSWORD[6:]}@host\n"], PASSWORD),
    "a URL in parts": (flushed(in_parts(f"get https://bob:{PASSWORD}@host/x\n", 4)), PASSWORD),
    "netrc, line by line": (["machine host\n", " login bob\n", f" password {PASSWORD}\n"], PASSWORD),
    "a command in parts": (["curl -u bob:", FLUSH, PASSWORD, " https://h\n"], PASSWORD),
    "a bar of progress before it": (["\r 50%|##  | 1/2", FLUSH, "\r100%|####| 2/2", FLUSH, f" {TOKEN[:6]}", FLUSH,
                                     f"{TOKEN[6:]}\n"], TOKEN),
    "words of a line before it": ([f"{'word ' * 300}HF_TOKEN=", FLUSH, PASSWORD, "\n"], PASSWORD),
    "a longest line before it": ([*["word " * 4000] * 5, "HF_TOKEN=", FLUSH, PASSWORD, "\n"], PASSWORD),
    "nothing after it": ([TOKEN[:20], FLUSH, TOKEN[20:]], TOKEN),
}  # fmt: skip


def written(pieces: list[Piece], *, end: bool = True) -> str:
    out = io.StringIO()
    stream = Guarded(out, redact)
    for piece in pieces:
        if piece is None:
            stream.flush()
        elif isinstance(piece, bytes):
            stream.buffer.write(piece)
        else:
            stream.write(piece)
    if end:
        stream.end()
    return out.getvalue()


def parts_in(shown: str, secret: str, size: int = 8) -> list[str]:
    """Parts of a secret that are shown; words of its first and last lines are no secret."""
    words = [line for line in secret.splitlines() if not line.startswith(("-----", "Private-MAC"))]
    return [
        word[at : at + size] for word in words for at in range(len(word) - size + 1) if word[at : at + size] in shown
    ]


@pytest.mark.parametrize("name", PIECES)
def test_a_secret_in_pieces_does_not_pass(name: str) -> None:
    pieces, secret = PIECES[name]
    shown = written(["first line\n", *pieces, "last line\n"])
    assert parts_in(shown, secret) == []
    assert REDACTED in shown
    assert shown.startswith("first line\n")
    assert shown.endswith("\n")


ORDINARY: list[list[Piece]] = [
    ["step 1 loss 2.5\n", "step 2 loss 2.4\n"],
    ["Loading...", FLUSH, " done\n"],
    ["Continue? [y/N] ", FLUSH],
    ["Password: ", FLUSH],
    [".", FLUSH, ".", FLUSH, ".", FLUSH, "\n"],
    ["\r 50%|█████     | 5/10 [00:01<00:01,  4.99it/s]", FLUSH, "\r100%|██████████| 10/10 [00:02<00:00,  4.99it/s]",
     FLUSH],
    ["epoch 1, ", FLUSH, "step 2: ", FLUSH, "ok.", FLUSH],
    ["größer ± 5 µs ", FLUSH, "日本語\n"],
    ["größer ± 5 µs\n".encode(), "日".encode()[:1], "日".encode()[1:], b"\n"],
    ["an empty line\n", "\n", "\n", "and more\n"],
    ["expected -----BEGIN PRIVATE KEY----- in a.pem\n", "done\n", "step 2 of /a/b\n", "x\n"],
    ["-----BEGIN CERTIFICATE-----\n", "MIIB" * 16 + "\n", "-----END CERTIFICATE-----\n"],
    ["tokenizer:\n", "  vocab_size: 32000\n"],
    ["a\r\n", "b\r\n"],
    ["word " * 20_000],
    ["x" * 200_000, "\n"],
    ["'quoted\n", "over lines'\n", 'and "so\n', 'on"\n'],
]  # fmt: skip


@pytest.mark.parametrize("pieces", ORDINARY, ids=range(len(ORDINARY)))
def test_ordinary_text_passes_as_it_is_and_at_once(pieces: list[Piece]) -> None:
    text = b"".join(p if isinstance(p, bytes) else (p or "").encode() for p in pieces).decode()
    wanted = text.replace("-----BEGIN PRIVATE KEY-----", REDACTED)
    assert written(pieces, end=pieces[-1] is not FLUSH and not text.endswith("\n")) == wanted


@given(st.lists(st.tuples(st.text("ab \n=:'\"\r-\\token", max_size=30), st.booleans()), max_size=12))
def test_text_without_secrets_is_the_same_in_whatever_pieces_it_comes(pieces: list[tuple[str, bool]]) -> None:
    text = "".join(piece for piece, _ in pieces)
    given_: list[Piece] = [each for piece, flush in pieces for each in ([piece, FLUSH] if flush else [piece])]
    if redact(text) == text:
        assert written(given_) == text


@pytest.mark.parametrize(
    "piece",
    ["x", "x ", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\n", "TOKEN=", "TOKEN=\n", "machine x\n",
     "-", "A" * 64 + "\n", "\r", "a=\r", "-----BEGIN "],
)  # fmt: skip
@pytest.mark.parametrize("flush", [False, True])
def test_the_time_of_pieces_grows_with_their_number_and_not_with_its_square(piece: str, *, flush: bool) -> None:
    stream = Guarded(io.StringIO(), redact)

    def cpu_s(count: int) -> float:
        began = time.process_time()
        for _ in range(count):
            stream.write(piece)
            if flush:
                stream.flush()
        return time.process_time() - began

    cpu_s(60)
    first_s = cpu_s(40)
    cpu_s(600)
    assert min(cpu_s(40) for _ in range(3)) < 5 * first_s + 0.1


def with_own_stream(stream: TextIO, text: str) -> None:
    own = io.TextIOWrapper(stream.buffer, encoding="utf-8", line_buffering=True)
    own.write(text)
    own.detach()


def logged(stream: TextIO, text: str) -> None:
    handler = logging.StreamHandler(stream)
    for line in text.splitlines():
        handler.emit(logging.LogRecord("x", logging.INFO, "", 1, line, None, None))


HOW: dict[str, Callable[[TextIO, str], None]] = {
    "print": lambda stream, text: print(text, end="", file=stream),
    "lines": lambda stream, text: stream.writelines(text.splitlines(keepends=True)),
    "codecs": lambda stream, text: codecs.getwriter("utf-8")(stream.buffer).write(text),
    "a text stream of its own": with_own_stream,
    "logging": logged,
}


@pytest.mark.parametrize("how", HOW)
def test_no_way_to_write_to_a_stream_passes_a_key(how: str) -> None:
    out = io.StringIO()
    stream = Guarded(out, redact)
    HOW[how](cast(TextIO, stream), RSA)
    stream.end()
    assert parts_in(out.getvalue(), RSA) == []


def test_a_rank_and_a_command_print_no_secret_in_pieces_and_lose_no_last_word(tmp_path: Path) -> None:
    body = (
        "import os, sys\n"
        "key, token = os.environ['PLACE'], os.environ['OTHER']\n"
        "for stream in (sys.stdout, sys.stderr):\n"
        "    for line in key.splitlines(): print(line, file=stream, flush=True)\n"
        "    stream.write(token[:7]); stream.flush(); stream.write(token[7:]); stream.flush()\n"
        "    stream.buffer.write(b'\\n' + token[:7].encode()); stream.flush()\n"
        "    stream.buffer.write(token[7:].encode())\n"
        "    stream.write('\\nlast word'); stream.flush()\n"
    )
    under = "print(' ' + os.environ['OTHER'], file=sys.__stdout__)\n"
    for guard, more in (("from jobs.output import outlive_full_disk as guard; guard()\n", under),
                        ("from jobs.output import guarded_streams; from jobs.secrets import redact\n"
                         "guard = guarded_streams(redact); guard.__enter__()\n",
                         "guard.__exit__(None, None, None)\n")):  # fmt: skip
        env = os.environ | {"PLACE": RSA, "OTHER": TOKEN, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", guard + body + more], env=env, cwd=tmp_path, capture_output=True,
                              text=True, check=True)  # fmt: skip
        for shown in (done.stdout, done.stderr):
            assert parts_in(shown, RSA + TOKEN) == []
            assert "last word" in shown
            assert shown.count(REDACTED) >= 3
