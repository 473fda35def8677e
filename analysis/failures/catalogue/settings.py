"""Signatures of settings that a program refuses: command lines, configurations, layouts, precisions."""

from __future__ import annotations

from analysis.failures.catalogue.signature import Weight, signatures
from jobs.failures import FailureCause

C, W = FailureCause, Weight

COMMAND_LINES = (
    *signatures(
        "argparse, optparse, jsonargparse, click, typer, tyro, fire, absl, transformers.HfArgumentParser",
        (C.refused, W.end, r"\b[Ee]rror: (?:unrecognized arguments|argument |the following|one of the|ambiguous|"
         r"no such option|too few arguments|invalid choice|--\w[\w-]* is required)",
         ("error: unrecognized", "error: argument", "error: the following", "error: one of", "error: ambiguous",
          "error: no such option", "error: too few", "error: invalid choice", "rror: --")),
        (C.refused, W.end, r"(?:\berror: |ArgumentParser - ERROR - )'?(?:Parser key|Configuration check failed|"
         r"Key [\"']|Problem with|Validation failed|No action for |Option '[^']*' is not accepted|Unable to load "
         r"config)",
         ("error: ", "ArgumentParser - ERROR")),
        (C.refused, W.end, r"Configuration check failed :: |No action for (?:destination )?key |Could not generate a "
         r"config for |Problem with given class_path|Does not validate against any of the Union subtypes|"
         r"Not a valid subclass of |Given value .* is not valid for|Expected a path but", ("Configuration check failed",
         "No action for ", "Could not generate a config", "given class_path", "Union subtypes", "a valid subclass",
         "Given value ", "Expected a path")),
        (C.refused, W.end, r"Key \"[^\"]+\" (?:is required but not included in|not found in namespace)|"
         r"Subcommand '\w+' does not accept nested key|^KeyError: \"Override '", ("is required but not",
         "not found in namespace", "accept nested key", "KeyError: \"Override")),
        (C.refused, W.end, r"^(?:Error: |[│|] +)(?:No such (?:option|command)|Invalid value for|"
         r"Missing (?:option|argument|parameter|command)|Got unexpected extra argument)|"
         r"^[│|] +(?:Unrecognized|Required) options?\b",
         ("No such ", "Invalid value for", "Missing ", "Got unexpected extra", "Unrecognized option",
          "Required option")),
        (C.refused, W.end, r"FATAL Flags parsing error|^ERROR: Could not consume arg: ",
         ("FATAL Flags", "Could not consume arg")),
        (C.refused, W.end, r"Some (?:specified arguments|keys) are not used by the HfArgumentParser",
         ("HfArgumentParser",)),
    ),
)  # fmt: skip

CONFIGURATIONS = (
    *signatures(
        "https://github.com/facebookresearch/hydra (hydra/_internal), https://github.com/omry/omegaconf",
        (C.refused, W.end, r"^(?:Could not override '|In '[^']*': (?:Could not find|Validation error)|"
         r"Key '[^']*' (?:is not in struct|not in ')|You must specify '|Primary config (?:module|directory) |"
         r"Cannot find primary config|Could not load '|Error merging override |Error parsing override '|"
         r"Ambiguous value for option '|Multiple values for |Could not append to config|"
         r"Interpolation key '[^']*' not found|Missing mandatory value: |"
         r"Value '[^']*' (?:of type '[^']*' )?could not be converted to )",
         ("Could not override", "In '", "is not in struct", "' not in '", "You must specify", "rimary config",
          "Could not load", "Error merging override", "Error parsing override", "Ambiguous value for",
          "Multiple values for", "Could not append", "Interpolation key", "Missing mandatory",
          "could not be converted")),
        # An InstantiationException repeats the exception of the object that was built.
        (C.refused, W.end, r"^(?:omegaconf|hydra)\.errors\.(?!InstantiationException: Error in call)\w+: |"
         r"Accessing unknown key in a struct|Error locating target '",
         ("omegaconf.errors", "hydra.errors", "unknown key in a struct", "Error locating target")),
    ),
    *signatures(
        "https://github.com/pydantic/pydantic, https://github.com/pydantic/pydantic-core, dacite, gin-config",
        (C.refused, W.end, r"^(?:[\w.]+\.)?(?:ValidationError: )?\d+ validation errors? for \w+|"
         r"^dacite\.exceptions\.\w+: |No configurable matching|Unknown configurable name",
         ("validation error", "dacite.exceptions", "configurable")),
    ),
    *signatures(
        "https://github.com/NVIDIA/TensorRT-LLM (runtime/worldConfig.cpp), https://gitlab.com/gromacs/gromacs "
        "(taskassignment)",
        (C.refused, W.end, r"\[TensorRT-LLM\]\[ERROR\] Assertion failed: mpiSize == |"
         r"^The (?:total )?number of .* is not divisible by ",
         ("Assertion failed: mpiSize", "is not divisible by")),
    ),
)  # fmt: skip

LAYOUTS = (
    *signatures(
        "https://github.com/deepspeedai/DeepSpeed (runtime/config.py), https://github.com/NVIDIA/Megatron-LM "
        "(megatron/training/arguments.py, megatron/core/parallel_state.py), https://github.com/pytorch/torchtitan "
        "(distributed/parallel_dims.py)",
        (C.refused, W.end, r"Error: .*(?:Check batch related parameters\.|\b(?:is not|not|must be|should be|needs "
         r"to be) "
         r"(?:evenly )?(?:divisible|divisable|(?:a )?multiple of)\b|\b(?:does|do) not divide\b)|"
         r"Invalid parallel dims: ",
         ("Check batch related", "divisible", "divisable", "multiple of", "not divide", "Invalid parallel dims")),
        (C.refused, W.end, r"No slot '\d+' specified on host|config values that mismatch TrainingArguments|"
         r"tasks per node configured in SLURM|total desired GPUs|"
         r"is larger than the (?:number of|maximum) (?:available )?GPUs|"
         r"[Nn]umber of (?:gpus|processes|devices) .*(?:doesn't|does not) match|"
         r"(?:doesn't|does not) match (?:the )?(?:product of|number of (?:gpu|device|process|rank|node)|world)",
         ("specified on host", "mismatch TrainingArguments", "configured in SLURM", "total desired GPUs", "GPUs",
          "umber of ", " match ")),
        advice="Choose degrees of parallelism, batch sizes and tasks whose product fits the ranks of the job.",
    ),
    *signatures(
        "https://github.com/huggingface/transformers (training_args.py), https://github.com/huggingface/accelerate, "
        "https://github.com/Lightning-AI/pytorch-lightning, https://github.com/Dao-AILab/flash-attention",
        (C.refused, W.end, r"Your setup doesn't support bf16|bf16 mixed precision requires|fp16 mixed precision "
         r"requires|"
         r"half precision.*only be used on|FlashAttention (?:\w+ )?only supports? |only supports? Ampere GPUs|"
         r"AssertionError: Invalid device id|requires the save and eval(?:uation)? strategy to match|"
         r"You requested gpu: |You selected an invalid (?:strategy|accelerator)|is only supported on GPUs with compute|"
         r"\brequires \.target sm_\d",
         ("doesn't support bf16", "precision requires", "half precision", "only support", "Invalid device id",
          "strategy to match", "You requested gpu", "You selected an invalid", "with compute", "requires .target")),
        advice="Choose a precision, attention or device that this GPU and this program support.",
    ),
    # A parameter by its name, and a bound of its value.
    *signatures(
        "https://github.com/huggingface/transformers (training_args.py), https://github.com/pytorch/pytorch "
        "(torch/utils/data)",
        (C.refused, W.end, r"^(?:\w+\.)*(?:ValueError|AssertionError): (?:[`'\"]?\w+_\w+[`'\"]?|"
         r"[`'\"]\w+[`'\"]) (?:must|should|cannot|can't|has to|needs to) (?:not )?be\b",
         ("ValueError: ", "AssertionError: ")),
    ),
    # The words by which libraries refuse the value of a setting: the option itself, the values that are allowed.
    *signatures(
        "https://github.com/huggingface/transformers (trainer.py, training_args.py), "
        "https://github.com/huggingface/peft, https://github.com/huggingface/accelerate (commands/launch.py), "
        "https://github.com/NVIDIA/Megatron-LM (arguments.py), "
        "https://github.com/pytorch/pytorch (c10/core/Device.cpp)",
        (C.refused, W.end, r"^(?:\w+\.)*(?:ValueError|AssertionError|RuntimeError|NotImplementedError|Exception|"
         r"OSError): .*(?:"
         r"\bfrom checkpoint \(.*\) is not equal to the input argument|"
         r"(?<![\w'-])--[a-z][\w-]{2,}|\b(?:cannot|can't) be used (?:together )?with\b|\bmutually exclusive\b|"
         r"\b(?:must|should) be one of\b|\b(?:select|choose) (?:one of|from|between)\b|"
         r"\b(?:env|environment|os) ?(?:variables?)?\b.{,40}\bnot (?:set|defined)\b|"
         r"\bnot (?:set|defined) in the (?:os|env)\w*|"
         r"\bis not one of\b|\b[Ee]xpected one of\b|\b[Vv]alid (?:options|values|"
         r"choices) are\b|"
         r"\b(?:[Uu]nknown|[Uu]nsupported|[Ii]nvalid|[Uu]nrecognized) (?:model|optimi[sz]er|scheduler|dtype|"
         r"precision|backend|"
         r"strategy|attention|loss|dataset|tokenizer|config\w*|option|device string)\b|Target modules .* not found "
         r"in the base|\b[Pp]lease check .*\b(?:config|setting|argument|parameter)|"
         r"\b(?:is|are) (?:not compatible|incompatible) with\b|\bis not supported (?:with|when|by|on|in|for)\b|"
         r"\b(?:must|has to|have to|needs? to) be (?:set|"
         r"specified|provided|given)\b|[Cc]ould not find the transformer layer class|"
         r"\b[Aa]t most one of .* can be\b|\b[Pp]lease (?:set|specify|provide) |Mesh should not be bigger than|"
         r"\bnum_samples should be a positive integer|\b[Nn]o [\w ]{2,30} found (?:in|at|under) |"
         r"\b(?:root|folder|director(?:y|ies)|dir|files?|path|checkpoint|split) (?:\S+ )?"
         r"(?:do(?:es)?n't|do(?:es)? not) exists?|"
         r"(?<![^\s'\"(])(?:\.{0,2}/|[A-Za-z]:|\w+/)\S+ (?:does not exist|doesn't exist|not found|"
         r"is not an? (?:\w+ )?(?:directory|file))|\bspecified (?:in both|twice)\b|"
         r"\b(?:[Ff]ile|[Pp]ath|[Dd]irectory|[Ff]older|[Dd]ataset|[Cc]heckpoint) \S+ "
         r"(?:does not exist|not found|cannot be found))",
         ("ValueError: ", "AssertionError: ", "RuntimeError: ", "NotImplementedError: ", "Exception: ", "OSError: ")),
    ),
)  # fmt: skip

# A sentence about a setting: what is asked of it, or of the user. The same words about a tensor are a fault of the
# program.
SETTING = (
    r"batch[-_ ]?size|world[-_ ]?size|\b(?:tensor|pipeline|data|context|expert|model|sequence)[-_ ]parallel|"
    r"\b(?:tp|pp|dp|cp|ep)\b|\bGPUs?\b|\bdevices?\b|\bnodes?\b|\bprocesses\b|\bprecision\b|\bstrategy\b|"
    r"\boptimi[sz]er\b|\bscheduler\b|\bconfig\w*\b|\barguments?\b|\boptions?\b|\bflags?\b|\bdirectory\b|"
    r"\bcheckpoints?\b|\bnum_\w+|\bmax_\w+|\bmin_\w+|\w+_(?:dir|path|file|size|type|name|steps|epochs)\b|"
    r"\b(?:fp|bf|int)(?:4|8|16|32)\b|--\w|\bbackend\b|\blearning rate\b|\bdataset_\w+|\bmicrobatch|"
    # A parameter by its name: quoted, in snake case, or with its value.
    r"`[\w.=-]+`|\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b|\b\w+=\S"
)
ASKED = (
    r"\b(?:must|should|cannot|can't|can not|has to|have to|needs? to|required|requires?|[Uu]nsupported|incompatible|"
    r"[Ii]nvalid|[Uu]nknown|[Uu]ndefined|[Uu]nrecognized|mutually|[Pp]lease|[Pp]rovide|[Ss]pecify|at least|at most|"
    r"only (?:be |supports?|supported|available)|(?:not|not be) (?:supported|allowed|valid|compatible|available|set|"
    r"specified|found|enough)|support for|"
    r"do(?:es)?(?:n't| not) (?:support|exist|match(?:es)?|have a)|already exists|(?:greater|less|"
    r"larger|smaller|more) than|"
    r"[Yy]ou (?:can|are|have|need|must|should|cannot|can't)|not enough|[Cc]onflict\w*|only|either|instead|already|"
    r"is None|not (?:implemented|defined|enabled)|do(?:es)?(?:n't| not) (?:work|contain|currently|yet|fit)|"
    r"[Dd]isabl\w+|[Ee]nabl\w+|[Cc]hoose)\b"
)
OF_DATA = (
    r"\b(?:tensors?|shapes?|dim(?:ension)?s?|inputs?|targets?|logits|labels?|index|indices|elements?|arrays?|masks?|"
    r"sequences? of|hidden states?|input_ids|embeddings?|columns?|features|tokens|gradients?|grad|backward|broadcast|"
    r"unpack|numel|dtypes?|scalars?|\d-?D|[Tt]ensor\w*|INTERNAL ASSERT FAILED|(?:call|use) \S+ (?:first|before)|"
    r"str|list|process group|samples? \d|\w+_(?:ids|masks?|logits|embeds|states|labels|tensors?|grads?|loss))\b"
)
# Things outside of the program that a sentence names: files, connections, packages, devices, processes, settings, a
# request to the user.
OUTSIDE = (
    r"(?i)\b(?:files?|filename|paths?|director(?:y|ies)|folders?|disk|open(?:ed)?|corrupt\w*|truncated|EOF|decompress\w*|"
    r"download\w*|urls?|https?|hub|repo(?:sitory)?|tokenizer|processor|template|datasets?|"
    r"connect(?:ion|ed)?|network|internet|sockets?|hosts?|hostname|address|ports?|servers?|clients?|agents?|daemons?|"
    r"time[ds]?[ -]?out|timeout|deadline|rendezvous|nccl|gloo|mpi|rccl|ucx|requests?|status code|unreachable|"
    r"unavailable|"
    r"installed|install|packages?|versions?|librar(?:y|ies)|modules? named|symbols?|compil\w+|drivers?|cuda|hip|rocm|"
    r"gpus?|devices?|kernels?|hardware|memory|alloc\w*|nodes?|process(?:es)?|workers?|subprocess|child(?:ren)?|killed|"
    r"died|dead|alive|exit(?:ed|ing)?|environment|env|variables?|permission|credentials?|licen[sc]e|quota|space left|"
    r"config\w*|settings?|arguments?|args|flags?|options?|hyperparameters?|strategy|precision|batch[-_ ]?size|"
    r"checkpoints?|ckpt|please|unsupported|support(?:s|ed)?|exists?|"
    r"requires?|required|must|should|cannot be|can't be|missing|"
    r"exceed\w*|limits?|maximum|minimum|max value|unknown|fail(?:ed|ure|s)?|lock(?:ed|s)?|compatib\w+|"
    r"backward compat\w+|"
    r"not found|not exist|not available|not enabled|choose|specify|provide|invalid (?:value|choice|option))\b"
)
# The same words about a package are about the installation.
OF_PACKAGES = r"\b(?:packages?|librar(?:y|ies)|modules?|versions?|install\w*|import\w*|backend is)\b"
SENTENCES = tuple(
    signatures(
        "https://github.com/huggingface, https://github.com/Lightning-AI, https://github.com/NVIDIA/Megatron-LM, "
        "https://github.com/mosaicml (the sentences of their ValueErrors and assertions about settings)",
        (C.refused, W.raised, rf"^(?:\w+\.)*(?:AssertionError|ValueError|NotImplementedError): (?!.*{OF_DATA})"
         rf"(?!.*{OF_PACKAGES})(?=.*(?:{SETTING})).*(?:{ASKED}|\b[Ee]xpected\b)", ("AssertionError: ", "ValueError: ",
         "NotImplementedError: ")),
        # A value that is not known, by the name of its setting; what a program supports only, or does not.
        (C.refused, W.raised, rf"^(?:\w+\.)*(?:ValueError|NotImplementedError|AssertionError): (?!.*{OF_DATA})"
         rf"(?!.*{OF_PACKAGES})(?:(?:Unknown|Unsupported|Unrecognized|Undefined|Illegal|Invalid) [\w -]+: ?\S|"
         r".*\b(?:only (?:be )?support\w*|supports? only|(?:not|n't|cannot) (?:\w+ )?(?:be )?support(?:ed)?)\b)",
         ("ValueError: ", "NotImplementedError: ", "AssertionError: ")),
        # Without a setting in the sentence, 6 of 10 texts at their first reading were refused settings.
        (C.refused, W.possible, rf"^(?:\w+\.)*(?:ValueError|NotImplementedError): (?!.*{OF_DATA})"
         rf"(?!.*{OF_PACKAGES}).*{ASKED}",
         ("ValueError: ", "NotImplementedError: ")),
    )
)  # fmt: skip

SETTINGS = (*COMMAND_LINES, *CONFIGURATIONS, *LAYOUTS)
