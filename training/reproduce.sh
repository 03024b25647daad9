#!/bin/sh
# From nothing to a container with scores:  ./reproduce.sh FOLDER [options of train.py, which win over these]
#
# Twenty minutes on an H200.  To see that it works on a machine without a GPU (a few minutes, no
# model worth having):
#   ./reproduce.sh /tmp/smoke --device cpu --no-compile --rows 2 --max-steps 2 --workers 1 --thresholds
set -eu
out=$1
shift
cd "$(dirname "$0")"
python -m pytest -q tests
python train.py --minutes 17 --decay 0.6 --quantise 0.5 --out "$out" "$@"
python export.py "$out" "$out/clover-nano.cmf"
