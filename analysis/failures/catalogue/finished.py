"""Signatures of completion: a program or a resource manager reports that the work was done."""

from __future__ import annotations

from analysis.failures.catalogue.signature import Weight, signatures
from jobs.failures import FailureCause

C, W = FailureCause, Weight

FINISHED = (
    *signatures(
        "https://github.com/huggingface/transformers (trainer.py), "
        "https://github.com/NVIDIA/Megatron-LM (training.py), https://github.com/pytorch/torchtitan (train.py), "
        "https://github.com/Lightning-AI/pytorch-lightning "
        "(loops/fit_loop.py), https://github.com/Lightning-AI/litgpt, https://github.com/facebookresearch/fairseq "
        "(fairseq_cli/train.py), https://github.com/axolotl-ai-cloud/axolotl (train.py)",
        (C.unknown, W.finished, r"\{'train_runtime': |^\[after training is done\] datetime: |^\[exiting program "
         r"(?:at|after) |\bTraining (?:completed|Completed)\b(?! (?:at|up to) step)|`Trainer\.fit` stopped: `max_|"
         r"^Training time: [\d.]+ ?s|\bdone training in [\d.]+ seconds|\b[Rr]eached max_(?:iters|steps)\b|"
         r"\b[Tt]raining finished\b|\b[Ff]inished training\b|\b[Rr]eturn code is 0$|\bexit status 0$",
         ("{'train_runtime'", "[after training is", "[exiting program", "Training completed", "Training Completed",
          "`Trainer.fit` stopped", "Training time: ", "done training in", "eached max_",
          "raining finished", "inished training", "eturn code is 0", "exit status 0")),
    ),
    *signatures(
        "https://github.com/pytorch/pytorch (torch/distributed/elastic/agent/server/api.py)",
        (C.unknown, W.finished, r"\bworker group successfully finished\b|\bLocal worker group finished "
         r"\(WorkerState\.SUCCEEDED\)", ("worker group",)),
    ),
    *signatures(
        "https://slurm.schedmd.com/seff.html, https://github.com/openpbs/openpbs, "
        "https://www.ibm.com/docs/en/spectrum-lsf/10.1.0 (job output)",
        (C.unknown, W.finished, r"^\s*State: +COMPLETED \(exit code 0\)|^\s*Exit[_ ][Ss]tatus ?[:=] *0\b|"
         r"^Successfully completed\.$",
         ("COMPLETED (exit code", "Exit Status", "Exit_status", "Successfully completed.")),
    ),
)  # fmt: skip
