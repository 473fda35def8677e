"""Signatures of a program's own errors: what CPython says of values, and torch of tensors, gradients and modules."""

from __future__ import annotations

from analysis.failures.catalogue.signature import Weight, signatures
from jobs.failures import FailureCause

C, W = FailureCause, Weight

COMPUTING = (
    *signatures(
        "https://github.com/python/cpython (Objects, Modules: the texts of ValueError, RuntimeError, OverflowError)",
        (C.code, W.raised, r"^ValueError: (?:invalid literal for \w+\(\)|could not convert string to |"
         r"(?:not enough|too many) values to unpack|max\(\) |min\(\) |\S+\.(?:remove|index)\(x\)|math domain error|"
         r"I/O operation on closed|substring not found|Circular reference detected|cannot (?:convert|reshape|cast) |"
         r"operands could not be broadcast|setting an array element|all the input array dimensions|"
         r"The truth value of |Length of values |dictionary update sequence|\S+ is not in (?:list|range)|"
         r"invalid __array|Sample larger than population|empty range)", ("ValueError: ",)),
        (C.code, W.raised, r"local variable '\w+' referenced before|cannot access (?:local|free) variable|"
         r"^ValueError: (?:attempt to assign sequence|x and y must|array must not|negative dimensions|Found input "
         r"variables|Cannot take a larger sample|Cannot set a|cannot set a|Buffer dtype|"
         r"probabilities (?:are|do) not|bins must|Input contains|Expected 2D array|Invalid format specifier|"
         r"unsupported format character|malformed node|not enough image data|bad (?:marshal|transparency)|"
         r"cannot be coerced|No objects to concatenate|All arrays must be of)", ("variable '", "ValueError: ")),
        (C.code, W.raised, r"^RuntimeError: (?:dictionary (?:changed size|keys changed)|Set changed size|"
         r"generator |cannot schedule new futures|Event loop is closed|There is no current event loop|"
         r"super\(\): |This event loop is already|maximum recursion|release unlocked lock|"
         r"An attempt has been made to start a new process)", ("RuntimeError: ",)),
    ),
    *signatures(
        "https://github.com/pytorch/pytorch (aten/src/ATen/native, torch/csrc/autograd, torch/nn, torch/optim)",
        (C.code, W.raised, r"Error: .*(?:Expected all tensors to be on|Expected (?:object|tensor) .*(?:argument|scalar "
         r"type|device)|expected scalar type|mat1 and mat2|mat1 dim|Sizes of tensors must match|is invalid for input "
         r"of size|The size of tensor a |The expanded size of|stack expects each tensor|Input type \(.*weight type|"
         r"Given groups=\d|not implemented for '\w+'|view size is not compatible|Boolean value of Tensor|"
         r"out of bounds for dimension|Dimension out of range|Expected more than 1 value per channel|"
         r"negative dimension|padded input size per channel|invalid argument \d+: |must have the same dtype|"
         r"equal to the number of dimensions|: Assertion `.*failed\.|each element in list of batch|"
         r"batch must contain tensors)", ("Error: ",)),
        (C.code, W.raised, r"Error: .*(?:backward through the graph a second time|does not require grad|modified by an "
         r"inplace operation|grad can be implicitly created|leaf Variable|derivative for '?\S+ is not implemented|"
         r"in-place operation|Inference tensors cannot|support the deepcopy protocol|non-leaf Tensor|"
         r"empty parameter list|more than one parameter group|INTERNAL ASSERT FAILED|deterministic implementation|"
         r"checkpointing is not compatible with \.grad|"
         r"different (?:metadata|number of tensors) .*(?:original forward|recomputation))", ("Error: ",)),
    ),
    *signatures(
        "https://github.com/pytorch/pytorch (torch/cuda, torch/nn/parallel, torch/distributed/fsdp, "
        "torch/csrc/distributed/c10d/reducer.cpp)",
        (C.code, W.raised, r"Error: .*(?:re-initialize CUDA in forked|finished reduction in the prior iteration|"
         r"mark a variable ready only once|FSDP-managed module|Must flatten tensors with uniform|"
         r"parameters and buffers on device|mixed torch\.Tensor and DTensor|DistributedDataParallel (?:is not needed|"
         r"device_ids)|Default process group has not been|trying to initialize the default process group twice|"
         r"not in the (?:current|default) process group|Tensors must be CUDA and dense|buckets were not)",
         ("Error: ",)),
    ),
    *signatures(
        "https://github.com/huggingface/transformers (trainer.py, tokenization_utils_base.py), "
        "https://github.com/huggingface/datasets",
        (C.code, W.raised, r"^ValueError: (?:Unable to create tensor|You should supply an encoding|The model did not "
         r"return a loss|Asking to pad but|You must specify exactly one of input_ids|Columns? .* not in the dataset|"
         r"text input must be of type)", ("ValueError: ",)),
    ),
    *signatures(
        "https://github.com/triton-lang/triton (runtime/errors.py), https://docs.jax.dev/en/latest/errors.html",
        (C.code, W.end, r"\bOutOfResources: out of resource: ", ("OutOfResources",)),
        (C.code, W.raised, r"\b(?:ConcretizationTypeError|Tracer(?:Array|Bool|Integer)ConversionError|"
         r"UnexpectedTracerError|NonConcreteBooleanIndexError|KeyReuseError): ",
         ("ConcretizationTypeError", "ConversionError", "UnexpectedTracerError", "NonConcreteBoolean", "KeyReuse")),
    ),
)  # fmt: skip
