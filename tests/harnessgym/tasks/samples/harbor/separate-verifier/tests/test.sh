#!/bin/sh
right=0 listed=0 apart=0
cmp -s /app/out/numbers.txt /tests/expected.txt && right=1
grep -q '^out$' /logs/artifacts/listing.txt && listed=1
[ ! -e /app/notes.txt ] && apart=1
printf '{"reward": %d, "listed": %d, "apart": %d}\n' "$right" "$listed" "$apart" > /logs/verifier/reward.json
