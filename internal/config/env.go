package config

import "strings"

// expandEnv replaces {%NAME%} and {$NAME} by the value of the variable. A value is
// not expanded again.
func expandEnv(text string, getenv func(string) string) string {
	text = expandReferences(text, "{%", "%}", getenv)
	return expandReferences(text, "{$", "}", getenv)
}

func expandReferences(text, opening, closing string, getenv func(string) string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, opening)
		if !found {
			break
		}
		name, after, closed := strings.Cut(rest, closing)
		if !closed || name == "" {
			break
		}
		out.WriteString(before)
		out.WriteString(getenv(name))
		text = after
	}
	out.WriteString(text)
	return out.String()
}
