#!/bin/sh
seq 1 5 > /app/out/numbers.txt
