// Package matrix injects one fault at a time into the live stack (PostgreSQL,
// Kafka, the reference consumer, the exporter and a real Prometheus with the
// alert rules) and records which alerts fire, how soon, and which fire that
// should not. It has no code of its own outside its tests:
//
//	go test ./deploy/matrix                          a representative part
//	go test ./deploy/matrix -run TestMatrix -matrix=all -timeout=20m
//	go test ./deploy/matrix -run TestMatrix -matrix=table-truncated,idle-night
//
// The rules run on a clock of their own: every duration in them (`for`, windows,
// offsets, intervals) is divided by -matrix.speed, 30 unless set, so that a
// minute of a rule lasts two seconds. Their ratios and expressions stay as they
// are. On a machine that stalls for longer than the rules bridge, a scenario
// says nothing: it is played again, and skipped by name after the third time.
package matrix
