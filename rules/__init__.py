"""What the evidence means: rules and the catalogue of techniques in YAML, and the evaluator that reads them.

>>> diagnosis = diagnose(evidence, load_pack())
"""

from inferdoc.rules.evaluation import diagnose
from inferdoc.rules.loading import LoadedRule, Pack, load_pack, read_pack

__all__ = ["LoadedRule", "Pack", "diagnose", "load_pack", "read_pack"]
