#!/bin/sh
# The N paths with the slowest successful request.
[ -f "$1" ] || exit 1
awk '$4 >= 200 && $4 <= 299 { sub(/ms$/, "", $5); if (!($3 in most) || $5 + 0 > most[$3]) most[$3] = $5 + 0 }
     END { for (path in most) print path, most[path] }' "$1" | sort -k2,2nr -k1,1 | head -n "$2"
