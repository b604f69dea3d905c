#!/bin/sh
# After the first installation, enables the relay if the presets of the system say so. After an upgrade, restarts it if
# it runs.
set -e
if [ -x /usr/bin/systemctl ]; then
    if [ "$1" = 1 ]; then
        systemctl --no-reload preset agora.service > /dev/null 2>&1 || true # no preset: it stays disabled
    fi
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload > /dev/null
        [ "$1" = 1 ] || systemctl try-restart agora.service > /dev/null ||
            echo 'agora does not start. journalctl -u agora says why.' >&2
    fi
fi
