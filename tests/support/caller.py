"""A scripted caller of the guides of `slurmscale skills`: it knows a guide and the replies to --json, and nothing else.

It types only commands that the guide of its task names, or that a reply proposes, and reads only replies and the files
that they name. It cancels and removes nothing unless the task says so.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT
from tests.support.waiting import limit_s

DESTRUCTIVE = {"cancel", "remove"}


class Caller:
    """Types commands of a guide in a directory, and reads the replies."""

    def __init__(self, guide: str, place: Path, *, may: frozenset[str] = frozenset()) -> None:
        self.place, self.may, self.site = place, may, place / "site"
        self.replies: list[dict[str, Any]] = []
        text = self.run(f"skills {guide} --json")["result"]["skills"][0]["text"]
        self.verbs = set(re.findall(r"slurmscale ([a-z]+)", text))

    def ask(self, line: str, code: int = 0) -> dict[str, Any]:
        """Return the reply to a command, which ends with this code."""
        verb = line.split(maxsplit=1)[0]
        proposed = {each.split()[1] for reply in self.replies for each in reply["next_commands"]}
        assert verb in self.verbs | proposed, f"the guide does not name {verb}"
        assert verb not in DESTRUCTIVE - self.may, f"nobody asked for {verb}"
        reply = self.run(f"{line} --json")
        assert reply["exit_code"] == code, reply["refusal"] or reply["result"]
        return reply

    def run(self, line: str) -> dict[str, Any]:
        """Run a command."""
        done = subprocess.run(
            [sys.executable, str(ROOT / "slurmscale.py"), *shlex.split(line)],
            cwd=self.place,
            env=os.environ | {"SLURMSCALE_SITE": str(self.site)} if self.site.exists() else None,
            capture_output=True,
            text=True,
            timeout=limit_s(400),
            check=False,
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1] if "--follow" in line else done.stdout)
        self.replies.append(found)
        return found

    def mended(self, line: str) -> str:
        """Return the line with the first remedies of its refusals, until it is legal."""
        for _ in range(5):
            reply = self.run(f"{line} --json")
            if reply["refusal"] is None:
                return line
            first = reply["refusal"]["remedies"][0]
            keys = {word.partition("=")[0] for word in line.split()} & set(first)
            kept = [word for word in line.split() if word.partition("=")[0] not in keys]
            line = " ".join([*kept, *(f"{key}={value}" for key, value in first.items())])
        raise AssertionError(f"not legal after five remedies: {line}")
