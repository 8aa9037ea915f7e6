#!/bin/sh
# Writes SHA256SUMS of what is released: all files right in bin/dist.
set -eu
cd "$(dirname "$0")/../bin/dist"
find . -maxdepth 1 -type f ! -name 'SHA256SUMS*' -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS.new
mv SHA256SUMS.new SHA256SUMS
