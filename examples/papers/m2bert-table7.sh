#!/bin/sh
# Table 7 and Figure 4 of arXiv 2402.07440: M2-BERT-32k, pre-trained from M2-BERT-8k and from random weights.
#
#   sh examples/papers/m2bert-table7.sh results        # in the folder above examples/
#
# No grid makes this table, because nothing is searched: the accuracies come from lmk pretrain. c4/, wikipedia/,
# bookcorpus/ and c4-validation/ are collections or tokens folders. The same command continues after a stop.
set -eu
results=$1
mkdir -p "$results"
sources="c4/,blocks=0,weight=10 wikipedia/,blocks=0,weight=10 bookcorpus/,blocks=0,weight=10
    c4/,blocks=1,weight=24 wikipedia/,blocks=1,weight=23 bookcorpus/,blocks=1,weight=23"  # Table 2
config="--config examples/m2bert-pretrain.toml"  # it names the sections of the paper
long="--architecture examples/papers/m2bert-32768.json --max-length 32768 --steps 6000"  # Table 7
dev="--dev c4-validation/ --dev-mask 0.15"  # App. A.3
# Own choice: the 5,000 steps of M2-BERT-8k in the recipe, which the paper does not give.
lmk pretrain $sources $config --architecture examples/papers/m2bert-8192.json --max-length 8192 \
    -o "$results/m2-bert-8k"
lmk pretrain $sources $config $long $dev --init-from "$results/m2-bert-8k" -o "$results/warm"  # §4.2
lmk pretrain $sources $config $long $dev -o "$results/cold"
lmk plot "$results/warm" "$results/cold" -o "$results/figure4.svg"
# Table 7: the accuracy of the last batches. The lines with "dev" are those of C4's validation set.
for start in warm cold; do
    accuracy=$(sed -n 's/.*"accuracy": *\([0-9.e-]*\).*/\1/p' "$results/$start/log.jsonl" | tail -n 1)
    echo "$start-start $accuracy"
done
