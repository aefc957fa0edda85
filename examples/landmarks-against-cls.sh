#!/usr/bin/env bash
# Train poolers in the same way at 256 positions, for evaluation at 2,048 (benchmarks/landmarks.md), or continue after a stop:
#   SEEDS="1 2 3" bash examples/landmarks-against-cls.sh path/to/collections [lmk cls mean mean@64 multicls lmk-fixed]
# DEEP=1: nearly twice as many steps, a third of the batches with the evidence among other sentences, 8,192 positions.
set -euo pipefail
data=lmk-minilm-data
[ -f $data/SUMMARY.txt ] || python benchmarks/landmarks_data.py "$1" -o $data
poolers=("${@:2}")
[ ${#poolers[@]} -gt 0 ] || poolers=(lmk cls)
short=max-length=256,query-max-length=64
reach=2048 steps=110 warmup=15 out=trained fever=0.1 deep=()
if [ -n "${DEEP:-}" ]; then
    reach=8192 steps=200 warmup=20 out=trained-deep fever=0.05
    deep=($data/haystack-sentences.jsonl.gz,$short,weight=0.3 $data/haystack-claims.jsonl.gz,$short,weight=0.2)
fi

for seed in ${SEEDS:-1 2 3}; do
    for pool in "${poolers[@]}"; do
        gran=()
        case $pool in
            lmk) gran=(--gran 64,32,128,256) ;;
            lmk-fixed | multicls) gran=(--gran 64) ;;
        esac
        lmk train \
            $data/techdocs.jsonl.gz,$short,weight=0.5 \
            $data/techdocs-openings.jsonl.gz,$short,weight=0.3 \
            $data/squad-passages.jsonl.gz,$short,weight=0.3 \
            "${deep[@]}" \
            $data/squad-sentences.jsonl.gz,$short,weight=0.05 \
            $data/fever.jsonl.gz,$short,weight=$fever \
            $data/python-functions.jsonl.gz,$short,weight=0.05 \
            -m minilm --pool "${pool%-fixed}" "${gran[@]}" --extend recurrent --max-length $reach --skip-positions 0.5 \
            --lora 16 --train positions --lr 4e-4 --warmup $warmup --schedule cosine --temperature 0.03 \
            --batch-size 32 --batch-tokens 26000 --steps $steps --save-every 55 --seed "$seed" \
            -o "$out/$pool-$seed"
    done
done
