#!/usr/bin/env bash
# Makes lmk-minilm, or continues where it was stopped: bash examples/lmk-minilm.sh path/to/collections
set -euo pipefail
data=lmk-minilm-data
[ -f $data/SUMMARY.txt ] || python benchmarks/landmarks_data.py "$1" -o $data

lmk train \
    $data/techdocs.jsonl.gz,max-length=640,query-max-length=64,weight=0.34 \
    $data/python-modules.jsonl.gz,max-length=640,query-max-length=64,weight=0.08 \
    $data/python-inside.jsonl.gz,max-length=1536,query-max-length=64,weight=0.02 \
    $data/haystack-fever.jsonl.gz,max-length=1536,query-max-length=64,weight=0.03 \
    $data/haystack-squad.jsonl.gz,max-length=1536,query-max-length=64,weight=0.03 \
    $data/qmsum.jsonl.gz,max-length=2048,query-max-length=64,weight=0.01 \
    $data/squad-passages.jsonl.gz,max-length=384,query-max-length=64,weight=0.12 \
    $data/squad-sentences.jsonl.gz,max-length=256,query-max-length=64,weight=0.10 \
    $data/fever.jsonl.gz,max-length=256,query-max-length=64,weight=0.10 \
    $data/python-functions.jsonl.gz,max-length=384,query-max-length=64,weight=0.17 \
    --config examples/lmk-minilm.toml -o lmk-minilm
