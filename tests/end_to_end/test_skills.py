"""The guides of `slurmscale skills`: twenty tasks, done by a caller that knows only a guide and the replies to --json.

These are done on this machine; tests/end_to_end/test_skills_on_slurm.py has further ones on a real Slurm.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.support.caller import Caller
from tests.support.fake_runs import a_run, ended, finished_run, prepared, started
from tests.support.training import long

TINY = "model=tiny data=random job.sequence_length=32 job.micro_batch_size=1 job.steps=4 launcher=local"
ONE = f"{TINY} ranks_per_node=1"
TITAN = "".join(
    f"[titan] 2026-03-04 05:0{n}:10,505 - root - INFO - step:  {n}  loss:  {9 - n}.5  memory: 12.5GiB(15.75%)  "
    f"tps: {speed}  tflops: 100.0  mfu: 30.00%\n"
    for n, speed in enumerate((900, 1000, 1001, 999, 1000), 1)
)


def failed(place: Path, name: str, cause: str, error: str) -> None:
    """Write a run that failed into the sweep `first`."""
    run = a_run(name)
    directory = prepared(place / "runs/first", run, overrides=["model=tiny"])
    started(directory, run)
    ended(directory, "failed", step=3, error=error, cause=cause)


def rows(file: Path) -> list[dict[str, str]]:
    """Return the rows of a table."""
    return list(csv.DictReader(file.read_text().splitlines()))


# --- scale-a-model ---------------------------------------------------------------------------------------------


def plans_a_sweep(place: Path) -> None:
    reply = Caller("scale-a-model", place).ask("plan -m model=tiny nodes=1,2 parallelism=ddp")
    assert [each["nodes"] for each in reply["result"]["runs"]] == [1, 2]


def mends_a_plan_by_its_remedies(place: Path) -> None:
    caller = Caller("scale-a-model", place)
    line = caller.mended(
        "plan cluster=xe9680_h100 model=llama2_7b ranks_per_node=16 parallelism=tp parallelism.tensor=3"
    )
    assert caller.ask(line)["result"]["runs"]


def asks_for_an_account_and_does_not_invent_one(place: Path) -> None:
    caller = Caller("scale-a-model", place)
    assert caller.ask("plan cluster=gadi_gpuvolta")["result"]["unset"] == ["cluster.account"]
    assert "cluster.account" in caller.ask("submit cluster=gadi_gpuvolta", code=2)["refusal"]["message"]
    assert not (place / "runs").exists()


def measures_a_speed_up_and_says_what_the_headline_says(place: Path) -> None:
    caller = Caller("scale-a-model", place)
    sweep = caller.ask(f"submit -m {TINY} ranks_per_node=1,2 scaling.global_batch_size=4 sweep=scaling --wait")
    assert sweep["result"]["counts"] == {"finished": 2}
    reply = caller.ask(sweep["next_commands"][1].removeprefix("slurmscale "))
    assert any("from 1 to 2 ranks" in sentence for sentence in reply["result"]["headline"])
    (table,) = (file for file in reply["result"]["files"] if file.endswith("runs.csv"))
    assert {row["ranks"] for row in rows(Path(table))} == {"1", "2"}


def follows_a_sweep_to_its_end(place: Path) -> None:
    caller = Caller("scale-a-model", place)
    sweep = caller.ask(f"submit -m {ONE} repeat=1,2 sweep=scaling")["result"]["directory"]
    assert caller.ask(f"status {sweep} --follow")["result"]["counts"] == {"finished": 2}


# --- find-the-best-configuration ---------------------------------------------------------------------------------


def sees_the_first_trials_of_a_tuning(place: Path) -> None:
    reply = Caller("find-the-best-configuration", place).ask("tune launcher=dry job.micro_batch_size=1,2 tune.runs=12")
    assert (reply["result"]["ended"], reply["result"]["best"]) == (False, [])
    assert not (place / "runs").exists()


def compares_an_attempt_with_its_baseline(place: Path) -> None:
    caller = Caller("find-the-best-configuration", place)
    caller.ask(f"attempt baseline {ONE} sweep=camp --repeats 1 --wait")
    caller.ask("attempt long job.steps=4 job.micro_batch_size=2 --repeats 1 --wait")
    (attempt,) = caller.ask("leaderboard runs/camp")["result"]["campaigns"][0]["attempts"]
    assert (attempt["attempt"], attempt["verdict"], attempt["pairs"]) == ("long", "too_few", 1)
    proposed = caller.ask("tune --next runs/camp")
    assert len(proposed["result"]["proposed"]) == len(proposed["next_commands"])


def is_refused_an_expectation_that_nobody_can_judge(place: Path) -> None:
    caller = Caller("find-the-best-configuration", place)
    message = caller.ask(f"attempt baseline {ONE} --expect 'faster than before'", code=2)["refusal"]["message"]
    assert "baseline" in message
    assert not (place / "runs").exists()


# --- why-did-my-run-die ------------------------------------------------------------------------------------------


def finds_the_cause_of_a_failure_and_a_remedy(place: Path) -> None:
    failed(place, "big", "out_of_gpu_memory", "CUDA out of memory. Tried to allocate 2.00 GiB")
    finished_run(place / "runs/first", a_run("small"))
    caller = Caller("why-did-my-run-die", place)
    runs = {each["name"]: each for each in caller.ask("status runs/first")["result"]["runs"]}
    assert (runs["big"]["cause"], runs["small"]["cause"]) == ("out_of_gpu_memory", None)
    page = next(file for file in caller.ask("report runs/first")["result"]["files"] if file.endswith("report.md"))
    assert "job.micro_batch_size" in Path(page).read_text()


def copies_a_run_that_fails_again_with_a_change(place: Path) -> None:
    failed(place, "big", "out_of_gpu_memory", "CUDA out of memory")
    caller = Caller("why-did-my-run-die", place)
    caller.ask("explain checkpointing")
    reply = caller.ask("clone runs/first/big job.micro_batch_size=1 launcher=dry")
    assert reply["result"]["directory"].endswith("-clone")
    assert caller.ask("status runs/first")["result"]["counts"] == {"failed": 1}


def reads_the_end_of_the_output(place: Path) -> None:
    caller = Caller("why-did-my-run-die", place)
    caller.verbs.add("submit")
    run = caller.ask(f"submit {ONE} sweep=first name=r --wait")["result"]["runs"][0]["directory"]
    output = caller.ask(f"logs {run}")["result"]
    assert output["attempts"] == 1
    assert any("finished at step 4 of 4" in line for line in output["last_lines"])
    assert "1" in caller.ask(f"logs {run} --attempt 7", code=2)["refusal"]["message"]


def continues_what_was_stopped(place: Path) -> None:
    caller = Caller("why-did-my-run-die", place, may=frozenset({"cancel"}))
    caller.verbs |= {"submit", "cancel"}  # to make the task
    steps = ONE.replace("job.steps=4", "job.steps=60")
    sweep = caller.ask(f"submit {steps} sweep=first name=r")["result"]["directory"]
    assert caller.ask(f"cancel {sweep}")["result"]["runs"][0]["is_open"] in {True, False}
    caller.ask(f"status {sweep} --follow", code=1)
    reply = caller.ask(f"resume {sweep} --wait")
    assert (reply["result"]["counts"], reply["result"]["runs"][0]["step"]) == ({"finished": 1}, 60)


# --- read-these-logs ---------------------------------------------------------------------------------------------


def reads_a_log_of_another_trainer(place: Path) -> None:
    (place / "logs").mkdir()
    (place / "logs/titan.log").write_text(TITAN)
    files = Caller("read-these-logs", place).ask("report logs --output read")["result"]["files"]
    (row,) = rows(Path(next(file for file in files if file.endswith("runs.csv"))))
    assert float(row["tokens_per_s_per_rank"]) == pytest.approx(1000, rel=0.01)


def counts_no_file_that_it_does_not_understand(place: Path) -> None:
    (place / "logs").mkdir()
    (place / "logs/titan.log").write_text(TITAN)
    (place / "logs/diary.log").write_text("Today nothing happened.\n")
    files = Caller("read-these-logs", place).ask("report logs --output read")["result"]["files"]
    assert len(rows(Path(next(file for file in files if file.endswith("runs.csv"))))) == 1
    assert "diary.log" in Path(next(file for file in files if file.endswith("report.md"))).read_text()


def compares_two_directories(place: Path) -> None:
    for name, step_time_s in (("before", 0.5), ("after", 0.25)):
        for repeat in (1, 2, 3):
            run = a_run(f"r{repeat}", repeat=repeat, steps=8, sweep=name)
            finished_run(place / name, run, step_time_s=step_time_s * (1 + 0.01 * repeat))
    reply = Caller("read-these-logs", place).ask("report --compare before after --output compared")
    assert any("2.00" in sentence for sentence in reply["result"]["headline"])


# --- enter-a-contest -----------------------------------------------------------------------------------------------


def plans_the_baseline_of_a_contest(place: Path) -> None:
    caller = Caller("enter-a-contest", place)
    assert "scc_hpl" in {each["name"] for each in caller.ask("explain experiment")["result"]["choices"]}
    assert caller.ask("plan experiment=scc_hpl")["result"]["runs"]


def keeps_a_budget(place: Path) -> None:
    caller = Caller("enter-a-contest", place)
    caller.ask(f"attempt baseline {ONE} budget.attempts=1 sweep=contest --repeats 1 --wait")
    caller.ask("attempt mbs2 job.micro_batch_size=2 --campaign runs/contest --repeats 1 --wait")
    over = caller.ask("attempt mbs4 job.micro_batch_size=4 --campaign runs/contest --repeats 1 --wait", code=2)
    assert "budget.attempts=1 is not enough" in over["refusal"]["message"]
    (budget,) = caller.ask("leaderboard runs/contest")["result"]["campaigns"][0]["budget"]
    assert (budget["key"], budget["limit"], budget["used"]) == ("attempts", 1, 1)
    assert "cannot be claimed" in caller.ask("package runs/contest mbs2", code=2)["refusal"]["message"]


# --- add-my-cluster, add-my-program ----------------------------------------------------------------------------------


def describes_a_cluster_and_sees_its_script(place: Path) -> None:
    caller = Caller("add-my-cluster", place)
    assert "h100_sxm" in {each["name"] for each in caller.ask("explain gpu")["result"]["choices"]}
    caller.ask("cluster mine --gpu h100_sxm --partition gpu --output site/cluster/mine.yaml")
    (run,) = caller.ask("plan cluster=mine nodes=2")["result"]["runs"]
    assert run["ranks"] == 16
    assert caller.ask("submit cluster=mine nodes=2 launcher=dry sweep=seen")["result"]["counts"] == {"prepared": 1}


def corrects_the_name_of_a_gpu(place: Path) -> None:
    caller = Caller("add-my-cluster", place)
    message = caller.ask("cluster mine --gpu h100_sxn --output site/cluster/mine.yaml", code=2)["refusal"]["message"]
    (near,) = re.findall(r"Did you mean (\w+)", message)
    caller.ask(f"cluster mine --gpu {near} --output site/cluster/mine.yaml")
    assert yaml.safe_load((place / "site/cluster/mine.yaml").read_text())["gpus"]


def runs_a_program_of_its_own_with_a_gate(place: Path) -> None:
    caller = Caller("add-my-program", place)
    text = caller.replies[0]["result"]["skills"][0]["text"]
    (example,) = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    (place / "site/program").mkdir(parents=True)
    (place / "site/program/greet.yaml").write_text("\n".join(line[3:] for line in example.splitlines()))
    local = "launcher=local ranks_per_node=1"
    caller.ask(f"plan job=program program=greet {local}")
    caller.ask(f"submit -m job=program program=greet {local} program.params.rate=1,5 sweep=greet --wait")
    files = caller.ask("report runs/greet")["result"]["files"]
    used = {
        row["name"]: row["not_used_because"]
        for row in rows(Path(next(file for file in files if file.endswith("runs.csv"))))
    }
    assert sorted(bool(reason) for reason in used.values()) == [False, True]


TASKS: tuple[Callable[[Path], None], ...] = (
    plans_a_sweep,
    mends_a_plan_by_its_remedies,
    asks_for_an_account_and_does_not_invent_one,
    measures_a_speed_up_and_says_what_the_headline_says,
    follows_a_sweep_to_its_end,
    sees_the_first_trials_of_a_tuning,
    compares_an_attempt_with_its_baseline,
    is_refused_an_expectation_that_nobody_can_judge,
    finds_the_cause_of_a_failure_and_a_remedy,
    copies_a_run_that_fails_again_with_a_change,
    reads_the_end_of_the_output,
    continues_what_was_stopped,
    reads_a_log_of_another_trainer,
    counts_no_file_that_it_does_not_understand,
    compares_two_directories,
    plans_the_baseline_of_a_contest,
    keeps_a_budget,
    describes_a_cluster_and_sees_its_script,
    corrects_the_name_of_a_gpu,
    runs_a_program_of_its_own_with_a_gate,
)


# A minute each; what they call has tests of its own in CI.
LEFT_TO_ALL = {compares_an_attempt_with_its_baseline, keeps_a_budget}


@pytest.mark.parametrize(
    "task", [long(task) if task in LEFT_TO_ALL else task for task in TASKS], ids=lambda task: task.__name__
)
def test_a_caller_that_has_only_a_guide_and_json(task: Callable[[Path], None], tmp_path: Path) -> None:
    task(tmp_path)


def test_guides_are_listed_written_and_not_written_over(tmp_path: Path) -> None:
    caller = Caller("scale-a-model", tmp_path)
    listed = caller.run("skills --output guides --json")["result"]["skills"]
    assert {each["name"] for each in listed} == {path.parent.name for path in (tmp_path / "guides").glob("*/SKILL.md")}
    assert all(each["description"] for each in listed)
    (tmp_path / "guides/read-these-logs/SKILL.md").write_text("mine")
    assert "was changed" in caller.run("skills --output guides --json")["refusal"]["message"]
    assert "There is no skill" in caller.run("skills scale --json")["refusal"]["message"]
