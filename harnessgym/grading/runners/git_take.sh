# Reads the files in this folder into a repository of our own, $1 (a folder in it), and removes them. $2 may be a folder whose
# repository has most of their contents already. Nothing of these files configures git.
#
# What the task's repository tracks is looked for whatever these files tell git to ignore: its paths are in the index before
# anything is added. They are those of the repository in $2, and those on stdin, which is for `git update-index -z --index-info`.
set -e
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_NO_REPLACE_OBJECTS=1 LC_ALL=C
mkdir "$1"
export GIT_DIR="$PWD/$1/.git" GIT_WORK_TREE="$PWD"
git init -q
mkdir -p "$GIT_DIR/info" "$GIT_DIR/objects/info"
printf '%s\n' '/.harnessgym-*' '/.venv' >"$GIT_DIR/info/exclude"
echo '* -text -eol -filter -ident -working-tree-encoding -diff -merge' >"$GIT_DIR/info/attributes"
if [ -n "$2" ] && [ -d "$2/.git/objects" ]; then echo "$2/.git/objects" >"$GIT_DIR/objects/info/alternates"; fi
for setting in core.autocrlf=false core.safecrlf=false core.fileMode=true core.symlinks=true core.fsmonitor=false core.compression=1 \
    core.untrackedCache=false core.hooksPath=/dev/null core.excludesFile=/dev/null core.attributesFile=/dev/null gc.auto=0 \
    advice.addEmbeddedRepo=false core.bigFileThreshold=16m pack.threads=1; do
    git config "${setting%%=*}" "${setting#*=}"
done
empty=$(git hash-object -w --stdin </dev/null)
git update-index -z --index-info 2>/dev/null || true
if [ -n "$2" ] && [ -d "$2/.git" ]; then
    GIT_DIR="$2/.git" GIT_WORK_TREE="$2" git -c core.fsmonitor=false ls-files -s 2>/dev/null |
        sed -n "s/^1[02]0[0-7]* [0-9a-f]* 0/100644 $empty 0/p" | git update-index --index-info 2>/dev/null || true
fi
git ls-files -z -s >"$GIT_DIR/tracked"
git add -A --ignore-errors . >/dev/null 2>&1 || true
git write-tree >"$GIT_DIR/handed-in"
find . -mindepth 1 -maxdepth 1 ! -name "$1" -exec rm -rf {} +
