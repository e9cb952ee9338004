package kafka

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Retention is how long a topic keeps its records, as the brokers that hold it
// apply it: the topic's own setting, else the broker's default, of which
// log.retention.ms wins over .minutes and .hours; where brokers differ, the
// longest. What a broker does not tell is not known.
type Retention struct {
	// Seconds is retention.ms; +Inf where it is -1 or where the cleanup policy
	// never deletes.
	Seconds Known[float64]
	// Bytes is retention.bytes, for each partition; +Inf likewise.
	Bytes Known[float64]
	// WorstCaseSeconds is how long a record can really stay: Kafka deletes
	// whole segments once their newest record has expired, and a segment takes
	// records for segment.ms. +Inf where the policy compacts too: the cleaner
	// joins segments, and with them old records to young ones.
	WorstCaseSeconds Known[float64]
}

// SizeLimited says that records go by size alone: how old they get depends on
// how much is written, and no setting tells.
func (r Retention) SizeLimited() bool {
	return r.Seconds.OK && math.IsInf(r.Seconds.Value, 1) && r.Bytes.OK && !math.IsInf(r.Bytes.Value, 1)
}

// or takes the longer of each.
func (r Retention) or(other Retention) Retention {
	return Retention{
		Seconds:          both(r.Seconds, other.Seconds, math.Max),
		Bytes:            both(r.Bytes, other.Bytes, math.Max),
		WorstCaseSeconds: both(r.WorstCaseSeconds, other.WorstCaseSeconds, math.Max),
	}
}

// The keys that are asked for, and no other: a broker's answer with all keys of
// a thousand topics is megabytes.
var retentionKeys = []string{"cleanup.policy", "retention.ms", "retention.bytes", "segment.ms"}

// retentionOf reads a topic's effective configuration. What is missing or cannot
// be read is named, and withholds what needs it.
func retentionOf(values map[string]string) (r Retention, _ error) {
	policy, ok := values["cleanup.policy"]
	if !ok {
		return r, fmt.Errorf("it does not tell the topic's cleanup.policy")
	}
	policies := strings.Split(strings.ReplaceAll(policy, " ", ""), ",")
	unlimited := known(math.Inf(1))
	if !slices.Contains(policies, "delete") {
		return Retention{unlimited, unlimited, unlimited}, nil
	}
	var errs []error
	number := func(key string) Known[float64] {
		text, ok := values[key]
		if !ok {
			errs = append(errs, fmt.Errorf("it does not tell the topic's %s", key))
			return Known[float64]{}
		}
		n, err := strconv.ParseInt(text, 10, 64)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %q is no whole number", key, text))
			return Known[float64]{}
		case n < 0:
			return unlimited
		}
		return known(float64(n))
	}
	seconds := func(ms float64) float64 { return ms / 1000 }
	retention, segment := number("retention.ms"), number("segment.ms")
	r.Seconds = retention.then(seconds)
	r.Bytes = number("retention.bytes")
	r.WorstCaseSeconds = both(retention, segment, func(a, b float64) float64 { return a + b }).then(seconds)
	if slices.Contains(policies, "compact") || retention == unlimited {
		r.WorstCaseSeconds = unlimited
	}
	return r, errors.Join(errs...)
}
