"""The sections of a report, in the order of its page.

A section is a function of the digest in a file of its own, and a line of SECTIONS; one of other work than training has
a sentence in the headline, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from analysis.report.digest import Digest
from analysis.report.figures.style import Section
from analysis.report.sections.benchmarks import benchmark_headlines, measurement_sections
from analysis.report.sections.checkpoints import checkpoint_section
from analysis.report.sections.choices import choice_section
from analysis.report.sections.cost import cost_section
from analysis.report.sections.customization import customization_section
from analysis.report.sections.data import data_section
from analysis.report.sections.evaluations import evaluation_headlines, evaluation_section
from analysis.report.sections.goodput import goodput_section
from analysis.report.sections.images import image_section
from analysis.report.sections.laws import fits_section
from analysis.report.sections.log_figures import log_figures_section
from analysis.report.sections.methodology import methodology_section, reproduction_section
from analysis.report.sections.mfu import utilization_section
from analysis.report.sections.mlperf import mlperf_section
from analysis.report.sections.node_use import node_use_section
from analysis.report.sections.predictions import predictions_section
from analysis.report.sections.profile import kernel_section, profile_section
from analysis.report.sections.published import published_section
from analysis.report.sections.served_loads import load_section, replicas_section, search_section
from analysis.report.sections.serving import serving_headlines, serving_section
from analysis.report.sections.side_files import side_section
from analysis.report.sections.sizing import sizing_section
from analysis.report.sections.startup import startup_section
from analysis.report.sections.storage import phases_section, storage_section
from analysis.report.sections.storage_tests import (
    checkpoint_test_section,
    data_test_section,
    fio_test_section,
    storage_test_headlines,
)
from analysis.report.sections.stragglers import straggler_section
from analysis.report.sections.system import system_section
from analysis.report.sections.training_cost import training_cost_section

SECTIONS: Sequence[Callable[[Digest], Section | None]] = (
    choice_section,
    system_section,
    published_section,
    image_section,
    side_section,
    fits_section,
    mlperf_section,
    utilization_section,
    predictions_section,
    cost_section,
    training_cost_section,
    customization_section,
    evaluation_section,
    serving_section,
    search_section,
    sizing_section,
    load_section,
    replicas_section,
    checkpoint_test_section,
    data_test_section,
    fio_test_section,
    data_section,
    startup_section,
    goodput_section,
    checkpoint_section,
    storage_section,
    phases_section,
    node_use_section,
    straggler_section,
    profile_section,
    kernel_section,
    log_figures_section,
    methodology_section,
    reproduction_section,
)
HEADLINES = (benchmark_headlines, evaluation_headlines, serving_headlines, storage_test_headlines)
"""The headline's sentences on work other than training."""


def sections(digest: Digest) -> list[Section]:
    """Return the sections that have rows; those of benchmarks in logs, one per format, are last."""
    found = (section(digest) for section in SECTIONS)
    return [*(each for each in found if each is not None), *measurement_sections(digest)]
