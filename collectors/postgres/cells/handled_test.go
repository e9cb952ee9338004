package cells

import (
	"slices"
	"testing"
)

func TestMissingMarkers(t *testing.T) {
	t.Parallel()
	of := func(count int64, list ...Offsets) Cell { return Cell{Count: count, Offsets: list} }
	for name, c := range map[string]struct {
		a, b Cell
		want []marks
	}{
		"nothing":             {of(10, Offsets{0, 0, 9, 0}), of(10, Offsets{0, 0, 9, 0}), nil},
		"all":                 {of(15, Offsets{0, 0, 9, 0}, Offsets{1, 5, 9, 0}), Cell{}, []marks{{0, 0, 9, 10}, {1, 5, 9, 5}}},
		"low end":             {of(10, Offsets{0, 0, 9, 0}), of(6, Offsets{0, 4, 9, 0}), []marks{{0, 0, 3, 4}}},
		"both ends":           {of(10, Offsets{0, 0, 9, 0}), of(6, Offsets{0, 2, 7, 0}), []marks{{0, 0, 1, 2}, {0, 8, 9, 2}}},
		"one partition":       {of(15, Offsets{0, 0, 9, 0}, Offsets{1, 5, 9, 0}), of(10, Offsets{0, 0, 9, 0}), []marks{{1, 5, 9, 5}}},
		"from within":         {of(10, Offsets{0, 0, 9, 0}), of(7, Offsets{0, 0, 9, 0}), []marks{{0, 0, 9, 3}}},
		"low end with gaps":   {of(5, Offsets{0, 0, 9, 0}), of(3, Offsets{0, 4, 9, 0}), []marks{{0, 0, 3, 2}}},
		"low end and within":  {of(10, Offsets{0, 0, 9, 0}), of(4, Offsets{0, 4, 9, 0}), []marks{{0, 0, 3, 4}, {0, 4, 9, 2}}},
		"while others came":   {of(10, Offsets{0, 0, 9, 0}), of(16, Offsets{0, 4, 19, 0}), []marks{{0, 0, 3, 4}}},
		"one for another":     {of(10, Offsets{0, 0, 9, 0}), of(10, Offsets{0, 20, 29, 0}), []marks{{0, 0, 9, 10}}},
		"counted more":        {of(7, Offsets{0, 0, 9, 0}), of(10, Offsets{0, 0, 9, 0}), nil},
		"two, with gaps":      {of(6, Offsets{0, 0, 9, 0}, Offsets{1, 0, 1, 0}), Cell{}, []marks{{0, 0, 9, 5}, {1, 0, 1, 1}}},
		"no such columns":     {of(6), Cell{}, nil},
		"too few for a range": {of(1, Offsets{0, 0, 9, 0}), of(1, Offsets{0, 5, 9, 0}), nil},
	} {
		if got := missing(c.a, c.b); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestGoneIsBounded(t *testing.T) {
	t.Parallel()
	var h Partition
	for i := range int64(10_000) {
		h.lose(Lost{First: i * 10, Last: i*10 + 8, Markers: 5, Newest: i})
	}
	if len(h.Gone) != maxGone {
		t.Errorf("%d ranges", len(h.Gone))
	}
	var n int64
	for _, g := range h.Gone {
		n += g.Markers
	}
	if n != 50_000 {
		t.Errorf("%d markers, want 50000", n)
	}
	h.restore(0, 200_000, 50_000)
	if len(h.Gone) != 0 {
		t.Errorf("%+v left after all were written again", h.Gone)
	}
	// A full range restored in part, by fewer markers than its offsets.
	h.lose(Lost{First: 0, Last: 2999, Markers: 3000})
	h.restore(0, 4000, 904)
	if want := []Lost{{904, 2999, 2096, 0}}; !slices.Equal(h.Gone, want) {
		t.Errorf("%+v, want %+v", h.Gone, want)
	}
	h.restore(2000, 2500, 501)
	if want := []Lost{{904, 1999, 1096, 0}, {2501, 2999, 499, 0}}; !slices.Equal(h.Gone, want) {
		t.Errorf("%+v, want %+v", h.Gone, want)
	}
}
