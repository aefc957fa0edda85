"""M2-BERT (Fu et al. 2023; Saad-Falcon et al. 2024): long convolutions, one vector for up to 32k tokens."""

from lmkcli.plugins.m2bert.config import M2BertConfig
from lmkcli.plugins.m2bert.model import M2BertModel

__all__ = ["M2BertConfig", "M2BertModel"]
