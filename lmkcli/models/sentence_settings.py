"""Keys of the configuration files of sentence-transformers that change vectors: obeyed, or refused.

A key that lmk does not know is noted, because sentence-transformers may obey it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lmkcli.errors import DataError
from lmkcli.models.model_files import read_json
from lmkcli.progress import Detail

FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_LMK = {
    *(
        "pool",
        "pool_package",
        "gran",
        "window",
        "include_prompt",
        "append_eos",
        "keep_space",
        "lmk_token_id",
    ),
    *(
        "trained_poolers",
        "splitter_granularity",
        "eval_splitter_granularity",
        "train_splitter_granularity",
    ),
}
# Keys of sentence_bert_config.json that are read elsewhere, and those without an effect on vectors
_READ = {"max_seq_length", "do_lower_case", "query_length", "document_length", *_LMK}
_WITHOUT_EFFECT = {"unpad_inputs"}


class Task(NamedTuple):
    """What the module Transformer computes for texts: its task, the output of the model, and its name."""

    name: str
    output: str
    output_name: str = "token_embeddings"


STATES = Task("feature-extraction", "last_hidden_state")
PAIRS = Task("sequence-classification", "logits", "scores")
# Options of transformers by group: those that lmk passes on, and those without an effect on vectors in fp32
_OLD_NAMES = {
    "model_args": "model_kwargs",
    "tokenizer_args": "processor_kwargs",
    "config_args": "config_kwargs",
}
_PASSED = {"add_bos_token", "add_eos_token", "padding_side", "truncation_side", "model_max_length"}
_HARMLESS = {
    "model_kwargs": {
        *("dtype", "torch_dtype", "attn_implementation", "device_map", "low_cpu_mem_usage"),
        *("use_safetensors", "add_pooling_layer", "use_cache"),
    },
    "processor_kwargs": {"use_fast", "fix_mistral_regex"},
    "config_kwargs": {"dtype", "torch_dtype", "use_cache"},
}
_POOLING = {"embedding_dimension", "word_embedding_dimension", "pooling_mode", "include_prompt"}
_SENTENCE = {
    *("__version__", "prompts", "default_prompt_name", "similarity_fn_name", "model_type"),
    *("query_prefix", "document_prefix", "query_length", "document_length", "skiplist_words"),
    *("do_query_expansion", "attend_to_expansion_tokens", "truncate_dim"),
    *("requirements", "keep_in_fp32_modules"),  # without an effect on vectors in fp32
}


def read_settings(encoder: Path) -> dict[str, Any]:
    """Return the settings of the file that sentence-transformers reads first; empty without a file."""
    return next(filter(None, (read_json(encoder / name) for name in FILES)), {})


def check_settings(settings: Mapping[str, Any], where: Path, wanted: Task, late: bool) -> None:
    """Raise DataError for settings of the module Transformer that change vectors, and that lmk ignores."""
    task = settings.get("transformer_task") or wanted.name
    modality = settings.get("modality_config") or {}
    text = {"method": "forward", "method_output_name": wanted.output}
    name = settings.get("module_output_name") or wanted.output_name
    faults = {
        f"transformer_task {task}": task != wanted.name,
        "modality_config with a chat template (message)": "message" in modality,
        "modality_config": bool(modality) and {**modality.get("text", {})} != text,
        f"module_output_name {name}": name != wanted.output_name,
        "query_expansion": bool(settings.get("query_expansion")) and not late,
        "tokenizer_name_or_path": bool(settings.get("tokenizer_name_or_path")),
    }
    faults |= {f"processing_kwargs {key}": True for key in _processing(settings)}
    for group, options in _options(settings).items():
        passed = _PASSED if group == "processor_kwargs" else set()
        passed = {key for key in passed if isinstance(options.get(key), (str, int, bool))}
        unknown = set(options) - passed - _HARMLESS[group] - {"trust_remote_code"}
        faults |= {f"{group} {key}": True for key in sorted(unknown)}
    found = [fault for fault, wrong in faults.items() if wrong]
    if found:
        raise DataError(
            f"{where} has the setting {found[0]}, which changes vectors in sentence-transformers and which "
            "lmk does not support; give another model, or remove the setting if its vectors do not need it"
        )


def tokenizer_options(settings: Mapping[str, Any]) -> tuple[tuple[str, str | int | bool], ...]:
    """Return the options of the tokenizer that lmk passes on to transformers."""
    given = _options(settings).get("processor_kwargs", {})
    return tuple((name, given[name]) for name in sorted(_PASSED & set(given)))


def declared_lengths(settings: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the declared lengths of documents and of queries, with special tokens."""
    text = (settings.get("processing_kwargs") or {}).get("text") or {}
    whole = dict(tokenizer_options(settings)).get("model_max_length") or settings.get(
        "max_seq_length"
    )
    fixed = text.get("max_length")
    doc = fixed or settings.get("document_length") or whole
    return doc, fixed or settings.get("query_length") or (whole if doc != whole else None)


def unknown_keys(settings: Mapping[str, Any], pooling: Mapping[str, Any], config: Any) -> list[str]:
    """Return a note with --verbose on the keys that lmk does not know; none if it knows all."""
    known = _READ | _WITHOUT_EFFECT | {*_OLD_NAMES, *_OLD_NAMES.values()}
    known |= {"transformer_task", "modality_config", "module_output_name", "processing_kwargs"}
    known |= {"query_expansion", "tokenizer_name_or_path"}
    modes = {key for key in pooling if key.startswith("pooling_mode_")}
    keys = [
        *sorted(set(settings) - known),
        *sorted(set(pooling) - _POOLING - modes),
        *sorted(set(config) - _SENTENCE),
    ]
    return [Detail(f"lmk does not know these keys of the model: {', '.join(keys)}")] if keys else []


def _options(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the options of transformers by group, under the names of today."""
    named = {_OLD_NAMES.get(key, key): value for key, value in settings.items() if value}
    return {group: dict(named[group]) for group in _HARMLESS if isinstance(named.get(group), dict)}


def _processing(settings: Mapping[str, Any]) -> list[str]:
    """Return the keys of processing_kwargs that change vectors, without the length of texts."""
    found = []
    for group, options in (settings.get("processing_kwargs") or {}).items():
        if group in ("text", "common") and isinstance(options, dict):
            harmless = {"padding": (True, "longest"), "truncation": (True, "longest_first")}
            found += [
                f"{group}.{key}"
                for key, value in options.items()
                if value not in harmless.get(key, ())
                and (group, key) != ("text", "max_length")
                and key != "return_tensors"
            ]
    return found
