# Takes from the repository in this folder whatever is not the past of the commit $1: it ends at `main`, which is that commit, or,
# where the files that are committed here differ from it, one commit on top of it with these files. Uncommitted files stay.
set -e
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_NO_REPLACE_OBJECTS=1 LC_ALL=C
export GIT_AUTHOR_NAME=task GIT_AUTHOR_EMAIL=task@localhost GIT_AUTHOR_DATE='2000-01-01T00:00:00Z'
export GIT_COMMITTER_NAME=task GIT_COMMITTER_EMAIL=task@localhost GIT_COMMITTER_DATE='2000-01-01T00:00:00Z'
if [ ! -d .git ]; then echo "There is no .git folder in $PWD: the task's image has no repository there." >&2; exit 1; fi
plain() {
    git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c gc.auto=0 -c repack.writeBitmaps=false -c pack.threads=1 "$@"
}
base=$(plain rev-parse -q --verify "$1^{commit}" || true)
tree=$(plain rev-parse -q --verify 'HEAD^{tree}')
if [ -z "$base" ]; then
    tip=$(plain commit-tree "$tree" -m 'Where the task begins')
elif [ "$(plain rev-parse "$base^{tree}")" = "$tree" ]; then
    tip=$base
else
    tip=$(plain commit-tree "$tree" -p "$base" -m 'Where the task begins')
fi
if [ -e .git/objects/info/alternates ]; then plain repack -q -n -a -d; fi
find .git -maxdepth 1 -name '*_HEAD' -exec rm -f {} +
find .git/objects/pack -maxdepth 1 \( -name '*.keep' -o -name '*.promisor' -o -name '*.bitmap' -o -name '*.mtimes' -o -name 'tmp_*' \) \
    -exec rm -f {} +
cd .git
rm -rf logs worktrees rebase-merge rebase-apply sequencer lfs rr-cache branches remotes refs packed-refs gc.log info/grafts info/refs \
    MERGE_MSG SQUASH_MSG COMMIT_EDITMSG MERGE_MODE MERGE_RR AUTO_MERGE TAG_EDITMSG NOTES_EDITMSG BISECT_* \
    objects/info/alternates objects/info/http-alternates objects/info/commit-graph objects/info/commit-graphs objects/info/packs \
    objects/pack/multi-pack-index
mkdir -p refs/heads refs/tags info
echo "$tip" >refs/heads/main
echo 'ref: refs/heads/main' >HEAD
grep -qxF '/.harnessgym-*' info/exclude 2>/dev/null || echo '/.harnessgym-*' >>info/exclude
cd ..
plain config --local --name-only --get-regexp '^(remote|branch|url)\.' 2>/dev/null | sed 's/\.[^.]*$//' | sort -u | while read -r section; do
    plain config --local --remove-section "$section" || true
done
for key in extensions.partialclone core.alternaterefscommand extensions.worktreeconfig core.logallrefupdates; do
    plain config --local --unset-all "$key" || true
done
plain reset -q --soft main
rm -f .git/ORIG_HEAD
rm -rf .git/logs
plain repack -q -n -a -d
plain prune --expire=now
rm -rf .git/logs
