file=$1
case $2 in '' | *[!0-9]*) exit 2 ;; esac
[ -f "$file" ] && [ "$2" -gt 0 ] || exit 2
if [ -f "$file.1" ] && cmp -s "$file" "$file.1"; then exit 0; fi
number=$2
rm -f "$file.$number"
while [ "$number" -gt 1 ]; do
    before=$((number - 1))
    if [ -f "$file.$before" ]; then mv "$file.$before" "$file.$number"; fi
    number=$before
done
cp -p "$file" "$file.1"
