package config

import "testing"

// How far apart names are is counted in letters put in, left out or exchanged.
func TestEditDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"abc", "bc", 1}, {"bc", "abc", 1}, {"abc", "axc", 1}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}} {
		if got := editDistance(tt.a, tt.b); got != tt.want {
			t.Errorf("%q to %q: %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestNearestNames(t *testing.T) {
	for want, names := range map[string][]string{
		"":                                      nil,
		"; there is orders":                     {"orders"},
		"; the nearest names are order, orders": {"orders", "order"},
		"; the nearest names are orde, order, orders": {"payments", "orders", "orde", "order"},
	} {
		if got := Nearest("ordr", names); got != want {
			t.Errorf("%v: %q, want %q", names, got, want)
		}
	}
	for name, want := range map[string]string{"orders": "", "ordrs": "orders", "odrs": "orders", "ors": "", "payments": "", "x": "", "ab": "a"} {
		if got := Misspelt(name, []string{"orders", "a"}); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
