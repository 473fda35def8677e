"""Passwords, tokens and keys: one planted anywhere is in no file; and nobody else can change a sweep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.run_events import run_events
from jobs.rundir import SweepDir
from jobs.secrets import REDACTED, redact
from tests.support.cli import files, printed, run_cli, small
from tests.support.paths import ROOT

HUB = "hf_" + "pLanted" * 4
PLAIN = "planted-plain-words"
FETCHED = "planted-and-fetched"


@pytest.mark.slow
def test_secrets_planted_everywhere_are_in_no_file_of_the_sweep(tmp_path: Path) -> None:
    # The module in place of torch fails with an error that quotes the environment, as a client of a hub may.
    (tmp_path / "fake/torch").mkdir(parents=True)
    (tmp_path / "fake/key").write_text(FETCHED)
    (tmp_path / "fake/torch/__init__.py").write_text(
        "import os, pathlib\n"
        "key = (pathlib.Path(__file__).parent.parent / 'key').read_text()\n"
        "try:\n    {}['token=' + key]\n"
        "except KeyError as e:\n"
        "    raise RuntimeError('401 for ' + os.environ['MY_SECRET'] + ', api_key=' + key) from e\n"
    )
    done = run_cli(
        "submit", "--wait", *small(tmp_path), "ranks_per_node=1",
        f"job.init_from={HUB}", "job.init_from=null", f"data.path=https://me:{PLAIN}@host/x", "data.path=null",
        MY_SECRET=PLAIN, PYTHONPATH=f"{tmp_path / 'fake'}:{ROOT}",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    sweep = SweepDir(tmp_path / "s")
    (run,) = sweep.runs()
    failed = [event for event in run_events(run) if event["event"] == "failed"]
    assert failed[0]["error"] == f"RuntimeError: 401 for {REDACTED}, api_key={REDACTED}"
    logs = "".join(file.read_text() for file in sweep.logs.glob("*_log.out"))
    assert f"RuntimeError: 401 for {REDACTED}" in logs
    facts = json.loads(run.provenance.read_text())
    assert f"job.init_from={REDACTED}" in facts["command"]
    assert f"data.path=https://{REDACTED}@host/x" in facts["overrides"]
    kept = [file for file in sweep.path.rglob("*") if file.is_file() and "code-" not in str(file)]
    assert any(file.suffix == ".pkl" for file in kept)
    for file in kept:
        for secret in (HUB, PLAIN, FETCHED):
            assert secret.encode() not in file.read_bytes(), file
    assert PLAIN not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("override", "key"),
    [
        (f"cluster.env={{HF_TOKEN: {PLAIN}}}", "cluster.env.HF_TOKEN"),
        (f"cluster.env={{WANDB_API_KEY: {PLAIN}}}", "cluster.env.WANDB_API_KEY"),
        (f"cluster.env={{AWS_SECRET_ACCESS_KEY: {PLAIN}}}", "cluster.env.AWS_SECRET_ACCESS_KEY"),
        (f"cluster.env={{PGPASSWORD: {PLAIN}}}", "cluster.env.PGPASSWORD"),
        (f"cluster.env={{OTHER: {HUB}}}", "cluster.env.OTHER"),
        ("cluster.env={OTHER: '${oc.env:MY_SECRET}'}", "cluster.env.OTHER"),
        (f"cluster.env={{HTTPS_PROXY: 'http://me:{PLAIN}@proxy:8080'}}", "cluster.env.HTTPS_PROXY"),
        (f"cluster.setup=['export HF_TOKEN={PLAIN}']", "cluster.setup"),
        (f"cluster.sbatch={{comment: {HUB}}}", "cluster.sbatch.comment"),
        (f"data.path='s3://AKIA{'A' * 16}@bucket/x'", "data.path"),
        (f"name={HUB}", "name"),
    ],
)
def test_a_secret_in_the_configuration_is_refused_unseen(
    override: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", PLAIN)
    for command in ("plan", "submit"):
        assert main([command, "launcher=dry", "cluster=generic_slurm", override, f"runs_dir={tmp_path}"]) == 2
        shown = printed(capsys)
        assert f"{key} contains a password, token or key, and would be written to config.yaml" in shown
        assert "Remove it: Slurm's jobs inherit the environment of the shell that submits." in shown
        assert PLAIN not in shown
        assert HUB not in shown
        assert ("://" in override) == (f"://{REDACTED}@" in shown)
    assert files(tmp_path) == set()


def test_what_only_states_where_a_secret_is_or_looks_a_little_like_one_is_taken(tmp_path: Path) -> None:
    assert main(["submit", "launcher=dry", "cluster=generic_slurm", f"runs_dir={tmp_path}",
                 "cluster.setup=['source ~/.secrets','export HF_TOKEN=$(cat ~/.hf)','export A_KEY=\"$B\"']",
                 "cluster.env={TOKENIZERS_PARALLELISM: 'false', HF_TOKEN_PATH: /home/me/token, "
                 "GOOGLE_APPLICATION_CREDENTIALS: /home/me/x.json, MASTER: 'tcp://host:1234'}"]) == 0  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        f"HF_TOKEN={PLAIN}",
        f"env={{HF_TOKEN:{PLAIN}}}",
        f"{{'api_key': '{PLAIN}'}}",
        f'{{"password": "{PLAIN}"}}',
        f"hf login --token {PLAIN}",
        f'export WANDB_API_KEY="{PLAIN} and more"',
        f"https://me:{PLAIN}@host/path",
        f"Authorization: Bearer {PLAIN}",
        f"seen {HUB} there",
        f"sk-{PLAIN}",
        "key AKIA" + "ABCD" * 4,
        "ghp_" + "a1" * 18,
        "github_pat_" + "a1" * 18,
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2ln",
        f"-----BEGIN RSA PRIVATE KEY-----\n{PLAIN.replace('-', '')}\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_every_shape_of_secret_is_replaced(text: str) -> None:
    shown = redact(text)
    assert REDACTED in shown
    for secret in (PLAIN, PLAIN.replace("-", ""), HUB, "ABCDABCD", "a1a1a1", "eyJ", "and more"):
        assert secret not in shown
    assert redact(shown) == shown


@pytest.mark.parametrize(
    "text",
    ["tokens=512 tokenizer=/data/t.json", "sort_key: name", "key: cluster.partition", "risk-free and asynchronous",
     "commit 3fcf33a9d8f3c4b6a1e2d3c4b5a697887766554433", "http://host:8080/x@y", "password", "token",
     "experts_per_token: 2\n", "model.experts=4 model.experts_per_token=2"],
)  # fmt: skip
def test_ordinary_words_stay(text: str) -> None:
    assert redact(text) == text
