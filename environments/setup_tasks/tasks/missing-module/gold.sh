python3 -m pip install --quiet --no-index --no-build-isolation --target lib wheels/tablefmt-1.2.0
rm -rf wheels/tablefmt-1.2.0/build
echo 'export PYTHONPATH="$PWD/lib"' > env.sh
