#!/bin/bash
printf "def double(x):\n    return 2 * x\n" > /app/double.py
