#!/bin/sh
# The nvidia-smi of a node that has a share of the machine's GPUs: asks the real one for these.
real=@REAL@ own=@OWN@
case ${1:-} in
  nvlink) # takes one GPU at a time
    for gpu in $(echo "$own" | tr , ' '); do
      "$real" "$@" -i "$gpu" || exit
    done
    exit ;;
  -L | --list-gpus)
    "$real" -L | awk -v own=",$own," '/^GPU / { number = $2; sub(":", "", number); shown = index(own, "," number ",") } shown'
    exit ;;
  topo | mig | -h | --help | --version) exec "$real" "$@" ;;
esac
for word in "$@"; do
  case $word in -i* | --id*) exec "$real" "$@" ;; esac
done
exec "$real" "$@" -i "$own"
