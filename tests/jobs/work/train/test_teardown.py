"""The end of a rank's process after its work: a destructor that never returns does not keep it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from tests.support.waiting import limit_s

# pause(2) as a destructor of C: it waits for ever, and no Python thread runs any more.
HANGS = """
import ctypes, sys
from jobs.run import end_at_last
libc = ctypes.CDLL(None)
assert getattr(libc, "__cxa_atexit")(ctypes.cast(libc.pause, ctypes.c_void_p), None, None) == 0
print("the work is done")
end_at_last({code}, within_s={within_s})
sys.exit({code})
"""


@pytest.mark.parametrize("code", [0, 1, 75])
def test_a_rank_whose_teardown_hangs_ends_with_the_code_of_its_work(code: int) -> None:
    program = HANGS.format(code=code, within_s=1)
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=limit_s(60)
    )
    assert (ended.returncode, ended.stdout) == (code, "the work is done\n")
