"""Import LitGPT as a rank does before the tests here do: all of it imports bitsandbytes, which starts CUDA."""

from jobs.runtime.imports import import_litgpt_alone

import_litgpt_alone()
