"""Decoders and encoders among the architectures of transformers.

This is a separate module, because it imports transformers; `folder.py` needs it only for uncommon
architectures.
"""

from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)


def is_causal(model_type: str) -> bool:
    """Return whether the `model_type` of a config.json has a causal head and no masked one."""
    return (
        model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        and model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    )
