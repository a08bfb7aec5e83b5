#!/bin/sh
echo 6 >> numbers.txt
