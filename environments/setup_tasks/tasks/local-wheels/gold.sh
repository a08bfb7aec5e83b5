python3 -m pip install --quiet --no-index --find-links wheels --target lib -r repo/requirements.txt
echo 'export PYTHONPATH="$PWD/lib"' > env.sh
