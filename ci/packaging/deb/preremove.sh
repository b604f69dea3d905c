#!/bin/sh
# Stops the relay before the package is removed. During an upgrade it runs until the new version is there.
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    deb-systemd-invoke stop agora.service > /dev/null
fi
