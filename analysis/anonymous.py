"""`slurmscale report --anonymous`: pseudonyms for the names of people, machines and places in a report.

Names are known in two ways: by the fields of a run that contain them (NAMES), and by what stands around them in any
text of the report, such as `user=ada` or `/home/ada` (AROUND). A report is therefore made twice: the first time
collects names, the second one replaces them wherever they stand, as words and as parts of words: `ada-n2`. What has the
shape of an address, a path or an id is replaced without being known.

A name has one pseudonym in all files of a report: `user 1`. Words that name nobody (GENERIC) stay: a partition `gpu`.
"""

from __future__ import annotations

import getpass
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from analysis.formatting import publishing
from analysis.run import RunResult
from jobs.runtime.node.system_facts import TITLES

T = TypeVar("T")

# Kinds of names, by the last part of the key of a field.
NAMES = {
    **dict.fromkeys(("user", "username", "owner", "user_name", "mail_user"), "user"),
    **dict.fromkeys(
        ("host", "hostname", "node", "nodes", "node_name", "nodelist", "exclude", "place", "head", "master_addr"),
        "node",
    ),
    **dict.fromkeys(("account", "accounts", "project", "trusted_group", "wckey"), "account"),
    "partition": "partition",
    "qos": "QOS",
    "reservation": "reservation",
    "clusters": "cluster",
    **dict.fromkeys(("job_id", "log_id", "array_job_id"), "job"),
    **dict.fromkeys(("runs_dir", "path", "cache_dir", "init_from", "tokenizer", "directory", "workdir"), "path"),
}
WORD = r"[A-Za-z_][\w.-]*[\w]"
AROUND: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "user",
        re.compile(rf"(?i:\b(?:user|username|user_?id|owner|login|logname|submitted by))\s?[=:]\s?[\"']?({WORD})"),
    ),
    ("user", re.compile(rf"(?:^|[\s\"'=(\[:,])/(?:home|users|Users)/(?:[a-z0-9]/)?({WORD})")),
    ("user", re.compile(rf"(?:^|[\s\"'=])~({WORD})/")),
    ("user", re.compile(rf"\b(?:for|of|by) user ({WORD})")),
    ("user", re.compile(rf"(?<![\w.-])({WORD})@{WORD}")),
    ("node", re.compile(rf"(?i:\b(?:host|hostname|nodename|node_?list|batchhost))\s?=\s?[\"']?({WORD})")),
    # A word with a number: sentences have such colons too.
    ("node", re.compile(r"(?i:\b(?:host|hostname|node)): [\"']?([A-Za-z][\w.-]*\d[\w.-]*)")),
    ("node", re.compile(rf"\b(?:srun|slurmstepd|slurmd|mpirun|prterun)(?:: error)?: ({WORD}): ")),
    ("node", re.compile(rf"\bON ({WORD}) CANCELLED\b")),
    ("node", re.compile(rf"(?:^|[\s\[])({WORD}):\d+(?::\d+)? \[\d+\] NCCL\b")),
    ("node", re.compile(rf"\[({WORD}):\d+\](?=[ :])")),
    ("node", re.compile(r"\bon (?:node|host) ([A-Za-z][\w.-]*\d[\w.-]*)")),
    ("node", re.compile(r"\brank \d+ on ([A-Za-z][\w.-]*\d[\w.-]*)")),
    ("account", re.compile(rf"(?i:\b(?:account|project))=[\"']?({WORD})")),
    ("partition", re.compile(rf"(?i:\bpartition)[=:]\s?[\"']?({WORD})")),
    ("QOS", re.compile(rf"(?i:\bqos)[=:]\s?[\"']?({WORD})")),
    ("reservation", re.compile(rf"(?i:\breservation)[=:]\s?[\"']?({WORD})")),
)
# A short option is not a word: `sbatch -A acct -p queue`.
OPTIONS = {"-A": "account", "-p": "partition", "-w": "node", "-x": "node", "-q": "QOS"}
OPTION = re.compile(rf"\b(?:sbatch|srun|salloc)\b[^\n;|&]{{0,300}}?\s(-[ApwxqU])\s?({WORD})")
GENERIC = frozenset((
    "gpu", "gpus", "cpu", "cpus", "debug", "batch", "normal", "long", "short", "default", "standard", "main", "test",
    "tests", "root", "nobody", "user", "users", "none", "null", "all", "compute", "work", "dev", "devel",
    "interactive", "shared", "localhost", "node", "nodes", "host", "hosts", "unknown", "train", "training", "data",
    "tiny", "model", "public", "admin", "true", "false", "yes", "no", "name", "path", "home", "tmp", "runs", "slurm",
    "local", "error", "warning", "info", "rank", "and", "the", "is", "was", "of", "in", "on", "for", "to", "at", "by",
    "it", "not", "with", "from", "ubuntu", "debian", "runner", "memory", "cuda", "git", "code", "level", "device",
))  # fmt: skip
PUBLIC = ("github.com", "arxiv.org", "huggingface.co", "pytorch.org", "nvidia.com", "python.org", "slurm.schedmd.com",
          "plotly.com", "doi.org", "mlcommons.org", "amd.com", "readthedocs.io")  # fmt: skip

# The source of a mount: `nfs4 (filer:/export)`.
EXPORT = re.compile(r"\(([\w.-]+):(/[^)]*)\)")
MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w.-]*\w")
HOST_OF_URL = re.compile(r"(?<=://)(?:[^\s/@]+@)?([\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d+)?")
ID = re.compile(r"\b(?:GPU-|MIG-)?[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}\b")
MAC = re.compile(r"\b(?:[0-9A-Fa-f]{2}[:-]){5,7}[0-9A-Fa-f]{2}\b")
ADDRESS = re.compile(
    r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}(?!\.?\w)|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:]))"
)
# Paths of the system are the same everywhere; /v1/completions is of a URL.
PATH = re.compile(
    r"(?<![\w.:/)\]}<])(?:~[\w.-]*|/(?!(?:proc|sys|dev|etc|usr|lib|lib64|bin|sbin|v1)\b)[\w.+@~%-]+)(?:/[^\s\"'`<>|,;:()\[\]{}*?&]+)+/?"
    r"|(?<![\w.:/)\]}<])/(?:home|root|users|scratch|data|work|mnt|project|projects|tmp)\b/?"
)
JOB = re.compile(
    r"(?i:(?<![A-Za-z])(job(?:id|_id| id| ids|s)?|stepid)(\s?[=:#]?\s?\"?))(\d{2,}(?:_\d+)?(?:\.\d+)?)(?!\w)"
)
JOB_FILE = re.compile(r"(?<=slurm-)\d+(?:_\d+)?|\b\d{3,}(?:_\d+)?(?=_\d+_log\.(?:out|err)\b)")
TOKEN = re.compile(r"\w[\w.-]*")
PART = re.compile(r"[^_.-]+")
MOST_PARTS = 12
LEAST_JOB_DIGITS = 5
NODE_LIST = re.compile(r"(?<![\w.-])([A-Za-z][\w.-]*?)\[\d[\d,-]*\]")
NODE_NUMBER = re.compile(r"(.*?[A-Za-z_-])\d+")


class Pseudonyms:
    """The names of a report with their pseudonyms; numbers are given in the order in which names appear."""

    def __init__(self, runs: Iterable[RunResult]) -> None:
        self.kinds: dict[str, str] = {}
        """The kind of each known name, in lower case."""
        self.phrases: dict[str, str] = {}
        """The kind of each known name of several words, such as a path with blanks."""
        self.schemes: set[str] = set()
        """The beginnings of numbered names of nodes, such as gpu of gpu17."""
        self._given: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        self._phrase: re.Pattern[str] | None = None
        self._made: set[str] = set()
        """The texts with pseudonyms: a page publishes some of them again, and `job 12` would become `job 3`."""
        for run in runs:
            if run.path.is_absolute():
                # A path with a blank in it is not recognized by its shape.
                self._learn("path", str(run.path.parent))
            for values in (run.config, run.provenance, list(run.events)):
                self._learn_fields(values, "")
            for use in run.node_use:
                self._learn("node", use.node.rpartition("(")[2].rstrip(")"))
            for each in run.system:
                self._learn("node", each.node)
                for server, path in EXPORT.findall(each.facts.get(TITLES["file_systems"], "")):
                    self._learn("node", server)
                    self._learn("path", path)
        with suppress(OSError, KeyError, ImportError):
            self._learn("user", getpass.getuser())
        self._learn("node", socket.gethostname())
        self._learn("path", str(Path.home()))

    # --- learning ------------------------------------------------------------------------------------------------

    def _learn_fields(self, value: Any, key: str) -> None:
        match value:
            case dict():
                for name, item in value.items():
                    self._learn_fields(item, str(name))
                if isinstance(cluster := value.get("cluster"), Mapping):
                    self._learn_cluster(cluster.get("name"))
            case list() | tuple():
                for item in value:
                    self._learn_fields(item, key)
            case str() if (kind := NAMES.get(key.lower().replace("-", "_"))) is not None:
                self._learn(kind, value)
            case str():
                self.collected(value)

    def _learn_cluster(self, name: Any) -> None:
        if isinstance(name, str) and name not in packaged_clusters():
            self._learn("cluster", name)

    def _learn(self, kind: str, name: str) -> None:
        """Remember a name; a list of nodes as each of them."""
        name = name.strip()
        if kind == "node":
            self.schemes |= {found[1].lower() for found in NODE_LIST.finditer(name)}
            for host in TOKEN.findall(NODE_LIST.sub(" ", name)):
                self._learn_word(kind, host)
                self._learn_word(kind, host.partition(".")[0])
                self._learn_word("domain", host.partition(".")[2])
                if found := NODE_NUMBER.fullmatch(host.partition(".")[0]):
                    self.schemes.add(found[1].lower())
        elif kind == "path":
            if "/" in name.strip("/") or name.startswith("/"):
                self.phrases[name.rstrip("/")] = kind
                self._phrase = None
        elif kind == "job":
            for part in {name, *re.split(r"[_.-]", name)[:1]}:
                if len(part) >= LEAST_JOB_DIGITS:
                    self._learn_word(kind, part)
        elif TOKEN.fullmatch(name):
            self._learn_word(kind, name)
        elif len(name) > 2:
            self.phrases[name] = kind
            self._phrase = None

    def _learn_word(self, kind: str, word: str) -> None:
        known = word.lower()
        numeric = kind != "job" and known.isdigit()
        # A partition h100 is named after a GPU; a person or project is hidden all the same.
        packaged = kind not in {"user", "account"} and known in packaged_words()
        if len(known) > 1 and known not in GENERIC and not numeric and not packaged:
            self.kinds.setdefault(known, kind)

    def collected(self, text: str) -> str:
        """Learn the names in a text by what stands around them; return the text."""
        for kind, pattern in AROUND:
            for found in pattern.finditer(text):
                self._learn(kind, found[1])
        for found in OPTION.finditer(text):
            self._learn(OPTIONS.get(found[1], "account"), found[2])
        return text

    # --- replacing -----------------------------------------------------------------------------------------------

    def of(self, kind: str, name: str) -> str:
        """Return the pseudonym of a name."""
        key = kind, name.lower()
        if key not in self._given:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._given[key] = f"{kind} {self._counts[kind]}"
        return self._given[key]

    def replaced(self, text: str) -> str:
        """Return a text with pseudonyms; one that has them already stays."""
        if text in self._made:
            return text
        made = self._replaced(text)
        self._made.add(made)
        return made

    def _replaced(self, text: str) -> str:
        if self.phrases:
            if self._phrase is None:
                words = sorted(self.phrases, key=lambda phrase: (-len(phrase), phrase))
                self._phrase = re.compile(
                    rf"(?<![\w/])(?:{'|'.join(map(re.escape, words))})(?![\w])(?:/[^\s\"'<>|,;:()]*)?"
                )
            text = self._phrase.sub(self._phrase_of, text)
        text = HOST_OF_URL.sub(self._url_of, text)
        for kind, pattern in (("mail", MAIL), ("id", ID), ("address", MAC), ("path", PATH)):
            text = pattern.sub(self._as(kind), text)
        text = ADDRESS.sub(self._address_of, text)
        text = NODE_LIST.sub(self._list_of, text)
        text = JOB.sub(lambda found: f"{found[1]}{found[2]}{self.of('job', found[3]).partition(' ')[2]}", text)
        text = JOB_FILE.sub(lambda found: self.of("job", found[0]).replace(" ", "-"), text)
        return TOKEN.sub(self._token_of, text)

    def _as(self, kind: str) -> Callable[[re.Match[str]], str]:
        return lambda found: self.of(kind, found[0])

    def _phrase_of(self, found: re.Match[str]) -> str:
        name = next(phrase for phrase in sorted(self.phrases, key=len, reverse=True) if found[0].startswith(phrase))
        return self.of(self.phrases[name], found[0])

    def _url_of(self, found: re.Match[str]) -> str:
        host = found[1].lower()
        if host in {"localhost", "127.0.0.1", "[::1]", "0.0.0.0"} or host.endswith(PUBLIC):  # noqa: S104 (compared)
            return found[0]
        return self.of("address" if host[0] == "[" or host.replace(".", "").isdigit() else "node", host)

    def _list_of(self, found: re.Match[str]) -> str:
        known = found[1].lower() in self.schemes
        return self.of("nodes", found[0]) if known else found[0]

    def _address_of(self, found: re.Match[str]) -> str:
        with suppress(ValueError):
            address = ipaddress.ip_address(found[0])
            if not (address.is_loopback or address.is_unspecified):
                return self.of("address", found[0])
        return found[0]

    def _token_of(self, found: re.Match[str]) -> str:
        token = found[0]
        if (kind := self.kinds.get(token.lower())) is not None:
            return self.of(kind, token)
        parts = list(PART.finditer(token))[:MOST_PARTS]
        shown, at, first = [], 0, 0
        while first < len(parts):
            for last in range(len(parts) - 1, first - 1, -1):
                name = token[parts[first].start() : parts[last].end()]
                if (kind := self._kind_of(name)) is not None:
                    shown += [token[at : parts[first].start()], self.of(kind, name).replace(" ", "-")]
                    at, first = parts[last].end(), last
                    break
            first += 1
        return "".join([*shown, token[at:]]) if shown else token

    def _kind_of(self, name: str) -> str | None:
        kind = self.kinds.get(name.lower())
        numbered = NODE_NUMBER.fullmatch(name)
        in_scheme = numbered is not None and len(numbered[1]) > 2 and numbered[1].lower() in self.schemes
        return kind or ("node" if in_scheme and name.lower() not in GENERIC else None)


def anonymized(runs: Iterable[RunResult], make: Callable[[], T]) -> T:
    """Return what `make` makes with pseudonyms for the names of the runs, and of all texts that it publishes."""
    names = Pseudonyms(runs)
    with publishing(names.collected):
        make()
    with publishing(names.replaced):
        return make()


def packaged_clusters() -> set[str]:
    """Return the names of the clusters in conf/, which name no site."""
    return {file.name.removesuffix(".yaml") for file in (files("conf") / "cluster").iterdir()}


@cache
def packaged_words() -> frozenset[str]:
    """Return the words in the names of GPUs, models and techniques in conf/, which name nobody."""
    groups = ("gpu", "model", "network", "parallelism", "engine")
    names = [file.name for group in groups for file in (files("conf") / group).iterdir()]
    return frozenset(part.lower() for name in names for part in PART.findall(name.removesuffix(".yaml")))
