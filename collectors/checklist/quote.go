package checklist

import (
	"regexp"
	"strings"
)

var (
	bareWord  = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)
	plainName = regexp.MustCompile(`^[a-z]+(_[a-z0-9]+)+$`)
)

// shell quotes a word for a shell, where it needs that.
func shell(word string) string {
	if bareWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// sqlName quotes a name for SQL, where it may need that: no reserved word of
// PostgreSQL has an underscore but those of the current session.
func sqlName(name string) string {
	if name == "public" || plainName.MatchString(name) && !strings.HasPrefix(name, "current_") && !strings.HasPrefix(name, "session_") && name != "system_user" {
		return name
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// sqlNames are names as a list of columns.
func sqlNames(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = sqlName(n)
	}
	return strings.Join(quoted, ", ")
}
