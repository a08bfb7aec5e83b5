#!/bin/sh
right=0 kept=0
[ "$(cat sum.txt 2>/dev/null)" = 15 ] && right=1
[ -f numbers.txt ] && [ "$STEP" = second ] && kept=1
printf '{"reward": %d, "kept": %d}\n' "$right" "$kept" > /logs/verifier/reward.json
