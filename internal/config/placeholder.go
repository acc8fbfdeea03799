package config

import "strings"

// placeholder returns the first node-cache placeholder in text, or "". Without this
// check, a placeholder that was not replaced would be read as a name.
func placeholder(text string) string {
	for _, prefix := range []string{"__PILLAR__", "__PROMETHEUS__"} {
		start := strings.Index(text, prefix)
		if start < 0 {
			continue
		}
		end := start + len(prefix)
		for end < len(text) && (text[end] == '_' || text[end] >= 'A' && text[end] <= 'Z') {
			end++
		}
		return text[start:end]
	}
	return ""
}
