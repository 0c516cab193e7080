#!/bin/sh
# Downloads one file through the egress door: the sandbox reaches the named host and no other.
#
#   examples/download.sh www.rfc-editor.org https://www.rfc-editor.org/rfc/rfc9457.txt rfc9457.txt
#
# Redirects to other hosts are denied, and Airlock names the option that would allow them.
set -eu
host=$1
url=$2
file=$3
airlock run --allow-host "$host" --file-size 32M --artifact "$file" -- \
    curl --silent --show-error --fail --location --output "$file" "$url"
airlock artifact get "$file" --output "$file"
