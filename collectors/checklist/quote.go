package checklist

import (
	"regexp"
	"strings"
)

var bareWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shell quotes a word for a shell, where it needs that.
func shell(word string) string {
	if bareWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
