rm etc/legacy.ini
