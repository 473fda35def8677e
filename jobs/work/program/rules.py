"""Rules of runs that start a program. Checked at composition: the program itself may be on the nodes alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import fields
from pathlib import PurePosixPath

from jobs import metrics as m
from jobs.metrics import Better
from jobs.network import VARIABLE
from jobs.plan.choices import choices
from jobs.plan.keys import did_you_mean
from jobs.plan.rules.rule import Rule, either
from jobs.plan.synonyms import nearest_names
from jobs.schema import LauncherKind, Run
from jobs.settings.program import Limits, Parameter, ParameterType, Program, ProgramMetric, Where
from jobs.work.program import placeholders as names
from jobs.work.program.placeholders import program_of
from jobs.work.program.substitution import names_in, text_of
from jobs.work.work import work_of

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
METRIC_NAME = re.compile(r"[a-z][a-z0-9_]*")
SERVER_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)
WHOLE = re.compile(r"[1-9][0-9]{0,6}")
SHA_256 = re.compile(r"[0-9a-f]{64}")
QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""", re.DOTALL)
# Text outside of quotation marks that only a shell reads: operators, variables, a home directory.
OF_SHELL = re.compile(r"(?:^|(?<=\s))(?:&&|\|\|?|\|\w\S*|&|\d?>\S*|<<?<?|~/\S*)(?=\s|$)|;(?=\s|$)|\$[({]?\w+[)}]?|`")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
PLACE_IN_LIST = re.compile(r"\[(\d+)\]")
SOURCES = ("pattern", "json", "csv")


def first(found: Iterator[str]) -> str | None:
    """Return the first refusal; None without one."""
    return next(found, None)


def program_is_the_work(run: Run) -> str | None:
    """Require a program alone: nothing is trained, served or measured by us in the same run."""
    others = [name for name in ("images", "serving", "storage") if getattr(run, name) is not None]
    if others:
        return f"program and {others[0]} are both set; a run does one of them. Leave one out."
    if run.job.train:
        return f"program={program_of(run).name} starts a program, and job={run.job.name} trains. Set job=program."
    return None


def steps_are_commands(run: Run) -> str | None:
    """Require steps, each with a name that files may have, and a command that can be split into words."""
    program = program_of(run)
    if not program.steps:
        return (
            f"job={run.job.name} starts a program, and none is chosen. Set program={either(choices('program'))}, or "
            "the name of your own file program/NAME.yaml in the directory SLURMSCALE_SITE."
        )
    if program.name in {"", "none"}:
        return "program.name is not set, and tables and figures contain it. Set name: NAME in the file of the program."
    for name, step in program.steps.items():
        key = f"program.steps.{name}"
        if not FILE_NAME.fullmatch(name):
            return f"{key}: a name of a step has letters, digits, _ and - only. Choose another name."
        try:
            words = names.words_of(program, step.command)
        except ValueError as error:
            return f"{key}.command={step.command}: {error}. Close the quotation mark, also in the words of parameters."
        if not words:
            return f"{key}.command is empty. Set the command of the step, or remove the step."
        if variable := ASSIGNMENT.fullmatch(words[0]):
            return (
                f"{key}.command begins with {words[0]}, which a shell would read, and none does. Set "
                f"{key}.env.{variable[1]}={variable[2]}, and begin with the program."
            )
        if of_shell := OF_SHELL.search(QUOTED.sub("_", step.command)):
            return (
                f"{key}.command contains {of_shell[0]}, which a shell would read, and none does. Write "
                f"bash -c '...' around it, or quotation marks around {of_shell[0]} to pass it on as it is."
            )
    return None


def servers_come_first(run: Run) -> str | None:
    """Require a step that ends after all servers, and settings of a server in servers alone."""
    program = program_of(run)
    for name, step in program.steps.items():
        key = f"program.steps.{name}"
        if step.ready is None:
            continue
        if name == list(program.steps)[-1]:
            return (
                f"{key} is a server (ready), and no step follows that would end. Add a step that uses it, such as a "
                "load generator, behind it."
            )
        if not SERVER_NAME.fullmatch(name):
            return f"{key}: a name of a server has letters, digits and _ only, for {{servers.NAME.url}}. Rename it."
        if step.time_limit_min is not None:
            return (
                f"{key}.time_limit_min: a server runs until the last step has ended. Set {key}.ready.within_min, the "
                "time until it is ready, and the time limit of the other steps."
            )
        if step.ready.line is None and not knows_its_port(program, name):
            return (
                f"{key} never gets its {{port}}, at which it has to listen to be ready. Use {{port}} in its command or "
                f"env, or set {key}.ready.line, a line that it prints."
            )
        if step.ready.line is not None and step.ready.path is not None:
            return f"{key}.ready has path and line; it needs one of them, or neither. Set {key}.ready.path=null."
        if step.ready.line is not None and (wrong := wrong_pattern(step.ready.line, groups=0)):
            return f"{key}.ready.line={step.ready.line}: {wrong}"
    return None


def knows_its_port(program: Program, name: str) -> bool:
    """Return True if the command or the variables of a server, or a file, contain its port."""
    step = program.steps[name]
    own = {"port"} | {f"servers.{name}.{fact}" for fact in ("port", "url", "urls", "addresses")}
    texts = (step.command, *step.env.values(), *program.env.values(), *program.files.values())
    return not own.isdisjoint(names_in(texts))


def nodes_suffice(run: Run) -> str | None:
    """Require as many nodes as the steps with nodes of their own take."""
    program, known = program_of(run), names.known_values(run)
    taken: list[str] = []
    for name, step in program.steps.items():
        if step.nodes is None:
            continue
        text = text_of(step.nodes, known)
        if not WHOLE.fullmatch(text):
            return (
                f"program.steps.{name}.nodes={text} is not a whole number above 0. Set the number of nodes of this "
                "step, or null for all."
            )
        taken += [text]
        if sum(map(int, taken)) > run.nodes:
            needed = sum(int(text_of(each.nodes, known)) for each in program.steps.values() if each.nodes is not None)
            return (
                f"nodes={run.nodes}: the steps of program={program.name} take {' + '.join(taken)} nodes up to step "
                f"{name}. Set nodes={needed}, or fewer nodes for a step."
            )
    return None


def own_nodes_can_be_asked_for(run: Run) -> str | None:
    """Require nodes of its own for a step that asks for other ones, and a launcher that can submit such a job."""
    for name, step in program_of(run).steps.items():
        if step.partition == "":
            return f"program.steps.{name}.partition is empty. Set the name of a partition, or null."
        given = [key for key in names.OF_NODES if getattr(step, key) is not None]
        if given and step.nodes is None:
            key = f"program.steps.{name}"
            return f"{key}.{given[0]}: the step has no nodes of its own. Set {key}.nodes=NUMBER."
    if nodes_suffice(run) or len(work_of(run).components(run)) == 1:
        return None
    here = (
        "the steps of this program ask for different nodes (partition, gpus or memory_gb), which is a heterogeneous job"
    )
    if run.launcher.spare_nodes:
        return f"launcher.spare_nodes={run.launcher.spare_nodes}: {here} without spares. Set launcher.spare_nodes=0."
    if not run.starter.on_this_machine and run.starter not in {LauncherKind.slurm, LauncherKind.script}:
        return (
            f"launcher={run.starter.name}: {here} of Slurm. Set launcher=slurm, or remove these keys from "
            "program.steps."
        )
    return None


def names_have_values(run: Run) -> str | None:
    """Require a value for every {name} in commands, files and paths."""
    return first(unknown_names(run))


def unknown_names(run: Run) -> Iterator[str]:
    """Yield the refusal of each {name} without a value."""
    program, known = program_of(run), names.known_values(run)
    own = {f"params.{name}" for name in program.params} | {f"inputs.{name}" for name in program.inputs}
    servers = names.servers_of(program)
    for key, text in names.texts(program):
        of_process: Set[str] = set()
        section, _, rest = key.removeprefix("program.").partition(".")
        if section in {"steps", "env"} and not rest.endswith(".nodes"):
            of_process = names.PROCESS | names.of_servers(program)
            if rest.partition(".")[0] in servers:
                of_process |= names.SERVER_PROCESS
        elif section == "files":
            of_process = names.of_servers(program)
        of_resume = {names.CHECKPOINT} if key == "program.resume.arguments" else set()
        for name in sorted(names_in([text]) - known.keys() - names.STARTED - of_process - of_resume):
            choices = sorted(own | names.STARTED | names.DERIVED | of_process | of_resume | set(SHORT_KEYS))
            yield (
                f"{key}: {{{name}}} has no value.{did_you_mean(nearest_names(name, choices))} Names are keys of the "
                f"run, such as {{nodes}} or {{parallelism.tensor}}, {{params.NAME}} and {{inputs.NAME}} of the "
                f"program, and {either(f'{{{each}}}' for each in sorted(names.STARTED | names.DERIVED | of_process))}."
            )


SHORT_KEYS = ("nodes", "ranks", "ranks_per_node", "repeat", "job.seed", "wall_time_min")


def parameters_are_used(run: Run) -> str | None:
    """Require that a {name} uses each parameter: a misspelled one would change nothing."""
    program = program_of(run)
    used, known = names.used_names(program), [*program.params]
    for name in program.params:
        if f"params.{name}" not in used:
            others = [other for other in known if f"params.{other}" in used]
            which = f"Its parameters are {', '.join(others)}." if others else "No {params.NAME} is in its texts."
            return (
                f"program.params.{name}: program={program.name} does not use it."
                f"{did_you_mean(nearest_names(name, others))} {which}"
            )
    return None


def parameters_are_allowed(run: Run) -> str | None:
    """Require the type, range and choices that the program declares."""
    return first(wrong_parameters(program_of(run)))


def wrong_parameters(program: Program) -> Iterator[str]:
    """Yield the refusal of each value of a parameter."""
    for name, about in program.parameters.items():
        if name not in program.params:
            yield f"program.parameters.{name}: there is no program.params.{name}. Set its value, or remove the text."
            continue
        text, key = program.params[name], f"program.params.{name}"
        is_number = about.type in {ParameterType.integer, ParameterType.number}
        if wrong := crossed(about):
            yield f"program.parameters.{name}{wrong}"
        elif about.in_words and not is_number:
            yield (
                f"program.parameters.{name} is {about.in_words}, and its type is {about.type.value}. Set "
                f"program.parameters.{name}.type=integer or number."
            )
        if about.one_of and text not in about.one_of:
            yield f"{key}={text} is not allowed. Set {key}={either(about.one_of)}."
        if not is_number:
            continue
        value = number_in(text, about.type)
        if value is None:
            wanted = "a whole number" if about.type is ParameterType.integer else "a number"
            yield f"{key}={text} is not {wanted}. Set {key}=NUMBER{in_unit(about)}."
        elif not about.has(value):
            yield f"{key}={text} must be {about.in_words}. Set {key}=NUMBER{in_unit(about)}."


def crossed(limits: Limits) -> str | None:
    """Return what is wrong with limits that no number keeps, beginning with the rest of their key."""
    if limits.at_least is None or limits.at_most is None or limits.at_least <= limits.at_most:
        return None
    return f".at_least={limits.at_least:g} is above its at_most={limits.at_most:g}. Exchange them."


def number_in(text: str, kind: ParameterType) -> float | None:
    """Return the number in the text of a parameter; None if it is not one."""
    try:
        value = int(text) if kind is ParameterType.integer else float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def in_unit(about: Parameter) -> str:
    """Return the unit of a parameter as text."""
    return f" in {about.unit}" if about.unit else ""


def metrics_have_sources(run: Run) -> str | None:
    """Require one source for each metric, and a unit that does not contradict the registry."""
    return first(wrong_metrics(program_of(run)))


def wrong_metrics(program: Program) -> Iterator[str]:
    """Yield the refusal of each metric."""
    divisors = [*program.metrics, m.MEAN_POWER.name]
    for name, metric in program.metrics.items():
        key = f"program.metrics.{name}"
        given = [source for source in SOURCES if getattr(metric, source) is not None]
        if not METRIC_NAME.fullmatch(name):
            yield f"{key}: a name of a metric has small letters, digits and _ only. Choose another name."
        elif len(given) != 1:
            yield f"{key} has {' and '.join(given) or 'no source'}; it needs one of {', '.join(SOURCES)}."
        elif metric.pattern is not None and (wrong := wrong_pattern(metric.pattern)):
            yield f"{key}.pattern={metric.pattern}: {wrong}"
        elif metric.pattern is None and metric.file is None:
            yield f"{key}.{given[0]} needs a file. Set {key}.file=PATH, relative to the working directory."
        elif metric.json is not None and PLACE_IN_LIST.search(metric.json):
            path = PLACE_IN_LIST.sub(r".\1", metric.json).removeprefix(".")
            yield f"{key}.json={metric.json}: the parts of a path are joined by dots. Set {key}.json={path}."
        elif metric.where is not None and (wrong := wrong_condition(metric, metric.where)):
            yield f"{key}.where{wrong}"
        elif metric.per is not None and (metric.per == name or metric.per not in divisors):
            yield f"{key}.per={metric.per}: there is no such other metric. Set {key}.per={either(divisors)}."
        elif metric.step is not None and metric.step not in program.steps:
            yield f"{key}.step={metric.step}: there is no such step. Set {key}.step={either(program.steps)}."
        elif (known := m.REGISTRY.get(name)) is not None and metric.unit != known.unit:
            yield (
                f"{key}.unit={metric.unit}: {name} of the registry is in {known.unit} ({known.definition}) Set "
                f"{key}.unit={known.unit} and its factor, or choose another name."
            )


def wrong_condition(metric: ProgramMetric, where: Where) -> str | None:
    """Return what is wrong with the condition of a metric, beginning with the rest of its key."""
    if not where.in_words:
        return " has no limit. Set its at_least=NUMBER or at_most=NUMBER."
    if wrong := crossed(where):
        return wrong
    if metric.pattern is not None and where.of not in re.compile(metric.pattern).groupindex:
        return f".of={where.of}: the pattern has no group of this name. Write (?P<{where.of}>\\S+) into it."
    return None


def wrong_pattern(pattern: str, groups: int = 1) -> str | None:
    """Return what is wrong with a regular expression."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        return f"{error}. Correct the regular expression."
    if compiled.groups < groups:
        return "it has no group. Put the number in brackets: (\\S+)."
    return None


def merit_is_a_metric(run: Run) -> str | None:
    """Require that merit and gates name metrics of the program, and that the merit has a direction."""
    program = program_of(run)
    if program.merit is not None and program.merit not in program.metrics:
        return (
            f"program.merit={program.merit}: there is no such metric. Set program.merit="
            f"{either(program.metrics) or 'null'}."
        )
    if program.merit is not None and program.metrics[program.merit].better is Better.neither:
        return (
            f"program.merit={program.merit}, and neither a high nor a low {program.merit} is better. Set "
            f"program.metrics.{program.merit}.better=high or low."
        )
    for name, gate in program.gates.items():
        key = f"program.gates.{name}"
        if (gate.metric is None) is (gate.absent is None):
            return f"{key} needs either a metric or absent. Set {key}.metric=NAME, or {key}.absent=EXPRESSION."
        if gate.absent is not None:
            if wrong := wrong_pattern(gate.absent, groups=0):
                return f"{key}.absent={gate.absent}: {wrong}"
        elif gate.metric not in program.metrics:
            return f"{key}.metric={gate.metric}: there is no such metric. Set {key}.metric={either(program.metrics)}."
        elif not gate.in_words:
            return f"{key} has no limit. Set {key}.at_least=NUMBER or {key}.at_most=NUMBER."
        elif wrong := crossed(gate):
            return f"{key}{wrong}"
    return None


def files_stay_inside(run: Run) -> str | None:
    """Require paths of written files inside the working directory, names of variables, and hashes."""
    program = program_of(run)
    for path in program.files:
        parts = PurePosixPath(path).parts
        if not parts or PurePosixPath(path).is_absolute() or ".." in parts or "\0" in path:
            return f"program.files: {path!r} is not a path inside the working directory. Choose a relative one."
        if above := next((str(each) for each in PurePosixPath(path).parents if str(each) in program.files), None):
            return f"program.files: {above!r} is a file, and {path!r} would be in it. Rename one of them."
    last = None if program.resume is None else program.resume.complete
    if last is not None and (not (parts := PurePosixPath(last).parts) or parts[0] == "/" or ".." in parts):
        return f"program.resume.complete={last!r} is not a file in a checkpoint. Set its name in there."
    for name in program.env:
        if not VARIABLE.fullmatch(name):
            return f"program.env.{name}: a name of a variable has letters, digits and _. Choose another name."
    for name, given in program.inputs.items():
        if given.locked is not None and not SHA_256.fullmatch(given.locked):
            return (
                f"program.inputs.{name}.locked={given.locked} is not a SHA-256 (64 digits of 0-9 and a-f). Set the "
                f"first word that `sha256sum {given.path}` prints, or null."
            )
    return None


def predicted_has_keys(run: Run) -> str | None:
    """Require keys that the sections of a training have."""
    like = program_of(run).predicted
    for section in () if like is None else names.SECTIONS:
        known = [each.name for each in fields(getattr(run, section))]
        for name in getattr(like, section):
            if name not in known:
                return (
                    f"program.predicted.{section}.{name}: there is no key {section}.{name}."
                    f"{did_you_mean(nearest_names(name, known))} `slurmscale explain {section}` lists the keys."
                )
    return None


VALUES: tuple[Rule, ...] = (
    program_is_the_work,
    steps_are_commands,
    servers_come_first,
    names_have_values,
    nodes_suffice,
    own_nodes_can_be_asked_for,
    parameters_are_used,
    parameters_are_allowed,
    metrics_have_sources,
    merit_is_a_metric,
    files_stay_inside,
    predicted_has_keys,
)
