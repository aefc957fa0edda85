#!/usr/bin/env bash
# A training of lmk-minilm that was not better (benchmarks/lmk-minilm.md): each batch has a single topic, and the
# untrained model is the teacher. bash examples/lmk-minilm-teacher.sh path/to/collections
set -euo pipefail
data=lmk-minilm-data
[ -f $data/SUMMARY.txt ] || python benchmarks/landmarks_data.py "$1" -o $data
[ -d $data/topics ] || python - $data << 'PYTHON'
"""The pages and the functions by topic, which is how their ids begin; a file each."""
import gzip, json, sys
from contextlib import ExitStack
from pathlib import Path

PAGES = {
    "cmdlets": ["docset/"],
    "errors": ["docs/error-messages/"],
    "build": [f"docs/{name}" for name in
              ("build", "linux/", "ide/", "code-quality/", "sanitizers/", "extensions/")],
    "mfc": ["docs/mfc/", "docs/atl", "docs/data/", "docs/windows/"],
    "powershell": ["reference/"],
    "man": ["man"],
    "cpp": ["docs/"],
}
FUNCTIONS = {
    "mathematics": ["sympy.", "mpmath.", "networkx."],
    "statistics": ["statsmodels.", "scipy.", "sklearn.", "numpy.", "formulaic."],
    "tables": ["pandas.", "narwhals.", "pyarrow.", "datasets.", "fsspec.", "matplotlib.", "PIL.", "fontTools."],
    "learning": ["torch.", "accelerate.", "peft.", "sentence_transformers.", "huggingface_hub.", "faiss.",
                 "onnxruntime.", "tokenizers."],
    "others": [""],
}
data = Path(sys.argv[1])
partial = data / "topics.partial"
partial.mkdir(exist_ok=True)
for name, topics in (("techdocs", PAGES), ("python-functions", FUNCTIONS)):
    with ExitStack() as stack:
        files = {t: stack.enter_context(gzip.open(partial / f"{t}.jsonl.gz", "wt")) for t in topics}
        for line in stack.enter_context(gzip.open(data / f"{name}.jsonl.gz", "rt")):
            begins = json.loads(line)["id"].startswith
            files[next(t for t, starts in topics.items() if begins(tuple(starts)))].write(line)
partial.rename(data / "topics")
PYTHON

page=max-length=512,query-max-length=64
topics=$data/topics
lmk train \
    $topics/man.jsonl.gz,$page,weight=0.10 \
    $topics/powershell.jsonl.gz,$page,weight=0.09 \
    $topics/cpp.jsonl.gz,$page,weight=0.09 \
    $topics/build.jsonl.gz,$page,weight=0.08 \
    $topics/mfc.jsonl.gz,$page,weight=0.07 \
    $topics/cmdlets.jsonl.gz,$page,weight=0.08 \
    $topics/errors.jsonl.gz,$page,weight=0.02 \
    $data/python-modules.jsonl.gz,$page,weight=0.06 \
    $topics/mathematics.jsonl.gz,$page,weight=0.02 \
    $topics/statistics.jsonl.gz,$page,weight=0.02 \
    $topics/tables.jsonl.gz,$page,weight=0.02 \
    $topics/learning.jsonl.gz,$page,weight=0.02 \
    $topics/others.jsonl.gz,$page,weight=0.02 \
    $data/python-inside.jsonl.gz,max-length=1536,query-max-length=64,weight=0.01 \
    $data/haystack-fever.jsonl.gz,max-length=1536,query-max-length=64,weight=0.01 \
    $data/haystack-squad.jsonl.gz,max-length=1536,query-max-length=64,weight=0.01 \
    $data/qmsum.jsonl.gz,max-length=2048,query-max-length=64,weight=0.01 \
    $data/squad-passages.jsonl.gz,$page,weight=0.13 \
    $data/squad-sentences.jsonl.gz,max-length=256,query-max-length=64,weight=0.06 \
    $data/fever.jsonl.gz,max-length=256,query-max-length=64,weight=0.08 \
    --config examples/lmk-minilm.toml --pool lmk --gran 64,32,128,256 --teacher minilm --teacher-weight 5 \
    --sampling-temperature 1e9 --steps 190 --batch-size 32 --batch-tokens 70000 --warmup 20 -o lmk-minilm-teacher
