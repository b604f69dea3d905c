#!/bin/sh
# The data in /var/lib/agora and a changed configuration stay.
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload > /dev/null
fi
