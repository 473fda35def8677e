"""Programs that need GPUs or a case of many gigabytes: stand-ins print what the organisers and vendors publish."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.load.run_directory import read_run
from jobs.rundir import RunDir
from tests.support.real_run import make_run, printed, train

# Rules of the Student Cluster Competition at SC25.
HPL_MXP = """\
||Ax-b||_oo / (EPS * (||A||_oo * ||x||_oo + ||b||_oo) * N) =    5.599413E-04 ...... PASSED
  N = 258048, NB = 1024, NPROW = 4, NPCOL = 2, SLOPPY-TYPE = 2
     GFLOPS = 4.3468e+05, per GPU =   54335.58 ------ The HPL-MxP performance to report
  LU GFLOPS = 2.4940e+06, per GPU =  311748.98 ------ The performance excluding the iterative solver part
"""
# Application notes of APAC HPC-AI 2025.
SGLANG = """\
====== Offline Throughput Benchmark Result =======
Backend:                                 engine
Successful requests:                     2000
Output token throughput (tok/s):         2254.91
Total token throughput (tok/s):          5890.80
"""
# The organisers' log of APAC HPC-AI 2024, 32 nodes of NCI Gadi.
HOOMD = """\
Running MDPairWCA benchmark
.. warming up for 40000 steps
.. running for 80000 steps 1 time(s)
.. 5863.37070963423 time steps per second
5863.37070963423
"""
# A record's last lines.
SPEEDRUN = """\
step:0/1385 val_loss:10.8312 train_time:0ms step_avg:0.00ms
step:1384/1385 train_time:84368ms step_avg:60.96ms
step:1385/1385 val_loss:3.2791 train_time:84429ms step_avg:60.96ms
"""
# A record of nanochat's leaderboard, by the words of its scripts.base_train.
NANOCHAT = """\
step 12699/12700 (99.99%) | loss: 2.401234 | lrm: 0.05 | dt: 706.11ms | tok/sec: 742,500 | bf16_mfu: 60.00 | total: 149m
Step 12700 | CORE metric: 0.2626
Peak memory usage: 70042.11MiB
Total training time: 149.45m
Minimum validation bpb: 0.750008
"""


def stand_in(file: Path, text: str) -> Path:
    """Write a program that prints the text."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    file.chmod(0o755)
    return file


def values_of(run: RunDir) -> dict[str, float]:
    assert train(run) == [0], printed(run)
    run.plan.write_text("{}")
    found = read_run(run.path)
    assert found.used, found.reason
    return {metric.name: value for metric, value in found.values.items()}


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "parameter", "text", "expected"),
    [
        ("hpl_mxp", "mpirun", HPL_MXP, {"hpl_mxp_flops": 4.3468e14, "lu_flops": 2.494e15, "residual": 5.599413e-4}),
        ("sglang_offline", "python", SGLANG,
         {"total_tokens_per_s": 5890.8, "output_tokens_per_s": 2254.91, "requests_completed": 2000}),
        ("hoomd", "mpirun", HOOMD, {"time_steps_per_s": 5863.37070963423}),
        ("modded_nanogpt", "python", SPEEDRUN, {"validation_loss": 3.2791, "speedrun_time_s": 84.429}),
        ("nanochat", "python", NANOCHAT,
         {"core_metric": 0.2626, "validation_bits_per_byte": 0.750008, "speedrun_time_s": 8967}),
    ],
)  # fmt: skip
def test_published_output_is_read(
    program: str, parameter: str, text: str, expected: dict[str, float], tmp_path: Path
) -> None:
    stand_in(tmp_path / "program", text)
    (tmp_path / "train_gpt.py").touch()
    directory = {"modded_nanogpt": "repository", "nanochat": "repository", "hoomd": "benchmarks"}
    own = (f"program.params.{directory[program]}={tmp_path}",) if program in directory else ()
    run = make_run(
        tmp_path, "job=program", f"program={program}", f"program.params.{parameter}={tmp_path}/program",
        "ranks_per_node=1", *own, small=False,
    )  # fmt: skip
    values = values_of(run)
    assert {name: values[name] for name in expected} == pytest.approx(expected)


CASE_DEFINITION = "nCores          416;\n\ndecompositionMethod hierarchical;\n\nnHierarchical   ( 13 8 4 );\n"
CHAIN = (
    "decomposePar -constant", "restore0Dir -processor", "renumberMesh -constant -overwrite",
    "potentialFoam -initialiseUBCs", "applyBoundaryLayer -ybl 0.0450244", "simpleFoam",
)  # fmt: skip
FOAM = """\
#!/bin/sh
echo "$(basename "$0") $*" | sed 's/ $//' >>chain
"""
SOLVED = """\
mkdir -p postProcessing/forceCoeffsAll/0
printf '# Time\\tCd\\n150                     \\t2.8998463838634941e-01\\t1.0e-01\\n' >coefficient.dat
mv coefficient.dat postProcessing/forceCoeffsAll/0
echo "Time = 150"
echo "GAMG:  Solving for p, Initial residual = 0.0036, Final residual = 7.1e-05, No Iterations 12"
echo "time step continuity errors : sum local = 7.4e-05, global = -3.1e-06, cumulative = -5.4e-05"
echo "ExecutionTime = 350.2 s  ClockTime = 365 s"
echo "    Average wall-clock time per time step = 2.379600209503355"
"""


@pytest.mark.long
def test_the_openfoam_contest_follows_the_official_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, programs = tmp_path / "case", tmp_path / "bin"
    (case / "system/include").mkdir(parents=True)
    (case / "system/include/caseDefinition").write_text(CASE_DEFINITION)
    (case / "system/fvSolution.fixedIter").write_text("fixed")
    (case / "system/controlDict.noWrite").write_text("endTime         400;\nwriteInterval 400;\n")
    programs.mkdir()
    for line in CHAIN:
        name = line.split()[0]
        program = programs / name
        program.write_text(FOAM + (SOLVED if name == "simpleFoam" else ""))
        program.chmod(0o755)
    functions = tmp_path / "foam/bin/tools/RunFunctions"
    functions.parent.mkdir(parents=True)
    functions.touch()
    monkeypatch.setenv("WM_PROJECT_DIR", str(tmp_path / "foam"))
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    run = make_run(
        tmp_path, "+experiment=apac_hpc_ai_2026_openfoam", f"program.params.case={case}", "contest.nodes=1", "nodes=1",
        "ranks_per_node=1", "program.params.method=scotch", small=False,
    )  # fmt: skip
    values = values_of(RunDir(run.path))
    assert (values["step_time_s"], values["drag"]) == pytest.approx((2.3796002, 0.28998464))
    assert (run.work / "chain").read_text().splitlines() == [*CHAIN]
    assert "endTime 150;" in (run.work / "system/controlDict").read_text()
    changed = (run.work / "system/include/caseDefinition").read_text().split("\n\n")
    assert [line.strip() for line in changed] == [
        "nCores 1;", "decompositionMethod scotch;", "nHierarchical (1 1 1);",
    ]  # fmt: skip
