#!/bin/sh
# Stops and disables the relay before the package is removed, and not before an upgrade.
set -e
if [ "$1" = 0 ] && [ -x /usr/bin/systemctl ]; then
    if [ -d /run/systemd/system ]; then
        systemctl disable --now agora.service > /dev/null
    else
        systemctl --no-reload disable agora.service > /dev/null
    fi
fi
