#!/bin/sh
. /tests/same.sh
[ "$(cat sum.txt 2>/dev/null)" = 9 ]
result
