#!/bin/sh
# Installs Debian's Chromium, to look at the site of the documentation, unless it is there already.
# Needs root; the download has about 100 MB.
#
#   tools/install_chromium.sh    # then: python -m tools.look_at_site
set -eu
command -v chromium >/dev/null && exit 0
[ "$(id -u)" -eq 0 ] || { echo "chromium: not installed, which needs root"; exit 0; }
packages="chromium fonts-dejavu-core"
install() { DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $packages >/dev/null 2>&1; }
install || { apt-get -qq update && install; }
chromium --version
