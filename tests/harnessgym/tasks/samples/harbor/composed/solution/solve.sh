#!/bin/sh
printf %s "$GREETING" > hello.txt
