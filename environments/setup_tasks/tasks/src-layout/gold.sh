echo 'export PYTHONPATH="$PWD/repo/src"' > env.sh
