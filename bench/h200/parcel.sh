#!/usr/bin/env bash
# Carries a file or a folder to a machine that takes only so much at a time: splits it here, joins it there.
#
#   bench/h200/parcel.sh split THING PARCEL [MIB]    THING as parts of at most MIB MiB (default 48) in the new folder PARCEL
#   bench/h200/parcel.sh join PARCEL OUT             THING again, at OUT/THING's name
#
# PARCEL gets 0000.part, 0001.part … and parcel.sha256, the hash of each part in the form of sha256sum. The same THING gives the same parts,
# so that those that have arrived need not travel again. `join` unpacks nothing unless every part of the list is there with its hash; the ones
# that aren't are named. OUT may not lie in this repository, whose copy over there may be replaced at any time. What lies at OUT
# already is never replaced.
set -euo pipefail
list=parcel.sha256

fail() { printf 'parcel: %s\n' "$*" >&2; exit 1; }
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2; exit 2; }

split_() { # THING PARCEL MIB
	local thing=${1%/} parcel=$2 mib=$3 name
	[ -e "$thing" ] || fail "$thing isn't there"
	case $mib in '' | *[!0-9]* | 0*) fail "MIB is '$mib'; want a whole number from 1" ;; esac
	thing=$(readlink -f "$thing")
	name=$(basename "$thing")
	parcel=$(readlink -m "$parcel")
	case $parcel/ in "$thing"/*) fail "$parcel lies in $thing" ;; esac
	mkdir -p "$parcel"
	[ -z "$(ls -A "$parcel")" ] || fail "$parcel isn't empty"
	# Neither the order of a folder's entries nor who owns them may change the parts.
	tar --create --sort=name --owner=0 --group=0 --numeric-owner --directory "$(dirname "$thing")" -- "$name" |
		split --bytes "${mib}M" --numeric-suffixes --suffix-length 4 --additional-suffix .part - "$parcel/"
	(cd "$parcel" && sha256sum -- *.part && echo "# $(ls | grep -c '\.part$') parts") >"$parcel/.$list"
	mv "$parcel/.$list" "$parcel/$list"
	printf '%s: %d parts, %d bytes\n' "$name" "$(ls "$parcel" | grep -c '\.part$')" "$(cat "$parcel"/*.part | wc -c)"
}

join_() { # PARCEL OUT
	local parcel=$1 out=$2 bad=0 n=0 whole=0 parts=() hash part name
	[ -s "$parcel/$list" ] || fail "$parcel has no $list"
	out=$(readlink -m "$out")
	case $out/ in "$(readlink -f "$(dirname "$0")/../..")"/*) fail "$out lies in this repository" ;; esac
	while read -r hash part; do
		[ "$hash $part" = "# $n parts" ] && whole=1 && break
		# A name that split didn't give could lead anywhere.
		[ "$part" = "$(printf '%04d.part' "$n")" ] && [ "${#hash}" = 64 ] || fail "line $((n + 1)) of $parcel/$list isn't one of split's"
		n=$((n + 1))
		parts+=("$parcel/$part")
		if [ ! -f "$parcel/$part" ]; then
			printf 'parcel: %s is missing\n' "$part" >&2
			bad=1
		elif [ "$(sha256sum <"$parcel/$part")" != "$hash  -" ]; then
			printf 'parcel: %s is not what was split\n' "$part" >&2
			bad=1
		fi
	done <"$parcel/$list"
	[ "$whole" = 1 ] || fail "$parcel/$list is cut off after $n parts"
	[ "$bad" = 0 ] || fail "nothing was unpacked"
	mkdir -p "$out"
	scratch=$(mktemp -d "$out/.parcel-XXXXXX")
	trap 'rm -rf "$scratch"' EXIT
	cat "${parts[@]}" | tar --extract --no-same-owner --directory "$scratch"
	name=$(ls -A "$scratch")
	[ ! -e "$out/$name" ] || fail "$out/$name is there and stays as it is"
	mv "$scratch/$name" "$out/$name"
	printf '%s\n' "$out/$name"
}

case ${1:-} in
split) [ $# = 3 ] || [ $# = 4 ] || usage; split_ "$2" "$3" "${4:-48}" ;;
join) [ $# = 3 ] || usage; join_ "$2" "$3" ;;
*) usage ;;
esac
