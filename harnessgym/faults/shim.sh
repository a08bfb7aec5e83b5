#!/bin/sh
# Stands first on the PATH under the name of a program: applies the faults of the plan to one command, writes down which, and
# becomes the real program. Plan, state and log lie beside it; the node reads them when the rollout has ended.
name=${0##*/}
home=${0%/bin/*}
tab=$(printf '\t')

real=
own=
path=$PATH
rest=$PATH:
while [ -n "$rest" ]; do
    folder=${rest%%:*}
    rest=${rest#*:}
    [ "$folder" = "$home/bin" ] && continue
    own=$own:${folder:-.}
    [ -z "$real" ] && [ -f "${folder:-.}/$name" ] && [ -x "${folder:-.}/$name" ] && real=${folder:-.}/$name
done
PATH=${own#:} # what is used here is never one of ours

after=
while IFS=$tab read -r index kind program pattern draws; do
    [ "$program" = "$name" ] || continue
    case "$*" in $pattern) ;; *) continue ;; esac
    ordinal=0
    [ -r "$home/state/next.$index" ] && read -r ordinal <"$home/state/next.$index"
    # The hint may be read while another command writes it ("8" and "40" can give 84). Use it only if the ordinal
    # below it is taken.
    [ -e "$home/state/seen.$index.$((${ordinal:-0} - 1))" ] || ordinal=0
    until (set -C && : >"$home/state/seen.$index.$ordinal") 2>/dev/null; do
        [ -e "$home/state/seen.$index.$ordinal" ] || continue 2
        ordinal=$((ordinal + 1))
    done
    echo "$((ordinal + 1))" >"$home/state/next.$index"
    case " $draws " in *" $ordinal="*) ;; *) continue ;; esac
    amount=${draws#*" $ordinal="}
    amount=${amount%% *}
    printf '%s\t%s\t%s\n' "$index" "$ordinal" "$(printf %s "$name${*:+ $*}" | tr '\n\t' '  ' | cut -c1-300)" >>"$home/log"
    case $kind in
        latency) sleep "$amount" ;;
        flaky) cat "$home/text.$index" >&2; exit "${amount%%.*}" ;;
        oom_kill) case $amount in 0.0*) kill -KILL $$ ;; *) (sleep "$amount"; kill -KILL $$) >/dev/null 2>&1 & ;; esac ;;
        clock_jump) export HARNESSGYM_FAULT_CLOCK="$amount" LD_PRELOAD="${LD_PRELOAD:+$LD_PRELOAD }$home/fault.so" ;;
        disk_full) export HARNESSGYM_FAULT_DISK=1 LD_PRELOAD="${LD_PRELOAD:+$LD_PRELOAD }$home/fault.so" ;;
        injection) after="$after $index" ;;
    esac
done <"$home/plan"

if [ -z "$real" ]; then
    echo "$name: not found" >&2
    exit 127
fi
PATH=$path
[ -n "$after" ] || exec "$real" "$@"
"$real" "$@"
code=$?
PATH=${own#:}
for index in $after; do
    cat "$home/text.$index"
done
exit "$code"
