"""TITE (Schlatt et al. 2025): an encoder that pools its sequence, layer by layer, to one vector."""

from lmkcli.plugins.tite.config import TiteConfig
from lmkcli.plugins.tite.model import TiteModel

__all__ = ["TiteConfig", "TiteModel"]
