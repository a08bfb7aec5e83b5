# Makes a repository of the files in this folder: one commit on `main`. "$@" goes to `git add`.
set -e
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null LC_ALL=C
export GIT_AUTHOR_NAME=task GIT_AUTHOR_EMAIL=task@localhost GIT_AUTHOR_DATE='2000-01-01T00:00:00Z'
export GIT_COMMITTER_NAME=task GIT_COMMITTER_EMAIL=task@localhost GIT_COMMITTER_DATE='2000-01-01T00:00:00Z'
git init -q .
git symbolic-ref HEAD refs/heads/main
mkdir -p .git/info
printf '%s\n' '/.harnessgym-*' '/.venv' >>.git/info/exclude
git -c core.autocrlf=false add -A "$@" -- . ':(exclude,top).harnessgym-*'
git -c core.hooksPath=/dev/null commit -q --allow-empty -m 'Where the task begins'
rm -rf .git/logs
