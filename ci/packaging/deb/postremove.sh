#!/bin/sh
# dpkg --remove keeps the configuration and the data. dpkg --purge deletes both. The user agora stays, because backups
# may belong to it.
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload > /dev/null
fi
if [ "$1" = purge ]; then
    deb-systemd-helper purge agora.service > /dev/null
    rm -rf /var/lib/agora
fi
