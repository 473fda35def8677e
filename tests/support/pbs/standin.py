"""The programs of the stand-in: `python standin.py DIRECTORY PROGRAM ARGUMENTS...`.

A server, a scheduler and two nodes, of which the state is a file in DIRECTORY. A job is a process that waits for its
turn, runs the script as PBS does, and records how it ended. Texts, JSON and exit codes are those of tests/support/pbs/
recorded/ (OpenPBS 23.06.06); what was not recorded is marked so. The exit code is the number of the error modulo 256.

DIRECTORY/down: the server is away. DIRECTORY/full: it accepts no more jobs. DIRECTORY/hold: no job starts.
DIRECTORY/limit_s: the walltime of jobs, whatever they ask for. DIRECTORY/distinct: nodes have addresses of their own.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
SERVER = "pbshead"
# Names in JSON, and the address of each in PBS_NODEFILE: both nodes are this machine.
NODES = {"pn01": "localhost", "pn02": "127.0.0.2" if (HERE / "distinct").exists() else "localhost"}
NCPUS, NGPUS = 64, 4
KNOWN = {"ncpus", "ngpus", "mem", "mpiprocs", "ompthreads", "walltime", "select", "place", "nodes", "storage"}
# Recorded were 10 s between SIGTERM and SIGKILL.
KILL_DELAY_S = float(os.environ.get("STANDIN_KILL_DELAY_S", "10"))
ASK_S = 0.1
Job = dict[str, Any]


# --- the state


@contextmanager
def state() -> Iterator[dict[str, Any]]:
    """The state, locked; what the block changes is kept."""
    with (HERE / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        file = HERE / "state.json"
        found = json.loads(file.read_text()) if file.exists() else {"next": 1, "jobs": {}, "of": {}}
        yield found
        new = HERE / "state.new"
        new.write_text(json.dumps(found))
        new.replace(file)


def clock(seconds: float | None = None) -> str:
    return time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(seconds))


def document(section: str | None = None, objects: dict[str, Any] | None = None) -> str:
    """A document as PBS prints it: tabs, one after each colon."""
    whole: dict[str, Any] = {"timestamp": int(time.time()), "pbs_version": "23.06.06", "pbs_server": SERVER}
    if section and objects:
        whole[section] = objects
    # An empty object has two lines.
    text = json.dumps(whole, indent="\t", separators=(",", ":\t"))
    return re.sub(r"^(\t*)(.*)\{\}", r"\1\2{\n\1}", text, flags=re.MULTILINE)


def fail(text: str, code: int) -> None:
    print(text, file=sys.stderr)
    sys.exit(code)


def refuse_while_down(program: str) -> None:
    if (HERE / "down").exists():
        text = f"{program}: cannot connect to server {SERVER} (errno=15010)"
        print("Connection refused", file=sys.stderr)
        print(f"Couldn't connect to cluster: {SERVER}" if program == "qdel" else text, file=sys.stderr)
        if program == "qstat" and "json" in sys.argv:
            print(document())
        sys.exit(162)


# --- qsub


def qsub(arguments: list[str]) -> None:
    if not arguments or not Path(arguments[-1]).is_file():
        fail("qsub: script file:: No such file or directory", 1)
    script = Path(arguments[-1])
    text = script.read_text()
    directives = [shlex.split(line[5:]) for line in text.splitlines() if line.startswith("#PBS ")]
    options: dict[str, list[str]] = {}
    for words in [*directives, *pairs(arguments[:-1])]:
        options.setdefault(words[0][1], []).append(words[1] if len(words) > 1 else words[0][2:])
    name = options.get("N", [script.name])[-1]
    if re.search(r"[\s/]", name) or len(name) > 236:
        fail("qsub: illegal -N value\nusage: qsub [-a date_time] [-A account_string] [-c interval]", 2)
    resources = dict(item.split("=", 1) for item in options.get("l", []))
    chunk = dict(item.split("=", 1) for item in resources.get("select", "1").split(":")[1:])
    if unknown := [each for each in {**resources, **chunk} if each not in KNOWN]:
        fail(f"qsub: Unknown resource: {unknown[0]}", 187)
    if wrong := [each for each in ("ncpus", "ngpus", "mpiprocs") if not chunk.get(each, "1").isdigit()]:
        fail(f"qsub: Illegal attribute or resource value select.{wrong[0]}", 166)
    queue = options.get("q", ["workq"])[-1]
    known = recorded_queues()
    if queue not in known:
        fail("qsub: Unknown queue", 170)
    walltime = resources.get("walltime", "")
    most = known[queue].get("resources_max", {}).get("walltime")
    if most and walltime and seconds(walltime) > seconds(most):
        fail("qsub: Job violates queue and/or server resource limits", 188)
    if (HERE / "full").exists():
        # Not recorded; the words are those of OpenPBS for max_queued and its relatives.
        fail("qsub: would exceed complex's per-user limit of jobs in 'Q' state", 38)
    chunks = int(resources.get("select", "1").partition(":")[0])
    with state() as known_jobs:
        number = known_jobs["next"]
        known_jobs["next"] += 1
        job_id = f"{number}.{SERVER}"
        known_jobs["jobs"][job_id] = {
            "Job_Name": name,
            "Job_Owner": f"{getpass.getuser()}@{SERVER}",
            "job_state": "H" if "h" in options else "Q",
            "queue": queue,
            "server": SERVER,
            "ctime": clock(),
            "Hold_Types": "u" if "h" in options else "n",
            "Join_Path": options.get("j", ["n"])[-1],
            "Output_Path": f"{SERVER}:" + options.get("o", [f"{Path.cwd()}/"])[-1],
            "Priority": 0,
            "Rerunable": "True" if options.get("r", ["y"])[-1] == "y" else "False",
            "Resource_List": {
                "ncpus": chunks * int(chunk.get("ncpus", "1")),
                **({"ngpus": chunks * int(chunk["ngpus"])} if "ngpus" in chunk else {}),
                "nodect": chunks,
                "place": resources.get("place", "free"),
                "select": resources.get("select", "1:ncpus=1"),
                **({"walltime": walltime} if walltime else {}),
            },
            "substate": 10,
            "Variable_List": {"PBS_O_HOME": os.environ.get("HOME", ""), "PBS_O_WORKDIR": str(Path.cwd()),
                              "PBS_O_HOST": SERVER},
            "Submit_arguments": " ".join(arguments),
            "project": options.get("P", ["_pbs_project_default"])[-1],
        }  # fmt: skip
        # The server keeps the script as it is submitted.
        known_jobs["of"][job_id] = {"script": text, "pid": None, "ask": None}
        register(known_jobs, job_id, options.get("W", ["depend="])[-1].removeprefix("depend="))
    subprocess.Popen(
        [sys.executable, __file__, str(HERE), "job", job_id], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=(HERE / "errors").open("a"), start_new_session=True, env=surroundings(),
    )  # fmt: skip
    print(job_id)


def pairs(words: list[str]) -> list[list[str]]:
    return [words[place : place + 2] for place in range(0, len(words), 2)]


def full_id(job_id: str) -> str:
    return job_id if "." in job_id else f"{job_id}.{SERVER}"


def seconds(text: str) -> int:
    total = 0
    for part in text.split(":"):
        total = 60 * total + int(part)
    return total


def surroundings() -> dict[str, str]:
    """The environment of a server: nothing of the shell that submits."""
    kept = ("STANDIN_KILL_DELAY_S", "HOME", "USER", "XDG_STATE_HOME")
    return {"PATH": f"{HERE}/bin:/usr/local/bin:/usr/bin:/bin"} | {k: os.environ[k] for k in kept if k in os.environ}


# --- dependencies: both jobs have them in `depend`, as recorded. Which jobs are released and which are deleted was not
# recorded, and follows OpenPBS's src/server/req_register.c and job_func.c.


def depends(found: Job) -> dict[str, list[str]]:
    """The jobs of each kind of dependency, as full ids."""
    parts = [part.split(":") for part in found.get("depend", "").split(",") if part]
    return {kind: [full_id(each.partition("@")[0]) for each in ids] for kind, *ids in parts}


def set_depends(found: Job, parts: dict[str, list[str]]) -> None:
    words = [":".join([kind, *(f"{each}@{SERVER}" for each in ids)]) for kind, ids in parts.items() if ids]
    found.pop("depend", None)
    if words:
        found["depend"] = ",".join(words)


def register(known: dict[str, Any], job_id: str, depend: str) -> None:
    """Let a job wait for others, and for no more than these."""
    jobs: dict[str, Job] = known["jobs"]
    for other in jobs.values():
        set_depends(other, {kind: [each for each in ids if each != job_id or not kind.startswith("before")]
                            for kind, ids in depends(other).items()})  # fmt: skip
    own = {kind: ids for kind, ids in depends(jobs[job_id]).items() if kind.startswith("before")}
    wanted = depends({"depend": depend})
    set_depends(jobs[job_id], own | wanted)
    for kind, ids in wanted.items():
        for parent in ids:
            if parent not in jobs:
                delete(known, job_id, waiting=True)
            elif jobs[parent]["job_state"] == "F":
                resolve(known, job_id, kind, parent)
            else:
                mirror = kind.replace("after", "before")
                others = depends(jobs[parent])
                set_depends(jobs[parent], others | {mirror: [*others.get(mirror, []), job_id]})


def resolve(known: dict[str, Any], job_id: str, kind: str, parent: str) -> None:
    """A job that another one waited for is over: that one may start, or is deleted."""
    found: Job = known["jobs"][job_id]
    before: Job = known["jobs"][parent]
    if kind == "afterok" and (before.get("Exit_status") != 0 or before["substate"] == 91):
        delete(known, job_id, waiting=True)
        return
    parts = depends(found)
    set_depends(found, parts | {kind: [each for each in parts.get(kind, []) if each != parent]})


def release(known: dict[str, Any], job_id: str) -> None:
    """A job that ran is over."""
    for kind, ids in depends(known["jobs"][job_id]).items():
        for each in ids if kind.startswith("before") else []:
            resolve(known, each, kind.replace("before", "after"), job_id)


def delete(known: dict[str, Any], job_id: str, *, waiting: bool) -> None:
    """Delete a job that has not run; if it waited for others, with all that wait for it."""
    found: Job = known["jobs"][job_id]
    if found["job_state"] == "F":
        return
    before = found.get("comment", "")
    found |= {"job_state": "F", "substate": 91, "comment": f"{before} and terminated".strip()}
    for kind, ids in depends(found).items():
        for each in ids if waiting and kind.startswith("before") else []:
            delete(known, each, waiting=True)


# --- a job


def job(arguments: list[str]) -> None:
    (job_id,) = arguments
    while True:
        hosts = place(job_id)
        if hosts is None:
            return
        if not run(job_id, hosts):
            return


def place(job_id: str) -> list[str] | None:
    """Wait for nodes; return one host a chunk, None once the job was deleted."""
    while True:
        with state() as known:
            found: Job = known["jobs"][job_id]
            if found["job_state"] == "F":
                return None
            hosts = None if found["job_state"] == "H" and found["Hold_Types"] == "u" else free(known, found)
            if hosts:
                where = "+".join(f"({host}:ncpus=1)" for host in hosts)
                found |= {
                    "job_state": "R",
                    "substate": 42,
                    "stime": clock(),
                    "exec_host": "+".join(f"{host}/0" for host in hosts),
                    "exec_vnode": where,
                    "run_count": found.get("run_count", 0) + 1,
                    "comment": f"Job run at {time.strftime('%a %b %d at %H:%M')} on {where}",
                }
                return hosts
        time.sleep(ASK_S)


def free(known: dict[str, Any], wanted: Job) -> list[str] | None:
    """The nodes of a job that may start now; else its comment says why not."""
    if any(kind.startswith("after") for kind in depends(wanted)):
        wanted |= {"job_state": "H", "Hold_Types": "s"}
        return None
    wanted |= {"job_state": "Q", "Hold_Types": "n"}
    count = wanted["Resource_List"]["nodect"]
    if count > len(NODES):
        wanted["comment"] = "Can Never Run: Not enough total nodes available"
        return None
    used = dict.fromkeys(NODES, 0)
    for each in known["jobs"].values():
        if each["job_state"] in "RE":
            for host in each["exec_host"].split("+"):
                used[host.partition("/")[0]] += each["Resource_List"]["ncpus"] // each["Resource_List"]["nodect"]
    share = wanted["Resource_List"]["ncpus"] // count
    fitting = [host for host, taken in used.items() if taken + share <= NCPUS]
    if len(fitting) < count or (HERE / "hold").exists():
        wanted["comment"] = "Not Running: Not enough free nodes available"
        return None
    return fitting[:count]


def run(job_id: str, hosts: list[str]) -> bool:
    """Run the script once; return True if it is to be run again."""
    with state() as known:
        found, text = known["jobs"][job_id], known["of"][job_id]["script"]
        known["of"][job_id]["ask"] = None
    spool = HERE / "spool" / job_id
    spool.mkdir(parents=True, exist_ok=True)
    (spool / "nodes").write_text("".join(f"{NODES[host]}\n" for host in hosts))
    (spool / "script").write_text(text)
    ncpus = str(found["Resource_List"]["ncpus"] // len(hosts))
    env = surroundings() | {
        "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_JOBID": job_id, "PBS_JOBNAME": found["Job_Name"], "PBS_NODENUM": "0",
        "PBS_NODEFILE": str(spool / "nodes"), "PBS_QUEUE": found["queue"], "NCPUS": ncpus, "OMP_NUM_THREADS": ncpus,
    }  # fmt: skip
    begun = time.monotonic()
    limit_s = seconds(found["Resource_List"].get("walltime", "9999:00:00"))
    if (HERE / "limit_s").exists():
        limit_s = int((HERE / "limit_s").read_text())
    with (spool / "output").open("a") as output:
        # PBS gives the script to a login shell on its standard input, under a path in its spool.
        process = subprocess.Popen(
            ["/bin/bash", spool / "script"], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True, env=env, cwd=os.environ.get("HOME", "/"),
        )  # fmt: skip
        asked: str | None = None
        asked_at = 0.0
        while process.poll() is None:
            late = time.monotonic() - begun > limit_s
            with state() as known:
                known["jobs"][job_id]["substate"] = 42
                known["of"][job_id]["pid"] = process.pid
                ask = known["of"][job_id]["ask"] or ("walltime" if late else None)
            if ask and asked is None:
                asked, asked_at = ask, time.monotonic()
                if late:
                    ran_s = time.monotonic() - begun
                    print(
                        f"=>> PBS: job killed: walltime {ran_s:.0f} exceeded limit {limit_s}", file=output, flush=True
                    )
                to_session(process.pid, signal.SIGKILL if ask == "rerun" else signal.SIGTERM)
            if asked and time.monotonic() - asked_at > KILL_DELAY_S:
                to_session(process.pid, signal.SIGKILL)
            time.sleep(ASK_S)
    # When the script is over PBS ends what is left of the job, on all of its nodes.
    to_session(process.pid, signal.SIGKILL)
    code = process.returncode if process.returncode >= 0 else 256 - process.returncode
    with state() as known:
        found = known["jobs"][job_id]
        again = known["of"][job_id]["ask"] == "rerun"
        if again:
            found |= {"job_state": "Q", "substate": 10}
            return True
        ends = {"walltime": ("exceeded resource walltime", 93, -29), "delete": ("terminated", 91, code)}
        usual = ("finished", 92, 0) if code == 0 else ("failed", 93, code)
        words, substate, status = ends.get(asked or "", usual)
        found |= {"job_state": "F", "substate": substate, "Exit_status": status, "obittime": clock(),
                  "comment": f"{found['comment']} and {words}"}  # fmt: skip
        release(known, job_id)
    target = Path(found["Output_Path"].partition(":")[2])
    if target.is_dir():
        (spool / "output").replace(target / f"{found['Job_Name']}.o{job_id.partition('.')[0]}")
    return False


def to_session(leader: int, number: int) -> None:
    """Signal every process of a session; those of pbsdsh are in it."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if os.getsid(int(entry.name)) == leader:
                    os.kill(int(entry.name), number)


# --- the other programs


def qstat(arguments: list[str]) -> None:
    flags = [word for word in arguments if word.startswith("-")]
    operands = [word for word in arguments if not word.startswith("-") and word != "json"]
    if "-B" in flags:
        recorded = read_recorded("02_server")["Server"]
        print(document("Server", recorded))
    elif "-Q" in flags:
        print(document("Queue", recorded_queues()))
    else:
        show_jobs(operands, history="-x" in flags)


def show_jobs(operands: list[str], *, history: bool) -> None:
    with state() as known:
        jobs: dict[str, Job] = known["jobs"]
    code = 0
    shown: dict[str, Job] = {}
    for operand in operands or jobs:
        job_id = full_id(operand)
        if job_id not in jobs:
            print(f"qstat: Unknown Job Id {job_id}", file=sys.stderr)
            code = 153
        elif jobs[job_id]["job_state"] == "F" and not history:
            print(
                f"qstat: {job_id} Job has finished, use -x or -H to obtain historical job information", file=sys.stderr
            )
            code = 35
        elif not shown or not operands:
            # As recorded: of several operands only the first is printed as JSON.
            shown[job_id] = jobs[job_id]
    print(document("Jobs", shown))
    sys.exit(code)


def qselect(arguments: list[str]) -> None:
    given = dict(pairs([word for word in arguments if word != "-x"]))
    with state() as known:
        jobs: dict[str, Job] = known["jobs"]
    for job_id, found in jobs.items():
        owner = found["Job_Owner"].partition("@")[0]
        over = found["job_state"] == "F" and "-x" not in arguments
        if found["Job_Name"] == given.get("-N", found["Job_Name"]) and owner == given.get("-u", owner) and not over:
            print(job_id)


def qdel(arguments: list[str]) -> None:
    code = 0
    for operand in arguments:
        job_id = full_id(operand)
        with state() as known:
            found = known["jobs"].get(job_id)
            if found is None or found["job_state"] == "F":
                why = "Unknown Job Id" if found is None else "Job has finished"
                print(f"qdel: {why} {job_id}", file=sys.stderr)
                code = 153 if found is None else 35
            elif found["job_state"] == "R":
                known["of"][job_id]["ask"] = "delete"
            else:
                delete(known, job_id, waiting=found["job_state"] == "H" and found["Hold_Types"] == "s")
    sys.exit(code)


def qalter(arguments: list[str]) -> None:
    """Only of a job that has not started, and only its dependencies."""
    option, value, operand = arguments
    if option != "-W" or not value.startswith("depend="):
        fail("qalter: illegal -W value", 2)
    with state() as known:
        register(known, full_id(operand), value.removeprefix("depend="))


def qrerun(arguments: list[str]) -> None:
    """As an operator: an ordinary user is refused."""
    with state() as known:
        known["of"][full_id(arguments[0])]["ask"] = "rerun"


def qrls(arguments: list[str]) -> None:
    with state() as known:
        known["jobs"][full_id(arguments[0])] |= {"job_state": "Q", "Hold_Types": "n"}


def qhold(arguments: list[str]) -> None:
    with state() as known:
        held = {"job_state": "H", "Hold_Types": "u", "comment": f"Job held by {getpass.getuser()} on {clock()}"}
        known["jobs"][full_id(arguments[0])] |= held


def pbsnodes(_arguments: list[str]) -> None:
    print(document("nodes", read_recorded("04_nodes")["nodes"]))


def pbsdsh(arguments: list[str]) -> None:
    """One task, on the line of PBS_NODEFILE with this number, without the environment of the script."""
    number, command = arguments[1], arguments[3:]
    kept = {key: os.environ[key] for key in ("HOME", "PATH", "PBS_JOBID", "NCPUS", "OMP_NUM_THREADS", "XDG_STATE_HOME")
            if key in os.environ}  # fmt: skip
    os.execve(command[0], command, kept | {"PBS_NODENUM": number})


def ssh(arguments: list[str]) -> None:
    """A login on this machine; the command is one text for its shell."""
    while arguments[0].startswith("-"):
        arguments = arguments[2 if arguments[0] == "-o" else 1 :]
    kept = {key: os.environ[key] for key in ("HOME", "XDG_STATE_HOME") if key in os.environ}
    os.execve("/bin/bash", ["bash", "-c", " ".join(arguments[1:])], kept | {"PATH": "/usr/bin:/bin"})


def read_recorded(name: str) -> dict[str, Any]:
    text = (Path(__file__).parent / "recorded" / f"{name}.txt").read_text()
    return dict(json.loads(text[text.index("{") : text.rindex("}") + 1]))


def recorded_queues() -> dict[str, Any]:
    return dict(read_recorded("03_queues")["Queue"])


PROGRAMS = {
    each.__name__: each
    for each in (qsub, qstat, qselect, qdel, qalter, qrerun, qrls, qhold, pbsnodes, pbsdsh, ssh, job)
}

if __name__ == "__main__":
    name = sys.argv[2]
    with (HERE / "calls").open("a") as calls:
        print(shlex.join(sys.argv[2:]), file=calls)
    if name not in {"job", "pbsdsh", "ssh"}:
        refuse_while_down(name)
    PROGRAMS[name](sys.argv[3:])
