#!/bin/sh
# The N paths with the slowest successful request.
cat $1 | awk '{ print $3, $5 }' | sed 's/ms$//' | sort -k2 -r | head -n $2
