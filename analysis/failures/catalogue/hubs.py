"""Signatures of what a run reads: models and datasets of a hub, checkpoints, tokenizers, data files, object stores."""

from __future__ import annotations

from analysis.failures.catalogue.signature import Weight, signatures
from jobs.failures import FailureCause

C, W = FailureCause, Weight

HUB = (
    *signatures(
        "https://github.com/huggingface/huggingface_hub (errors.py, utils/_http.py), RFC 9110 (401, 403)",
        (C.refused, W.end, r"\bGatedRepoError\b|[Cc]annot access gated repo|access a gated repo|is a gated repository|"
         r"\b(?:HTTPError|HfHubHTTPError|HTTPStatusError|RepositoryNotFoundError): (?:\w+ error ')?40[13] |"
         r"\b40[13] (?:Client Error|Unauthorized|Forbidden)\b|Invalid (?:username or password|user token)|"
         r"(?<=: )HTTP Error 40[13]\b|Token is required \(`token=True`\)|LocalTokenNotFoundError",
         ("GatedRepoError", "gated repo", "HTTPError: 40", "HTTPError: Client error '40", "HTTPStatusError",
          "RepositoryNotFoundError", "401 ", "403 ", "HTTP Error 40", "Invalid user", "Token is required",
          "LocalTokenNotFound")),
        advice="Request access to the repository on the hub, and give the job a token that has it (HF_TOKEN).",
    ),
    *signatures(
        "https://github.com/huggingface/huggingface_hub (errors.py), https://github.com/huggingface/transformers "
        "(utils/hub.py, modeling_utils.py), https://github.com/huggingface/datasets (exceptions.py, builder.py)",
        (C.refused, W.end, r"is not a local folder (?:and|or)|\b(?:RepositoryNotFound|RevisionNotFound|HFValidation|"
         r"RemoteEntryNotFound|DisabledRepo|DatasetNotFound|DataFilesNotFound|EmptyDataset|ManualDownload|NotASafetensorsRepo)"
         r"Error\b|(?<!Local)EntryNotFoundError\b|\b404 Client Error\b|(?<=: )HTTP Error 404\b|"
         r"\bNotFoundError: .*(?:No such file|Failed to find|not found in checkpoint)",
         ("is not a local folder", "NotFoundError", "HFValidationError", "DisabledRepoError", "EmptyDatasetError",
          "ManualDownloadError", "NotASafetensorsRepo", "404 Client Error", "HTTP Error 404")),
        (C.refused, W.end, r"Error: Can't load (?:the )?(?:tokenizer|configuration|config|model|feature extractor|"
         r"image processor|processor)|does not appear to have (?:a file|files) named|Error no file named|"
         r"is not a valid git identifier|Unrecognized (?:model|image processor|processing class|video processor) in |"
         r"Unrecognized configuration class|contains custom code which must be executed|requires you to execute the|"
         r"option `trust_remote_code=True`|BuilderConfig '?\S+ not found|Config name is missing|Unknown split \"|"
         r"Couldn't find (?:a dataset script|any data file|'\S+' on the H)|"
         r"doesn't exist on the Hub or cannot be accessed|No \(supported\) data files found|"
         r"Dataset scripts are no longer supported|Unable to find '\S+'$",
         ("Can't load", "does not appear to have", "Error no file named", "not a valid git identifier", "Unrecognized ",
          "contains custom code", "requires you to execute", "trust_remote_code=True", "BuilderConfig ",
          "Config name is missing", "Unknown split", "Couldn't find",
          "doesn't exist on the Hub", "data files found", "Dataset scripts are no longer", "Unable to find '")),
        advice="Correct the name or path of the model or dataset; where it is a folder, check that each node sees it "
        "and that it is complete.",
    ),
    *signatures(
        "https://github.com/huggingface/huggingface_hub (constants.py: HF_HUB_OFFLINE, errors.py)",
        (C.refused, W.end, r"^(?!WARNING\b).*OfflineModeIsEnabled\b|[Oo]ffline mode is enabled|"
         r"outgoing traffic has been disabled",
         ("OfflineModeIsEnabled", "ffline mode is enabled", "outgoing traffic has been")),
        (C.lost_peer, W.end, r"We couldn't connect to 'https?:|LocalEntryNotFoundError\b|Couldn't reach \S+ |"
         r"There was a specific connection error when trying to load|[Cc]heck your internet connection|"
         r"make sure your Internet connection is on|Connection error, and we cannot find the requested files",
         ("We couldn't connect to", "LocalEntryNotFoundError", "Couldn't reach", "specific connection error",
          "our internet connection", "our Internet connection", "cannot find the requested files")),
        (C.lost_peer, W.consequence, r"\b(?:429|50[0234]) (?:Client|Server) Error|(?<=: )HTTP Error (?:429|5\d\d)\b|"
         r"Error: "
         r"(?:429|50[0234]) (?:Too|"
         r"Server|"
         r"Bad G|Service|Gateway)|\b(?:MaxRetry|NewConnection|NameResolution|SSL|SSLCertVerification|Proxy|ReadTimeout|"
         r"ConnectTimeout)Error\b|"
         r"\bRemoteDisconnected\b|\bServerDisconnectedError\b|\bClient(?:Connector|Payload|OS)Error: |"
         r"\bIncompleteRead\b|"
         r"\bChunkedEncodingError\b|\bSSLEOFError\b|"
         r"^(?:requests|httpx|httpcore|urllib3)\.(?:\w+\.)*(?:ReadTimeout|ConnectTimeout|ConnectError|ReadError|"
         r"RemoteProtocolError)\b",
         ("429 ", "500 ", "502 ", "503 ", "504 ", "MaxRetryError", "NewConnectionError", "NameResolutionError",
          "SSLError", "SSLCertVerificationError", "HTTP Error",
          "ProxyError", "Timeout", "ConnectError", "ReadError", "RemoteProtocolError", "RemoteDisconnected",
         "ServerDisconnectedError",
          "ClientConnectorError", "ClientPayloadError", "ClientOSError", "IncompleteRead", "ChunkedEncodingError",
          "SSLEOFError")),
        advice="Compute nodes often have no internet: download models and data before the job, and set "
        "HF_HUB_OFFLINE=1.",
    ),
    *signatures(
        "https://docs.wandb.ai (wandb.errors), https://github.com/boto/botocore, https://google-auth.readthedocs.io",
        (C.refused, W.end, r"api_key not configured|wandb\.errors\.(?:\w+\.)?(?:UsageError|AuthenticationError)|"
         r"\bNoCredentialsError\b|DefaultCredentialsError\b|\b(?:AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|"
         r"NoSuchBucket|ExpiredToken)\b", ("api_key not configured", "wandb.errors", "CredentialsError", "AccessDenied",
         "InvalidAccessKeyId", "SignatureDoesNotMatch", "NoSuchBucket", "ExpiredToken")),
        (C.lost_peer, W.end, r"wandb\.errors\.(?:\w+\.)?CommError: .*(?i:tim|connect|network)|"
         r"EndpointConnectionError\b",
         ("wandb.errors", "EndpointConnectionError")),
        (C.refused, W.end, r"wandb\.errors\.(?:\w+\.)?CommError: ", ("wandb.errors",)),
        advice="Set the account's key in the environment of the job, or switch the service off (WANDB_MODE=offline).",
    ),
)  # fmt: skip

CHECKPOINTS = (
    *signatures(
        "https://github.com/pytorch/pytorch (torch/nn/modules/module.py, torch/optim/optimizer.py, "
        "torch/distributed/checkpoint), https://github.com/NVIDIA/Megatron-LM (dist_checkpointing), "
        "https://github.com/deepspeedai/DeepSpeed (runtime/zero), https://github.com/huggingface/transformers",
        (C.refused, W.end, r"Error\(s\) in loading state_dict for|Missing key(?:\(s\))? in (?:checkpoint )?state_dict|"
         r"loaded state dict (?:contains a parameter group|has a different number)|[Ss]ize mismatch (?:for|between) \S|"
         r"Checkpoint at \S+ is missing keys|Global shape mismatch for loaded|ignore_mismatched_sizes|"
         r"^KeyError: .(?:unexpected|missing) keys? \S.* in state_dict",
         ("loading state_dict for", "Missing key", "loaded state dict", "ize mismatch ", "is missing keys",
          "Global shape mismatch", "ignore_mismatched_sizes", " in state_dict")),
        (C.refused, W.end, r"checkpoint being loaded used a (?:DP|TP|PP) world size|is not a (?:valid )?distributed "
         r"checkpoint|Can't find a valid checkpoint at|No valid checkpoint found|No checkpoint found in directory|"
         r"checkpoint (?:load )?path .*(?:does not|doesn't) exist",
         ("checkpoint being loaded", "distributed checkpoint", "a valid checkpoint", "No valid checkpoint",
          "No checkpoint found", "heckpoint load path", "heckpoint path")),
        # A parameter or buffer of the model, which the state of another model does not have.
        (C.refused, W.raised, r"^KeyError: '(?:[\w-]+\.)+(?:weight|bias|running_mean|running_var|inv_freq|scale)'$",
         ("KeyError: '",)),
        (C.refused, W.end, r"^checkpoint_dir '[^']*' ?(?:is missing the files|is not a checkpoint directory|does not "
         r"exist)", ("checkpoint_dir '",)),
        advice="Load a checkpoint of the same model, layout and software, or convert it; where a path is wrong, "
        "correct it.",
    ),
    *signatures(
        "https://github.com/huggingface/transformers (modeling_utils.py), git-lfs.com, CPython (tarfile), Apache "
        "Arrow, "
        "Pillow (corrupted files)",
        (C.storage, W.end, r"Unable to load weights from (?:pytorch|safetensors) checkpoint|without having git-lfs "
         r"installed|Parquet (?:magic bytes not found|file size is 0)|Either the file is corrupted or this is not a "
         r"parquet|"
         r"is not a valid JSON file|could not parse ModelProto from|sentencepiece_processor\.cc.*ParseFromArray|"
         r"\bDataLossError: |Couldn't deserialize thrift|Tried reading schema message, was null|Expected to be able "
         r"to read \d+ bytes "
         r"for "
         r"message body|Not an Arrow file|\bBadGzipFile: |tarfile\.ReadError: |UnidentifiedImageError: |"
         r"image file is truncated|broken data stream when reading image|\bNonMatching(?:Checksum|SplitsSizes)Error\b|"
         r"(?:zstd|lz4|Zstd)\S*Error: .*(?:decompress|frame)|[Cc]onsistency check failed: file should be of size|"
         r"Corrupt \w+ compressed data|\bLZMAError: |mmap length is greater than file size|Invalid data found when "
         r"processing input|LibsndfileError: |^tar: Unexpected EOF in archive|^gzip: \S+: unexpected end of file|"
         r"unexpected EOF, expected \d+ more bytes|storage has wrong (?:byte )?size: expected",
         ("compressed data", "LZMAError", "mmap length is greater", "Invalid data found when", "LibsndfileError",
          "tar: Unexpected EOF", "unexpected end of file", "unexpected EOF, expected", "storage has wrong",
          "Unable to load weights from", "git-lfs", "arquet", "not a valid JSON file", "parse ModelProto",
          "sentencepiece_processor", "DataLossError",
          "deserialize thrift", "Tried reading schema",
          "for message body", "Not an Arrow file", "BadGzipFile", "tarfile.ReadError", "UnidentifiedImageError",
          "image file is truncated", "broken data stream", "NonMatching", "zstd", "lz4", "Zstd",
          "onsistency check failed")),
        advice="The file is damaged or incomplete (an interrupted download, a pointer of git-lfs): fetch or write "
        "it again.",
    ),
)  # fmt: skip

VERSIONS = (
    *signatures(
        "https://github.com/huggingface/transformers (models/auto, utils/import_utils.py)",
        (C.launch_failure, W.end, r"but Transformers does not recognize this architecture|is already used by a "
         r"Transformers config|Could not find module \S+ in `transformers`|"
         r"Tokenizer class \S+ does not exist or is not currently imported|Couldn't instantiate the backend tokenizer|"
         r"`rope_scaling` must be a dictionary with|data did not match any variant of untagged enum|"
         r"^KeyError: '(?:llama|mistral|mixtral|qwen|gemma|phi|deepseek|falcon|olmo|starcoder2|cohere|gpt_oss|smollm|"
         r"glm|internvl|exaone|granite|minicpm|ernie)[\w-]*'$|but it was not found in your environment|"
         r"requires the \S+ library but it was not found",
         ("`rope_scaling` must", "untagged enum", "KeyError: '", "Transformers does not recognize",
          "used by a Transformers", "in `transformers`", "Tokenizer class",
          "the backend tokenizer", "was not found")),
        advice="Install the version of transformers (or the package) that the model needs, into the environment of "
        "the job.",
    ),
)  # fmt: skip

HUBS = (*HUB, *CHECKPOINTS, *VERSIONS)
