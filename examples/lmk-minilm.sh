#!/usr/bin/env bash
# Make lmk-minilm in this folder, or continue after a stop: bash examples/lmk-minilm.sh path/to/collections [SETTINGS]
set -euo pipefail
here=$(dirname "$0")
settings=${2:-$here/lmk-minilm.toml}
data=lmk-minilm-data
[ -f $data/SUMMARY.txt ] || python "$here/../benchmarks/landmarks_data.py" "$1" -o $data

# Two trainings of the base model with different mixtures of examples. The second has slices of meetings, and nearly
# all of its texts fit into one window of later use. The third continues the second; half of its batches are meetings.
lmk train \
    $data/techdocs.jsonl.gz,max-length=640,query-max-length=64,weight=0.30 \
    $data/techdocs-openings.jsonl.gz,max-length=576,query-max-length=128,weight=0.30 \
    $data/techdocs-parts.jsonl.gz,max-length=1024,query-max-length=128,weight=0.15 \
    $data/python-docstrings.jsonl.gz,max-length=448,query-max-length=128,weight=0.35 \
    $data/python-modules.jsonl.gz,max-length=640,query-max-length=64,weight=0.08 \
    $data/python-inside.jsonl.gz,max-length=1024,query-max-length=64,weight=0.02 \
    $data/haystack-fever.jsonl.gz,max-length=1536,query-max-length=64,weight=0.04 \
    $data/haystack-squad.jsonl.gz,max-length=1536,query-max-length=64,weight=0.06 \
    $data/qmsum.jsonl.gz,max-length=2048,query-max-length=64,weight=0.04 \
    $data/squad-passages.jsonl.gz,max-length=384,query-max-length=64,weight=0.20 \
    $data/squad-sentences.jsonl.gz,max-length=256,query-max-length=64,weight=0.08 \
    $data/fever.jsonl.gz,max-length=256,query-max-length=64,weight=0.10 \
    $data/python-functions.jsonl.gz,max-length=384,query-max-length=64,weight=0.10 \
    --config "$settings" --steps 700 --warmup 50 -o lmk-minilm-1
lmk train \
    $data/techdocs.jsonl.gz,max-length=512,query-max-length=64,weight=0.30 \
    $data/techdocs-openings.jsonl.gz,max-length=512,query-max-length=128,weight=0.30 \
    $data/techdocs-parts.jsonl.gz,max-length=1024,query-max-length=128,weight=0.15 \
    $data/python-docstrings.jsonl.gz,max-length=448,query-max-length=128,weight=0.25 \
    $data/python-modules.jsonl.gz,max-length=640,query-max-length=64,weight=0.08 \
    $data/python-inside.jsonl.gz,max-length=1024,query-max-length=64,weight=0.02 \
    $data/haystack-fever.jsonl.gz,max-length=1536,query-max-length=64,weight=0.04 \
    $data/haystack-squad.jsonl.gz,max-length=1536,query-max-length=64,weight=0.06 \
    $data/qmsum-slices.jsonl.gz,max-length=512,query-max-length=64,weight=1.2 \
    $data/qmsum-among.jsonl.gz,max-length=1536,query-max-length=64,weight=0.6 \
    $data/squad-passages.jsonl.gz,max-length=384,query-max-length=64,weight=0.25 \
    $data/squad-sentences.jsonl.gz,max-length=256,query-max-length=64,weight=0.08 \
    $data/fever.jsonl.gz,max-length=256,query-max-length=64,weight=0.10 \
    $data/python-functions.jsonl.gz,max-length=384,query-max-length=64,weight=0.10 \
    --config "$settings" --steps 500 --warmup 40 -o lmk-minilm-2
lmk train \
    $data/qmsum-slices.jsonl.gz,max-length=512,query-max-length=64,weight=2.05 \
    $data/qmsum-among.jsonl.gz,max-length=1536,query-max-length=64,weight=1.12 \
    $data/qmsum-utterances.jsonl.gz,max-length=896,query-max-length=96,weight=0.35 \
    $data/scifact.jsonl.gz,max-length=448,query-max-length=64,weight=1.64 \
    $data/techdocs.jsonl.gz,max-length=512,query-max-length=64,weight=0.076 \
    $data/techdocs-openings.jsonl.gz,max-length=512,query-max-length=128,weight=0.089 \
    $data/techdocs-parts.jsonl.gz,max-length=1024,query-max-length=128,weight=0.115 \
    $data/python-docstrings.jsonl.gz,max-length=448,query-max-length=128,weight=0.09 \
    $data/haystack-fever.jsonl.gz,max-length=1536,query-max-length=64,weight=0.033 \
    $data/haystack-squad.jsonl.gz,max-length=1536,query-max-length=64,weight=0.05 \
    $data/squad-passages.jsonl.gz,max-length=384,query-max-length=64,weight=0.125 \
    $data/squad-sentences.jsonl.gz,max-length=256,query-max-length=64,weight=0.017 \
    $data/fever.jsonl.gz,max-length=256,query-max-length=64,weight=0.03 \
    $data/python-functions.jsonl.gz,max-length=384,query-max-length=64,weight=0.021 \
    --config "$settings" -m lmk-minilm-2 --extend "" --steps 300 --warmup 20 --lr 3e-4 -o lmk-minilm-3

# The model is a mean: weight 1 for the first training, weight 2 for the second and third together. It declares mean
# pooling, which is better than its landmarks on most collections (docs/lmk-minilm.md).
[ -e lmk-minilm ] || python "$here/../benchmarks/average_adapters.py" lmk-minilm-1/adapter \
    lmk-minilm-2/adapter+lmk-minilm-3/adapter --weights 1 2 --rank 20 --pool mean -o lmk-minilm
