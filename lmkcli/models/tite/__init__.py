"""TITE (Schlatt et al. 2025): an encoder that pools its sequence, layer by layer, to one vector."""

from lmkcli.models.tite.config import TiteConfig
from lmkcli.models.tite.model import TiteModel

__all__ = ["TiteConfig", "TiteModel"]
