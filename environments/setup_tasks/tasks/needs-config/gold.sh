echo '{"currency": "EUR", "precision": 2, "accounts": ["cash"]}' > settings.json
echo 'export LEDGER_SETTINGS="$PWD/settings.json"' > env.sh
