"""Metrics that only logs of other programs contain; jobs.metrics has those of our own runs.

Values are SI base units, as there: a parser converts what its format prints in ms, GB/s or TFLOP/s.
"""

from __future__ import annotations

from jobs import metrics as m
from jobs.metrics import BILLION, GIBIBYTE, GIGABYTE_PER_S, MICROSECOND, PERCENT, Better, DisplayUnit, Metric

# --- what was run ------------------------------------------------------------------------------------------------
NODES = Metric("nodes", "1", "Machines of the job.", digits=9)
RANKS = Metric("ranks", "1", "Processes of the job, mostly one per GPU.", digits=9)
RANKS_PER_NODE = Metric("ranks_per_node", "1", "Processes on a machine.", digits=9)
LAUNCHED_NODES = Metric("launched_nodes", "1", "Machines by the launcher's lines.", digits=9)
LAUNCHED_RANKS = Metric("launched_ranks", "1", "Processes by the launcher's lines.", digits=9)
LAUNCHED_RANKS_PER_NODE = Metric("launched_ranks_per_node", "1", "Processes on a machine by its lines.", digits=9)
DATA_PARALLEL_SIZE = Metric("data_parallel_size", "1", "Groups of ranks that each hold the whole model.", digits=9)
TENSOR_PARALLEL_SIZE = Metric("tensor_parallel_size", "1", "Ranks that share each layer.", digits=9)
PIPELINE_PARALLEL_SIZE = Metric("pipeline_parallel_size", "1", "Stages that the layers are spread over.", digits=9)
CONTEXT_PARALLEL_SIZE = Metric("context_parallel_size", "1", "Ranks that share each sample's tokens.", digits=9)
EXPERT_PARALLEL_SIZE = Metric("expert_parallel_size", "1", "Ranks that the experts are spread over.", digits=9)
GLOBAL_BATCH_SIZE = Metric("global_batch_size", "1", "Samples of one optimizer step, all ranks together.", digits=9)
MICRO_BATCH_SIZE = Metric("micro_batch_size", "1", "Samples that a rank takes at once.", digits=9)
ACCUMULATION = Metric("accumulation", "1", "Micro-batches of a rank in one optimizer step.", digits=9)
SEQUENCE_LENGTH = Metric("sequence_length", "1", "Tokens of a sample, including padding.", digits=9)
FULL_SAMPLES = Metric(
    "full_samples", "1", "1 where every sample is of sequence_length, cut from one stream of tokens.", digits=1
)
PACKED = Metric(
    "packed", "1", "1 if the samples of a micro-batch are rows of several, end to end; 0 if padded.", digits=1
)
SEED = Metric("seed", "1", "Seed of the random numbers.", digits=12)
PLANNED_STEPS = Metric("planned_steps", "1", "Optimizer steps planned for the run.", digits=9)
PARAMETERS = Metric("parameters", "1", "Weights of the model, as the program counts them.", digits=9)
DEVICE_MEMORY = Metric("device_memory_bytes", "B", "Memory of one GPU.", digits=4, shown_in=GIBIBYTE)
PEAK_FLOPS_PER_S = Metric(
    "peak_flops_per_s",
    "FLOP/s",
    "Peak of a GPU as the program assumes it, possibly wrongly.",
    digits=4,
    shown_in=DisplayUnit("TFLOP/s", 1e12),
)
TRAINING_SAMPLES = Metric("training_samples", "1", "Samples of the training set.", digits=9)
HELD_OUT_SAMPLES = Metric("held_out_samples", "1", "Samples of the evaluation set.", digits=9)
GPUS_PER_NODE = Metric("gpus_per_node", "1", "Accelerators of a machine.", digits=9)

# --- the model, by its keys in jobs.schema.Model ------------------------------------------------------------------
LAYERS = Metric("layers", "1", "Transformer layers of the model.", digits=9)
HIDDEN_SIZE = Metric("hidden_size", "1", "Width of the model.", digits=9)
HEADS = Metric("heads", "1", "Query heads of a layer.", digits=9)
KV_HEADS = Metric(
    "kv_heads", "1", "Key and value heads of a layer: fewer than heads is grouped-query attention.", digits=9
)
HEAD_SIZE = Metric("head_size", "1", "Width of a head.", digits=9)
INTERMEDIATE_SIZE = Metric("intermediate_size", "1", "Width inside a feed-forward, or inside an expert.", digits=9)
VOCABULARY_SIZE = Metric("vocab_size", "1", "Rows of the embedding, including padding.", digits=9)
EXPERTS = Metric("experts", "1", "Experts of a layer; absent for a dense model.", digits=9)
EXPERTS_PER_TOKEN = Metric("experts_per_token", "1", "Experts that a token is sent to.", digits=9)
GATED = Metric("gated", "1", "1 where a feed-forward has three matrices, 0 where it has two.", digits=1)
TIED_EMBEDDINGS = Metric("tied_embeddings", "1", "1 where embedding and output head share weights, else 0.", digits=1)
LORA_RANK = Metric("lora_rank", "1", "Rank of LoRA's adapters; all other weights are frozen.", digits=9)

# --- training ----------------------------------------------------------------------------------------------------
ITERATION = Metric(
    "iteration", "1", "Optimizer steps so far, of the epoch or of the run, depending on the program.", digits=9
)
EPOCH = Metric("epoch", "1", "Passes over the data so far, as the log counts them.", digits=6)
EPOCH_TIME = Metric("logged_epoch_time_s", "s", "Wall clock of an epoch, as the log states it.", Better.low, 4)
STEP_TIME_SMOOTHED = Metric(
    "step_time_smoothed_s",
    "s",
    "Moving average over the last steps, weighted towards the latest, as a progress bar shows it.",
    Better.low,
    4,
)
SAMPLES_DONE = Metric("samples_done", "1", "Samples trained on since the run began.", digits=12)
TOKENS_DONE = Metric("tokens_done", "1", "Tokens trained on since the run began, including padding.", digits=12)
SAMPLES_PER_S = Metric(
    "samples_per_s", "1/s", "Samples (sequences, images) per second, all ranks together.", Better.high, 4, on_page=True
)
SAMPLES_PER_S_PER_RANK = Metric(
    "samples_per_s_per_rank", "1/s", "Samples (sequences, images) per second of one rank.", Better.high, 4
)
SAMPLES_PER_S_TIMED = Metric(
    "samples_per_s_timed",
    "1/s",
    "DeepSpeed: samples of the step divided by the time of the engine's timer, which may be shorter than the step.",
    Better.high,
    4,
)
SAMPLES_PER_S_TIMED_MEAN = Metric(
    "samples_per_s_timed_mean", "1/s", "The same over all steps so far except the first two.", Better.high, 4
)
FLOPS_PER_S_PER_RANK = Metric(
    "flops_per_s_per_rank",
    "FLOP/s",
    "FLOP/s of one rank by the formula of the program that wrote the log.",
    Better.high,
    4,
)
MODEL_FLOPS_UTILIZATION = Metric(
    "model_flops_utilization", "1", "flops_per_s_per_rank divided by peak_flops_per_s.", Better.high, 4
)
SKIPPED_STEPS = Metric(
    "skipped_steps", "1", "Steps without an update since the previous line, because gradients overflowed.", Better.low
)
SKIPPED_STEPS_SO_FAR = Metric(
    "skipped_steps_so_far", "1", "Steps without an update since the run began.", Better.low, 9
)
TIME_NOT_POSITIVE = Metric(
    "time_not_positive", "1", "1 where a printed step time is 0, negative, NaN or infinite.", Better.low
)
LOSS_NOT_FINITE = Metric("loss_not_finite", "1", "1 where a printed loss is NaN or infinite.", Better.low)
NORM_NOT_FINITE = Metric("norm_not_finite", "1", "1 where a printed gradient norm is NaN or infinite.", Better.low)
NAN_STEPS = Metric("nan_steps", "1", "Steps since the previous line whose loss was NaN.", Better.low)
MEMORY_ALLOCATED = Metric(
    "memory_allocated_bytes",
    "B",
    "Device memory that a rank's tensors occupy at this time.",
    Better.low,
    4,
    GIBIBYTE,
)
DEVICE_MEMORY_USED = Metric(
    "device_memory_used_bytes", "B", "Memory of a rank's GPU in use by any process.", Better.low, 4, GIBIBYTE
)
MICRO_BATCH_TIME = Metric(
    "micro_batch_time_s", "s", "Wall clock of one micro-batch, including the update if one follows.", Better.low, 4
)
DATA_TIME = Metric("data_time_s", "s", "Waiting for the batches of a step.", Better.low, 4)
COMPUTE_TIME = Metric(
    "compute_time_s", "s", "Forward, backward and update of a step, without waiting for its batches.", Better.low, 4
)
FORWARD_TIME = Metric("forward_time_s", "s", "Forward passes of one micro-batch, or of all in a step.", Better.low, 4)
BACKWARD_TIME = Metric(
    "backward_time_s", "s", "Backward passes of one micro-batch, or of all in a step.", Better.low, 4
)
GRADIENT_REDUCTION_TIME = Metric(
    "gradient_reduction_time_s",
    "s",
    "Reduction of gradients over the ranks, as far as it is not overlapped.",
    Better.low,
    4,
)
OPTIMIZER_TIME = Metric("optimizer_time_s", "s", "Updating the weights.", Better.low, 4)
TIME_TO_TRAIN = Metric(
    "time_to_train_s",
    "s",
    "MLPerf: from run_start to the last run_stop, including evaluations.",
    Better.low,
    4,
    on_page=True,
)
INITIALIZATION_TIME = Metric(
    "initialization_time_s", "s", "MLPerf: from the first init_start of any rank to init_stop.", Better.low, 4
)
EVALUATION_SCORE = Metric(
    "evaluation_score",
    "1",
    "Accuracy or loss on the held-out samples, by the benchmark's own definition.",
    digits=6,
    on_page=True,
)
UNIX_TIME = Metric(
    "unix_time_s", "s", "Seconds since 1970-01-01 UTC by the clock of the machine that wrote it.", digits=13
)
MICRO_BATCHES_DONE = Metric("micro_batches_done", "1", "Micro-batches of a rank since the run began.", digits=9)
MEAN_STEP_TIME = Metric(
    "mean_step_time_s", "s", "Mean of the step times since the program began to measure.", Better.low, 4
)
STEPS_TIME = Metric(
    "steps_time_s", "s", "Sum of the step times since the program began to measure, without evaluations.", digits=6
)
STEPS_PER_S = Metric("steps_per_s", "1/s", "Optimizer steps per second.", Better.high, 4)
MEAN_LOSS = Metric(
    "mean_loss", "nat", "Mean of loss over the steps of an epoch, or of a whole training.", Better.low, 5
)
EVALUATION_TOTAL_TIME = Metric(
    "evaluation_total_time_s", "s", "Wall clock of all evaluations of a run, from their start to their end.", digits=4
)
TRAINING_TIME = Metric(
    "training_time_s",
    "s",
    "Wall clock of the training loop as its program reports it, including evaluations and saving unless its program "
    "stops its clock for them (modded-nanogpt).",
    Better.low,
    5,
)
CONVERGENCE_FACTOR = Metric(
    "convergence_factor",
    "1",
    "MLPerf: factor on the mean time to train for unusually fast convergence.",
)

# --- collectives -------------------------------------------------------------------------------------------------
MESSAGE_SIZE = Metric("message_size_bytes", "B", "Bytes of the collective's buffer.", digits=12)
COLLECTIVE_TIME = Metric("collective_time_s", "s", "Mean wall clock of one call.", Better.low, 4, shown_in=MICROSECOND)
ALGORITHM_BANDWIDTH = Metric(
    "algorithm_bandwidth_bytes_per_s",
    "B/s",
    "message_size_bytes divided by collective_time_s.",
    Better.high,
    4,
    shown_in=GIGABYTE_PER_S,
)
BUS_BANDWIDTH = Metric(
    "bus_bandwidth_bytes_per_s",
    "B/s",
    "algorithm_bandwidth times the share of the buffer that every link must carry, which makes rank counts comparable.",
    Better.high,
    4,
    shown_in=GIGABYTE_PER_S,
)
WRONG_VALUES = Metric("wrong_values", "1", "Wrong elements of the result.", Better.low)
COMMUNICATOR_RANKS = Metric("communicator_ranks", "1", "Processes that one communicator joins.", digits=9)
COMMUNICATOR_NODES = Metric("communicator_nodes", "1", "Machines that one communicator joins.", digits=9)
COMMUNICATOR_SETUP_TIME = Metric(
    "communicator_setup_time_s",
    "s",
    "Time from a rank's call to join a communicator until it can use it.",
    Better.low,
    3,
)

# --- messages, memory and linear algebra: OSU, STREAM, HPL, HPCG ----------------------------------------------------
MESSAGE_LATENCY = Metric(
    "message_latency_s",
    "s",
    "Mean wall clock of one message or of one collective call, mean over the ranks.",
    Better.low,
    4,
    shown_in=MICROSECOND,
    heading="Message latency",
)
MESSAGE_BANDWIDTH = Metric(
    "message_bandwidth_bytes_per_s",
    "B/s",
    "Bytes per second between the ranks of all pairs, both directions added if messages go both ways.",
    Better.high,
    4,
    shown_in=GIGABYTE_PER_S,
    heading="Message bandwidth",
)
MESSAGES_PER_S = Metric("messages_per_s", "1/s", "Messages per second of all pairs of ranks.", Better.high, 4)
MEMORY_BANDWIDTH = Metric(
    "memory_bandwidth_bytes_per_s",
    "B/s",
    "Best rate at which one kernel of STREAM reads and writes memory, all threads together.",
    Better.high,
    4,
    shown_in=GIGABYTE_PER_S,
    heading="Memory bandwidth",
)
THREADS = Metric("threads", "1", "Threads of the program, or of each of its processes.", digits=9)
PROBLEM_SIZE = Metric("problem_size", "1", "Rows of the matrix that the benchmark solves with.", digits=12)
SOLVER_FLOPS_PER_S = Metric(
    "solver_flops_per_s",
    "FLOP/s",
    "FLOP/s of all processes together, by the benchmark's own count of operations.",
    Better.high,
    4,
    shown_in=DisplayUnit("GFLOP/s", 1e9),
    heading="Solver rate",
)

# --- accounting --------------------------------------------------------------------------------------------------
CPUS = Metric("cpus", "1", "Processors of the job as Slurm counts them, mostly hardware threads.", digits=9)
GPUS = Metric("gpus", "1", "Accelerators of the job.", digits=9)
JOB_TIME = Metric(
    "job_time_s", "s", "Time from the start of a job or step to its end or to the query, without suspended time."
)
TIME_LIMIT = Metric("time_limit_s", "s", "Time limit of the job.")
WAITING_TIME = Metric("waiting_time_s", "s", "Time for which an eligible job waited for its resources.", Better.low)
RESTARTS = Metric("restarts", "1", "Number of requeues of the job.", Better.low, 9)
HOST_MEMORY_PEAK = Metric(
    "host_memory_peak_bytes",
    "B",
    "Peak resident memory of the task with the most, as sampled.",
    Better.low,
    4,
    GIBIBYTE,
)

# --- readings of a monitor ---------------------------------------------------------------------------------------
POWER = Metric("power_w", "W", "Electrical power of the device or machine at the time of the reading.", digits=4)
POWER_LIMIT = Metric("power_limit_w", "W", "Power limit of the device.", digits=4)
CONVERSION_EFFICIENCY = Metric(
    "conversion_efficiency", "1", "MLPerf: factor on the readings for the losses of the power supply."
)
TEMPERATURE = Metric("temperature_celsius", "°C", "Temperature of the GPU.", digits=3)
GPU_BUSY = m.GPU_BUSY
GPU_MEMORY = Metric("gpu_memory_bytes", "B", "Memory of the GPU.", digits=4, shown_in=GIBIBYTE)
GPU_MEMORY_USED = Metric(
    "gpu_memory_used_bytes", "B", "Memory of the GPU in use by any process.", digits=4, shown_in=GIBIBYTE
)
GPU_MEMORY_BUSY = Metric("gpu_memory_busy", "1", "Share of the time in which the GPU's memory was read or written.")
GPU_MEMORY_CLOCK = Metric("gpu_memory_clock_hz", "Hz", "Clock of the GPU's memory.", digits=4)
GPU_MEMORY_TEMPERATURE = Metric("gpu_memory_temperature_celsius", "°C", "Temperature of the GPU's memory.", digits=3)

# --- any log -----------------------------------------------------------------------------------------------------
LINES = Metric("lines", "1", "Lines of the log with the same content.", digits=9)

# --- servers of models and of anything else -----------------------------------------------------------------------
DURATION = Metric("benchmark_duration_s", "s", "Wall clock of the measurement.", digits=4)
REQUESTS_PLANNED = Metric("requests_planned", "1", "Requests planned.", digits=9)
REQUESTS_COMPLETED = Metric(
    "requests_completed", "1", "Requests with a complete answer; for ApacheBench including wrong answers.", digits=9
)
REQUESTS_FAILED = Metric("requests_failed", "1", "Requests without an answer or with a wrong one.", Better.low, 9)
ERROR_RESPONSES = Metric(
    "error_responses",
    "1",
    "Answers with an HTTP status other than 2xx; ApacheBench counts them as completed.",
    Better.low,
    9,
)
CONCURRENCY = Metric("concurrency", "1", "Maximum number of concurrent requests, as configured.", digits=9)
PEAK_CONCURRENCY = Metric("peak_concurrency", "1", "Most concurrent requests in any second.", digits=9)
OFFERED_REQUESTS_PER_S = Metric(
    "offered_requests_per_s", "1/s", "Mean rate of sending requests, as configured.", digits=4
)
REQUESTS_PER_S = Metric(
    "requests_per_s", "1/s", "requests_completed divided by the wall clock of the measurement.", Better.high, 4
)
REQUEST_INTERVAL = Metric(
    "request_interval_s", "s", "Wall clock of the measurement divided by requests_completed.", Better.low, 4
)
REQUEST_TIME_OF_CLIENT = Metric(
    "request_time_of_client_s",
    "s",
    "concurrency times request_interval_s: what one of the clients waited on average.",
    Better.low,
    4,
)
RECEIVED = Metric("received_bytes", "B", "Bytes that the server sent, including headers.", digits=9)
SENT = Metric("sent_bytes", "B", "Bytes of the requests with a body.", digits=9)
GOOD_REQUESTS_PER_S = Metric(
    "good_requests_per_s",
    "1/s",
    "Rate of requests within the required latencies, out of requests_per_s.",
    Better.high,
    4,
)
INPUT_TOKENS = Metric("input_tokens", "1", "Tokens of the prompts of completed requests.", digits=9)
OUTPUT_TOKENS = Metric("output_tokens", "1", "Tokens of the answers of completed requests.", digits=9)
INPUT_LENGTH = Metric("input_length", "1", "Tokens of a prompt, mean over requests.", digits=6)
OUTPUT_LENGTH = Metric("output_length", "1", "Tokens of an answer, mean over requests.", digits=6)
INPUT_TOKENS_PER_S = Metric("input_tokens_per_s", "1/s", "input_tokens divided by the wall clock.", Better.high, 4)
OUTPUT_TOKENS_PER_S = Metric("output_tokens_per_s", "1/s", "output_tokens divided by the wall clock.", Better.high, 4)
PEAK_OUTPUT_TOKENS_PER_S = Metric(
    "peak_output_tokens_per_s", "1/s", "Most tokens of answers in any second.", Better.high, 4
)
SERVED_TOKENS_PER_S = Metric(
    "served_tokens_per_s", "1/s", "input_tokens and output_tokens divided by the wall clock.", Better.high, 4
)
OUTPUT_TOKENS_PER_S_PER_REQUEST = Metric(
    "output_tokens_per_s_per_request",
    "1/s",
    "A request's output tokens divided by its latency, mean over requests.",
    Better.high,
    4,
)


def distribution(name: str, definition: str) -> dict[str, Metric]:
    """Return the metrics of the distribution of a time, by statistic."""
    statistics = {"mean": "Mean", "median": "Median", "min": "Least", "max": "Most"} | {
        f"p{percent}": f"{percent}th percentile" for percent in (90, 95, 99)
    }
    return {
        key: Metric(f"{name}_{key}_s", "s", f"{word} of the time {definition}", Better.low, 4)
        for key, word in statistics.items()
    }


TIME_TO_FIRST_TOKEN = distribution("time_to_first_token", "from sending a request to the first token of its answer.")
TIME_PER_OUTPUT_TOKEN = distribution(
    "time_per_output_token", "per token of a request's answer after the first: one value per request."
)
INTER_TOKEN_LATENCY = distribution("inter_token_latency", "between two tokens of an answer: one value per token.")
REQUEST_LATENCY = distribution("request_latency", "from sending a request to the end of its answer.")

# --- storage ------------------------------------------------------------------------------------------------------
IO_BANDWIDTH = Metric(
    "io_bandwidth_bytes_per_s",
    "B/s",
    "Bytes read or written per second, all processes together.",
    Better.high,
    4,
    shown_in=GIGABYTE_PER_S,
    heading="I/O bandwidth",
)
IO_OPERATIONS_PER_S = Metric(
    "io_operations_per_s",
    "1/s",
    "Reads or writes per second, for metadata files per second, all processes together.",
    Better.high,
    4,
    heading="I/O operations/s",
)
TRANSFER_SIZE = Metric("transfer_size_bytes", "B", "Bytes of one read or write call.", digits=9)
BLOCK_SIZE = Metric("block_size_bytes", "B", "Contiguous bytes that a process reads or writes.", digits=12)
IO500_SCORE = Metric(
    "io500_score",
    "1",
    "Square root of the geometric mean bandwidth in GiB/s times that of the operations in 1,000/s.",
    Better.high,
    4,
    heading="IO500 score",
)
STORAGE_CPU_BUSY = Metric(
    "storage_cpu_busy",
    "1",
    "Share of the time in which the processors of a storage system's nodes were busy.",
    digits=3,
    heading="CPU of storage",
    shown_in=PERCENT,
)
STORAGE_OPERATIONS = Metric(
    "storage_operations_per_node",
    "1",
    "File operations that a node of a storage system served.",
    digits=3,
    # Table 6 of H20044 prints 2.5G and 1.2G; a study with fewer sets report.units to million or 1.
    shown_in=BILLION,
)
IO_LATENCY = distribution("io_latency", "from handing an I/O to the library until it is done.")
COMPLETION_LATENCY = distribution("completion_latency", "from the kernel having an I/O until it is done.")
ACCELERATOR_UTILIZATION = Metric(
    "accelerator_utilization",
    "1",
    "Share of the time in which the accelerators of a training computed instead of waiting for data.",
    Better.high,
    shown_in=PERCENT,
)
