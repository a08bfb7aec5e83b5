python3 -m venv --without-pip .venv
packages=$(echo .venv/lib/python3*/site-packages)
printf '%s\n' "$PWD/repo/packages/core/src" > "$packages/queuecore.pth"
printf '%s\n' "$PWD/repo/packages/service/src" > "$packages/queueservice.pth"
