package config

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// suggestion names the flag that a mistyped key most likely meant.
func suggestion(name string, flags map[string]*kong.Flag) string {
	best, distance := "", min(4, 2+len(name)/3)
	// Of a program's flags those without a variable are not for the file
	// either; the keys of a list's entries have none at all.
	program := slices.ContainsFunc(slices.Collect(maps.Values(flags)), func(f *kong.Flag) bool { return len(f.Envs) > 0 })
	for flag, f := range flags {
		if program && len(f.Envs) == 0 {
			continue
		}
		if d := editDistance(name, flag); d < distance || d == distance && best != "" && flag < best {
			best, distance = flag, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// sections are what the flags' names begin with.
func sections(flags map[string]*kong.Flag) []string {
	seen := map[string]bool{}
	for flag := range flags {
		if section, _, dotted := strings.Cut(flag, "."); dotted {
			seen[section] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// inSection says whether a key is one of a section that there is.
func inSection(name string, flags map[string]*kong.Flag) bool {
	section, _, _ := strings.Cut(name, ".")
	return slices.Contains(sections(flags), section)
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

// Misspelt is the name that one was most likely meant to be; empty where it is
// one of them, or like none.
func Misspelt(name string, names []string) string {
	best, distance := "", min(2, len(name)/2)+1
	for _, one := range names {
		d := editDistance(name, one)
		if d == 0 {
			return ""
		}
		if d < distance {
			best, distance = one, d
		}
	}
	return best
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
