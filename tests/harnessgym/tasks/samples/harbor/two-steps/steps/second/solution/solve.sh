#!/bin/sh
echo 15 > sum.txt
