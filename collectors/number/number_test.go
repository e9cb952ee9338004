package number

import "testing"

func TestGrouped(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 12345678: "12,345,678", -1234567: "-1,234,567", -123: "-123"} {
		if got := Grouped(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}

func TestOf(t *testing.T) {
	for n, want := range map[int64]string{0: "0 records", 1: "1 record", 2000: "2,000 records"} {
		if got := Of(n, "record"); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}
