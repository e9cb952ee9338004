package handled

// Count is how many markers of a partition were counted in one span of time,
// and their lowest and highest offset.
type Count struct {
	Min, Max, N int64
}

func (c Count) width() int64 { return c.Max - c.Min + 1 }

// Full says that every offset of the range has a marker.
func (c Count) Full() bool { return c.N >= c.width() }

// All is the offsets of the markers.
func (c Count) All() Range { return Range{First: c.Min, Last: c.Max, Least: c.N, Most: c.N} }

// Diff tells of two counts of one partition in one span which markers went and
// which came. A count without markers has N = 0.
func Diff(before, after Count) (lost, written []Range) {
	before.N, after.N = min(before.N, before.width()), min(after.N, after.width())
	switch {
	case before.N == 0 && after.N == 0:
		return nil, nil
	case before.N == 0:
		return nil, []Range{after.All()}
	case after.N == 0:
		return []Range{before.All()}, nil
	case before.Max < after.Min || after.Max < before.Min:
		return []Range{before.All()}, []Range{after.All()}
	}
	goes := before.Min < after.Min || before.Max > after.Max
	comes := after.Min < before.Min || after.Max > before.Max
	switch n := before.N - after.N; {
	case !comes && n > 0:
		if lost, ok := excess(before, after, n); ok {
			return lost, nil
		}
	case !goes && n < 0:
		if written, ok := excess(after, before, -n); ok {
			return nil, written
		}
	case !goes && !comes:
		return nil, nil
	}
	return both(before, after), both(after, before)
}

// outside is the offsets of a that lie below and above those of b.
func outside(a, b Count) (parts []Range, width int64) {
	for _, r := range []Range{{First: a.Min, Last: b.Min - 1}, {First: b.Max + 1, Last: a.Max}} {
		if r.First <= r.Last {
			parts = append(parts, r)
			width += r.width()
		}
	}
	return parts, width
}

// excess is where the n markers are that a has and b, within a, has not. It is
// false where that cannot be.
func excess(a, b Count, n int64) ([]Range, bool) {
	parts, width := outside(a, b)
	if a.Full() {
		if n < width {
			return nil, false
		}
		for i := range parts {
			parts[i].Least, parts[i].Most = parts[i].width(), parts[i].width()
		}
		if rest := n - width; rest > 0 {
			parts = append(parts, Range{First: b.Min, Last: b.Max, Least: rest, Most: rest})
		}
		return parts, true
	}
	if n < int64(len(parts)) { // each has an end that is a marker's
		return nil, false
	}
	if len(parts) == 1 && max(1, a.N-b.width()) >= n { // there is no room for them within b
		parts[0].Least, parts[0].Most = n, n
		return parts, true
	}
	return []Range{{First: a.Min, Last: a.Max, Least: n, Most: n}}, true
}

// both is what a has and b has not where each has something of its own.
func both(a, b Count) []Range {
	parts, width := outside(a, b)
	for i, r := range parts {
		parts[i].Least, parts[i].Most = 1, min(r.width(), a.N)
		if a.Full() {
			parts[i].Least = r.width()
		}
	}
	lo, hi := max(a.Min, b.Min), min(a.Max, b.Max)
	common := Range{First: lo, Last: hi}
	_, other := outside(b, a)
	// As many as a can have there at most, without those b has there at least.
	most := min(common.width(), a.N-int64(len(parts))) - max(0, b.N-other)
	if a.Full() {
		most = min(most, a.N-width-max(0, b.N-other))
	}
	if most > 0 {
		common.Most = most
		parts = append(parts, common)
	}
	return parts
}
