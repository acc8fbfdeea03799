#!/bin/sh
# Draws docs/pictures/dashboard.png. npm's packages, half a gigabyte, go to the user's
# cache. Arguments are for the test, such as -prometheus URL (see main_test.go).
set -eu
cd "$(dirname "$0")"
for tool in prometheus pngquant; do
	command -v $tool >/dev/null || { echo "install the Debian packages prometheus and pngquant" >&2; exit 1; }
done
grafana=13.2.2
dir=${XDG_CACHE_HOME:-$HOME/.cache}/nodens/grafana-$grafana
if [ ! -d "$dir/page" ]; then
	npm install --prefix "$dir" --silent --ignore-scripts --no-audit --no-fund --no-package-lock \
		@grafana/ui@$grafana @grafana/data@$grafana react@19.3.1 react-dom@19.3.1 @fontsource/inter@5.3.0 esbuild@0.28.2
	mkdir -p "$dir/page/public/build"
	ln -s "$dir/node_modules/@grafana/ui/dist/public/img" "$dir/page/public/build/img"
fi
NODE_PATH=$dir/node_modules "$dir/node_modules/.bin/esbuild" page.jsx --bundle --minify --jsx=automatic --log-level=warning \
	--define:process.env.NODE_ENV='"production"' --loader:.woff2=dataurl --loader:.woff=empty --loader:.ttf=empty --outdir="$dir/page"
png=$(mktemp)
trap 'rm -f "$png"' EXIT
${GO:-go} test -count=1 -timeout 30m -v . -args -picture "$png" -page "$dir/page" "$@"
pngquant --force --output ../../docs/pictures/dashboard.png 64 "$png"
# The panels that the picture shows, see test/deploy.
sed -n 's/^   "title": "\(.*\)",$/\1/p' ../../deploy/chart/files/dashboard.json >../../docs/pictures/dashboard.txt
