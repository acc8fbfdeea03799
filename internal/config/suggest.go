package config

import (
	"slices"
	"strings"
)

// Nearest returns the first of the candidates that are closest to word, or "" if
// none is within two edits.
func Nearest(word string, candidates []string) string {
	best, bestDistance := "", 3
	if len(word) > 30 {
		return ""
	}
	for _, c := range candidates {
		if d := editDistance(word, c); d < bestDistance && d < len(c)-1 {
			best, bestDistance = c, d
		}
	}
	return best
}

// editDistance is the Levenshtein distance in bytes.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// DirectiveIn returns the directive, and its option, that the name of a flag seems to
// mean, or "".
func DirectiveIn(flag string) string {
	words := strings.FieldsFunc(flag, func(r rune) bool { return r == '-' || r == '_' || r == '.' })
	for _, d := range Directives() {
		if slices.Contains(words, d.Name) {
			return d.Name
		}
	}
	for _, d := range Directives() {
		for _, o := range d.Options {
			if option, _, _ := strings.Cut(o, " "); slices.Contains(words, option) {
				return d.Name + " (" + option + ")"
			}
		}
	}
	return ""
}
