"""The pooler `own` of an experiment in benchmarks/lmk-minilm.md: landmarks of a token of their own.

They are mask tokens, which no text contains, instead of SEP.
"""

from dataclasses import replace

from lmkcli.pooling.table import LMK

OWN = replace(LMK, name="own", after="mask")
