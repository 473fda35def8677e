"""The catalogue of failure signatures, by the origin of the text; the first signature that matches a line counts."""

from analysis.failures.catalogue.collectives import COLLECTIVES
from analysis.failures.catalogue.computing import COMPUTING
from analysis.failures.catalogue.finished import FINISHED
from analysis.failures.catalogue.gpu_runtime import GPU_RUNTIME
from analysis.failures.catalogue.hubs import HUBS
from analysis.failures.catalogue.machines import MACHINES
from analysis.failures.catalogue.managers import MANAGERS
from analysis.failures.catalogue.programs import PROGRAMS
from analysis.failures.catalogue.python import PYTHON
from analysis.failures.catalogue.settings import SENTENCES, SETTINGS
from analysis.failures.catalogue.signature import Signature, Weight
from analysis.failures.catalogue.starting import STARTING
from analysis.failures.catalogue.storage import STORAGE

__all__ = ["SIGNATURES", "Signature", "Weight"]

SIGNATURES = (
    *MACHINES,
    *MANAGERS,
    *STORAGE,
    *STARTING,
    *GPU_RUNTIME,
    *HUBS,
    *PYTHON,
    *COMPUTING,
    *SETTINGS,
    *COLLECTIVES,
    *PROGRAMS,
    *FINISHED,
    *SENTENCES,
)
