#!/usr/bin/env bash
# Make mean-minilm and lmk-minilm in this folder, or continue after a stop:
#   bash examples/lmk-minilm.sh path/to/collections [mean-minilm | lmk-minilm]
set -euo pipefail
here=$(dirname "$0")
data=lmk-minilm-data
[ -f $data/SUMMARY.txt ] || python "$here/../benchmarks/landmarks_data.py" "$1" -o $data

for name in ${2:-mean-minilm lmk-minilm}; do
    pooling=(--pool lmk --gran 64,32,128,256)
    [ $name = lmk-minilm ] || pooling=(--pool mean)
    lmk train \
        $data/techdocs.jsonl.gz,max-length=448,query-max-length=64,weight=0.30 \
        $data/techdocs-openings.jsonl.gz,max-length=448,query-max-length=128,weight=0.30 \
        $data/techdocs-parts.jsonl.gz,max-length=640,query-max-length=128,weight=0.27 \
        $data/python-docstrings.jsonl.gz,max-length=384,query-max-length=128,weight=0.35 \
        $data/python-modules.jsonl.gz,max-length=640,query-max-length=64,weight=0.25 \
        $data/python-inside.jsonl.gz,max-length=768,query-max-length=64,weight=0.05 \
        $data/haystack-fever.jsonl.gz,max-length=640,query-max-length=64,weight=0.05 \
        $data/haystack-squad.jsonl.gz,max-length=640,query-max-length=64,weight=0.10 \
        $data/qmsum-slices.jsonl.gz,max-length=512,query-max-length=64,weight=1.75 \
        $data/qmsum-among.jsonl.gz,max-length=896,query-max-length=64,weight=0.75 \
        $data/qmsum-utterances.jsonl.gz,max-length=512,query-max-length=96,weight=0.20 \
        $data/squad-passages.jsonl.gz,max-length=320,query-max-length=64,weight=0.30 \
        $data/squad-sentences.jsonl.gz,max-length=128,query-max-length=64,weight=0.08 \
        $data/fever.jsonl.gz,max-length=192,query-max-length=64,weight=0.10 \
        $data/python-functions.jsonl.gz,max-length=320,query-max-length=64,weight=0.10 \
        --config "$here/lmk-minilm.toml" "${pooling[@]}" -o $name-trained
    # The adapter in fp16. Both models declare mean pooling: it is better than landmarks (docs/lmk-minilm.md).
    [ -e $name ] || python "$here/../benchmarks/average_adapters.py" $name-trained/adapter \
        --rank 16 --pool mean -o $name
done
