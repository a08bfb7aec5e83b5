#!/bin/bash
set -e
cp "$(dirname "$0")/count.py" /app/count.py
python3 /app/count.py /app/poem.txt > "/app/$ANSWER"
