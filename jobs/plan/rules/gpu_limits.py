"""Rules of cluster.gpu_power_limit_w and cluster.gpu_clock_mhz. The range of a card is known on its node only."""

from __future__ import annotations

from jobs.layout import gpu_limits, has_gpus
from jobs.plan.rules.rule import Rule
from jobs.schema import Run


def limits_have_gpus(run: Run) -> str | None:
    """Require NVIDIA's GPUs, of which no two nodes of the run share one."""
    if not has_gpus(run):
        why = (
            f"the ranks of cluster={run.cluster.name} have no GPUs. Set {{}}=null, or a cluster with GPUs; on this "
            "machine its kind, such as gpu=h100_sxm"
        )
    elif (run.gpu.device_name or "").startswith("AMD"):
        why = f"it is set through NVML, and gpu={run.gpu.name} is AMD's. Set {{}}=null, and limit it by amd-smi"
    elif run.launcher.kind.on_this_machine and run.nodes > 1:
        why = f"the nodes={run.nodes} of this machine share its GPUs. Set {{}}=null, or nodes=1"
    else:
        return None
    return "\n".join(f"{key}={value:g}: {why.format(key)}." for key, value in gpu_limits(run).items()) or None


def speed_is_predicted_without_limits(run: Run) -> str | None:
    """Warn of predicted times of GPUs that are limited."""
    if not (limits := gpu_limits(run)):
        return None
    return (
        f"predicted times are those of GPUs without {' and '.join(limits)}: the run may take longer, so leave room in "
        "wall_time_min."
    )


RULES: tuple[Rule, ...] = (limits_have_gpus,)
WARNINGS: tuple[Rule, ...] = (speed_is_predicted_without_limits,)
