#!/usr/bin/env bash
# Makes lmk-minilm, or continues where it was stopped: bash examples/lmk-minilm.sh path/to/collections
set -euo pipefail
data=lmk-minilm-data
[ -f $data/SUMMARY.txt ] || python benchmarks/landmarks_data.py "$1" -o $data

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
    --config examples/lmk-minilm.toml -o lmk-minilm
