#!/bin/sh
if [ "$(cat hello.txt 2>/dev/null)" = 'good ${MORNING}' ]; then echo 1.0; else echo 0; fi > /logs/verifier/reward.txt
