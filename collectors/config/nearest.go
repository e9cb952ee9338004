package config

import (
	"cmp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// suggestion names the flag that a mistyped key most likely meant.
func suggestion(name string, flags map[string]*kong.Flag) string {
	best, distance := "", 4
	for flag := range flags {
		if d := editDistance(name, flag); d < distance || d == distance && best != "" && flag < best {
			best, distance = flag, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// Nearest says which of the names are most like one that is none of them: the
// end of an error's line, empty where there are no names.
func Nearest(name string, names []string) string {
	names = slices.Clone(names)
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(editDistance(name, a)-editDistance(name, b), strings.Compare(a, b))
	})
	switch n := len(names); {
	case n == 0:
		return ""
	case n == 1:
		return "; there is " + names[0]
	default:
		return "; the nearest names are " + strings.Join(names[:min(3, n)], ", ")
	}
}

func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next := min(row[j]+1, row[j+1]+1, diagonal+cost)
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}
