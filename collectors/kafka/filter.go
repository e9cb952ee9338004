package kafka

import (
	"fmt"
	"regexp"
)

// filter lets names in by a fully anchored RE2 expression and keeps some of
// them out again by another.
type filter struct {
	include, exclude *regexp.Regexp // nil: everything, nothing
}

// newFilter compiles both expressions. flag is the include's, for errors.
func newFilter(flag, include, exclude string) (filter, error) {
	var f filter
	for _, e := range []struct {
		flag, text string
		into       **regexp.Regexp
	}{{flag, include, &f.include}, {flag + "-exclude", exclude, &f.exclude}} {
		if e.text == "" {
			continue
		}
		// Compiled alone first: an error should quote what the user wrote.
		if _, err := regexp.Compile(e.text); err != nil {
			return f, fmt.Errorf("%s: %w (want an RE2 expression, such as orders|payments-.*; it is anchored at both ends)", e.flag, err)
		}
		re, err := regexp.Compile("^(?:" + e.text + ")$")
		if err != nil {
			return f, fmt.Errorf("%s: %w", e.flag, err)
		}
		*e.into = re
	}
	return f, nil
}

func (f filter) matches(name string) bool {
	return (f.include == nil || f.include.MatchString(name)) && (f.exclude == nil || !f.exclude.MatchString(name))
}
