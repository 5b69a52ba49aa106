#!/bin/sh
# Builds ../codemirror.js and ../LICENSE from the packages in package-lock.json.
set -eu
here=$(dirname "$(realpath "$0")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$here"/*.js* "$folder"
cd "$folder"
npm ci --no-audit --no-fund --ignore-scripts
node_modules/.bin/esbuild index.js --bundle --minify --format=esm --target=es2022 --charset=utf8 \
  --alias:style-mod=./style-mod.js --legal-comments=none --metafile=parts.json --outfile="$here/../codemirror.js"
grep -o 'node_modules/\(@[^/"]*/\)\?[^/"]*' parts.json | sort -u | while read -r package; do
  printf '%s\n\n' "${package#node_modules/}" && cat "$package/LICENSE" && printf '\n'
done > "$here/../LICENSE"
