good=$(git rev-list --max-parents=0 HEAD)
git bisect start HEAD "$good" >/dev/null
git bisect run sh -c '
    said=$(python3 slugs.py "  Rock & Roll -- 100% " 2>/dev/null) || exit 125
    [ "$said" = rock-and-roll-100-percent ]
' >/dev/null || true
git rev-parse refs/bisect/bad >answer.txt
git bisect reset >/dev/null 2>&1
