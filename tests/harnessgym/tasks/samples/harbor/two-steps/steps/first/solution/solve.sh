#!/bin/sh
echo 9 > sum.txt
