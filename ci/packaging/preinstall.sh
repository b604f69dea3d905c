#!/bin/sh
# Creates the user agora, before the files of the package are there.
set -e
if ! getent passwd agora > /dev/null; then
    useradd --system --user-group --no-create-home --home-dir /var/lib/agora --shell /usr/sbin/nologin \
        --comment 'Agora relay' agora
fi
