"""The programs of conf/program: each is planned, and those that packages bring run for real on CPU ranks."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from analysis.load.run_directory import read_run
from analysis.report.report import report
from analysis.run import RunResult
from jobs import metrics as m
from jobs.errors import ConfigError
from jobs.rundir import RunDir
from jobs.work.program.placeholders import known_values, words_of
from jobs.work.program.substitution import text_of
from jobs.work.work import work_of
from tests.support.composing import CONF, one, options
from tests.support.real_run import FORK, make_run, printed, rank, train
from tests.support.required import python_of, skip_or_fail
from tests.support.serving import model_directory, vllm_python, with_random_weights
from tests.support.waiting import wait_until

MOST_LINES = 60
TRAINER = """\
import torch
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.set_num_threads(1)
(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
torch.manual_seed(arguments.seed)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=320, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2,
))
rows = torch.randint(0, 320, (64, 32), generator=torch.Generator().manual_seed(1))
Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows]).train(
    resume_from_checkpoint=arguments.resume_from_checkpoint
)
"""

LIGHTNING = """\
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI

torch.set_num_threads(1)


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-2)


class Data(LightningDataModule):
    def train_dataloader(self):
        x = torch.randn(4096, 8, generator=torch.Generator().manual_seed(1))
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), 4)


LightningCLI(Model, Data)
"""

REPLICA = """\
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
model, _, host, _, port = sys.argv[1:6]
class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        print("answered for", model, flush=True)
        self.do_GET()
ThreadingHTTPServer((host, int(port)), Answer).serve_forever()
"""
REQUESTS = """\
import json, sys, time, urllib.request
options = dict(zip(sys.argv[1:-1], sys.argv[2:]))
requests, began = int(options["--num-prompts"]), time.monotonic()
for _ in range(requests):
    urllib.request.urlopen(options["--base-url"] + options["--endpoint"], b"{}").read()
rate = requests / (time.monotonic() - began)
rates = {"request_throughput": rate, "request_goodput": rate / 2, "output_throughput": 128 * rate}
json.dump({"completed": requests, "p99_ttft_ms": 5, "p99_tpot_ms": 2, **rates}, open("result.json", "w"))
"""


@pytest.mark.parametrize("name", options("program"))
def test_every_shipped_program_is_a_short_file_that_is_planned(name: str) -> None:
    text = (CONF / f"program/{name}.yaml").read_text()
    assert len(text.splitlines()) <= MOST_LINES
    run = one("job=program", f"program={name}", "nodes=2").run
    assert run.program is not None
    assert run.program.about
    assert set(run.program.params) == set(run.program.parameters), "each parameter has its meaning"
    assert all(text for _, text in work_of(run).notes(run))


def test_rows_are_as_long_as_the_model_allows_whose_keys_a_program_takes() -> None:
    assert one("job=program", "program=torchtitan", "job.sequence_length=8192").run.job.sequence_length == 8192
    with pytest.raises(ConfigError, match=r"longer than tiny allows \(model.max_sequence_length=512\)"):
        one("job=program", "program=megatron_lm", "model=tiny", "job.sequence_length=8192")


def prepare_solver(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the test without an MPI program of Debian's; let Open MPI start it for root."""
    if not (shutil.which(program) and shutil.which("mpirun")):
        skip_or_fail(f"{program} and mpirun are not installed: tests/install.sh solvers")
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")


def started(run: RunDir, ranks: int) -> None:
    assert train(run) == [0] * ranks, printed(run)
    run.plan.write_text("{}")


def killed_and_continued(run: RunDir, ranks: int, checkpoint: str, step: str = "train") -> RunResult:
    """A run whose ranks are killed when a checkpoint exists, and that is then started again."""
    first = [FORK.Process(target=rank, args=(run.path, number, ranks, "first")) for number in range(ranks)]
    for process in first:
        process.start()
    wait_until(lambda: list(run.work.glob(checkpoint)))
    # A stopped rank does not notice that another one is gone.
    for process in first:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
    for process in first:
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    started(run, ranks)
    assert f"step {step} continues from" in printed(run)
    found = read_run(run.path)
    assert found.attempts == 2
    return found


@pytest.mark.long
def test_vllm_serves_its_own_load_as_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_random_weights(model_directory(tmp_path / "model"))
    for name, value in {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}.items():
        monkeypatch.setenv(name, value)
    run = make_run(
        tmp_path, "job=program", "program=vllm", "ranks_per_node=1", f"program.params.python={vllm_python()}",
        f"program.params.model={model}", "program.params.requests=8", "program.params.concurrency=2",
        "program.params.input_tokens=16", "program.params.output_tokens=4",
        "program.params.server_options=--enforce-eager --max-model-len 128 --gpu-memory-utilization 0.2",
        "program.params.load_options=--goodput ttft:100000 tpot:100000", small=False,
    )  # fmt: skip
    started(run, 1)
    found = read_run(run.path)
    assert found.used, found.reason
    values = {metric.name: value for metric, value in found.values.items()}
    assert values["requests_completed"] == 8
    assert values["output_tokens_per_s"] == pytest.approx(4 * values["requests_per_s"], rel=0.01)
    assert values["good_request_share"] == pytest.approx(1)
    assert values["server_startup_time_s"] > 0


def test_nginx_spreads_a_load_over_the_replicas_of_all_nodes(tmp_path: Path) -> None:
    if shutil.which("nginx") is None:
        skip_or_fail("nginx is not installed: run tests/install.sh serving")
    for name, text in {"replica.py": REPLICA, "requests.py": REQUESTS}.items():
        (tmp_path / name).write_text(text)
    run = make_run(
        tmp_path, "job=program", "program=openai_replicas", "nodes=2", "ranks_per_node=1", "program.params.model=tiny",
        f'program.params.server="{sys.executable} {tmp_path}/replica.py"', "program.params.requests=20",
        f'program.params.load="{sys.executable} {tmp_path}/requests.py"', small=False,
    )  # fmt: skip
    started(run, 2)
    for replica in range(2):
        assert run.program_log("replica", replica).read_text().count("answered for tiny\n") == 10
    found = read_run(run.path)
    assert found.used, found.reason
    values = {metric.name: value for metric, value in found.values.items()}
    assert values["output_tokens_per_s"] == pytest.approx(128 * values["requests_per_s"])
    assert values["requests_completed"] == 20
    assert values["good_request_share"] == pytest.approx(0.5)
    assert values["time_to_first_token_p99_s"] == 0.005
    assert values["time_per_output_token_p99_s"] == 0.002


@pytest.mark.long
def test_lammps_scales_and_its_gates_reject_lists_that_are_built_too_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_solver("lmp", monkeypatch)
    chosen = ("job=program", "program=lammps", "program.params.n=8", "program.params.steps=200")
    for ranks in (1, 2):
        for every in (20, 100):
            run = make_run(
                tmp_path, *chosen, "program.params.mpirun=mpirun --oversubscribe", f"ranks_per_node={ranks}",
                f"program.params.every={every}", f"name=r{ranks}-{every}", "program.gates.kept.at_least=-4.625",
                small=False,
            )  # fmt: skip
            started(run, ranks)
            found = read_run(run.path)
            assert found.used is (every == 20), found.reason
            if every == 100:
                assert "it misses the gate kept: energy_lowest is -4.6" in str(found.reason)
    report([tmp_path / "test"], tmp_path / "report")
    page = (tmp_path / "report/report.md").read_text()
    assert re.search(r"CPU: lammps .* from 1 to 2 ranks \(.* % efficiency, strong scaling, one run each", page)


@pytest.mark.long
def test_hpc_challenge_solves_on_one_and_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_solver("hpcc", monkeypatch)
    chosen = ("job=program", "program=hpcc", "program.params.n=200", "program.params.mpirun=mpirun --oversubscribe")
    for ranks in (1, 2):
        for block in (32, 64):
            run = make_run(
                tmp_path, *chosen, f"ranks_per_node={ranks}", f"program.params.nb={block}", f"name=r{ranks}-{block}",
                small=False,
            )  # fmt: skip
            started(run, ranks)
            found = read_run(run.path)
            assert found.used, found.reason
            values = {metric.name: value for metric, value in found.values.items()}
            assert values["success"] == 1
            assert 0 < values["hpl_residual"] < 16
            assert ("ring_bytes_per_s" in values) is (ranks == 2), "one rank has no ring"
    report([tmp_path / "test"], tmp_path / "report")
    page = (tmp_path / "report/report.md").read_text()
    assert re.search(
        r"CPU: hpcc with nb=(32|64) .* from 1 to 2 ranks \(.* % efficiency, strong scaling, one run each", page
    )
    assert "GFLOP/s (hpl flops)" in page


@pytest.mark.long
def test_gromacs_scales_and_is_killed_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_solver("gmx_mpi", monkeypatch)
    chosen = (
        "job=program", "program=gromacs", "program.params.mpirun=mpirun --oversubscribe", "program.params.box_nm=2.5",
        # A short run has not lost the energy of its start.
        "program.params.steps=1000", "program.gates.conserved.at_most=0.05",
    )  # fmt: skip
    for ranks in (1, 2):
        run = make_run(tmp_path, *chosen, f"ranks_per_node={ranks}", f"name=r{ranks}", small=False)
        started(run, ranks)
        found = read_run(run.path)
        assert found.used, found.reason
    report([tmp_path / "test"], tmp_path / "report")
    page = (tmp_path / "report/report.md").read_text()
    assert re.search(r"CPU: gromacs .* from 1 to 2 ranks \(.* % efficiency, strong scaling, one run each", page)
    often = ("program.params.steps=20000", "program.params.checkpoint_min=0.02")
    run = make_run(tmp_path / "killed", *chosen, *often, "ranks_per_node=1", small=False)
    found = killed_and_continued(run, 1, "dynamics.cpt", step="dynamics")
    assert found.used, found.reason


@pytest.mark.long
def test_openfoam_divides_a_case_solves_it_and_puts_it_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_solver("simpleFoam", monkeypatch)
    monkeypatch.setenv("WM_PROJECT_DIR", "/usr/share/openfoam")
    case = Path("/usr/share/doc/openfoam-examples/examples/incompressible/simpleFoam/pitzDaily")
    for ranks in (1, 2):
        run = make_run(
            tmp_path, "job=program", "program=openfoam", f"program.params.case={case}", "program.params.end=100",
            "program.params.mpirun=mpirun --oversubscribe", f"ranks_per_node={ranks}", f"name=r{ranks}", small=False,
        )  # fmt: skip
        started(run, ranks)
        found = read_run(run.path)
        assert found.used, found.reason
        assert {metric.name: value for metric, value in found.values.items()}["last_time"] == 100
        assert (run.work / "100/p").exists() or (run.work / "100/p.gz").exists()
    report([tmp_path / "test"], tmp_path / "report")
    page = (tmp_path / "report/report.md").read_text()
    assert re.search(r"CPU: openfoam .* from 1 to 2 ranks \(.* % efficiency, strong scaling, one run each", page)
    short = make_run(
        tmp_path / "short", "job=program", "program=openfoam", f"program.params.case={case}", "program.params.end=2",
        "ranks_per_node=1", small=False,
    )  # fmt: skip
    started(short, 1)
    assert read_run(short.path).state == "gate missed", "two iterations are no solution"


WATER = """\
start water
geometry units angstrom
  O 0.0 0.0 0.117790
  H 0.0 0.755453 -0.471161
  H 0.0 -0.755453 -0.471161
end
basis "ao basis" spherical noprint
  * library cc-pvdz
end
dft
  direct
  xc b3lyp
  iterations {iterations}
end
task dft energy
"""


@pytest.mark.long
def test_nwchem_scales_and_a_calculation_that_does_not_converge_counts_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_solver("nwchem", monkeypatch)
    for iterations, name in ((50, "water"), (2, "short")):
        (tmp_path / f"{name}.nw").write_text(WATER.format(iterations=iterations))

    def computed(name: str, ranks: int, *more: str) -> RunResult:
        run = make_run(
            tmp_path, "job=program", "program=nwchem", f"program.params.input={tmp_path}/{name}.nw",
            "program.params.mpirun=mpirun --oversubscribe", f"ranks_per_node={ranks}", f"name={name}{ranks}", *more,
            small=False,
        )  # fmt: skip
        train(run)
        run.plan.write_text("{}")
        return read_run(run.path)

    for ranks in (1, 2):
        found = computed("water", ranks)
        assert found.used, found.reason
        values = {metric.name: value for metric, value in found.values.items()}
        assert values["energy_hartree"] == pytest.approx(-76.42039, abs=1e-4)
    report([tmp_path / "test"], tmp_path / "report")
    page = (tmp_path / "report/report.md").read_text()
    assert re.search(r"CPU: nwchem .* from 1 to 2 ranks \(.* % efficiency, strong scaling, one run each", page)
    assert not computed("short", 1).used


def trained(where: Path, ranks: int, *, steps: int = 12, save_steps: int = 4) -> RunDir:
    """A run of Hugging Face's Trainer on CPU ranks."""
    script = where / "train.py"
    script.write_text(TRAINER)
    return make_run(
        where, "job=program", "program=hf_trainer", f"program.params.script={script}", f"ranks_per_node={ranks}",
        f"program.params.python={sys.executable}", "program.params.backend=gloo", "program.params.use_cpu=true",
        "job.micro_batch_size=2", f"program.params.max_steps={steps}",
        f"program.params.save_steps={save_steps}", small=False,
    )  # fmt: skip


@pytest.mark.long
def test_two_ranks_of_hugging_faces_trainer_train_together_and_its_log_is_the_result(tmp_path: Path) -> None:
    run = trained(tmp_path, ranks=2)
    started(run, 2)
    found = read_run(run.path)
    assert found.used, found.reason
    assert found.plan["global_batch_size"] == 4
    assert len(found.losses) == 12
    apart = run.program_log("train", 0)
    apart.write_text("... but parallel_mode != ParallelMode.DISTRIBUTED. In order\n" + apart.read_text())
    assert read_run(run.path).state == "gate missed", "ranks that train alone are no result"


@pytest.mark.long
def test_a_script_of_hugging_face_is_killed_and_continues_from_its_checkpoint(tmp_path: Path) -> None:
    # One rank: this version's trainer cannot load a checkpoint of several CPU ranks.
    run = trained(tmp_path, ranks=1, steps=400, save_steps=20)
    found = killed_and_continued(run, 1, "output/checkpoint-20/trainer_state.json")
    # The trainer divides by all steps, those before the interruption included: its rates are no result.
    assert found.reason == "program.log: it reports neither step time nor throughput"


@pytest.mark.long
def test_two_ranks_of_a_lightning_script_are_killed_and_each_attempt_has_its_own_table(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LIGHTNING)
    run = make_run(
        tmp_path, "job=program", "program=lightning", f"program.params.script={script}", "ranks_per_node=2",
        f"program.params.python={sys.executable}", "program.params.accelerator=cpu", "program.params.precision=32-true",
        "program.params.max_steps=400", "program.params.save_steps=10", small=False,
    )  # fmt: skip
    # Lightning keeps the newest checkpoint only, and steps take milliseconds.
    found = killed_and_continued(run, 2, "checkpoints/*.ckpt")
    assert found.used, found.reason
    assert len(list(run.work.glob("csv/version_*/metrics.csv"))) == 2
    assert len(found.losses) >= 380, "the earlier attempt's steps count if its losses are those of the same work"
    assert found.losses[max(found.losses)] < found.losses[min(found.losses)]
    assert m.STEP_TIME_MEDIAN in found.values
    assert found.plan["global_batch_size"] == 8, "four samples of each rank"


@pytest.mark.long
def test_trl_is_killed_and_its_rate_is_that_of_the_last_start(tmp_path: Path) -> None:
    # One rank: a process of several may hang when it ends, since gloo and the GIL of PyTorch 2.13 wait for each other.
    python = python_of("trl")
    model = with_random_weights(model_directory(tmp_path / "model"))
    (tmp_path / "data").mkdir()
    rows = (json.dumps({"text": " ".join(["the cat sat on the mat"] * 4)}) for _ in range(64))
    (tmp_path / "data/train.jsonl").write_text("\n".join(rows))
    run = make_run(
        tmp_path, "job=program", "program=trl", f"program.params.model={model}",
        f"program.params.dataset={tmp_path}/data",
        f"program.params.python={python}", "program.params.backend=gloo", "program.params.use_cpu=true",
        "program.params.bf16=false", "job.micro_batch_size=2", "job.sequence_length=64", "program.params.max_steps=12",
        "program.params.save_steps=4", "ranks_per_node=1", small=False,
    )  # fmt: skip
    found = killed_and_continued(run, 1, "output/checkpoint-4/trainer_state.json")
    assert found.used, found.reason
    assert found.losses[max(found.losses)] < found.losses[min(found.losses)]
    values = {metric.name: value for metric, value in found.values.items()}
    tokens_of_a_step = 2 * 64
    assert 0 < values["trained_tokens_per_s"] * values["time_s"] <= 8 * tokens_of_a_step


@pytest.mark.long
def test_two_ranks_of_olmo_core_are_killed_and_continue(tmp_path: Path) -> None:
    python = python_of("olmo_core")
    tokens = array("I", random.Random(1).choices(range(1000), k=64 * 65))
    (tmp_path / "tokens.npy").write_bytes(tokens.tobytes())
    run = make_run(
        tmp_path, "job=program", "program=olmo_core", f"program.params.data={tmp_path}/tokens.npy",
        f"program.params.python={python}", "program.params.model=olmo2_1M", "program.params.autocast=float32",
        "program.params.compile=False", "program.params.max_steps=12", "program.params.save_steps=4",
        "program.params.global_batch_size=8", "job.micro_batch_size=2", "job.sequence_length=64", "ranks_per_node=2",
        small=False,
    )  # fmt: skip
    found = killed_and_continued(run, 2, "checkpoints/step4/.metadata.json")
    assert found.used, found.reason
    assert len(found.losses) == 12
    assert found.values[m.TOKENS_PER_S] == pytest.approx(2 * found.values[m.TOKENS_PER_S_PER_RANK], rel=0.01)


@pytest.mark.long
def test_maxtext_is_killed_and_continues_and_its_devices_are_the_ranks(tmp_path: Path) -> None:
    python = python_of("maxtext")
    shape = (
        "base_emb_dim=64 base_num_query_heads=4 base_num_kv_heads=2 base_mlp_dim=128 base_num_decoder_layers=2 "
        "head_dim=16 vocab_size=512 attention=dot_product"
    )
    run = make_run(
        tmp_path, "job=program", "program=maxtext", f"program.params.python={python}", "program.params.model=default",
        f"program.params.options='{shape}'", "program.params.hardware=cpu", "program.params.dtype=float32",
        "program.params.max_steps=30", "program.params.save_steps=4", "job.micro_batch_size=2",
        "job.sequence_length=64", "ranks_per_node=2", small=False,
    )  # fmt: skip
    found = killed_and_continued(run, 2, "train/checkpoints/4/commit_success.txt")
    assert found.used, found.reason
    assert len(found.losses) >= 29, "its last step before the end is not printed yet"
    assert found.losses[30] < found.losses[1]
    assert (found.ranks, found.plan["global_batch_size"]) == (2, 4)
    assert found.values[m.TOKENS_PER_S] == pytest.approx(2 * found.values[m.TOKENS_PER_S_PER_RANK], rel=0.01)


def options_of(*overrides: str) -> list[str]:
    """Return the words of the only step of a program behind its Python."""
    run = one("job=program", *overrides).run
    assert run.program is not None
    values = known_values(run)
    return [text_of(word, values) for word in words_of(run.program, run.program.steps["train"].command)][1:]


@pytest.mark.long
def test_torchtitan_itself_understands_the_options_of_its_program_file() -> None:
    # It trains on GPUs only.
    python = python_of("torchtitan")
    words = options_of("program=torchtitan", "program.params.config=llama3_debugmodel", "job.sequence_length=64")
    assert words[:2] == ["-m", "torchtitan.train"]
    parse = (
        "import sys; from torchtitan.config import ConfigManager; given = ConfigManager().parse_args(sys.argv[1:]);"
        "print(given.training.steps, given.training.seq_len, given.checkpoint.enable, given.debug.seed)"
    )
    done = subprocess.run([python, "-c", parse, *words[2:]], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "50 64 True 1234"


@pytest.mark.long
def test_megatron_lm_itself_understands_the_options_of_its_program_file() -> None:
    # It trains on GPUs only.
    python = python_of("megatron", "megatron.training")
    words = options_of(
        "program=megatron_lm", "model=llama3_8b", "parallelism=tp_pp", "parallelism.tensor=8", "parallelism.pipeline=2",
        "nodes=2", "ranks_per_node=8", "job.sequence_length=8192",
    )  # fmt: skip
    assert words[0].endswith("/pretrain_gpt.py")
    parse = (
        "from megatron.training.arguments import parse_args; given = parse_args(); print("
        "given.num_layers, given.tensor_model_parallel_size, given.seq_length, given.train_iters, given.mock_data)"
    )
    done = subprocess.run([python, "-c", parse, *words[1:]], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "32 8 8192 50 True"
