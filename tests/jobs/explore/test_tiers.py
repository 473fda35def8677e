"""Tiers of a contest: the plainest one that allows every change of an attempt, and refusals of prohibited keys."""

from __future__ import annotations

import pytest

from jobs.errors import ConfigError
from jobs.explore.campaign.tiers import tier_of

TIERS = {"basic": ["program.params.nb", "parallelism"], "bonus": ["program.env.*", "job.*", "code"], "free": []}


@pytest.mark.parametrize(
    ("changes", "changed_code", "tier"),
    [
        ([], False, "basic"),
        (["program.params.nb=64", "parallelism=fsdp_full", "parallelism.tensor=2"], False, "basic"),
        (["program.params.nb=64", "+program.env.OMP_NUM_THREADS=4"], False, "bonus"),
        (["job.batching=packed", "~job.lora"], False, "bonus"),
        (["parallelism=ddp"], True, "bonus"),
    ],
)
def test_an_attempt_is_of_the_plainest_tier_that_allows_all_its_changes(
    changes: list[str], changed_code: bool, tier: str
) -> None:
    assert tier_of(changes, TIERS, changed_code=changed_code) == tier
    assert tier_of(changes, {}, changed_code=changed_code) is None, "a contest without tiers"


@pytest.mark.parametrize(
    ("changes", "changed_code", "what"),
    [
        (["program.params.n=9"], False, "program.params.n"),
        (["program.params.nb=64", "engine.compile=true"], False, "engine.compile"),
        (["parallelisms=ddp"], False, "parallelisms"),
    ],
)
def test_a_key_of_no_tier_is_refused_with_the_keys_of_each(changes: list[str], changed_code: bool, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tier_of(changes, TIERS, changed_code=changed_code)
    assert str(caught.value) == (
        f"{what} is prohibited: no tier of the contest allows it (basic: program.params.nb, parallelism; bonus: "
        f"program.env.*, job.*, code; free: nothing; each tier also allows what stands before it). Leave {what} out."
    )


def test_changed_code_is_refused_where_no_tier_has_it() -> None:
    with pytest.raises(ConfigError, match=r"^--changed-code is prohibited: no tier of the contest allows it"):
        tier_of([], {"basic": ["job.*"]}, changed_code=True)
