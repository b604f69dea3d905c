#!/bin/sh
# Starts the relay when the package is installed, and restarts it after an upgrade. Where systemd does not run, such as
# in a container, it starts nothing. deb-systemd-helper remembers if the operator has disabled or masked the unit.
set -e
if [ "$1" = configure ] || [ "$1" = abort-upgrade ] || [ "$1" = abort-remove ]; then
    deb-systemd-helper unmask agora.service > /dev/null
    if deb-systemd-helper --quiet was-enabled agora.service; then
        deb-systemd-helper enable agora.service > /dev/null
    else
        deb-systemd-helper update-state agora.service > /dev/null
    fi
    if [ -d /run/systemd/system ]; then
        systemctl --system daemon-reload > /dev/null
        # This starts nothing that is disabled.
        deb-systemd-invoke restart agora.service > /dev/null ||
            echo 'agora does not start. journalctl -u agora says why.' >&2
    fi
fi
