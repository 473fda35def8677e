"""Only jobs/files.py opens files of others, and every reader of data refuses what is no regular file of text."""

from __future__ import annotations

import ast
import gzip
import itertools
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from jobs.data import docstrings, documents, instruction_records, megatron_binary, recipe, sources, tokenizer
from jobs.data.dataset import META, digest_of, open_dataset, read_meta, refuse_changed
from jobs.errors import SuiteError
from jobs.runtime.profiling.trace import read_trace
from jobs.schema import Data, Source
from jobs.submit.trust.own_sweeps import recorded
from jobs.submit.trust.received import equals
from jobs.work.images.recordio import positions, read_images
from jobs.work.storage import page_cache, samples
from tests.support.paths import ROOT
from tests.support.waiting import limit_s

pytestmark = pytest.mark.red_team

# --- the one module that opens files ---------------------------------------------------------------------------

READS = frozenset(
    ("open", "read_text", "read_bytes", "fdopen", "load", "loads", "safe_load", "full_load", "memmap", "fromfile",
     "loadtxt", "genfromtxt", "read_csv", "read_json", "read_parquet", "read_table", "from_file")
)  # fmt: skip
CALLED = re.compile(rf"\b(?:{'|'.join(sorted(READS))})\(")
OTHER_MODES = ("w", "wb", "x", "xb", "a", "ab")
KERNEL = "a file of the kernel"
PACKAGE = "a file of this package"
OPENED = "the file was opened by jobs/files.py, or is opened there before"
OURS = "not a file: what this process made, or its parent sends"
STAND_IN = "a program of a rehearsal, on its own server and prompts, which needs nothing but Python"
EXCEPTIONS = {
    "analysis/compare/published.py": {PACKAGE: ["(files('analysis') / 'compare' / name).read_text"]},
    "analysis/failures/catalogue/__init__.py": {
        PACKAGE: ["resources.files('analysis.failures.catalogue').joinpath('texts.toml').read_text"]
    },
    "analysis/failures/catalogue/table.py": {
        PACKAGE: ["tomllib.loads", "(resources.files('analysis.failures.catalogue') / name).open"]
    },
    "analysis/logs/gpu_names.py": {PACKAGE: ["(files('analysis') / 'logs' / 'gpu_names.csv').read_text"]},
    "analysis/metrics/mfu.py": {PACKAGE: ["yaml.safe_load", "path.read_text"]},
    "analysis/parsers/trainings/mllog.py": {"orjson limits the depth, and a line has a limit": ["orjson.loads"]},
    "analysis/report/page.py": {PACKAGE: ["(resources.files('analysis') / 'report' / name).read_text"]},
    "jobs/data/dataset.py": {OPENED: ["np.load"] * 3},
    "jobs/data/megatron_binary.py": {OPENED: ["np.memmap"]},
    "jobs/data/tokenized.py": {"the file was just written": ["np.load"]},
    "jobs/data/tokenizer.py": {OPENED: ["HuggingFaceTokenizer.from_file"]},
    "jobs/doctor/node_check.py": {KERNEL: ["Path('/proc/sys/kernel/random/boot_id').read_text"]},
    "jobs/engines/deepspeed/checkpoint.py": {OPENED: ["torch.load"]},
    "jobs/engines/native/optimizers/own.py": {OURS: ["json.loads"] * 2},
    "jobs/files.py": {"the module": ["os.fdopen", "os.open", "os.open", "yaml.load"]},
    "jobs/work/images/decoding.py": {OPENED: ["Image.open"]},
    "jobs/output.py": {"files to write": ["os.open"] * 3 + ["open"]},
    "jobs/plan/compose.py": {OURS: ["pickle.loads"] * 3},
    "jobs/plan/configuration_files.py": {
        OPENED: ["yaml.load"],
        PACKAGE: ["resources.files(self.path).joinpath(self._normalize_file_name(config_path)).open"],
    },
    "jobs/work/storage/space.py": {KERNEL: ["MEMORY.read_text"]},
    "jobs/plan/synonyms.py": {PACKAGE: ["resources.files('jobs.plan').joinpath('synonyms.csv').open"]},
    "jobs/ranks.py": {KERNEL: ["Path(f'/proc/{pid}/stat').read_text"]},
    "jobs/runtime/checkpoints/pickles.py": {
        OPENED: ["MetadataUnpickler(io.BytesIO(read_bytes(path, METADATA_BYTES))).load", "torch.load"]
    },
    "jobs/runtime/data_pickles.py": {
        "bytes of a rank, with a code": ["torch.load", "TrustedDataUnpickler(io.BytesIO(pickled)).load"]
    },
    "jobs/runtime/node/file_systems.py": {KERNEL: ["(proc / 'self/mountstats').read_text"]},
    "jobs/runtime/gpus/gpu.py": {KERNEL: ["(pci / address / 'local_cpulist').read_text"]},
    "jobs/runtime/machine.py": {
        KERNEL: ["Path('/proc/sys/kernel/random/boot_id').read_text", "Path('/proc/cpuinfo').read_text"]
    },
    "jobs/runtime/node/load.py": {KERNEL: ["file.read_text"]},
    "jobs/runtime/node/use.py": {KERNEL: ["file.read_text"]},
    "jobs/runtime/node/system.py": {KERNEL: ["file.read_text"]},
    "jobs/runtime/storage_io.py": {
        KERNEL: ["(PROC / 'self/mountstats').read_text", "(PROC / process / 'io').read_text", "listed.read_text",
                 "file.read_text"]
    },
    "jobs/runtime/profiling/trace.py": {OPENED: ["gzip.open"]},
    "jobs/secret_patterns.py": {PACKAGE: ["Path(__file__).with_name('secret_shapes.csv').open"]},
    "jobs/work/serve/conversion.py": {OPENED: ["torch.load"]},
    "jobs/work/program/ports.py": {
        KERNEL: ["Path('/proc/net', table).read_text", "stat.read_text", "(process / 'comm').read_text"]
    },
    "jobs/work/storage/samples.py": {OPENED: ["np.memmap", "tarfile.open"]},
    "jobs/submit/allocations/held.py": {OURS: ["json.load"]},
    "jobs/submit/local_queue.py": {OURS: ["json.load"]},
    "jobs/submit/allocations/pilot.py": {OURS: ["json.load"]},
    "jobs/submit/pbs/call.py": {"the output of qstat, which is not strictly JSON": ["json.loads"] * 3},
    "jobs/submit/trust/integrity.py": {PACKAGE: ["(resources.files('jobs.submit.trust') / 'integrity.sh').read_text"]},
    "jobs/work/serve/stand_in/client.py": {STAND_IN: ["json.load", "json.loads", "Path(prompts).read_text"]},
    "jobs/work/serve/stand_in/server.py": {STAND_IN: ["json.loads"]},
    "jobs/explore/judge.py": {OURS: ["yaml.safe_load"]},
}  # fmt: skip
# Methods of our own with such a name.
NOT_FILES = ("webbrowser.open", "self.record.loads", "checkpoint.load", "self.load")


def direct_readers(tree: ast.AST) -> Iterator[str]:
    """Yield the callee of each call that may open or parse a file; those of jobs/files.py are called by bare names."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Attribute):
            reads = call.func.attr in READS
        else:
            reads = isinstance(call.func, ast.Name) and call.func.id == "open"
        written = any(isinstance(given, ast.Constant) and given.value in OTHER_MODES for given in call.args)
        if reads and not written and ast.unparse(call.func) not in NOT_FILES:
            yield ast.unparse(call.func)


def test_no_module_but_one_opens_files_but_for_reasons() -> None:
    found = {}
    for file in [*(ROOT / "jobs").rglob("*.py"), *(ROOT / "analysis").rglob("*.py"), ROOT / "slurmscale.py"]:
        text = file.read_text()
        # Parsing all files would take seconds.
        if CALLED.search(text) and (readers := Counter(direct_readers(ast.parse(text)))):
            found[str(file.relative_to(ROOT))] = readers
    allowed = {name: Counter(itertools.chain(*reasons.values())) for name, reasons in EXCEPTIONS.items()}
    assert found == allowed, "use jobs/files.py: opened, read_bytes, read_text, read_json, read_yaml, parse_json"


@pytest.mark.parametrize(
    ("code", "callee"),
    [("open(path)", "open"), ("path.open()", "path.open"), ("path.open('rb')", "path.open"),
     ("(a / b).open(mode=m)", "(a / b).open"), ("io.open(path)", "io.open"), ("path.read_text()", "path.read_text"),
     ("gzip.open(path, 'rt')", "gzip.open"), ("np.load(path)", "np.load"), ("json.load(file)", "json.load"),
     ("yaml.safe_load(text)", "yaml.safe_load"), ("pandas.read_csv(path)", "pandas.read_csv")],
)  # fmt: skip
def test_a_new_direct_reader_is_found(code: str, callee: str) -> None:
    assert list(direct_readers(ast.parse(code))) == [callee]
    assert list(direct_readers(ast.parse("read_text(path); opened(path); path.open('wb')"))) == []


# --- readers of data -------------------------------------------------------------------------------------------


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def directory(path: Path) -> None:
    path.mkdir()


def itself(path: Path) -> None:
    path.symlink_to(path)


def nested(path: Path) -> None:
    path.write_text("[" * 100_000 + "]" * 100_000)


def not_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe{\x00" * 9)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


LIMITS = cast(Data, SimpleNamespace(max_line_mb=1, max_expansion=500))
READERS: dict[str, Callable[[Path], object]] = {
    "meta.json": lambda path: read_meta(as_meta(path)),
    "a data set": lambda path: open_dataset(as_meta(path)),
    "records": lambda path: instruction_records.text_rows(path, Source.alpaca, None, 1),
    "text": lambda path: list(sources.pieces(path, 1)),
    "lines": lambda path: list(documents.pieces_of_lines(path, LIMITS)),
    "docstrings": lambda path: list(docstrings.docstring_rows(path)),
    "configuration of a tokenizer": tokenizer.read_json,
    "index": lambda path: megatron_binary.read_index(path, path),
    "records of images": positions,
    "images": lambda path: list(read_images(path, [0])),
    "samples of text": lambda path: list(samples.sizes_of_text(path)),
    "samples of a shard": lambda path: list(samples.sizes_of_tar(path)),
    "trace": read_trace,
}


def as_meta(path: Path) -> Path:
    path.rename(path.with_name(META))
    return path.parent


@pytest.fixture
def in_time() -> Iterator[None]:
    """End a reader that waits or never ends by an error."""

    def ended(_number: int, _frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ended)
    signal.setitimer(signal.ITIMER_REAL, limit_s(60))
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("attack", [fifo, endless, directory, itself, nested, not_text])
def test_no_reader_of_data_waits_for_a_file_or_reads_one_without_end(
    attack: Callable[[Path], None], tmp_path: Path
) -> None:
    for name, read in READERS.items():
        path = tmp_path / name / "file.jsonl"
        path.parent.mkdir()
        attack(path)
        try:
            read(path)
        except (SuiteError, OSError, ValueError):
            continue
        assert (attack, name) == (nested, "text"), "the file was read"


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("attack", [fifo, endless, directory, itself, nested, not_text, sparse])
def test_the_record_of_own_sweeps_and_the_comparison_of_code_survive_any_file(
    attack: Callable[[Path], None], tmp_path: Path
) -> None:
    attack(tmp_path / "file")
    assert recorded(tmp_path / "file") == {}
    assert not equals(tmp_path / "file", b"code")


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("attack", [fifo, endless])
def test_digests_and_page_caches_do_not_wait(attack: Callable[[Path], None], tmp_path: Path) -> None:
    attack(tmp_path / META)
    readers: list[Callable[[], object]] = [
        lambda: digest_of(tmp_path),
        lambda: recipe.sha256(tmp_path / META),
        lambda: page_cache.drop([tmp_path / META]),
        lambda: page_cache.cached_share([tmp_path / META]),
    ]
    for read in readers:
        with pytest.raises((SuiteError, OSError)):
            read()


def test_a_compressed_trace_that_expands_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.runtime.profiling.trace.TRACE_BYTES", 1 << 20)
    file = tmp_path / "trace.json.gz"
    file.write_bytes(gzip.compress(b" " * (2 << 20)))
    with pytest.raises(OSError, match="is larger than 1 MiB"):
        read_trace(file)


@pytest.mark.parametrize(("meta", "is_checked"), [("{}", False), ('{"sha256": {}}', True), ('{"random": {}}', True)])
def test_data_of_an_earlier_version_is_used_with_a_sentence_that_nobody_checks_it(
    meta: str, *, is_checked: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / META).write_text(meta)
    refuse_changed(tmp_path, None)
    assert ("without digests: nobody checks" not in capsys.readouterr().out) == is_checked
