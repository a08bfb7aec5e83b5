#!/bin/bash
cd /app
printf 'one two\nthree\n' > /tmp/other.txt
score=0
[ "$(cat answer.txt 2>/dev/null)" = "$WORDS" ] && score=$((score + 1))
[ "$(python3 count.py /tmp/other.txt 2>/dev/null)" = 3 ] && score=$((score + 1))
if [ "$score" = 2 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
exit 3
