package demo

import (
	"fmt"
	"strings"
	"time"
)

// Fault is one thing that goes wrong in the demo.
type Fault struct {
	Name string
	// Story says what happens and what to look for.
	Story string
	apply func(*stack)
}

// Faults are the faults the demo knows, by name.
func Faults() []Fault {
	return []Fault{
		{"short-retention", "The pruner keeps 3 days of markers on a 7-day topic: watch the retention ratio fall below 1 and the unprotected records grow.",
			func(s *stack) {
				s.pruner.Retention = 3 * 24 * time.Hour
				s.pruner.Allow = []string{"retention"}
			}},
		{"id-reuse", "The producer gives 2 % of its events an id that another event had: they vanish as duplicates of another offset.",
			func(s *stack) { s.producer.ReuseIDs = 0.02 }},
		{"poison", "1 % of the events cannot be applied: they go to the dead letters and hold nothing up.",
			func(s *stack) { s.producer.Poison = 0.01 }},
		{"sequence-gap", "The producer loses 1 % of its events after numbering them: events_lost_total counts the gaps.",
			func(s *stack) { s.producer.Gaps = 0.01 }},
	}
}

func findFault(name string) (*Fault, error) {
	if name == "" {
		return nil, nil
	}
	for _, f := range Faults() {
		if f.Name == name {
			return &f, nil
		}
	}
	return nil, fmt.Errorf("--fault=%s is not known: want %s", name, FaultNames())
}

// FaultNames lists the names for help and errors.
func FaultNames() string {
	var names []string
	for _, f := range Faults() {
		names = append(names, f.Name)
	}
	return strings.Join(names, ", ")
}
