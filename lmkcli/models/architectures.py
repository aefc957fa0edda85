"""Decoders and encoders among the architectures of transformers.

This is a separate module, because it imports transformers; `model_folder.py` needs it only for uncommon
architectures.
"""

from typing import Any

import transformers
from transformers import AutoModel, AutoModelForTextEncoding, PreTrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from lmkcli.errors import DataError

# Encoders with decoders: transformers has a class for the encoder alone
_T5 = ("t5", "mt5", "umt5", "longt5")
# sentence-transformers reads the encoders of these alone, and lmk does not
_ENCODERS_UNREAD = (
    *("udop", "prophetnet", "switch_transformers", "blenderbot", "blenderbot-small", "m2m_100"),
    *("pegasus", "pegasus_x", "moonshine", "whisper", "marian", "t5gemma", "t5gemma2"),
    "t5gemma2_text",
)


def encoder_class(model_type: str) -> Any:
    """Return the auto class of transformers for the states of a text.

    DataError for an encoder with a decoder that lmk cannot take apart.
    """
    if model_type in _ENCODERS_UNREAD:
        raise DataError(
            f"models of the type {model_type} have an encoder and a decoder, and lmk cannot read the encoder "
            f"alone; of this kind it reads {', '.join(_T5)}"
        )
    if model_type == "longt5":  # the auto class has the encoders of the other types only
        AutoModelForTextEncoding.register(
            transformers.LongT5Config, transformers.LongT5EncoderModel, exist_ok=True
        )
    return AutoModelForTextEncoding if model_type in _T5 else AutoModel


def is_causal(model_type: str) -> bool:
    """Return whether the `model_type` of a config.json has a causal head and no masked one."""
    return (
        model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        and model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    )


def check_text_config(config: Any) -> None:
    """Raise DataError if a part of the configuration, such as `text_encoder`, is no configuration of a model.

    transformers takes the sizes of the model from this part, whatever the model type is. ValueError of
    transformers for several such parts.
    """
    if not isinstance(config.get_text_config(), PreTrainedConfig):
        raise DataError(
            f"models of the type {config.model_type} have no part for texts, but the configuration contains "
            "text_encoder, decoder, generator or text_config; remove this key"
        )
