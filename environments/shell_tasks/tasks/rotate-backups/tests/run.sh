# Each state is written down as text and compared with what it should be. The agent's script runs as nobody where it can.
place=$(mktemp -d)
chmod 777 "$place"
cp rotate.sh "$place/rotate.sh" || exit 1
chmod 755 "$place/rotate.sh"
cd "$place" || exit 1
mkdir "some data"
chmod 777 "some data"
file="some data/notes.txt"

as_nobody() {
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs "$@"
    else
        "$@"
    fi
}

rotate() {
    as_nobody timeout 20 sh rotate.sh "$@" >/dev/null 2>&1 </dev/null
}

write() {
    rm -f "$file"
    printf '%s' "$1" | as_nobody sh -c 'umask 027; cat >"$1"' sh "$file"
}

is() {
    found=$(cd "some data" && for each in *; do printf '%s=%s ' "$each" "$(as_nobody cat "$each")"; done)
    [ "$found" = "$1 " ] || { echo "expected: $1, found: $found" >&2; exit 1; }
}

write one && rotate "$file" 2 || exit 1
is "notes.txt=one notes.txt.1=one"
rotate "$file" 2 || exit 1
is "notes.txt=one notes.txt.1=one"
write two && rotate "$file" 2 || exit 1
is "notes.txt=two notes.txt.1=two notes.txt.2=one"
write three && rotate "$file" 2 || exit 1
is "notes.txt=three notes.txt.1=three notes.txt.2=two"
write four && rotate "$file" 3 || exit 1
is "notes.txt=four notes.txt.1=four notes.txt.2=three notes.txt.3=two"
[ "$(stat -c %a "$file.1")" = 640 ] || exit 1
for wrong in 0 -1 two ""; do
    rotate "$file" "$wrong"
    [ $? = 2 ] || exit 1
done
rotate "some data/missing" 2
[ $? = 2 ] || exit 1
is "notes.txt=four notes.txt.1=four notes.txt.2=three notes.txt.3=two"
