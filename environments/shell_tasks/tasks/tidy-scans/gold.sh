cd scans
rm inbox/*.tmp
for scan in inbox/*.txt; do
    set -- $(basename "$scan" .txt | tr -d '()' | tr '[:upper:]' '[:lower:]')
    number=$(echo "$2" | sed 's/^0*//')
    mkdir -p "$3"
    mv "$scan" "$3/$1-$(printf '%03d' "$number").txt"
done
rmdir inbox
chmod -x 20*/*.txt
chmod +x bin/count
