#!/usr/bin/env bash
# Dense and lexical search of one collection, their fusion, and a table of all three.
# bash examples/hybrid.sh [OUTPUT] [MODEL]
set -euo pipefail
kitchen="$(dirname "${BASH_SOURCE[0]}")/kitchen"
output="${1:-hybrid}"
model="${2:-minilm}"

mkdir -p "$output"
lmk -q encode "$kitchen" -m "$model" --dtype fp32 -o "$output/vectors"
lmk -q index "$kitchen" --kind bm25 -o "$output/bm25"
lmk -q search "$output/vectors" "$kitchen" -k 10 -o "$output/dense.trec"
lmk -q search "$output/bm25" "$kitchen" -k 10 -o "$output/bm25.trec"
lmk -q search "$output/dense.trec" "$kitchen" -k 10 --with "$output/bm25.trec" --fuse rrf -o "$output/hybrid.trec"
lmk -q eval "$output/dense.trec" "$output/bm25.trec" "$output/hybrid.trec" -m nDCG@10 -m R@1
