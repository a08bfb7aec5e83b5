# Prints what turns the files in this folder into those that git_take.sh read into $1, as a patch, and removes $1.
set -e
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_NO_REPLACE_OBJECTS=1 LC_ALL=C
export GIT_DIR="$PWD/$1/.git" GIT_WORK_TREE="$PWD"
git update-index -z --index-info <"$GIT_DIR/tracked"
git add -A --ignore-errors . >/dev/null 2>&1 || true
echo '* !diff -text -eol -filter -ident -working-tree-encoding' >"$GIT_DIR/info/attributes"
git diff-tree -r -p --binary --full-index --no-renames --no-color --no-ext-diff --no-textconv \
    "$(git write-tree)" "$(cat "$GIT_DIR/handed-in")"
rm -rf "$1"
