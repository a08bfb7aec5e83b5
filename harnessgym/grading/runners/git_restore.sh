# Makes each path that stdin names (one on a line, relative) what the current commit has there, or nothing.
set -e
while IFS= read -r path; do
    if git cat-file -e "HEAD:$path" 2>/dev/null; then
        git checkout -q HEAD -- ":(literal)$path"
    else
        rm -rf -- "./$path"
    fi
done
