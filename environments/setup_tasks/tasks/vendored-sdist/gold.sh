mkdir lib
tar -xzf repo/vendor/miniparse-0.3.1.tar.gz -C lib
echo 'export PYTHONPATH="$PWD/lib/miniparse-0.3.1"' > env.sh
